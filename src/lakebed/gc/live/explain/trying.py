"""Answer `lakebed gc rules try`: list the commits that would expire by retention rules, before they are saved.

The answer is informational, and writes nothing. It judges commits as a plan does (`kept_indices`). It reads every
commit record into columns of 130 bytes a commit. The number of objects is a cheap upper bound (trees.py). It comes in
steps of some milliseconds, so that a page can end between them (searches.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from lakebed.base import MetarangeId
from lakebed.gc.live.reading.commits import COMMITS_A_FILE, Roots, Snapshot
from lakebed.gc.live.reading.inputs import packed, texts
from lakebed.gc.live.records.settings import HoldBook, RuleBook
from lakebed.gc.messages import RulesTrial, Total, TriedBranch, TriedCommit, TriedDay, WhyProgress
from lakebed.gc.rules import Holds, Lines, Rules, kept_indices, lines_of, newest_of
from lakebed.versions import Versions

from .trees import counted_snapshot, leaving_steps

__all__ = ["trial_steps"]

DAYS: Final = (1, 2, 7, 14, 30, 60)
SHOWN: Final = 100
LINES_A_FILE: Final = 400
VERDICTS_A_FILE: Final = 1_200
"""To draw the lines of branches through this many commits, or to judge as many, takes as long as to read a file."""
_DAY_MS: Final = 86_400_000

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A verdict on each commit, now and after each of DAYS. `is_there`: it was not swept before."""

    roots: Roots
    lines: Lines
    is_there: Flags
    gone: tuple[Flags, ...]

    @property
    def expired(self) -> Flags:
        return self.gone[0]


async def trial_steps(versions: Versions, rules: Rules) -> AsyncGenerator[WhyProgress | RulesTrial, None]:
    """Find the commits that would expire by `rules` now and after DAYS, and by the rules in force. Yields progress,
    then the answer.

    Raises:
        BrokenHistory: a ref or a commit names a commit that has no record.
        Corrupt: a file of a tree is missing or altered.
    """
    now_ms = versions.ports.clock.now_ms()
    in_force = (await RuleBook(versions).read()).rules
    holds = await HoldBook(versions).in_force()
    snapshot: Snapshot | None = None
    async for step in counted_snapshot(versions):
        if isinstance(step, Snapshot):
            snapshot = step
        else:
            yield step
    assert snapshot is not None, "the last step is the snapshot"
    tried: dict[Rules, tuple[_Judged, tuple[TriedDay, ...]]] = {}
    for each in [rules] if in_force is None else [rules, in_force]:
        if each in tried:
            continue
        judged: _Judged | None = None
        async for verdict in _judge_steps(versions, snapshot, each, holds, now_ms):
            if isinstance(verdict, _Judged):
                judged = verdict
            else:
                yield verdict
        assert judged is not None, "the last step is the verdict"
        async for counted in _days_steps(versions, snapshot, judged):
            if isinstance(counted, WhyProgress):
                yield counted
            else:
                tried[each] = judged, counted
    judged, days = tried[rules]
    branches = _branches(judged)
    yield RulesTrial(
        now_ms=now_ms,
        kept=int((judged.is_there & ~judged.expired).sum()),
        expired=int(judged.expired.sum()),
        gone=int((~judged.is_there).sum()),
        in_force=() if in_force is None else tried[in_force][1],
        branches=tuple(
            TriedBranch(branch=branch, rule=_rule(rules, branch), commits=commits, expired=expired)
            for branch, commits, expired in branches[:SHOWN]
        ),
        branches_count=len(branches),
        commits=_commits(snapshot, judged, rules),
        days=days[1:],
        at_most=days[0].at_most,
        path_holds=tuple(hold.name for hold in holds.holds if hold.globs),
    )


async def _judge_steps(
    versions: Versions, snapshot: Snapshot, rules: Rules, holds: Holds, now_ms: int
) -> AsyncIterator[WhyProgress | _Judged]:
    count = len(snapshot.commits)

    def done(days: int, commits_a_file: int) -> WhyProgress:
        return WhyProgress(stage="rules", done=days, of=1 + len(DAYS), files=1 + count // commits_a_file)

    def draw() -> tuple[Roots, Flags, Flags]:
        roots = snapshot.roots(tags_pin=rules.tags_pin)
        is_there = snapshot.there().to_numpy(zero_copy_only=False)
        is_held = pc.is_in(snapshot.commits.column("id"), value_set=packed(sorted(holds.commit_ids())))
        # The newest commits of branches are the same on all days.
        pinned = [*roots.pinned, *newest_of(roots.first_parent, roots.heads, rules)]
        pinned_roots = Roots(
            first_parent=roots.first_parent, created_ms=roots.created_ms, heads=roots.heads, pinned=pinned
        )
        return pinned_roots, is_there, is_there & ~is_held.to_numpy(zero_copy_only=False)

    apart = versions.ports.tasks.apart
    roots, is_there, may_go = await apart(draw)
    yield done(0, COMMITS_A_FILE)
    line_up = partial(lines_of, first_parent=roots.first_parent, heads=roots.heads, rules=rules)
    first = await apart(partial(line_up, now_ms=now_ms))
    yield done(0, LINES_A_FILE)

    def judge(at_ms: int) -> Flags:
        kept = kept_indices(
            first_parent=roots.first_parent,
            created_ms=roots.created_ms,
            heads=roots.heads,
            pinned=roots.pinned,
            rules=replace(rules, keep_last=()),  # They are pinned.
            now_ms=at_ms,
            lines=first.at(at_ms) or line_up(now_ms=at_ms),
        )
        gone: Flags = may_go & ~kept
        return gone

    gone: list[Flags] = []
    for day in (0, *DAYS):
        gone.append(await apart(partial(judge, now_ms + day * _DAY_MS)))
        yield done(len(gone), VERDICTS_A_FILE)
    yield _Judged(roots=roots, lines=first, is_there=is_there, gone=tuple(gone))


def _branches(judged: _Judged) -> list[tuple[str, int, int]]:
    """Return each branch with its commits and those that expire, most expired commits first."""
    names = ["", *judged.lines.branches]  # Index 0 is -1 + 1: no branch.
    numbers = judged.lines.branch_of + 1
    counts = np.bincount(numbers[judged.is_there], minlength=len(names)).tolist()
    expired = np.bincount(numbers[judged.expired], minlength=len(names)).tolist()
    rows = [row for row in zip(names, counts, expired, strict=True) if row[1]]
    return sorted(rows, key=lambda row: (-row[2], -row[1], row[0]))


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


async def _days_steps(
    versions: Versions, snapshot: Snapshot, judged: _Judged
) -> AsyncIterator[WhyProgress | tuple[TriedDay, ...]]:
    """Count what only expired commits name, at most: now, and after each of DAYS. See `leaving_steps`."""

    def sort() -> tuple[list[list[MetarangeId]], list[MetarangeId], list[MetarangeId]]:
        earlier = np.zeros_like(judged.is_there)
        leaving = []
        for gone in judged.gone:
            leaving.append(_trees(snapshot, judged, gone & ~earlier))
            earlier = gone
        last = _trees(snapshot, judged, judged.is_there & ~earlier)
        return leaving, last, _trees(snapshot, judged, judged.is_there & ~judged.expired)

    leaving, kept_to_the_end, kept_now = await versions.ports.tasks.apart(sort)
    yield WhyProgress(stage="trees", files=1 + len(snapshot.commits) // VERDICTS_A_FILE)
    totals: list[Total | None] = [None] * len(judged.gone)
    # If the trees of all days are too many, count at least those of now.
    for steps, kept in ((leaving, kept_to_the_end), (leaving[:1], kept_now)):
        async for counted in leaving_steps(versions, steps, kept):
            if isinstance(counted, WhyProgress):
                yield counted
            elif counted is not None:
                totals[: len(counted)] = counted
        if totals[0] is not None:
            break
    yield tuple(
        TriedDay(days=day, expired=int(gone.sum()), at_most=total)
        for day, gone, total in zip((0, *DAYS), judged.gone, totals, strict=True)
    )


def _trees(snapshot: Snapshot, judged: _Judged, wanted: Flags) -> list[MetarangeId]:
    """Return the distinct trees of these commits, newest commits first."""
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(-judged.roots.created_ms[rows], kind="stable")]
    trees = pc.unique(snapshot.commits.column("metarange_id").take(pa.array(rows)))
    return [MetarangeId(tree) for tree in texts(trees).to_pylist() if tree]
