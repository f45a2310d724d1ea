"""Explain why a branch keeps its commits, and the difference between two sets of rules. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakebed.base import count_of

from .rules import FOREVER, BranchRule, KeepLast, Rules, matches, specificity, why_before

__all__ = ["Considered", "Explanation", "RuleChange", "diff_rules", "explain"]


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a rule that matches a branch, and whether it wins. The most specific rule is first, and wins."""

    pattern: str
    value: str
    wins: bool
    why: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explain the retention of a branch; `branch` is None for commits on no branch. `pattern` is None for the default.

    `since_ms` is the beginning of the period at `now_ms`, None for a period without end. `periods` and `pins` are the
    matching rules.
    """

    branch: str | None
    period: str
    pattern: str | None
    why: str
    now_ms: int
    since_ms: int | None
    keep_last: int
    tags_pin: bool
    periods: tuple[Considered, ...]
    pins: tuple[Considered, ...]


class RuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one change. `what` is default, period, keep_last, tags_pin or uncommitted.

    `pattern` is empty for a change without a pattern. `before` and `after` are None where that rule does not exist.
    """

    what: str
    pattern: str
    before: str | None
    after: str | None


def explain(rules: Rules, branch: str | None, *, now_ms: int) -> Explanation:
    """Explain which rule applies to a branch, existing or not, and why."""
    periods = _considered([(rule.pattern, rule.period) for rule in rules.branches], branch)
    pins = _considered([(pin.pattern, count_of(pin.commits, "commit")) for pin in rules.keep_last], branch)
    period = rules.period_of(branch)
    return Explanation(
        branch=branch,
        period=period,
        pattern=periods[0].pattern if periods else None,
        why=periods[0].why if periods else _why_default(branch),
        now_ms=now_ms,
        # `forever` begins before every date, which means nothing to people.
        since_ms=None if period == FOREVER else rules.since_ms(branch, now_ms),
        keep_last=0 if branch is None else rules.keep_last_of(branch),
        tags_pin=rules.tags_pin,
        periods=periods,
        pins=pins,
    )


def _why_default(branch: str | None) -> str:
    return "commits on no branch follow the default" if branch is None else "no pattern matches, so the default counts"


def _considered(rules: Sequence[tuple[str, str]], branch: str | None) -> tuple[Considered, ...]:
    found = [] if branch is None else [rule for rule in rules if matches(rule[0], branch)]
    found.sort(key=lambda rule: specificity(rule[0]))
    return tuple(
        Considered(pattern=pattern, value=value, wins=place == 0, why=_why(found, place))
        for place, (pattern, value) in enumerate(found)
    )


def _why(found: Sequence[tuple[str, str]], place: int) -> str:
    if place:
        return f"{found[0][0]} is more specific"
    if len(found) == 1:
        return "the only pattern that matches"
    return why_before(found[0][0], found[1][0])


def diff_rules(before: Rules | None, after: Rules | None) -> list[RuleChange]:
    """Return the differences: the default first, then by kind and pattern. None means no rules."""
    old, new = _flat(before), _flat(after)
    keys = [*old, *(key for key in new if key not in old)]
    keys.sort(key=lambda key: (_KINDS.index(key[0]), specificity(key[1])))
    return [
        RuleChange(what=what, pattern=pattern, before=old.get((what, pattern)), after=new.get((what, pattern)))
        for what, pattern in keys
        if old.get((what, pattern)) != new.get((what, pattern))
    ]


_KINDS = ("default", "period", "keep_last", "tags_pin", "uncommitted")


def _flat(rules: Rules | None) -> dict[tuple[str, str], str]:
    if rules is None:
        return {}
    flat = {("default", ""): rules.default, ("tags_pin", ""): "on" if rules.tags_pin else "off"}
    if rules.uncommitted_min_age is not None:
        flat["uncommitted", ""] = rules.uncommitted_min_age
    for rule in (*rules.branches, *rules.keep_last):
        match rule:
            case BranchRule():
                flat["period", rule.pattern] = rule.period
            case KeepLast():
                flat["keep_last", rule.pattern] = str(rule.commits)
    return flat
