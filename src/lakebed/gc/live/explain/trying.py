"""Answer `lakebed gc rules try`: list the commits that would expire by retention rules, before they are saved.

The answer is informational, and writes nothing. It judges commits as a plan does (`kept_indices`). It reads every
commit record into columns of 130 bytes a commit. The number of objects is a cheap upper bound (trees.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import MetarangeId
from lakebed.gc.live.reading.commits import Roots, Snapshot, read_snapshot
from lakebed.gc.live.reading.inputs import packed, texts
from lakebed.gc.messages import RulesTrial, Total, TriedBranch, TriedCommit, TriedDay
from lakebed.gc.rules import Holds, Lines, Rules, lines_of
from lakebed.versions import Versions

from .trees import leaving, only_in

__all__ = ["try_rules"]

DAYS: Final = (1, 2, 7, 14, 30, 60)
SHOWN: Final = 100
_DAY_MS: Final = 86_400_000

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    roots: Roots
    lines: Lines
    there: Flags
    gone: tuple[Flags, ...]
    expired_in_force: int | None

    @property
    def expired(self) -> Flags:
        return self.gone[0]


async def try_rules(versions: Versions, rules: Rules, *, in_force: Rules | None, holds: Holds) -> RulesTrial:
    """Return the commits that would expire by `rules` now and after DAYS.

    Raises:
        BrokenHistory: a ref or a commit names a commit that has no record.
        Corrupt: a file of a tree is missing or altered.
    """
    now_ms = versions.ports.clock.now_ms()
    snapshot = await read_snapshot(versions)
    judge = partial(_judge, snapshot, rules, in_force, holds, now_ms)
    judged = await versions.ports.tasks.apart(judge)
    branches = _branches(judged, rules)
    totals = await _at_most(versions, snapshot, judged)
    return RulesTrial(
        now_ms=now_ms,
        kept=int((judged.there & ~judged.expired).sum()),
        expired=int(judged.expired.sum()),
        gone=int((~judged.there).sum()),
        expired_in_force=judged.expired_in_force,
        branches=tuple(branches[:SHOWN]),
        branches_count=len(branches),
        commits=_commits(snapshot, judged, rules),
        days=tuple(
            TriedDay(days=day, expired=int(gone.sum()), at_most=total)
            for day, gone, total in zip(DAYS, judged.gone[1:], totals[1:], strict=True)
        ),
        at_most=totals[0],
        path_holds=tuple(hold.name for hold in holds.holds if hold.globs),
    )


def _judge(snapshot: Snapshot, rules: Rules, in_force: Rules | None, holds: Holds, now_ms: int) -> _Judged:
    there = snapshot.there().to_numpy(zero_copy_only=False)
    is_held = pc.is_in(snapshot.commits.column("id"), value_set=packed(sorted(holds.commit_ids())))
    may_go = there & ~is_held.to_numpy(zero_copy_only=False)

    def expired(roots: Roots, rules: Rules, at_ms: int) -> Flags:
        gone: Flags = may_go & ~roots.kept(rules, now_ms=at_ms)
        return gone

    # Once for all days, because the roots need the parents of every commit.
    roots = snapshot.roots(tags_pin=rules.tags_pin)
    gone = tuple(expired(roots, rules, now_ms + day * _DAY_MS) for day in (0, *DAYS))
    before = None if in_force is None else expired(snapshot.roots(tags_pin=in_force.tags_pin), in_force, now_ms)
    return _Judged(
        roots=roots,
        lines=lines_of(first_parent=roots.first_parent, heads=roots.heads, rules=rules, now_ms=now_ms),
        there=there,
        gone=gone,
        expired_in_force=None if before is None else int(before.sum()),
    )


def _branches(judged: _Judged, rules: Rules) -> list[TriedBranch]:
    """Return a row for each branch, most expired commits first."""
    names = ["", *judged.lines.branches]  # Index 0 is -1 + 1: no branch.
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


async def _at_most(versions: Versions, snapshot: Snapshot, judged: _Judged) -> list[Total | None]:
    """Return an upper bound of objects that only expired commits name: now, and after each of DAYS. See `leaving`."""
    earlier = np.zeros_like(judged.there)
    steps = []
    for gone in judged.gone:
        steps.append(_trees(snapshot, judged, gone & ~earlier))
        earlier = gone
    totals = await leaving(versions, steps, _trees(snapshot, judged, judged.there & ~earlier))
    if totals is not None:
        return list(totals)
    # The trees of all days are too many. Count at least those of now.
    kept = _trees(snapshot, judged, judged.there & ~judged.expired)
    return [await only_in(versions, steps[0], kept), *[None] * len(DAYS)]


def _trees(snapshot: Snapshot, judged: _Judged, wanted: Flags) -> list[MetarangeId]:
    """Return the distinct trees of these commits, newest commits first."""
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(-judged.roots.created_ms[rows], kind="stable")]
    trees = pc.unique(snapshot.commits.column("metarange_id").take(pa.array(rows)))
    return [MetarangeId(tree) for tree in texts(trees).to_pylist() if tree]
