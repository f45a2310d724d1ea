"""Restore objects of deferred runs, page by page: one record in, one out (`lakebed.gc.messages`, restoring).

Besides `gc:Restore` on the repository, each object needs the permissions of an upload or a copy: to write its path,
and to read its former path if that differs. Refused objects are counted as failed.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakebed.auth import NotPermitted, Permissions
from lakebed.gc.live import CollectionService, Refusal
from lakebed.gc.messages import Restore, RestorePage
from lakebed.operations.gc import collectors
from lakebed.server.http.gate import require
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Route
from lakebed.server.state import AppState


class Restores:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog
        self._key = state.continuation_key

    async def restore(self, request: RestRequest, body: Restore) -> RestorePage:
        """Restore a page. Restored objects are staged, so the branch must be writable. Without a branch name, use the
        repository's default branch.
        """
        repository = await self._catalog.get(request.args[0])
        branch = body.branch or repository.record.default_branch
        await repository.guards.check_branch_writable(branch)
        refusal = _refusal(request.permissions, {"repository": request.args[0], "branch": branch})
        service = CollectionService(
            repository.versions, default_branch=branch, refusal=refusal, continuation_key=self._key
        )
        return await service.restore(body)


def _refusal(permissions: Permissions, names: Mapping[str, str]) -> Refusal:
    write, read = collectors.RESTORE_GC_OBJECTS.asked_later

    def refusal(path: str, target: str) -> str:
        try:
            require([write], permissions, {**names, "path": target})
            # An object of another branch may be restored to this one, and no record names its former branch.
            if path and (path != target or permissions.heeds_refs(read.action)):
                require([read], permissions, {**names, "path": path})
        except NotPermitted as error:
            return str(error)
        return ""

    return refusal


def routes(state: AppState) -> list[Route]:
    return [Route(collectors.RESTORE_GC_OBJECTS, Restores(state).restore)]
