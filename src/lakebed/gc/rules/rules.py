"""The rules of retention: how long a branch keeps a replaced commit, and which commits are always kept.

The rules are a default period, periods for branches by pattern, pins, and a least age for uncommitted data. Pins are
tags, and the last commits of a branch by number. docs/design/0004-committed-retention.md gives their effect
(history.py). Pins and the least age only keep more. A repository without rules never collects committed data.
Commits on no branch follow the default.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from lakebed.base import Invalid

from .durations import InvalidDuration, parse_duration
from .patterns import InvalidPattern, check_pattern, is_glob, matches, plain_name, specificity

__all__ = [
    "KEEP_LAST_MAX",
    "NO_RULES",
    "BranchRule",
    "InvalidRules",
    "KeepLast",
    "NoRules",
    "Rules",
    "check_rules",
    "days_rules",
    "in_days",
    "read_rules",
    "with_days",
]

NO_RULES: Final = "no retention rules are set: `lakebed gc rules set-default` says how long committed data stays"
KEEP_LAST_MAX: Final = 10_000
RULES_MAX: Final = 1_000


class NoRules(Invalid):
    """No retention rules are set, so no commit expires."""


class InvalidRules(Invalid):
    """The rules are invalid: duplicate pattern, bad duration, or too many."""


class BranchRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give a `period` (durations.py) to the branches that `pattern` matches, whether any exist or not."""

    pattern: str
    period: str


class KeepLast(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep the newest `commits` of a branch, counted along first parents from its head, which is the first."""

    pattern: str
    commits: int


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`default` is for branches that no rule matches and for commits on no branch.

    `tags_pin`: a tag keeps its commit. The bare rule of the design document has only branches.
    `uncommitted_min_age`: no plan for uncommitted data has an object uploaded within this age before the run's now.

    A field that this release does not know is an error, never ignored: it might keep data.
    """

    default: str
    branches: tuple[BranchRule, ...] = ()
    keep_last: tuple[KeepLast, ...] = ()
    tags_pin: bool = True
    uncommitted_min_age: str | None = None

    def rule_of(self, branch: str) -> BranchRule | None:
        """Return the most specific rule that matches, or None where the default applies."""
        return _most_specific(self.branches, branch)

    def period_of(self, branch: str | None) -> str:
        """Return the period of a branch, or (None) of commits on no branch."""
        rule = None if branch is None else self.rule_of(branch)
        return self.default if rule is None else rule.period

    def since_ms(self, branch: str | None, now_ms: int) -> int:
        """Return the beginning of the retention period of a branch, or (None) of commits on no branch."""
        return parse_duration(self.period_of(branch)).before_ms(now_ms)

    def pin_of(self, branch: str) -> KeepLast | None:
        return _most_specific(self.keep_last, branch)

    def keep_last_of(self, branch: str) -> int:
        """Return how many of the branch's newest commits are kept whatever their age; 0 without a matching rule."""
        rule = self.pin_of(branch)
        return 0 if rule is None else rule.commits

    def uncommitted_since_ms(self, now_ms: int) -> int | None:
        """Return the first upload instant that plans for uncommitted data exclude, or None without a least age."""
        age = self.uncommitted_min_age
        return None if age is None else parse_duration(age).before_ms(now_ms)


PatternRule = TypeVar("PatternRule", BranchRule, KeepLast)
Function = TypeVar("Function", bound=Callable[..., object])


def _cached(function: Function) -> Function:
    """Cache like `functools.lru_cache`, and keep the function's type."""
    cached: Any = functools.lru_cache(maxsize=64)(function)
    return cached  # type: ignore[no-any-return]  # it is called like `function`


def _most_specific(rules: tuple[PatternRule, ...], branch: str) -> PatternRule | None:
    # Periods and pins are looked up separately: a branch may have its period from one pattern and its pin from another.
    exact, globs = _ordered(rules)
    rule = exact.get(plain_name(branch))
    if rule is not None:
        return rule
    return next((rule for rule in globs if matches(rule.pattern, branch)), None)


@_cached
def _ordered(rules: tuple[PatternRule, ...]) -> tuple[dict[str, PatternRule], list[PatternRule]]:
    exact = {rule.pattern: rule for rule in rules if not is_glob(rule.pattern)}
    globs = sorted((rule for rule in rules if is_glob(rule.pattern)), key=lambda rule: specificity(rule.pattern))
    return exact, globs


def most_specific_first(rules: Iterable[PatternRule]) -> tuple[PatternRule, ...]:
    return tuple(sorted(rules, key=lambda rule: specificity(rule.pattern)))


def check_rules(rules: Rules) -> Rules:
    """Return the same rules, the most specific first.

    Raises:
        InvalidRules: an invalid duration or pattern, two rules for one pattern, too many rules, or a pin of too few or
            too many commits. The message names the rule.
    """
    if len(rules.branches) > RULES_MAX or len(rules.keep_last) > RULES_MAX:
        raise InvalidRules(f"at most {RULES_MAX} rules of a kind are allowed")
    _check_period("the default", rules.default)
    if rules.uncommitted_min_age is not None:
        _check_period("uncommitted data", rules.uncommitted_min_age)
    _check_patterns("periods", [rule.pattern for rule in rules.branches])
    _check_patterns("keep_last", [rule.pattern for rule in rules.keep_last])
    for rule in rules.branches:
        _check_period(rule.pattern, rule.period)
    for pin in rules.keep_last:
        if not 1 <= pin.commits <= KEEP_LAST_MAX:
            raise InvalidRules(
                f"keep_last of {pin.pattern}: {pin.commits} commits, must be 1 to {KEEP_LAST_MAX}", pattern=pin.pattern
            )
    return msgspec.structs.replace(
        rules, branches=most_specific_first(rules.branches), keep_last=most_specific_first(rules.keep_last)
    )


def _check_period(what: str, period: str) -> None:
    try:
        parse_duration(period)
    except InvalidDuration as error:
        raise InvalidRules(f"retention of {what}: {error}", **error.facts) from error


def _check_patterns(what: str, patterns: Sequence[str]) -> None:
    seen: set[str] = set()
    for pattern in patterns:
        try:
            check_pattern(pattern)
        except InvalidPattern as error:
            raise InvalidRules(f"{what}: {error}", **error.facts) from error
        if pattern in seen:
            raise InvalidRules(f"{what}: two rules for {pattern}", pattern=pattern)
        seen.add(pattern)


def read_rules(data: bytes, *, name: str) -> Rules:
    """Read rules from JSON: the rules themselves, or a version of them as the server shows it (field `rules`).

    Raises:
        InvalidRules: invalid JSON, an unknown field, or rules that `check_rules` refuses. `name` is in the message.
    """
    try:
        try:
            rules = msgspec.json.decode(data, type=Rules)
        except msgspec.ValidationError:
            # A shown version has other fields, which are ignored.
            shown = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            if "rules" not in shown:
                raise
            rules = msgspec.json.decode(shown["rules"], type=Rules)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRules(f"{name}: {error}") from error
    try:
        return check_rules(rules)
    except InvalidRules as error:
        raise InvalidRules(f"{name}: {error}", **error.facts) from error


# The contract has whole days only, and no pins


def days_rules(default_days: int, branch_days: Mapping[str, int] | None = None) -> Rules:
    """Return rules in whole days."""
    branches = [BranchRule(pattern=pattern, period=f"{days}d") for pattern, days in (branch_days or {}).items()]
    return Rules(default=f"{default_days}d", branches=most_specific_first(branches))


def in_days(rules: Rules) -> tuple[int, dict[str, int]]:
    """Return the default and each pattern's period in whole days."""
    # Round up: rules that a client makes from these days never expire a commit earlier.
    branches = {rule.pattern: parse_duration(rule.period).days_at_most() for rule in rules.branches}
    return parse_duration(rules.default).days_at_most(), branches


def with_days(rules: Rules | None, default_days: int, branch_days: Mapping[str, int]) -> Rules:
    """Replace the periods of the rules, and keep pins and the least age."""
    written = days_rules(default_days, branch_days)
    if rules is None:
        return written
    shown, shown_branches = in_days(rules)
    # A number equal to the shown one leaves the exact period unchanged.
    untouched = {
        rule.pattern: rule for rule in rules.branches if shown_branches[rule.pattern] == branch_days.get(rule.pattern)
    }
    branches = tuple(untouched.get(rule.pattern, rule) for rule in written.branches)
    default = rules.default if shown == default_days else written.default
    return msgspec.structs.replace(rules, default=default, branches=branches)
