"""The live side of garbage collection.

Two vocabularies over `lakebed.gc.service`: the contract's ("prepare"), and our own for our collectors
(`lakebed.gc.protocol.messages`), which says more: manifests, states, what was condemned. Neither deletes anything here.
"""

from __future__ import annotations

import logging

from starlette.responses import Response

from lakebed import wire
from lakebed.base import RunId
from lakebed.gc.protocol import (
    Apply,
    Condemn,
    End,
    GiveUp,
    Mark,
    PrepareCommits,
    Question,
    ReadUncommitted,
    RunKind,
    StartRun,
    Sweep,
    input_folder,
)
from lakebed.gc.service import BadContinuation, CollectionService, Reader, Searches
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer
from lakebed.server.routing import Route
from lakebed.server.state import AppState
from lakebed.versions import Options

logger = logging.getLogger(__name__)


class Contract:
    """The contract's own operations for collectors: what it calls preparing is reading, here as there."""

    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog

    async def config(self, _: RestRequest) -> Response:
        """No object is kept for its age here; for this long an address that was handed out may be linked."""
        return answer(wire.GarbageCollectionConfig(grace_period=Options().upload_ttl_ms // 1000))

    async def prepare_commits(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        service = CollectionService(repository.versions)
        started = await service.start(StartRun(kind=RunKind.COMMITTED))
        prepared = await service.prepare_commits(started.run_id)
        doomed = input_folder(RunKind.COMMITTED, RunId(started.run_id), "doomed")
        return answer(
            wire.GarbageCollectionPrepareResponse(
                run_id=prepared.run_id,
                gc_commits_location=repository.full_address(prepared.commits.folder),
                gc_addresses_location=repository.full_address(doomed),
            ),
            201,
        )

    async def prepare_uncommitted(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.PrepareGCUncommittedRequest, is_optional=True)
        service = CollectionService(repository.versions)
        if body.continuation_token:
            run_id, _, token = body.continuation_token.partition(":")
            if not token:
                raise BadContinuation("not a continuation token")
        else:
            run_id, token = (await service.start(StartRun(kind=RunKind.UNCOMMITTED))).run_id, None
        following = ReadUncommitted(continuation_token=token)
        # Only tokens of this route are good here: a run that was begun by a collector is not this caller's to abandon.
        page = await service.read_uncommitted(run_id, following, reader=Reader.CONTRACT)
        if page.continuation_token is None:
            # The contract has no word for what comes next, and while a run marks nothing is cleaned up. All that this
            # one wanted to read of the records that would go is read: copies come last.
            await service.abandon(page.run_id)
        return answer(
            wire.PrepareGCUncommittedResponse(
                run_id=page.run_id,
                gc_uncommitted_location=repository.full_address(page.location),
                continuation_token=f"{page.run_id}:{page.continuation_token}" if page.continuation_token else "",
            ),
            201,
        )


class Runs:
    """Our own routes: each decodes one record, makes one call, and answers with one record."""

    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog
        self._searches = Searches(state.ports)

    async def _service(self, request: RestRequest) -> CollectionService:
        repository = await self._catalog.get(request.args[0])
        return CollectionService(repository.versions, user_id=request.identity.user_id, searches=self._searches)

    async def start(self, request: RestRequest) -> Response:
        service = await self._service(request)
        return answer(await service.start(await request.decoded(StartRun)), 201)

    async def list(self, request: RestRequest) -> Response:
        return answer(await (await self._service(request)).runs())

    async def get(self, request: RestRequest) -> Response:
        return answer(await (await self._service(request)).run(request.args[1]))

    async def why(self, request: RestRequest) -> Response:
        service = await self._service(request)
        question = Question(**{name: request.query(name) for name in Question._fields})
        return answer(await service.why_page(question, request.query("continuation_token") or None))

    async def uncommitted(self, request: RestRequest) -> Response:
        service = await self._service(request)
        body = await request.decoded(ReadUncommitted, is_optional=True)
        return answer(await service.read_uncommitted(request.args[1], body))

    async def commits(self, request: RestRequest) -> Response:
        service = await self._service(request)
        body = await request.decoded(PrepareCommits, is_optional=True)
        return answer(await service.prepare_commits(request.args[1], body))

    async def marked(self, request: RestRequest) -> Response:
        service = await self._service(request)
        return answer(await service.mark(request.args[1], await request.decoded(Mark)))

    async def applying(self, request: RestRequest) -> Response:
        service = await self._service(request)
        return answer(await service.apply(request.args[1], await request.decoded(Apply)))

    async def planning(self, request: RestRequest) -> Response:
        return answer(await (await self._service(request)).planning())

    async def purging(self, request: RestRequest) -> Response:
        return answer(await (await self._service(request)).purging())

    async def adopting(self, request: RestRequest) -> Response:
        adopted = await (await self._service(request)).adopting()
        logger.warning("gc: %s chose this installation for repository %s", adopted.adopted_by, request.args[0])
        return answer(adopted)

    async def condemn(self, request: RestRequest) -> Response:
        service = await self._service(request)
        return answer(await service.condemn(request.args[1], await request.decoded(Condemn)))

    async def give_up(self, request: RestRequest) -> Response:
        service = await self._service(request)
        return answer(await service.give_up(request.args[1], await request.decoded(GiveUp)))

    async def sweeping(self, request: RestRequest) -> Response:
        service = await self._service(request)
        return answer(await service.sweep(request.args[1], await request.decoded(Sweep)))

    async def ended(self, request: RestRequest) -> Response:
        service = await self._service(request)
        return answer(await service.end(request.args[1], await request.decoded(End)))

    async def abandoned(self, request: RestRequest) -> Response:
        return answer(await (await self._service(request)).abandon(request.args[1]))


def routes(state: AppState) -> list[Route]:
    contract, runs = Contract(state), Runs(state)
    repository = "/repositories/{repository}"
    run = repository + "/gc/runs/{run_id}"
    return [
        Route("GET", "/config/garbage-collection", contract.config),
        Route("POST", repository + "/gc/prepare_commits", contract.prepare_commits),
        Route("POST", repository + "/gc/prepare_uncommited", contract.prepare_uncommitted),
        Route("GET", repository + "/gc/runs", runs.list),
        Route("POST", repository + "/gc/runs", runs.start),
        Route("GET", repository + "/gc/why", runs.why),
        Route("GET", run, runs.get),
        Route("POST", run + "/uncommitted", runs.uncommitted),
        Route("POST", run + "/commits", runs.commits),
        Route("POST", run + "/marked", runs.marked),
        Route("POST", repository + "/gc/planning", runs.planning),
        Route("POST", repository + "/gc/purging", runs.purging),
        Route("POST", repository + "/gc/adopting", runs.adopting),
        Route("POST", run + "/applying", runs.applying),
        Route("POST", run + "/condemn", runs.condemn),
        Route("POST", run + "/give-up", runs.give_up),
        Route("POST", run + "/sweeping", runs.sweeping),
        Route("POST", run + "/ended", runs.ended),
        Route("POST", run + "/abandoned", runs.abandoned),
    ]
