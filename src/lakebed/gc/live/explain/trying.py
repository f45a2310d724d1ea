"""Answer `lakebed gc rules try`: what retention rules would let expire, before they are saved.

For people: it takes no part in any run, and writes nothing. Commits are judged as a plan judges them (`kept_indices`).
The objects are an upper bound, and cheap:

1. read every commit record, as `gc why` does: columns, some 130 bytes each
2. read the list of ranges of each tree that only expired commits have, and of kept trees; TREES_MAX files in all
3. ranges that kept commits share are passed over. Where the others have ROWS_MAX rows or fewer, with the kept ranges
   beside them, their addresses are compared; else the sums in the lists count
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import MetarangeId
from lakebed.gc.live.reading.commit_columns import packed, texts
from lakebed.gc.live.reading.commits import Roots, Snapshot, read_snapshot
from lakebed.gc.messages import RulesTrial, Total, TriedBranch, TriedCommit, TriedDay
from lakebed.gc.rules import Holds, Lines, Rules, lines_of
from lakebed.ranges import RangeInfo, SublistInfo
from lakebed.versions import Versions

DAYS: Final = (1, 2, 7, 14, 30, 60)
SHOWN: Final = 100
TREES_MAX: Final = 400
ROWS_MAX: Final = 200_000
_DAY_MS: Final = 86_400_000
_ADDRESS: Final = ["slice", "sequence", "address"]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    roots: Roots
    lines: Lines
    there: Flags
    expired: Flags
    later: tuple[TriedDay, ...]
    expired_in_force: int | None


async def try_rules(versions: Versions, rules: Rules, *, in_force: Rules | None, holds: Holds) -> RulesTrial:
    """Return what `rules` would let expire now, and in the days to come.

    Raises:
        BrokenHistory: a ref or a commit names a commit that has no record.
        Corrupt: a file of a tree is missing or altered.
    """
    now_ms = versions.ports.clock.now_ms()
    snapshot = await read_snapshot(versions)
    judge = partial(_judge, snapshot, rules, in_force, holds, now_ms)
    judged = await versions.ports.tasks.apart(judge)
    branches = _branches(judged, rules)
    return RulesTrial(
        now_ms=now_ms,
        kept=int((judged.there & ~judged.expired).sum()),
        expired=int(judged.expired.sum()),
        gone=int((~judged.there).sum()),
        expired_in_force=judged.expired_in_force,
        branches=tuple(branches[:SHOWN]),
        branches_count=len(branches),
        commits=_commits(snapshot, judged, rules),
        days=judged.later,
        at_most=await _at_most(versions, snapshot, judged),
        path_holds=tuple(hold.name for hold in holds.holds if hold.globs),
    )


def _judge(snapshot: Snapshot, rules: Rules, in_force: Rules | None, holds: Holds, now_ms: int) -> _Judged:
    there = snapshot.there().to_numpy(zero_copy_only=False)
    held = pc.is_in(snapshot.commits.column("id"), value_set=packed(sorted(holds.commit_ids())))
    may_go = there & ~held.to_numpy(zero_copy_only=False)

    def expired(roots: Roots, rules: Rules, at_ms: int) -> Flags:
        gone: Flags = may_go & ~roots.kept(rules, now_ms=at_ms)
        return gone

    # Once for all days: the roots follow the parents of every commit.
    roots = snapshot.roots(tags_pin=rules.tags_pin)
    later = [(day, expired(roots, rules, now_ms + day * _DAY_MS)) for day in DAYS]
    before = None if in_force is None else expired(snapshot.roots(tags_pin=in_force.tags_pin), in_force, now_ms)
    return _Judged(
        roots=roots,
        lines=lines_of(first_parent=roots.first_parent, heads=roots.heads, rules=rules, now_ms=now_ms),
        there=there,
        expired=expired(roots, rules, now_ms),
        later=tuple(TriedDay(days=day, expired=int(gone.sum())) for day, gone in later),
        expired_in_force=None if before is None else int(before.sum()),
    )


def _branches(judged: _Judged, rules: Rules) -> list[TriedBranch]:
    """Return a row for each branch, that with the most expired commits first."""
    names = ["", *judged.lines.branches]  # -1, no branch, becomes the first.
    numbers = judged.lines.branch_of + 1
    counts = np.bincount(numbers[judged.there], minlength=len(names)).tolist()
    expired = np.bincount(numbers[judged.expired], minlength=len(names)).tolist()
    rows = [
        TriedBranch(branch=name, rule=_rule(rules, name), commits=count, expired=gone)
        for name, count, gone in zip(names, counts, expired, strict=True)
        if count
    ]
    return sorted(rows, key=lambda row: (-row.expired, -row.commits, row.branch))


def _commits(snapshot: Snapshot, judged: _Judged, rules: Rules) -> tuple[TriedCommit, ...]:
    rows = np.flatnonzero(judged.expired)
    rows = rows[np.argsort(-judged.roots.created_ms[rows], kind="stable")[:SHOWN]]
    ids = texts(snapshot.commits.column("id").take(pa.array(rows))).to_pylist()
    names = [*judged.lines.branches, ""]
    branches = [names[number] for number in judged.lines.branch_of[rows].tolist()]
    dates = judged.roots.created_ms[rows].tolist()
    return tuple(
        TriedCommit(id=id_, created_ms=made, branch=branch, rule=_rule(rules, branch))
        for id_, made, branch in zip(ids, dates, branches, strict=True)
    )


def _rule(rules: Rules, branch: str) -> str:
    rule = rules.rule_of(branch) if branch else None
    return f"default: {rules.default}" if rule is None else f"{rule.pattern}: {rule.period}"


# Objects


async def _at_most(versions: Versions, snapshot: Snapshot, judged: _Judged) -> Total | None:
    """Return what only expired commits name, or more: an object that a kept commit has elsewhere may be counted."""
    gone = _trees(snapshot, judged, judged.expired)
    kept = _trees(snapshot, judged, judged.there & ~judged.expired)
    gone = [tree for tree in gone if tree not in set(kept)]
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


def _trees(snapshot: Snapshot, judged: _Judged, wanted: Flags) -> list[MetarangeId]:
    """Return the trees of these commits, those of the newest first."""
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(-judged.roots.created_ms[rows], kind="stable")]
    trees = pc.unique(snapshot.commits.column("metarange_id").take(pa.array(rows)))
    return [MetarangeId(tree) for tree in texts(trees).to_pylist() if tree]


async def _lists(versions: Versions, trees: Sequence[MetarangeId]) -> dict[str, RangeInfo | SublistInfo]:
    """Return what these trees list, from one file each: their ranges, or the sublists of wide trees."""
    found: dict[str, RangeInfo | SublistInfo] = {}
    async for tree, sublists in versions.ports.tasks.ahead(trees, versions.trees.sublists):
        # A tree without sublists is in the cache now.
        for info in sublists or await versions.trees.ranges(tree):
            found[info.id] = info
    return found


async def _compared(versions: Versions, lost: Sequence[RangeInfo], kept: Sequence[RangeInfo]) -> Total:
    """Count the addresses that ranges of expired commits have, and ranges of kept ones at the same paths do not."""
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
