"""Decide which branches a sweep may delete: idle longer than their rule says, or older than made to last. Pure.

Of all rules whose pattern matches a branch the most specific counts, as for retention. A branch without a rule goes
only when it was made to last for a while and that is over. Whatever pins a branch comes before both.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from lakebed.gc.rules.durations import parse_duration
from lakebed.gc.rules.patterns import matches


class IdleRule(msgspec.Struct, frozen=True, kw_only=True):
    """Let branches go that no client moved for longer than `idle`.

    `merged`: only those whose head one of the branches `into` reaches, or (false) none of them does; None: either.
    Without `into` it is the default branch. Uncommitted changes keep a branch, unless its rule `drops_uncommitted`.
    """

    pattern: str
    idle: str
    merged: bool | None = None
    into: tuple[str, ...] = ()
    drops_uncommitted: bool = False


class Pin(StrEnum):
    """Name the reason that keeps a branch whatever the rules say."""

    DEFAULT = "default branch"
    TARGET = "others are merged into it"
    PROTECTED = "protected"
    HELD = "legal hold"
    PINNED = "pinned commit"
    PULL = "open pull request"
    WORK = "at work"


class BranchWhy(StrEnum):
    """Say why a branch goes, or why it stays. A pin is in `Pin`."""

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
    """Describe a branch. `active_ms`: its last move, or, where its rule drops them, the last staged
    change; 0: not known. `expires_ms`: it was made to last until then; 0: for ever.

    `is_merged` is asked only where a rule says `merged`; None: it cannot be known.
    """

    name: str
    active_ms: int
    expires_ms: int = 0
    is_merged: bool | None = False
    has_uncommitted: bool = False
    pins: tuple[Pin, ...] = ()


class BranchVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`rule` is the pattern that counts, empty if none does.

    `due_ms`: when it goes if no client uses it, and nothing else keeps it; None: never.
    """

    goes: bool
    why: str
    rule: str = ""
    due_ms: int | None = None


def idle_rule_of(rules: Sequence[IdleRule], branch: str) -> IdleRule | None:
    """Return the rule that counts for a branch. `rules` come the most specific first."""
    return next((rule for rule in rules if matches(rule.pattern, branch)), None)


def judge_branch(rule: IdleRule | None, facts: BranchFacts, now_ms: int) -> BranchVerdict:
    """Say whether a branch goes now by the rule that counts for it. Doubt keeps it."""
    due_ms = _due_ms(rule, facts)
    kept = _kept_by(rule, facts, now_ms, due_ms)
    why = kept or (BranchWhy.OLD if 0 < facts.expires_ms <= now_ms else BranchWhy.IDLE)
    return BranchVerdict(goes=not kept, why=str(why), rule="" if rule is None else rule.pattern, due_ms=due_ms)


def first_going_ms(rule: IdleRule | None, facts: BranchFacts, now_ms: int) -> int | None:
    """Return the first instant from now on at which a branch goes if nothing changes; None: there is no such."""
    later = sorted(date for date in _dates(rule, facts) if date > now_ms)
    return next((instant for instant in (now_ms, *later) if judge_branch(rule, facts, instant).goes), None)


def _due_ms(rule: IdleRule | None, facts: BranchFacts) -> int | None:
    return min(_dates(rule, facts), default=None)


def _dates(rule: IdleRule | None, facts: BranchFacts) -> list[int]:
    """Return the end of the planned life and of the idle time, where there are such."""
    dates = [facts.expires_ms] if facts.expires_ms else []
    if rule is not None:
        duration = parse_duration(rule.idle)
        if not duration.unit:
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
        return BranchWhy.UNKNOWN_AGE
    if due_ms > now_ms:
        return BranchWhy.LASTING if due_ms == facts.expires_ms else BranchWhy.ACTIVE
    # A branch that is older than it was made to last goes, merged or not: its maker chose the date.
    if rule is not None and not 0 < facts.expires_ms <= now_ms and rule.merged not in (None, facts.is_merged):
        if facts.is_merged is None:
            return BranchWhy.NO_TARGET
        return BranchWhy.NOT_MERGED if rule.merged else BranchWhy.MERGED
    if facts.has_uncommitted and not (rule is not None and rule.drops_uncommitted):
        return BranchWhy.UNCOMMITTED
    return ""
