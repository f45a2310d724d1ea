"""Deleted repositories, branches and tags: list and undelete them, and protect against deletion."""

from __future__ import annotations

import builtins
from typing import Final, TypeVar

from starlette.responses import Response

from lakebed import wire
from lakebed.base import Etags
from lakebed.catalog import DeletedRepository, Repository
from lakebed.operations import AnyOperation, deleted
from lakebed.server.http.gate import require
from lakebed.server.http.requests import RestRequest, answer, page_of
from lakebed.server.http.routing import Resource, Route, in_repository, serves
from lakebed.versions import RefKind

from .repositories import repository_record

D = TypeVar("D", wire.DeletedRepository, wire.DeletedRef)


class Deleted(Resource):
    @serves(deleted.LIST_DELETED_REPOSITORIES)
    async def list(self, request: RestRequest) -> wire.DeletedRepositoryList:
        found = await self._catalog.deleted.list(prefix=request.query("prefix"))
        page, pagination = _page(request, [_deleted(one) for one in found])
        return wire.DeletedRepositoryList(pagination=pagination, results=page)

    @serves(deleted.UNDELETE_REPOSITORY)
    async def undelete(self, request: RestRequest, body: wire.RepositoryUndeletion) -> wire.Repository:
        if body.name:
            require(deleted.UNDELETE_REPOSITORY.asked_later, request.permissions, {"name": body.name})
        back = await self._catalog.undelete(request.args[0], uid=body.uid, new_name=body.name or "")
        return repository_record(back.id, back.record)

    @serves(deleted.FORGET_REPOSITORY)
    async def forget(self, request: RestRequest) -> None:
        await self._catalog.deleted.forget(request.args[0], uid=request.query("uid"))

    @serves(deleted.GET_DELETE_PROTECTION)
    async def protection(self, request: RestRequest) -> Response:
        record, etag = await self._catalog.deletion_protection(request.args[0])
        response = answer(wire.DeleteProtection(repository=record.protected, branches=list(record.protected_branches)))
        response.headers["etag"] = f'"{etag}"'
        return response

    @serves(deleted.SET_DELETE_PROTECTION)
    async def protect(self, request: RestRequest, body: wire.DeleteProtection) -> None:
        header = request.header(b"if-match")
        await self._catalog.protect_deletion(
            request.args[0],
            repository=body.repository,
            branches=body.branches,
            if_match=None if header is None else Etags.read(header),
        )


_KINDS: Final[dict[AnyOperation, RefKind]] = {
    deleted.LIST_DELETED_BRANCHES: RefKind.BRANCH,
    deleted.LIST_DELETED_TAGS: RefKind.TAG,
    deleted.UNDELETE_BRANCH: RefKind.BRANCH,
    deleted.UNDELETE_TAG: RefKind.TAG,
    deleted.FORGET_BRANCH: RefKind.BRANCH,
    deleted.FORGET_TAG: RefKind.TAG,
    deleted.LIST_BRANCH_MOVES: RefKind.BRANCH,
    deleted.LIST_TAG_MOVES: RefKind.TAG,
}
"""No kind is assumed: a tag's operation must never act on the branch of its name."""


class DeletedRefs(Resource):
    """Deleted branches, or deleted tags: the operation says which."""

    def routes(self) -> builtins.list[Route]:
        routes = super().routes()
        for route in routes:
            assert route.operation in _KINDS, f"{route.operation.id}: of branches, or of tags?"
        return routes

    @in_repository(deleted.LIST_DELETED_BRANCHES)
    @in_repository(deleted.LIST_DELETED_TAGS)
    async def list(self, request: RestRequest, repository: Repository) -> wire.DeletedRefList:
        kind = _kind_of(request)
        shows_hidden = kind is RefKind.TAG or request.flag("show_hidden")
        results = [
            wire.DeletedRef(
                id=one.name,
                commit_id=one.commit_id,
                deletion_date=one.deleted_ms // 1000,
                deleted_by=one.deleted_by,
                kept_until=one.kept_until_ms // 1000,
                hidden=one.is_hidden,
            )
            for one in await repository.versions.refs.list_deleted(kind)
            if one.name.startswith(request.query("prefix")) and (shows_hidden or not one.is_hidden)
        ]
        page, pagination = _page(request, results)
        return wire.DeletedRefList(pagination=pagination, results=page)

    @in_repository(deleted.UNDELETE_BRANCH)
    @in_repository(deleted.UNDELETE_TAG)
    async def undelete(self, request: RestRequest, repository: Repository) -> wire.Ref:
        name, changes = request.args[1], repository.changes
        undelete = changes.undelete_tag if _kind_of(request) is RefKind.TAG else changes.undelete_branch
        return wire.Ref(id=name, commit_id=await undelete(name, by=request.identity.user_id))

    @in_repository(deleted.FORGET_BRANCH)
    @in_repository(deleted.FORGET_TAG)
    async def forget(self, request: RestRequest, repository: Repository) -> None:
        await repository.changes.forget_deleted(_kind_of(request), request.args[1])

    @in_repository(deleted.LIST_BRANCH_MOVES)
    @in_repository(deleted.LIST_TAG_MOVES)
    async def moves(self, request: RestRequest, repository: Repository) -> wire.RefMoveList:
        before_ms = request.integer("after", 0) or None
        found, has_more = await repository.versions.refs.moves(
            _kind_of(request), request.args[1], before_ms=before_ms, limit=request.amount()
        )
        results = [
            wire.RefMove(
                commit_id=move.after, before=move.before, operation=move.operation, user=move.by, date_ms=move.at_ms
            )
            for move in found
        ]
        last = str(found[-1].at_ms) if found else ""
        return wire.RefMoveList(pagination=page_of(results, has_more=has_more, last=last), results=results)


def _kind_of(request: RestRequest) -> RefKind:
    assert request.operation is not None
    return _KINDS[request.operation]


def _page(request: RestRequest, found: builtins.list[D]) -> tuple[builtins.list[D], wire.Pagination]:
    """Cut a page from a list in order of name. Keep all entries of the page's last name together."""
    after, amount = request.query("after"), request.amount()
    rest = [one for one in found if one.id > after]
    end = min(amount, len(rest))
    while 0 < end < len(rest) and rest[end].id == rest[end - 1].id:
        end += 1
    page = rest[:end]
    return page, page_of(page, has_more=end < len(rest), last=page[-1].id if page else "")


def _deleted(one: DeletedRepository) -> wire.DeletedRepository:
    record = one.record
    return wire.DeletedRepository(
        id=record.name,
        uid=one.uid,
        state=record.state_shown,
        storage_namespace=record.repository.storage_namespace if record.repository else "",
        deletion_date=record.deleted_ms // 1000,
        deleted_by=record.deleted_by,
        kept_until=record.kept_until_ms // 1000,
    )
