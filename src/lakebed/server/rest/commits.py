"""Commits: making them, reading them, undoing and repeating them; the log; and the files their trees lie in."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.responses import Response

from lakebed import wire
from lakebed.base import path_to_key
from lakebed.objectstore import ObjectMissing
from lakebed.server.errors import Answer, InvalidParameter
from lakebed.server.requests import RestRequest
from lakebed.server.responses import answer, nothing, page_of
from lakebed.server.routing import Route
from lakebed.server.state import AppState
from lakebed.versions import Commit, CommitNotFound, RefNotFound


class Commits:
    def __init__(self, state: AppState) -> None:
        self._catalog = state.catalog

    async def commit(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.CommitCreation)
        if request.query("source_metarange"):
            raise Answer(501, "committing a given metarange is not supported")
        commit = await repository.changes.commit(
            request.args[1],
            message=body.message,
            committer=request.identity.user_id,
            metadata=body.metadata,
            created_ms=None if body.date is None else body.date * 1000,
            allow_empty=bool(body.allow_empty),
            force=bool(body.force),
        )
        return answer(commit_record(commit), 201)

    async def get(self, request: RestRequest) -> Response:
        """By id, as the contract says, or by any other ref expression, as its clients do."""
        versions = (await self._catalog.get(request.args[0])).versions
        try:
            commit = await versions.get_commit(await versions.resolve_commit(request.args[1]))
        except RefNotFound as error:
            raise CommitNotFound("commit not found", commit=request.args[1]) from error
        return answer(commit_record(commit))

    async def log(self, request: RestRequest) -> Response:
        """`limit` says that the caller wants `amount` commits and no more pages: the same work for us."""
        repository = await self._catalog.get(request.args[0])
        request.flag("limit")
        commits, has_more = await repository.versions.log(
            request.args[1],
            after=request.query("after"),
            limit=request.amount(),
            first_parent=request.flag("first_parent"),
            since_ms=_milliseconds(request.query("since")),
            stop_at=request.query("stop_at") or None,
            objects=[path_to_key(path) for path in request.query_list("objects")],
            prefixes=[prefix.encode() for prefix in request.query_list("prefixes")],
        )
        results = [commit_record(commit) for commit in commits]
        pagination = page_of(results, has_more=has_more, last=results[-1].id if results else "")
        return answer(wire.CommitList(pagination=pagination, results=results))

    async def revert(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.RevertCreation)
        overrides = body.commit_overrides or wire.CommitOverrides()
        await repository.changes.revert(
            request.args[1],
            body.ref,
            parent_number=body.parent_number,
            committer=request.identity.user_id,
            message=overrides.message or "",
            metadata=overrides.metadata,
            allow_empty=bool(body.allow_empty),
            force=bool(body.force),
        )
        return nothing()

    async def cherry_pick(self, request: RestRequest) -> Response:
        repository = await self._catalog.get(request.args[0])
        body = await request.decoded(wire.CherryPickCreation)
        overrides = body.commit_overrides or wire.CommitOverrides()
        commit = await repository.changes.cherry_pick(
            request.args[1],
            body.ref,
            parent_number=body.parent_number or 0,
            committer=request.identity.user_id,
            message=overrides.message or "",
            metadata=overrides.metadata,
            force=bool(body.force),
        )
        return answer(commit_record(commit), 201)

    async def metarange(self, request: RestRequest) -> Response:
        return await self._file(request, "metaranges", "metarange")

    async def range(self, request: RestRequest) -> Response:
        return await self._file(request, "ranges", "range")

    async def _file(self, request: RestRequest, folder: str, noun: str) -> Response:
        repository = await self._catalog.get(request.args[0])
        file_id = request.args[1]
        if not _is_digest(file_id):
            raise Answer(404, f"{noun} not found")
        key = f"_lakefs/{folder}/{file_id}.parquet"
        try:
            await repository.objectstore.stat(key)
        except ObjectMissing as error:
            raise Answer(404, f"{noun} not found") from error
        return answer(wire.StorageUri(location=repository.full_address(key)))


def routes(state: AppState) -> list[Route]:
    here = Commits(state)
    one = "/repositories/{repository}"
    return [
        Route("POST", one + "/branches/{branch}/commits", here.commit),
        Route("POST", one + "/branches/{branch}/revert", here.revert),
        Route("POST", one + "/branches/{branch}/cherry-pick", here.cherry_pick),
        Route("GET", one + "/commits/{commitId}", here.get),
        Route("GET", one + "/refs/{ref}/commits", here.log),
        Route("GET", one + "/metadata/meta_range/{meta_range}", here.metarange),
        Route("GET", one + "/metadata/range/{range}", here.range),
    ]


def commit_record(commit: Commit) -> wire.Commit:
    return wire.Commit(
        id=commit.id,
        committer=commit.committer,
        creation_date=commit.created_ms // 1000,
        generation=commit.generation,
        message=commit.message,
        meta_range_id=commit.metarange_id,
        metadata=commit.metadata,
        parents=list(commit.parents),
        version=commit.version,
    )


def _milliseconds(date_time: str) -> int | None:
    if not date_time:
        return None
    try:
        parsed = datetime.fromisoformat(date_time)
    except ValueError as error:
        raise InvalidParameter('parameter "since" in query has an error: not a date-time of RFC 3339') from error
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)
