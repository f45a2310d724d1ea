"""Back out of quarantine, page by page: one record in, one out (`lakebed.handoff`, restoring)."""

from __future__ import annotations

from starlette.responses import Response

from lakebed.handoff import Restore
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer
from lakebed.server.routing import Route
from lakebed.server.state import AppState
from lakebed.upkeep import Restoring


class Restores:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog

    async def restore(self, request: RestRequest) -> Response:
        """What is restored is staged, so the branch must be one that may be written to. Without a name it is the
        repository's default branch."""
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(Restore)
        branch = body.branch or repository.record.default_branch
        await repository.check_branch_writable(branch)
        return answer(await Restoring(repository.versions).restore(body, branch=branch))


def routes(state: AppState) -> list[Route]:
    return [Route("POST", "/repositories/{repository}/gc/restore", Restores(state).restore)]
