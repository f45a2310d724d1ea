"""Quotas: listed, set, removed, counted."""

from __future__ import annotations

from collections.abc import Callable

from lakebed import wire
from lakebed.catalog import Repository
from lakebed.operations import sandboxes
from lakebed.quotas import Books, QuotaRecord, of_branch, of_repository, of_user
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.server.state import AppState


class Quotas(Resource):
    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._books = Books(state.catalog.meter)

    @in_repository(sandboxes.LIST_QUOTAS)
    async def list(self, request: RestRequest, repository: Repository) -> wire.QuotaList:
        branch = request.query("branch")
        uid, shown = repository.versions.uid, _shown_of(repository)
        if branch:
            return wire.QuotaList(results=[shown(branch, await self._books.get(of_branch(uid, branch)))])
        return wire.QuotaList(results=[shown(name, record) for name, record in await self._books.of_repository(uid)])

    @in_repository(sandboxes.SET_QUOTA)
    async def set(self, request: RestRequest, repository: Repository, body: wire.QuotaSetting) -> wire.Quota:
        branch = request.query("branch")
        uid, by = repository.versions.uid, request.identity.user_id
        if branch:
            await repository.versions.refs.get_branch(branch)
            scope = of_branch(uid, branch)
            record = await self._books.set(scope, limit_bytes=body.limit_bytes, by=by, restart=body.restart)
        else:
            record = await self._books.set(of_repository(uid), limit_bytes=body.limit_bytes, by=by)
            if not record.counted_ms or body.restart:
                record = await self._books.count_stored(uid, repository.objectstore)
        await repository.guards.confirm()
        return _shown_of(repository)(branch, record)

    @in_repository(sandboxes.REMOVE_QUOTA)
    async def remove(self, request: RestRequest, repository: Repository) -> None:
        branch = request.query("branch")
        uid = repository.versions.uid
        await self._books.remove(of_branch(uid, branch) if branch else of_repository(uid))

    @in_repository(sandboxes.COUNT_QUOTA)
    async def count(self, _: RestRequest, repository: Repository) -> wire.Quota:
        record = await self._books.count_stored(repository.versions.uid, repository.objectstore)
        return _shown_of(repository)("", record)

    @serves(sandboxes.GET_USER_QUOTA)
    async def get_user(self, request: RestRequest) -> wire.Quota:
        return _shown("user", request.args[0], await self._books.get(of_user(request.args[0])))

    @serves(sandboxes.SET_USER_QUOTA)
    async def set_user(self, request: RestRequest, body: wire.QuotaSetting) -> wire.Quota:
        user = await self._state.accounts.get_user(request.args[0])
        record = await self._books.set(
            of_user(user.id), limit_bytes=body.limit_bytes, by=request.identity.user_id, restart=body.restart
        )
        return _shown("user", user.id, record)

    @serves(sandboxes.REMOVE_USER_QUOTA)
    async def remove_user(self, request: RestRequest) -> None:
        await self._books.remove(of_user(request.args[0]))


def _shown_of(repository: Repository) -> Callable[[str, QuotaRecord], wire.Quota]:
    """Show those of a repository: its own where the branch is empty."""

    def shown(branch: str, record: QuotaRecord) -> wire.Quota:
        return _shown("branch", branch, record) if branch else _shown("repository", repository.id, record)

    return shown


def _shown(of: str, name: str, record: QuotaRecord) -> wire.Quota:
    return wire.Quota(
        of=of,
        name=name,
        limit_bytes=record.limit_bytes,
        used_bytes=record.used_bytes,
        reserved_bytes=record.granted_bytes,
        set_by=record.set_by,
        set_date=record.set_ms // 1000,
        counted_date=record.counted_ms // 1000,
    )
