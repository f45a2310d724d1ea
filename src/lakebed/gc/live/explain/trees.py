"""Count the objects that some trees name and others do not: a cheap upper bound, for display.

1. read the list of ranges of each tree, at most TREES_MAX files in total
2. skip ranges in both sets of trees
3. if the rest and the ranges with overlapping paths have at most ROWS_MAX rows, compare their addresses; else use the
   sums in the lists
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId, MetarangeId
from lakebed.gc.live.reading.commit_columns import packed, texts
from lakebed.gc.live.reading.commits import Snapshot, read_snapshot
from lakebed.gc.messages import Keeper, Total
from lakebed.ranges import RangeInfo, SublistInfo
from lakebed.versions import Versions

__all__ = ["committed_parts"]

TREES_MAX: Final = 400
ROWS_MAX: Final = 200_000
_ADDRESS: Final = ["slice", "sequence", "address"]


async def committed_parts(versions: Versions, *, default_branch: str) -> dict[Keeper, Total | None]:
    """Count the objects of other branch heads, of tags and of other commits, beyond the default branch's head.

    Each part excludes objects of earlier parts. It is None if it has too many trees. Reads every commit record.

    Raises:
        Corrupt: a file of a tree is missing or altered.
    """
    snapshot = await read_snapshot(versions)
    known: list[MetarangeId] = []
    parts: dict[Keeper, Total | None] = {}
    refs: dict[Keeper | None, list[CommitId]] = {None: [], Keeper.BRANCHES: [], Keeper.TAGS: []}
    for kind, name, commit, _ in snapshot.refs:
        if kind == "branch":
            refs[None if name == default_branch else Keeper.BRANCHES].append(commit)
        elif kind == "tag":
            refs[Keeper.TAGS].append(commit)
    for keeper, commits in refs.items():
        trees = _trees_of(snapshot, commits)
        if keeper is not None:
            parts[keeper] = await only_in(versions, trees, known)
        known += trees
    parts[Keeper.HISTORY] = await only_in(versions, _trees_of(snapshot, None), known)
    return parts


def _trees_of(snapshot: Snapshot, commits: Sequence[CommitId] | None) -> list[MetarangeId]:
    """Return the distinct trees of these commits, or of all commits. Exclude swept commits."""
    wanted = snapshot.there()
    if commits is not None:
        named = pc.is_in(snapshot.commits.column("id"), value_set=packed(sorted(set(commits))))
        wanted = pc.and_(wanted, named)
    trees = pc.unique(snapshot.commits.column("metarange_id").filter(wanted))
    return [MetarangeId(tree) for tree in texts(trees).to_pylist() if tree]


async def only_in(versions: Versions, gone: Sequence[MetarangeId], kept: Sequence[MetarangeId]) -> Total | None:
    """Return an upper bound of objects that only the trees in `gone` name, or None if there are too many trees.

    An object that a kept tree has at another path may be included.
    """
    shared = set(kept)
    gone = [tree for tree in gone if tree not in shared]
    if not gone:
        return Total()
    if len(gone) >= TREES_MAX:
        return None
    kept_lists = await _lists(versions, kept[: TREES_MAX - len(gone)])
    lost = {id_: info for id_, info in (await _lists(versions, gone)).items() if id_ not in kept_lists}
    if not lost:
        return Total()
    first, last = min(info.min_key for info in lost.values()), max(info.max_key for info in lost.values())
    beside = [info for info in kept_lists.values() if info.min_key <= last and first <= info.max_key]
    ranges = [info for info in lost.values() if isinstance(info, RangeInfo)]
    kept_ranges = [info for info in beside if isinstance(info, RangeInfo)]
    is_small = sum(info.count for info in (*ranges, *kept_ranges)) <= ROWS_MAX
    if is_small and len(ranges) == len(lost) and len(ranges) + len(kept_ranges) <= TREES_MAX:
        return await _compared(versions, ranges, kept_ranges)
    return Total(
        objects=sum(info.count for info in lost.values()), size_bytes=sum(info.size_bytes for info in lost.values())
    )


async def _lists(versions: Versions, trees: Sequence[MetarangeId]) -> dict[str, RangeInfo | SublistInfo]:
    """Return the ranges of these trees, or the sublists of wide trees. Reads one file for each tree."""
    infos: dict[str, RangeInfo | SublistInfo] = {}
    async for tree, sublists in versions.ports.tasks.ahead(trees, versions.trees.sublists):
        # `sublists` put the metarange of a tree without sublists into the cache, so `ranges` reads no file.
        for info in sublists or await versions.trees.ranges(tree):
            infos[info.id] = info
    return infos


async def _compared(versions: Versions, lost: Sequence[RangeInfo], kept: Sequence[RangeInfo]) -> Total:
    """Count the addresses in ranges of expired commits that are not in overlapping ranges of kept commits."""
    gone = [table async for _, table in versions.ports.tasks.ahead(lost, versions.trees.entries)]
    stays = [table async for _, table in versions.ports.tasks.ahead(kept, versions.trees.entries)]

    def count() -> Total:
        rows = _flat(gone).group_by(_ADDRESS).aggregate([("size_bytes", "max")])
        if stays:
            rows = rows.join(_flat(stays).select(_ADDRESS), keys=_ADDRESS, join_type="left anti")
        return Total(objects=rows.num_rows, size_bytes=pc.sum(rows["size_bytes_max"]).as_py() or 0)

    return await versions.ports.tasks.apart(count)


def _flat(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(table.select([*_ADDRESS, "size_bytes"]) for table in tables)
