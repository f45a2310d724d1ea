"""Decide which branches a sweep may delete: idle longer than their rule allows, or past their expiry date. Pure.

The most specific rule whose pattern matches a branch applies, as for retention. A branch without a rule is deleted only
after its expiry date. A pin keeps a branch in both cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from lakebed.gc.rules.rules import matches, parse_duration

__all__ = [
    "BranchFacts",
    "BranchVerdict",
    "BranchWhy",
    "IdleRule",
    "Pin",
    "first_going_ms",
    "idle_rule_of",
    "judge_branch",
]


class IdleRule(msgspec.Struct, frozen=True, kw_only=True):
    """Delete branches that no client moved for longer than `idle`."""

    pattern: str
    idle: str
    # Delete only branches whose head one of the branches `into` reaches, or (false) none of `into` reaches. None
    # selects both. `into` defaults to the default branch. Uncommitted changes keep a branch, unless its rule
    # `drops_uncommitted`.
    merged: bool | None = None
    into: tuple[str, ...] = ()
    drops_uncommitted: bool = False


class Pin(StrEnum):
    """Name the reason that keeps a branch whatever the rules are."""

    DEFAULT = "default branch"
    TARGET = "others are merged into it"
    PROTECTED = "protected"
    HELD = "legal hold"
    PINNED = "pinned commit"
    PULL = "open pull request"
    WORK = "at work"


class BranchWhy(StrEnum):
    """Name the reason why a branch is deleted or kept. Pins are in `Pin`."""

    IDLE = "idle"
    OLD = "older than it was made to last"
    NO_RULE = "no rule"
    FOREVER = "kept for ever"
    ACTIVE = "not idle for long enough"
    LASTING = "lasts until its date"
    MERGED = "merged"
    NOT_MERGED = "not merged"
    NO_TARGET = "a branch that it may be merged into is not there"
    UNCOMMITTED = "uncommitted changes"
    UNKNOWN_AGE = "unknown age"


class BranchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a branch. `active_ms`: its last move. If its rule drops uncommitted changes, also the last staged one.
    0 means unknown. `expires_ms`: its expiry date; 0 means no date.

    `is_merged` is computed only for a rule with `merged`; None means that it is unknown.
    """

    name: str
    active_ms: int
    expires_ms: int = 0
    is_merged: bool | None = False
    has_uncommitted: bool = False
    pins: tuple[Pin, ...] = ()


class BranchVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`rule` is the pattern that applies, empty without a rule."""

    goes: bool
    why: str
    rule: str = ""
    # When the branch is deleted if no client uses it and no other reason keeps it, or None for never.
    due_ms: int | None = None


def idle_rule_of(rules: Sequence[IdleRule], branch: str) -> IdleRule | None:
    """Return the rule that applies to a branch. `rules` are sorted, the most specific first."""
    return next((rule for rule in rules if matches(rule.pattern, branch)), None)


def judge_branch(rule: IdleRule | None, facts: BranchFacts, now_ms: int) -> BranchVerdict:
    """Decide whether to delete a branch now, by the rule that applies to it. Doubt keeps it."""
    due_ms = _due_ms(rule, facts)
    kept = _kept_by(rule, facts, now_ms, due_ms)
    why = kept or (BranchWhy.OLD if 0 < facts.expires_ms <= now_ms else BranchWhy.IDLE)
    return BranchVerdict(goes=not kept, why=str(why), rule="" if rule is None else rule.pattern, due_ms=due_ms)


def first_going_ms(rule: IdleRule | None, facts: BranchFacts, now_ms: int) -> int | None:
    """Return the first instant from now on at which an unchanged branch is deleted, or None."""
    later = sorted(date for date in _dates(rule, facts) if date > now_ms)
    return next((instant for instant in (now_ms, *later) if judge_branch(rule, facts, instant).goes), None)


def _due_ms(rule: IdleRule | None, facts: BranchFacts) -> int | None:
    return min(_dates(rule, facts), default=None)


def _dates(rule: IdleRule | None, facts: BranchFacts) -> list[int]:
    """Return the expiry date and the end of the idle time, as far as they exist."""
    dates = [facts.expires_ms] if facts.expires_ms else []
    if rule is not None:
        duration = parse_duration(rule.idle)
        if not duration.unit:
            # `forever` keeps the branch even after its expiry date.
            return []
        idle_ms = duration.over_ms(facts.active_ms, facts.active_ms)
        dates += [] if idle_ms is None or not facts.active_ms else [idle_ms]
    return dates


def _kept_by(rule: IdleRule | None, facts: BranchFacts, now_ms: int, due_ms: int | None) -> str:
    if facts.pins:
        return facts.pins[0]
    if rule is not None and not parse_duration(rule.idle).unit:
        return BranchWhy.FOREVER
    if rule is None and not facts.expires_ms:
        return BranchWhy.NO_RULE
    if due_ms is None:
        # Doubt keeps the branch.
        return BranchWhy.UNKNOWN_AGE
    if due_ms > now_ms:
        return BranchWhy.LASTING if due_ms == facts.expires_ms else BranchWhy.ACTIVE
    # Delete a branch after its expiry date, merged or not: its creator chose the date.
    if rule is not None and not 0 < facts.expires_ms <= now_ms and rule.merged not in (None, facts.is_merged):
        if facts.is_merged is None:
            return BranchWhy.NO_TARGET
        return BranchWhy.NOT_MERGED if rule.merged else BranchWhy.MERGED
    if facts.has_uncommitted and not (rule is not None and rule.drops_uncommitted):
        return BranchWhy.UNCOMMITTED
    return ""
