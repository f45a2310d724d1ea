"""Count the objects that some trees name and others do not: a cheap upper bound, for display.

1. read the list of ranges of each tree, at most TREES_MAX files in total
2. skip ranges in both sets of trees
3. if the rest and the ranges with overlapping paths have at most ROWS_MAX rows, compare their addresses; else use the
   sums in the lists
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId, MetarangeId
from lakebed.gc.live.reading.commits import COMMITS_A_FILE, RECORDS_A_FILE, Snapshot, snapshot_steps
from lakebed.gc.live.reading.inputs import packed, texts
from lakebed.gc.messages import Keeper, Total
from lakebed.ranges import RangeInfo, SublistInfo
from lakebed.versions import Versions

__all__ = ["CommittedParts", "committed_steps"]

TREES_MAX: Final = 400
ROWS_MAX: Final = 200_000
_ADDRESS: Final = ["slice", "sequence", "address"]


@dataclass(frozen=True, slots=True)
class CommittedParts:
    """Objects by what keeps them. None: there are too many trees."""

    totals: dict[Keeper, Total | None]


class Counted(NamedTuple):
    """The work of a count since its last step, in files read or what takes as long."""

    files: int


async def committed_steps(versions: Versions, *, default_branch: str) -> AsyncGenerator[Counted | CommittedParts, None]:
    """Count the objects of other branch heads, of tags and of other commits, beyond the default branch's head.

    Each part excludes objects of earlier parts. Reads every commit record. Yields steps, then the parts.

    Raises:
        Corrupt: a file of a tree is missing or altered.
    """
    snapshot: Snapshot | None = None
    async for step in snapshot_steps(versions):
        if isinstance(step, Snapshot):
            snapshot = step
        else:
            yield Counted(1 + step // RECORDS_A_FILE)
    assert snapshot is not None, "the last step is the snapshot"
    yield Counted(len(snapshot.commits) // COMMITS_A_FILE)
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
            yield Counted(len(trees))
        known += trees
    parts[Keeper.HISTORY] = await only_in(versions, _trees_of(snapshot, None), known)
    yield CommittedParts(parts)


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
    totals = await leaving(versions, [gone], kept)
    return None if totals is None else totals[0]


async def leaving(
    versions: Versions, steps: Sequence[Sequence[MetarangeId]], kept: Sequence[MetarangeId]
) -> list[Total] | None:
    """Return for each step an upper bound of the objects that only trees of this and earlier steps name.

    A tree of two steps leaves at the later one. None if there are too many trees.
    """
    shared = set(kept)
    step_of = {tree: step for step, trees in enumerate(steps) for tree in trees if tree not in shared}
    if not step_of:
        return [Total() for _ in steps]
    if len(step_of) >= TREES_MAX:
        return None
    kept_lists = await _lists(versions, kept[: TREES_MAX - len(step_of)])
    lost: dict[str, _Lost] = {}
    # In the order of steps: a range leaves with the last tree that has it.
    for step in range(len(steps)):
        leaving_now = [tree for tree, last in step_of.items() if last == step]
        for id_, info in (await _lists(versions, leaving_now)).items():
            if id_ not in kept_lists:
                lost[id_] = _Lost(step, info)
    if not lost:
        return [Total() for _ in steps]
    infos = [each.info for each in lost.values()]
    first, last = min(info.min_key for info in infos), max(info.max_key for info in infos)
    beside = [info for info in kept_lists.values() if info.min_key <= last and first <= info.max_key]
    ranges = {each.info: each.step for each in lost.values() if isinstance(each.info, RangeInfo)}
    kept_ranges = [info for info in beside if isinstance(info, RangeInfo)]
    is_small = sum(info.count for info in (*ranges, *kept_ranges)) <= ROWS_MAX
    sums = [Total() for _ in steps]
    if is_small and len(ranges) == len(lost) and len(ranges) + len(kept_ranges) <= TREES_MAX:
        for step, total in (await _compared(versions, ranges, kept_ranges)).items():
            sums[step] = total
    else:
        for each in lost.values():
            sums[each.step] = sums[each.step].plus(Total(objects=each.info.count, size_bytes=each.info.size_bytes))
    return list(accumulate(sums, Total.plus))


class _Lost(NamedTuple):
    """A range, or a sublist of them, that no kept tree has, and the step at which its last tree leaves."""

    step: int
    info: RangeInfo | SublistInfo


async def _lists(versions: Versions, trees: Sequence[MetarangeId]) -> dict[str, RangeInfo | SublistInfo]:
    """Return the ranges of these trees, or the sublists of wide trees. Reads one file for each tree."""
    infos: dict[str, RangeInfo | SublistInfo] = {}
    async for tree, sublists in versions.ports.tasks.ahead(trees, versions.trees.sublists):
        # `sublists` put the metarange of a tree without sublists into the cache, so `ranges` reads no file.
        for info in sublists or await versions.trees.ranges(tree):
            infos[info.id] = info
    return infos


async def _compared(versions: Versions, lost: Mapping[RangeInfo, int], kept: Sequence[RangeInfo]) -> dict[int, Total]:
    """Count the addresses in ranges of expired commits that are not in overlapping ranges of kept commits, by step."""
    tables = [pair async for pair in versions.ports.tasks.ahead(list(lost), versions.trees.entries)]
    stays = [table async for _, table in versions.ports.tasks.ahead(kept, versions.trees.entries)]

    def count() -> dict[int, Total]:
        gone = [
            table.append_column("step", pa.array([lost[info]] * table.num_rows, pa.int32())) for info, table in tables
        ]
        rows = _flat(gone, "step").group_by(_ADDRESS).aggregate([("size_bytes", "max"), ("step", "max")])
        if stays:
            rows = rows.join(_flat(stays).select(_ADDRESS), keys=_ADDRESS, join_type="left anti")
        sums = rows.group_by("step_max").aggregate([("size_bytes_max", "count"), ("size_bytes_max", "sum")])
        return {
            row["step_max"]: Total(objects=row["size_bytes_max_count"], size_bytes=row["size_bytes_max_sum"])
            for row in sums.to_pylist()
        }

    return await versions.ports.tasks.apart(count)


def _flat(tables: Sequence[pa.Table], *more: str) -> pa.Table:
    return pa.concat_tables(table.select([*_ADDRESS, "size_bytes", *more]) for table in tables)
