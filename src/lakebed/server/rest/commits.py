"""Commits: make, read, revert and cherry-pick them; the log; and the files of their trees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from starlette.responses import RedirectResponse, Response

from lakebed import wire
from lakebed.base import CommitId, MetarangeId, path_to_key
from lakebed.catalog import Repository
from lakebed.objectstore import ObjectMissing, ObjectStat
from lakebed.operations import history
from lakebed.server.http.errors import Answer, InvalidParameter
from lakebed.server.http.gate import check_source, keep_actions, refuse_denied, refuse_denied_below
from lakebed.server.http.requests import RestRequest, StreamedResponse, page_of, raw_headers
from lakebed.server.http.routing import Resource, in_repository, serves
from lakebed.versions import Commit, CommitNotFound, Note, RefNotFound

_TREE_FOLDERS: Final = {"range": "ranges", "meta_range": "metaranges", "sublist": "sublists"}
"""Folders by the type of a tree file. `sublist` is not in the contract: a wide tree's metarange lists sublists."""


class Commits(Resource):
    @in_repository(history.COMMIT)
    async def commit(self, request: RestRequest, repository: Repository, body: wire.CommitCreation) -> wire.Commit:
        tree = request.query("source_metarange")
        if tree:
            # Check deny statements as for a commit by its id: the request names no branch of it.
            refuse_denied(history.COMMIT.asked_later, request.permissions, {"repository": request.args[0]})
        note = Note(
            message=body.message,
            committer=request.identity.user_id,
            metadata=body.metadata or {},
            created_ms=None if body.date is None else body.date * 1000,
        )
        commit = await repository.changes.commit(
            request.args[1],
            note,
            tree=tree,
            allow_empty=bool(body.allow_empty),
            force=bool(body.force),
        )
        return commit_record(commit)

    @serves(history.CREATE_COMMIT_RECORD)
    async def record(self, request: RestRequest, body: wire.CommitRecordCreation) -> None:
        """Write a commit record for no branch and without a nonce, so that its sender can compute the id."""
        commit = Commit(
            version=body.version,
            generation=body.generation,
            message=body.message,
            committer=body.committer,
            created_ms=body.creation_date * 1000,
            metarange_id=MetarangeId(body.metarange_id),
            parents=tuple(CommitId(parent) for parent in body.parents),
            metadata=body.metadata or {},
        )
        repository = await self._catalog.get(request.args[0])
        await repository.changes.record_commit(body.commit_id, commit, force=bool(body.force))

    @in_repository(history.GET_COMMIT)
    async def get(self, request: RestRequest, repository: Repository) -> wire.Commit:
        """Return a commit by id, as in the contract, or by any other ref expression, as its clients send."""
        versions = repository.versions
        try:
            commit = await versions.history.get_commit(await versions.refs.resolve_commit(request.args[1]))
        except RefNotFound as error:
            raise CommitNotFound("commit not found", commit=request.args[1]) from error
        return commit_record(commit)

    @in_repository(history.LOG_COMMITS)
    async def log(self, request: RestRequest, repository: Repository) -> wire.CommitList:
        """List commits. With `limit` the caller wants `amount` commits and no further page. A page that a filter ends
        early still has a next page: the offset is a position in the log, and may be a commit that the page does not
        show.
        """
        is_limited, amount = request.flag("limit"), request.amount()
        stop_at = request.query("stop_at") or None
        try:
            commits, position = await repository.versions.history.log(
                request.args[1],
                after=request.query("after"),
                limit=amount,
                first_parent=request.flag("first_parent"),
                since_ms=_milliseconds(request.query("since")),
                stop_at=stop_at,
                objects=[path_to_key(path) for path in request.query_list("objects")],
                prefixes=[prefix.encode() for prefix in request.query_list("prefixes")],
                committer=request.query("committer"),
                looks_on=not is_limited,
            )
        except RefNotFound as error:
            raise Answer(404, f"{'stop_at' if error.facts.get('ref') == stop_at else 'ref'}: not found") from error
        results = [commit_record(commit) for commit in commits]
        has_more = bool(position) and not (is_limited and len(results) == amount)
        pagination = page_of(results, has_more=has_more, last=position)
        return wire.CommitList(pagination=pagination, results=results)

    @in_repository(history.REVERT_BRANCH)
    async def revert(self, request: RestRequest, repository: Repository, body: wire.RevertCreation) -> None:
        note = _note(request, body.commit_overrides)
        with _naming(body.ref):
            # A revert writes content of the commit and its parent, so check read access to the commit.
            await check_source(request.permissions, repository, body.ref)
            parent = body.parent_number
            await repository.changes.revert(
                request.args[1],
                await keep_actions(request.permissions, repository, body.ref, parent=parent),
                note,
                parent_number=parent,
                allow_empty=bool(body.allow_empty),
                force=bool(body.force),
                refuse_expired=bool(body.refuse_expired),
            )

    @in_repository(history.CHERRY_PICK)
    async def cherry_pick(
        self, request: RestRequest, repository: Repository, body: wire.CherryPickCreation
    ) -> wire.Commit:
        note = _note(request, body.commit_overrides)
        with _naming(body.ref):
            await check_source(request.permissions, repository, body.ref)
            parent = body.parent_number or 0
            commit = await repository.changes.cherry_pick(
                request.args[1],
                await keep_actions(request.permissions, repository, body.ref, parent=parent),
                note,
                parent_number=parent,
                force=bool(body.force),
                refuse_expired=bool(body.refuse_expired),
            )
        return commit_record(commit)

    @serves(history.GET_META_RANGE)
    async def metarange(self, request: RestRequest) -> wire.StorageUri:
        return await self._file(request, "metaranges", "metarange")

    @serves(history.GET_RANGE)
    async def range(self, request: RestRequest) -> wire.StorageUri:
        return await self._file(request, "ranges", "range")

    async def _file(self, request: RestRequest, folder: str, noun: str) -> wire.StorageUri:
        repository = await self._catalog.get(request.args[0])
        found = await _find_file(repository, folder, request.args[1], noun)
        return wire.StorageUri(location=repository.full_address(found.key))

    @serves(history.GET_METADATA_OBJECT)
    async def tree_file(self, request: RestRequest) -> Response:
        """Return the bytes of a range, metarange or sublist in Lakebed's format. Other servers do not read it."""
        kind = request.args[1]
        if kind not in _TREE_FOLDERS:
            raise InvalidParameter(f'parameter "type" in path is {kind!r}: it is range, meta_range or sublist')
        # Its rows have checksum, address and metadata of objects at many paths, of which listings hide some.
        asked, names = history.GET_METADATA_OBJECT.asked_later, {"repository": request.args[0]}
        refuse_denied_below(asked, request.permissions, names)
        repository = await self._catalog.get(request.args[0])
        found = await _find_file(repository, _TREE_FOLDERS[kind], request.args[2], kind)
        if request.flag("presign") and self._state.presign_s is not None:
            url = await repository.objectstore.presign_get(found.key, expires_s=self._state.presign_s)
            if url is not None:
                return RedirectResponse(url, 302)
        stream = repository.objectstore.stream(found.key)
        headers = {"content-type": "application/octet-stream", "content-length": str(found.size_bytes)}
        return StreamedResponse(await anext(stream, b""), stream, status=200, headers=raw_headers(headers))


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


def _note(request: RestRequest, overrides: wire.CommitOverrides | None) -> Note:
    asked = overrides or wire.CommitOverrides()
    return Note(message=asked.message or "", committer=request.identity.user_id, metadata=asked.metadata or {})


@contextmanager
def _naming(ref: str) -> Iterator[None]:
    """Name the missing ref in the error, in the contract's words."""
    try:
        yield
    except RefNotFound as error:
        raise Answer(404, f"get commit by ref {ref}: not found") from error


def _milliseconds(date_time: str) -> int | None:
    if not date_time:
        return None
    try:
        parsed = datetime.fromisoformat(date_time)
    except ValueError as error:
        raise InvalidParameter('parameter "since" in query has an error: not a date-time of RFC 3339') from error
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


async def _find_file(repository: Repository, folder: str, file_id: str, noun: str) -> ObjectStat:
    if not _is_digest(file_id):
        raise Answer(404, f"{noun} not found")
    try:
        return await repository.objectstore.stat(f"_lakefs/{folder}/{file_id}.parquet")
    except ObjectMissing as error:
        raise Answer(404, f"{noun} not found") from error


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)
