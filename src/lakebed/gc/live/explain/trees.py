"""Count the objects that some trees name and others do not: a cheap upper bound, for display.

1. read the list of ranges of each tree, at most TREES_MAX files in total
2. skip ranges in both sets of trees
3. if the rest and the ranges with overlapping paths have at most ROWS_MAX rows, compare their addresses; else use the
   sums in the lists
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import CommitId, MetarangeId
from lakebed.gc.live.reading.commits import COMMITS_A_FILE, RECORDS_A_FILE, Snapshot, snapshot_steps
from lakebed.gc.live.reading.inputs import packed, texts
from lakebed.gc.messages import Keeper, Total, WhyProgress
from lakebed.ranges import RangeInfo, SublistInfo
from lakebed.versions import Versions

__all__ = ["CommittedParts", "committed_steps", "counted_snapshot", "leaving_steps"]

TREES_MAX: Final = 400
ROWS_MAX: Final = 200_000
ROWS_A_FILE: Final = 2_000
"""This many rows of a range take as long to read as its end."""
_ADDRESS: Final = ["slice", "sequence", "address"]


@dataclass(frozen=True, slots=True)
class CommittedParts:
    """Objects by what keeps them. None: there are too many trees."""

    totals: dict[Keeper, Total | None]


async def committed_steps(
    versions: Versions, *, default_branch: str
) -> AsyncGenerator[WhyProgress | CommittedParts, None]:
    """Count the objects of other branch heads, of tags and of other commits, beyond the default branch's head, or raise
    Corrupt.

    Each part excludes objects of earlier parts. Reads every commit record. Yields steps, then the parts.
    """
    snapshot: Snapshot | None = None
    async for step in counted_snapshot(versions):
        if isinstance(step, Snapshot):
            snapshot = step
        else:
            yield step
    assert snapshot is not None, "the last step is the snapshot"
    known: list[MetarangeId] = []
    parts: dict[Keeper, Total | None] = {}
    refs: dict[Keeper | None, list[CommitId]] = {None: [], Keeper.BRANCHES: [], Keeper.TAGS: []}
    for kind, name, commit, _ in snapshot.refs:
        if kind == "branch":
            refs[None if name == default_branch else Keeper.BRANCHES].append(commit)
        elif kind == "tag":
            refs[Keeper.TAGS].append(commit)
    for keeper, commits in (*refs.items(), (Keeper.HISTORY, None)):
        trees = _trees_of(snapshot, commits)
        if keeper is not None:
            async for counted in leaving_steps(versions, [trees], known):
                if isinstance(counted, WhyProgress):
                    yield counted
                else:
                    parts[keeper] = counted[0] if counted else None
        known += trees
    yield CommittedParts(parts)


async def counted_snapshot(versions: Versions) -> AsyncIterator[WhyProgress | Snapshot]:
    """Read every commit record. Yields progress, and the snapshot last."""
    read = 0
    async for step in snapshot_steps(versions):
        if isinstance(step, Snapshot):
            yield WhyProgress(stage="commits", done=read, files=len(step.commits) // COMMITS_A_FILE)
            yield step
        else:
            read += step
            yield WhyProgress(stage="commits", done=read, files=1 + step // RECORDS_A_FILE)


def _trees_of(snapshot: Snapshot, commits: Sequence[CommitId] | None) -> list[MetarangeId]:
    """Return the distinct trees of these commits, or of all commits. Exclude swept commits."""
    wanted = snapshot.there()
    if commits is not None:
        named = pc.is_in(snapshot.commits.column("id"), value_set=packed(sorted(set(commits))))
        wanted = pc.and_(wanted, named)
    trees = pc.unique(snapshot.commits.column("metarange_id").filter(wanted))
    return [MetarangeId(tree) for tree in texts(trees).to_pylist() if tree]


async def leaving_steps(
    versions: Versions, steps: Sequence[Sequence[MetarangeId]], kept: Sequence[MetarangeId]
) -> AsyncIterator[WhyProgress | list[Total] | None]:
    """Count for each step the objects that only trees of this and earlier steps name, at most.

    A tree of two steps leaves at the later one. An object that a kept tree has at another path may be included. Yields
    progress, then the totals, or None if there are too many trees.
    """
    shared = set(kept)
    step_of = {tree: step for step, trees in enumerate(steps) for tree in trees if tree not in shared}
    if not step_of or len(step_of) >= TREES_MAX:
        yield None if step_of else [Total() for _ in steps]
        return
    kept_trees = kept[: TREES_MAX - len(step_of)]
    # In the order of steps: a range leaves with the last tree that has it.
    leaving = sorted(step_of, key=step_of.__getitem__)
    kept_lists: dict[str, RangeInfo | SublistInfo] = {}
    lost: dict[str, _Lost] = {}
    read = 0
    async for tree, listed in _lists(versions, [*kept_trees, *leaving]):
        if read < len(kept_trees):
            kept_lists.update((info.id, info) for info in listed)
        else:
            lost.update((info.id, _Lost(step_of[tree], info)) for info in listed if info.id not in kept_lists)
        read += 1
        yield WhyProgress(stage="trees", done=read, of=len(kept_trees) + len(leaving), files=1)
    if not lost:
        yield [Total() for _ in steps]
        return
    infos = [each.info for each in lost.values()]
    first, last = min(info.min_key for info in infos), max(info.max_key for info in infos)
    beside = [info for info in kept_lists.values() if info.min_key <= last and first <= info.max_key]
    ranges = {each.info: each.step for each in lost.values() if isinstance(each.info, RangeInfo)}
    kept_ranges = [info for info in beside if isinstance(info, RangeInfo)]
    is_small = sum(info.count for info in (*ranges, *kept_ranges)) <= ROWS_MAX
    sums = [Total() for _ in steps]
    if is_small and len(ranges) == len(lost) and len(ranges) + len(kept_ranges) <= TREES_MAX:
        tables: list[pa.Table] = []
        both = [*ranges, *kept_ranges]
        async for info, table in versions.ports.tasks.ahead(both, versions.trees.entries):
            tables.append(table.select([*_ADDRESS, "size_bytes"]))
            yield WhyProgress(stage="ranges", done=len(tables), of=len(both), files=1 + info.count // ROWS_A_FILE)
        count = partial(_compared, tables[: len(ranges)], list(ranges.values()), tables[len(ranges) :])
        for step, total in (await versions.ports.tasks.apart(count)).items():
            sums[step] = total
    else:
        for each in lost.values():
            sums[each.step] = sums[each.step].plus(Total(objects=each.info.count, size_bytes=each.info.size_bytes))
    yield list(accumulate(sums, Total.plus))


class _Lost(NamedTuple):
    """A range, or a sublist of them, that no kept tree has, and the step at which its last tree leaves."""

    step: int
    info: RangeInfo | SublistInfo


async def _lists(
    versions: Versions, trees: Sequence[MetarangeId]
) -> AsyncIterator[tuple[MetarangeId, Sequence[RangeInfo] | Sequence[SublistInfo]]]:
    """Yield each tree with its ranges, or the sublists of a wide tree. Reads one file for each tree."""
    async for tree, sublists in versions.ports.tasks.ahead(trees, versions.trees.sublists):
        # `sublists` put the metarange of a tree without sublists into the cache, so `ranges` reads no file.
        yield tree, sublists or await versions.trees.ranges(tree)


def _compared(lost: Sequence[pa.Table], steps: Sequence[int], kept: Sequence[pa.Table]) -> dict[int, Total]:
    """Count the addresses in ranges of expired commits that are not in overlapping ranges of kept commits, by step."""
    gone = [
        table.append_column("step", pa.array([step] * table.num_rows, pa.int32()))
        for table, step in zip(lost, steps, strict=True)
    ]
    rows = pa.concat_tables(gone).group_by(_ADDRESS).aggregate([("size_bytes", "max"), ("step", "max")])
    if kept:
        rows = rows.join(pa.concat_tables(kept).select(_ADDRESS), keys=_ADDRESS, join_type="left anti")
    sums = rows.group_by("step_max").aggregate([("size_bytes_max", "count"), ("size_bytes_max", "sum")])
    return {
        row["step_max"]: Total(objects=row["size_bytes_max_count"], size_bytes=row["size_bytes_max_sum"])
        for row in sums.to_pylist()
    }
