"""Differences between refs and on a branch, and merges."""

from __future__ import annotations

from collections.abc import Sequence, Set

from lakebed import wire
from lakebed.base import decode_metadata, key_to_path, path_to_key
from lakebed.catalog import Repository
from lakebed.operations import history
from lakebed.server.http.errors import Answer, expired_by
from lakebed.server.http.gate import check_source, unreadable
from lakebed.server.http.requests import RestRequest, page_of
from lakebed.server.http.routing import Resource, in_repository
from lakebed.server.iceberg import appending
from lakebed.versions import Difference, Note, Strategy, TakenBy

_TABLES = ("", "append")
_STRATEGIES: dict[str, Strategy] = {"": "none", "dest-wins": "dest-wins", "source-wins": "source-wins"}


class Differences(Resource):
    @in_repository(history.DIFF_BRANCH)
    async def of_branch(self, request: RestRequest, repository: Repository) -> wire.DiffList:
        found, has_more = await repository.versions.history.diff_branch(
            request.args[1],
            prefix=request.query("prefix").encode(),
            after=request.query("after").encode(),
            delimiter=request.query("delimiter").encode(),
            limit=request.amount(),
        )
        return _page(found, has_more=has_more, is_uncommitted=True)

    @in_repository(history.DIFF_REFS)
    async def of_refs(self, request: RestRequest, repository: Repository) -> wire.DiffList:
        found, has_more = await repository.versions.history.diff_refs(
            request.args[1],
            request.args[2],
            prefix=request.query("prefix").encode(),
            after=request.query("after").encode(),
            delimiter=request.query("delimiter").encode(),
            limit=request.amount(),
            three_dot=request.choice("type", ("three_dot", "two_dot")) == "three_dot",
        )
        # A removed path has the left side's row here, because the right side has none.
        taken = await repository.versions.taken.shown([one.row for one in found if one.row is not None])
        shows = request.flag("include_right_stats")
        with_stats = (one.key for one in found if shows and one.row is not None)
        hidden = await unreadable(request.permissions, request.args[0], request.args[2], with_stats)
        return _page(found, has_more=has_more, is_with_stats=shows, taken=taken, hidden=hidden)

    @in_repository(history.COUNT_EXPIRED)
    async def count_expired(self, request: RestRequest, repository: Repository) -> wire.ExpiredCount:
        history = repository.versions.history
        return wire.ExpiredCount(objects=await history.count_expired(request.args[1], request.args[2]))

    @in_repository(history.MERGE_INTO_BRANCH)
    async def merge(self, request: RestRequest, repository: Repository, body: wire.Merge) -> wire.MergeResult:
        source, branch = request.args[1], request.args[2]
        if (body.strategy or "") not in _STRATEGIES:
            raise Answer(400, f"strategy {body.strategy!r}: must be dest-wins, source-wins or absent")
        if (body.tables or "") not in _TABLES:
            raise Answer(400, f"tables {body.tables!r}: must be append or absent")
        await check_source(request.permissions, repository, request.args[1])
        by = request.identity.user_id
        commit = await repository.changes.merge(
            source,
            branch,
            Note(message=body.message or "", committer=by, metadata=body.metadata or {}),
            strategy=_STRATEGIES[body.strategy or ""],
            choices={path_to_key(path): side for path, side in (body.choices or {}).items()},
            allow_empty=bool(body.allow_empty),
            squash=bool(body.squash_merge),
            force=bool(body.force),
            refuse_expired=bool(body.refuse_expired),
            settle=await appending(repository, self._state, branch=branch, by=by) if body.tables else None,
        )
        return wire.MergeResult(reference=commit.id)

    @in_repository(history.COUNT_AHEAD)
    async def count_ahead(self, request: RestRequest, repository: Repository) -> wire.AheadCount:
        versions = repository.versions
        distance = await versions.history.distance(request.args[1], request.args[2])
        return wire.AheadCount(ahead=distance.ahead, behind=distance.behind, is_complete=distance.is_complete)

    @in_repository(history.FIND_MERGE_BASE)
    async def merge_base(self, request: RestRequest, repository: Repository) -> wire.FindMergeBaseResult:
        versions = repository.versions
        source, destination = request.args[1], request.args[2]
        base = await versions.history.merge_base(source, destination)
        return wire.FindMergeBaseResult(
            base_commit_id=base.id,
            source_commit_id=await versions.refs.resolve_commit(source),
            destination_commit_id=await versions.refs.resolve_commit(destination),
        )


def _page(
    found: Sequence[Difference],
    *,
    has_more: bool,
    is_with_stats: bool = False,
    is_uncommitted: bool = False,
    taken: Sequence[TakenBy | None] = (),
    hidden: Set[bytes] = frozenset(),
) -> wire.DiffList:
    """Build a page of differences. `taken`: the run that took each row's object, in order of the rows. Staged entries
    have none. Rows of `hidden` keys have no stats.
    """
    by_row = iter(taken)
    results = [
        _difference(
            one,
            is_with_stats and one.key not in hidden,
            is_uncommitted,
            next(by_row, None) if one.row is not None else None,
        )
        for one in found
    ]
    pagination = page_of(results, has_more=has_more, last=results[-1].path if results else "")
    return wire.DiffList(pagination=pagination, results=results)


def _difference(difference: Difference, is_with_stats: bool, is_uncommitted: bool, taken: TakenBy | None) -> wire.Diff:
    path, row = key_to_path(difference.key), difference.row
    if row is None:
        return wire.Diff(path=path, path_type="common_prefix", type=difference.kind)
    right = None
    if is_with_stats and difference.kind != "removed":
        right = wire.DiffObjectStat(
            checksum=row[5], mtime=row[6] // 1000, content_type=row[7], metadata=decode_metadata(row[8])
        )
    # For uncommitted changes, the contract's server shows the current size: none for a removed path.
    size_bytes = 0 if is_uncommitted and difference.kind == "removed" else row[4]
    return wire.Diff(
        path=path,
        path_type="object",
        size_bytes=size_bytes,
        type=difference.kind,
        right=right,
        expired=None if taken is None else expired_by(taken),
    )
