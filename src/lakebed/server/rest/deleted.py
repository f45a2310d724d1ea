"""Deleted repositories, the way back, and protection against deletion."""

from __future__ import annotations

from lakebed import wire
from lakebed.catalog import DeletedRepository
from lakebed.operations import deleted
from lakebed.server.gate import require
from lakebed.server.requests import RestRequest
from lakebed.server.routing import Route
from lakebed.server.state import AppState

from .repositories import repository_record


class Deleted:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog

    async def list(self, request: RestRequest) -> wire.DeletedRepositoryList:
        found = await self._catalog.deleted.list(prefix=request.query("prefix"))
        return wire.DeletedRepositoryList(results=[_deleted(one) for one in found])

    async def undelete(self, request: RestRequest, body: wire.RepositoryUndeletion) -> wire.Repository:
        if body.name:
            require(deleted.UNDELETE_REPOSITORY.asked_later, request.permissions, {"name": body.name})
        back = await self._catalog.undelete(request.args[0], uid=body.uid, new_name=body.name or "")
        return repository_record(back.id, back.record)

    async def forget(self, request: RestRequest) -> None:
        await self._catalog.deleted.forget(request.args[0], uid=request.query("uid"))

    async def protection(self, request: RestRequest) -> wire.DeleteProtection:
        record = (await self._catalog.get(request.args[0])).record
        return wire.DeleteProtection(repository=record.protected, branches=list(record.protected_branches))

    async def protect(self, request: RestRequest, body: wire.DeleteProtection) -> None:
        await self._catalog.protect_deletion(request.args[0], repository=body.repository, branches=body.branches)


def _deleted(one: DeletedRepository) -> wire.DeletedRepository:
    record = one.record
    return wire.DeletedRepository(
        id=record.name,
        uid=one.uid,
        state=record.state,
        storage_namespace=record.repository.storage_namespace if record.repository else "",
        deletion_date=record.deleted_ms // 1000,
        deleted_by=record.deleted_by,
        kept_until=record.kept_until_ms // 1000,
    )


def routes(state: AppState) -> list[Route]:
    here = Deleted(state)
    return [
        Route(deleted.LIST_DELETED_REPOSITORIES, here.list),
        Route(deleted.UNDELETE_REPOSITORY, here.undelete),
        Route(deleted.FORGET_REPOSITORY, here.forget),
        Route(deleted.GET_DELETE_PROTECTION, here.protection),
        Route(deleted.SET_DELETE_PROTECTION, here.protect),
    ]
