"""Back out of quarantine, page by page: one record in, one out (`lakebed.gc.protocol`, restoring).

Besides `gc:Restore` on the repository (needs.py) each object asks for what an upload or a copy of it would: to write
its path, and to read the path that it had, where that is another one. What is refused counts as failed.
"""

from __future__ import annotations

from starlette.responses import Response

from lakebed.auth import Permissions
from lakebed.gc.protocol import Restore
from lakebed.gc.service import CollectionService, Refusal
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer
from lakebed.server.routing import Route
from lakebed.server.state import AppState


class Restores:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog
        self._key = state.continuation_key

    async def restore(self, request: RestRequest) -> Response:
        """What is restored is staged, so the branch must be one that may be written to. Without a name it is the
        repository's default branch."""
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(Restore)
        branch = body.branch or repository.record.default_branch
        await repository.check_branch_writable(branch)
        refusal = _refusal(request.permissions, request.args[0])
        service = CollectionService(
            repository.versions, default_branch=branch, refusal=refusal, continuation_key=self._key
        )
        return answer(await service.restore(body))


def _refusal(permissions: Permissions, repository: str) -> Refusal:
    def refusal(path: str, target: str) -> str:
        needs = [("fs:WriteObject", target)]
        if path and path != target:
            needs.append(("fs:ReadObject", path))
        for action, object_ in needs:
            arn = f"arn:lakefs:fs:::repository/{repository}/object/{object_}"
            if not permissions.allows(action, arn):
                return f"insufficient permissions: {permissions.user_id} needs {action} on {arn}"
        return ""

    return refusal


def routes(state: AppState) -> list[Route]:
    return [Route("POST", "/repositories/{repository}/gc/restore", Restores(state).restore)]
