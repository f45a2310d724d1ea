"""Start, watch and stop collections on this server (`lakebed.gc.messages`, jobs.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakebed.auth import NotPermitted
from lakebed.gc import messages
from lakebed.gc.live import JobBook
from lakebed.operations.gc import collectors
from lakebed.server.http.gate import address_of, require
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, serves

from .runs import collected_versions, deleted_uid

NEEDED: Final[Mapping[type[messages.Request], tuple[str, ...]]] = {
    messages.PlanRequest: ("gc:Plan",),
    messages.ApplyRequest: ("gc:Apply",),
    messages.RunRequest: ("gc:Plan", "gc:Apply"),
    messages.PurgeRequest: ("gc:Apply",),
    messages.SimulateRequest: ("gc:Plan",),
    messages.PlanErasureRequest: ("gc:Plan", "gc:Erase"),
    # Certifying begins a run, as a plan does.
    messages.EraseRequest: ("gc:Plan", "gc:Apply", "gc:Erase"),
}
"""Permissions that a job needs besides those of the table, by request type: its collector calls these operations."""
DELETED_NEEDED: Final[Mapping[type[messages.Request], tuple[str, ...]]] = {
    messages.PlanRequest: (),
    messages.ApplyRequest: ("gc:CollectDeleted",),
}
"""Additional permissions for a deleted repository, by the request types that it supports."""
READ: Final = ("fs:ReadRepository", "gc:ReadRules", "gc:ReadRuns")
ALSO_DONE: Final[Mapping[str, tuple[str, ...]]] = {"gc:Plan": ("gc:Abandon",)}
"""A plan that fails abandons its run."""
SWEEPING: Final = ("fs:DeleteBranch",)
"""Permissions that a sweep needs on each branch."""


class Jobs(Resource):
    async def _book(self, request: RestRequest) -> JobBook:
        return JobBook(await collected_versions(self._catalog, request))

    @serves(collectors.START_GC_JOB)
    async def start(self, request: RestRequest, body: messages.StartJob) -> messages.JobView:
        if request.identity.delegation is not None:
            raise NotPermitted("insufficient permissions: a job starts no other")
        needed, uid = NEEDED[type(body.request)], ""
        if (asked_uid := deleted_uid(request)) is not None:
            check_of_deleted(body.request)
            # If several deleted repositories had the name, the collector asks for this uid.
            uid = (await self._catalog.open_deleted(request.args[0], asked_uid))[0]
            needed += DELETED_NEEDED[type(body.request)]
        asked = [one for one in collectors.START_GC_JOB.asked_later if one.action in needed]
        require(asked, request.permissions, {"repository": request.args[0]})
        return await self._state.collectors.start(
            await self._book(request),
            body.request,
            repository=request.args[0],
            deleted=uid,
            endpoint=_own_endpoint(request),
            identity=request.identity,
            address=address_of(request),
            actions=(*READ, *needed, *(also for action in needed for also in ALSO_DONE.get(action, ()))),
            on_branches=SWEEPING if isinstance(body.request, messages.RunRequest) and body.request.branches else (),
        )

    @serves(collectors.LIST_GC_JOBS)
    async def list(self, request: RestRequest) -> messages.JobList:
        return messages.JobList(jobs=tuple(await (await self._book(request)).list()))

    @serves(collectors.GET_GC_JOB)
    async def get(self, request: RestRequest) -> messages.JobView:
        return await (await self._book(request)).get(request.args[1])

    @serves(collectors.STOP_GC_JOB)
    async def stop(self, request: RestRequest) -> messages.JobView:
        return await (await self._book(request)).ask_to_stop(request.args[1])


def check_of_deleted(request: messages.Request) -> None:
    """Check that the request is supported for a deleted repository."""
    plans = isinstance(request, messages.PlanRequest) and [kind.spec.of_deleted for kind in request.kinds] == [True]
    if not plans and not (isinstance(request, messages.ApplyRequest) and request.window is None):
        raise messages.InvalidRequest(
            "the repository is deleted: a job plans the kind deleted alone, or applies such a plan without a window"
        )


def _own_endpoint(request: RestRequest) -> str:
    """Return the URL where this request arrived. A collector on this machine can use it, even behind a proxy."""
    host, port = request.scope["server"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
