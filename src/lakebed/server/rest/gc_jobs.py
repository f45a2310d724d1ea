"""Collections on this server: starting, watching and stopping them (`lakebed.gc.protocol`, jobs.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from lakebed.auth import NotPermitted
from lakebed.gc.protocol import JobAction, JobList, StartJob
from lakebed.gc.service import JobBook
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer
from lakebed.server.routing import Route
from lakebed.server.state import AppState

NEEDED: Final[Mapping[JobAction, tuple[str, ...]]] = {
    JobAction.PLAN: ("gc:Plan",),
    JobAction.APPLY: ("gc:Apply",),
    JobAction.RUN: ("gc:Plan", "gc:Apply"),
    JobAction.PURGE: ("gc:Apply",),
}
"""What starting a job needs besides what needs.py says: the same as its collector will be asked for."""
READ: Final = ("fs:ReadRepository", "gc:ReadRules", "gc:ReadRuns")
ALSO_DONE: Final[Mapping[str, tuple[str, ...]]] = {"gc:Plan": ("gc:Abandon",), "gc:Apply": ()}
"""A plan that fails ends the run that it began."""


class Jobs:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog
        self._collectors = state.collectors

    async def _book(self, request: RestRequest) -> JobBook:
        return JobBook((await self._catalog.get(request.args[0])).versions)

    async def start(self, request: RestRequest) -> Response:
        body = await request.decoded(StartJob)
        if request.identity.delegation is not None:
            raise NotPermitted("insufficient permissions: a job starts no other")
        needed = NEEDED[body.action]
        for action in needed:
            request.permissions.require(action, f"arn:lakefs:fs:::repository/{request.args[0]}")
        job = await self._collectors.start(
            await self._book(request),
            body,
            repository=request.args[0],
            endpoint=_own_endpoint(request),
            identity=request.identity,
            actions=(*READ, *needed, *(also for action in needed for also in ALSO_DONE[action])),
        )
        return answer(job, 201)

    async def list(self, request: RestRequest) -> Response:
        return answer(JobList(jobs=tuple(await (await self._book(request)).list())))

    async def get(self, request: RestRequest) -> Response:
        return answer(await (await self._book(request)).get(request.args[1]))

    async def stop(self, request: RestRequest) -> Response:
        return answer(await (await self._book(request)).ask_to_stop(request.args[1]))


def routes(state: AppState) -> list[Route]:
    here = Jobs(state)
    jobs = "/repositories/{repository}/gc/jobs"
    return [
        Route("POST", jobs, here.start),
        Route("GET", jobs, here.list),
        Route("GET", jobs + "/{job_id}", here.get),
        Route("DELETE", jobs + "/{job_id}", here.stop),
    ]


def _own_endpoint(request: RestRequest) -> str:
    """Where this request arrived: a collector on this machine can go there too, whatever stands before us."""
    host, port = request.scope["server"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
