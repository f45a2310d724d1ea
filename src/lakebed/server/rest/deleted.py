"""Deleted repositories, branches and tags: list and undelete them, and protect against deletion."""

from __future__ import annotations

import builtins
from typing import TypeVar

from starlette.responses import Response

from lakebed import wire
from lakebed.base import Etags
from lakebed.catalog import DeletedRepository
from lakebed.operations import deleted
from lakebed.server.http.gate import require
from lakebed.server.http.requests import RestRequest, answer, page_of
from lakebed.server.http.routing import Resource, Route
from lakebed.server.state import AppState
from lakebed.versions import RefKind

from .repositories import repository_record

D = TypeVar("D", wire.DeletedRepository, wire.DeletedRef)


class Deleted(Resource):
    async def list(self, request: RestRequest) -> wire.DeletedRepositoryList:
        found = await self._catalog.deleted.list(prefix=request.query("prefix"))
        page, pagination = _page(request, [_deleted(one) for one in found])
        return wire.DeletedRepositoryList(pagination=pagination, results=page)

    async def undelete(self, request: RestRequest, body: wire.RepositoryUndeletion) -> wire.Repository:
        if body.name:
            require(deleted.UNDELETE_REPOSITORY.asked_later, request.permissions, {"name": body.name})
        back = await self._catalog.undelete(request.args[0], uid=body.uid, new_name=body.name or "")
        return repository_record(back.id, back.record)

    async def forget(self, request: RestRequest) -> None:
        await self._catalog.deleted.forget(request.args[0], uid=request.query("uid"))

    async def protection(self, request: RestRequest) -> Response:
        record, etag = await self._catalog.deletion_protection(request.args[0])
        response = answer(wire.DeleteProtection(repository=record.protected, branches=list(record.protected_branches)))
        response.headers["etag"] = f'"{etag}"'
        return response

    async def protect(self, request: RestRequest, body: wire.DeleteProtection) -> None:
        header = request.header(b"if-match")
        await self._catalog.protect_deletion(
            request.args[0],
            repository=body.repository,
            branches=body.branches,
            if_match=None if header is None else Etags.read(header),
        )


class DeletedRefs(Resource):
    async def branches(self, request: RestRequest) -> wire.DeletedRefList:
        return await self._listed(request, RefKind.BRANCH)

    async def tags(self, request: RestRequest) -> wire.DeletedRefList:
        return await self._listed(request, RefKind.TAG)

    async def _listed(self, request: RestRequest, kind: RefKind) -> wire.DeletedRefList:
        shows_hidden = kind is RefKind.TAG or request.flag("show_hidden")
        found = await (await self._catalog.get(request.args[0])).versions.refs.list_deleted(kind)
        results = [
            wire.DeletedRef(
                id=one.name,
                commit_id=one.commit_id,
                deletion_date=one.deleted_ms // 1000,
                deleted_by=one.deleted_by,
                kept_until=one.kept_until_ms // 1000,
                hidden=one.is_hidden,
            )
            for one in found
            if one.name.startswith(request.query("prefix")) and (shows_hidden or not one.is_hidden)
        ]
        page, pagination = _page(request, results)
        return wire.DeletedRefList(pagination=pagination, results=page)

    async def undelete_branch(self, request: RestRequest) -> wire.Ref:
        changes = (await self._catalog.get(request.args[0])).changes
        commit_id = await changes.undelete_branch(request.args[1], by=request.identity.user_id)
        return wire.Ref(id=request.args[1], commit_id=commit_id)

    async def undelete_tag(self, request: RestRequest) -> wire.Ref:
        changes = (await self._catalog.get(request.args[0])).changes
        commit_id = await changes.undelete_tag(request.args[1], by=request.identity.user_id)
        return wire.Ref(id=request.args[1], commit_id=commit_id)

    async def forget_branch(self, request: RestRequest) -> None:
        await self._forget(request, RefKind.BRANCH)

    async def forget_tag(self, request: RestRequest) -> None:
        await self._forget(request, RefKind.TAG)

    async def _forget(self, request: RestRequest, kind: RefKind) -> None:
        await (await self._catalog.get(request.args[0])).changes.forget_deleted(kind, request.args[1])

    async def branch_moves(self, request: RestRequest) -> wire.RefMoveList:
        return await self._moves(request, RefKind.BRANCH)

    async def tag_moves(self, request: RestRequest) -> wire.RefMoveList:
        return await self._moves(request, RefKind.TAG)

    async def _moves(self, request: RestRequest, kind: RefKind) -> wire.RefMoveList:
        refs = (await self._catalog.get(request.args[0])).versions.refs
        after = request.integer("after", 0)
        found, has_more = await refs.moves(kind, request.args[1], before_ms=after or None, limit=request.amount())
        results = [
            wire.RefMove(
                commit_id=move.after, before=move.before, operation=move.operation, user=move.by, date_ms=move.at_ms
            )
            for move in found
        ]
        last = str(found[-1].at_ms) if found else ""
        return wire.RefMoveList(pagination=page_of(results, has_more=has_more, last=last), results=results)


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


def routes(state: AppState) -> list[Route]:
    here, refs = Deleted(state), DeletedRefs(state)
    return [
        Route(deleted.LIST_DELETED_REPOSITORIES, here.list),
        Route(deleted.UNDELETE_REPOSITORY, here.undelete),
        Route(deleted.FORGET_REPOSITORY, here.forget),
        Route(deleted.GET_DELETE_PROTECTION, here.protection),
        Route(deleted.SET_DELETE_PROTECTION, here.protect),
        Route(deleted.LIST_DELETED_BRANCHES, refs.branches),
        Route(deleted.LIST_DELETED_TAGS, refs.tags),
        Route(deleted.UNDELETE_BRANCH, refs.undelete_branch),
        Route(deleted.UNDELETE_TAG, refs.undelete_tag),
        Route(deleted.FORGET_BRANCH, refs.forget_branch),
        Route(deleted.FORGET_TAG, refs.forget_tag),
        Route(deleted.LIST_BRANCH_MOVES, refs.branch_moves),
        Route(deleted.LIST_TAG_MOVES, refs.tag_moves),
    ]
