"""Find until when an object is kept: the reasons, by the commits that name it, and the date on which each ends.

A branch keeps a commit while the commit, or its child on the way from the head, is within the branch's period
(history.py). So for each branch one date decides: the latest of all commits in its main ancestry that name the object,
and of their children. Other reasons (head, pin, tag, intent) have no date.

Dates follow the rules of now, and assume no commit, no tag and no change of the rules. A property test holds this
equal to `kept_commits` at every instant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from lakebed.base import CommitId

from .rules import FOREVER, Rules, parse_duration

__all__ = ["Ancestry", "Stay", "StayKind", "goes_ms", "stays_of"]

_NOWHERE: Final = -1


class StayKind(StrEnum):
    """Name the reason why an object is kept. All but BRANCH, DANGLING and UNDO apply as long as the reason exists.

    UNDO: a run took all commits that name the object, and can be undone until its window ends.
    """

    BRANCH = "branch"
    DANGLING = "dangling"
    HEAD = "head"
    KEEP_LAST = "keep_last"
    TAG = "tag"
    INTENT = "intent"
    UNDO = "undo"


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """Give one reason that keeps or kept an object. `name`: of the branch, the tag, the intent or the run.

    `commit` names the object. `rule` is the retention rule as a plan shows it, `period` its duration. The period starts
    at `counted_ms`, the date of `counted_by`: the commit itself, or the commit that replaced it. `until_ms` is the
    first instant at which this reason no longer applies, None without an end. Another reason may keep the object
    longer. A deleted branch or tag keeps it only while the ref can be restored.
    """

    kind: StayKind
    name: str
    commit: CommitId
    rule: str = ""
    period: str = FOREVER
    counted_by: CommitId = CommitId("")
    counted_ms: int | None = None
    until_ms: int | None = None

    def keeps_at(self, now_ms: int) -> bool:
        return self.until_ms is None or self.until_ms > now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestry:
    """Hold every commit record as a row, after its first parent; `first_parent` is -1 without one. `heads`, `tags` and
    `held` (holds, and refs that are being made) map names to rows."""

    ids: Sequence[CommitId]
    first_parent: Sequence[int]
    created_ms: Sequence[int]
    heads: Mapping[str, int]
    tags: Mapping[str, int]
    held: Mapping[str, int]


def stays_of(ancestry: Ancestry, naming: Collection[int], rules: Rules | None, *, now_ms: int) -> list[Stay]:
    """Return why an object is kept that the commits of these rows name: at most one reason for each branch, ended
    reasons included. Without rules no reason ends.

    Linear in commits and branches.
    """
    rows = frozenset(naming)
    below = _look_below(ancestry, rows)
    # Without rules no committed data is ever collected.
    rules = Rules(default=FOREVER) if rules is None else rules
    found = [
        stay
        for branch, head in ancestry.heads.items()
        if (stay := _of_branch(ancestry, below, branch, head, rules, now_ms)) is not None
    ]
    dangling = _dangling(ancestry, below)
    if dangling != _NOWHERE:
        found.append(_aged(ancestry, below, dangling, StayKind.DANGLING, "", rules, now_ms))
    if rules.tags_pin:
        found += _pins(ancestry, rows, ancestry.tags, StayKind.TAG)
    return found + _pins(ancestry, rows, ancestry.held, StayKind.INTENT)


def goes_ms(stays: Sequence[Stay], *, now_ms: int) -> int | None:
    """Return the first instant from now on at which no reason applies, or None without such an instant."""
    instant = now_ms
    # Look again from each candidate: a calendar month may end twice (`Duration`).
    while True:
        latest = instant
        for stay in stays:
            until_ms = _until(stay.period, stay.counted_ms, instant)
            if until_ms is None:
                return None
            latest = max(latest, until_ms)
        if latest == instant:
            return instant
        instant = latest


@dataclass(frozen=True, slots=True)
class _Below:
    """Summarise the main ancestry of each row: the latest date, the row with that date, and the row that then names the
    object. `steps`: how far down the first row is that names it. -1 means no such row."""

    dates: list[int]
    counted_by: list[int]
    naming: list[int]
    steps: list[int]


def _look_below(ancestry: Ancestry, rows: frozenset[int]) -> _Below:
    count = len(ancestry.ids)
    below = _Below([0] * count, [_NOWHERE] * count, [_NOWHERE] * count, [_NOWHERE] * count)
    for row, parent in enumerate(ancestry.first_parent):
        assert parent < row, "parents come first"
        # A commit also keeps its parent's objects: its date is the end of the parent's time as head.
        here = row if row in rows else parent if parent in rows else _NOWHERE
        if parent >= 0 and below.naming[parent] != _NOWHERE:
            below.dates[row], below.counted_by[row] = below.dates[parent], below.counted_by[parent]
            below.naming[row], below.steps[row] = below.naming[parent], below.steps[parent] + 1
        if here != _NOWHERE and (below.naming[row] == _NOWHERE or ancestry.created_ms[row] >= below.dates[row]):
            below.dates[row], below.counted_by[row], below.naming[row] = ancestry.created_ms[row], row, here
        if row in rows:
            below.steps[row] = 0
    return below


def _of_branch(ancestry: Ancestry, below: _Below, branch: str, head: int, rules: Rules, now_ms: int) -> Stay | None:
    if below.naming[head] == _NOWHERE:
        return None
    steps = below.steps[head]
    # The head has the object: this reason lasts until another commit replaces the head.
    if steps == 0:
        return Stay(kind=StayKind.HEAD, name=branch, commit=ancestry.ids[head])
    pin = rules.pin_of(branch)
    # `steps` counts from the head, which is the first of the newest commits.
    if pin is not None and steps < pin.commits:
        named = f"{pin.pattern}: last {pin.commits}"
        return Stay(kind=StayKind.KEEP_LAST, name=branch, commit=ancestry.ids[_down(ancestry, head, steps)], rule=named)
    return _aged(ancestry, below, head, StayKind.BRANCH, branch, rules, now_ms)


def _aged(ancestry: Ancestry, below: _Below, row: int, kind: StayKind, branch: str, rules: Rules, now_ms: int) -> Stay:
    rule = rules.rule_of(branch) if kind is StayKind.BRANCH else None
    period = rules.default if rule is None else rule.period
    return Stay(
        kind=kind,
        name=branch,
        commit=ancestry.ids[below.naming[row]],
        rule=f"{'default' if rule is None else rule.pattern}: {period}",
        period=period,
        counted_by=ancestry.ids[below.counted_by[row]],
        counted_ms=below.dates[row],
        until_ms=_until(period, below.dates[row], now_ms),
    )


def _until(period: str, counted_ms: int | None, now_ms: int) -> int | None:
    """Return the end of the period, or now if it has ended: the date of an end in the past is not known."""
    return None if counted_ms is None else parse_duration(period).over_ms(counted_ms, now_ms)


def _down(ancestry: Ancestry, row: int, steps: int) -> int:
    for _ in range(steps):
        row = ancestry.first_parent[row]
    return row


def _dangling(ancestry: Ancestry, below: _Below) -> int:
    """Return the row that keeps the object longest, of the commits in no main ancestry; -1 without one."""
    on_branch = bytearray(len(ancestry.ids))
    for head in ancestry.heads.values():
        row = head
        while row >= 0 and not on_branch[row]:
            on_branch[row] = 1
            row = ancestry.first_parent[row]
    best = _NOWHERE
    for row, naming in enumerate(below.naming):
        if naming != _NOWHERE and not on_branch[row] and (best == _NOWHERE or below.dates[row] >= below.dates[best]):
            best = row
    return best


def _pins(ancestry: Ancestry, rows: frozenset[int], names: Mapping[str, int], kind: StayKind) -> list[Stay]:
    return [Stay(kind=kind, name=name, commit=ancestry.ids[row]) for name, row in names.items() if row in rows]
