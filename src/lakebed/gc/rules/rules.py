"""The rules of retention: how long a branch's history stays after it has been replaced, and which commits always stay.

A period for the repository, others for branches by pattern, and pins: tags, the last commits of a branch by number. And
a least age for uncommitted data. What the rules do is docs/design/0004-committed-retention.md (history.py); every pin
and the least age only ever keep more. No rules at all is not the same as any rule: without rules nothing of the
committed data is ever collected.

For periods and for `keep_last` alike the most specific pattern that matches a branch wins (patterns.py), each by
itself: a branch may have its period from one pattern and its pin from another. What hangs on no branch follows the
default.

The contract knows whole days only, and no pins. `in_days` shows rules in its words, with each period rounded up: who
reads that believes in less deletion than there is never. `with_days` takes its words back: a number that is what it
showed leaves the period as it was, exactly; pins and the least age stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from lakebed.base import Invalid

from .durations import InvalidDuration, parse_duration
from .patterns import InvalidPattern, check_pattern, is_glob, matches, plain_name, specificity

KEEP_LAST_MAX: Final = 10_000
RULES_MAX: Final = 1_000


class InvalidRules(Invalid):
    """The rules are invalid: a pattern twice, a bad duration, or too many."""


class BranchRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`period` is a duration (durations.py) for the branches that `pattern` matches, whether there are any or not."""

    pattern: str
    period: str


class KeepLast(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest `commits` of a branch stay, counted along first parents from its head, which is the first."""

    pattern: str
    commits: int


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`default` is for branches that no rule matches and for commits on no branch.

    `tags_pin`: whether a tag keeps its commit. The design document's bare rule knows only branches.
    `uncommitted_min_age`: an object uploaded within it, before a run's now, is in no plan for uncommitted data.

    A field that this release does not know is an error and never ignored: it might have kept something.
    """

    default: str
    branches: tuple[BranchRule, ...] = ()
    keep_last: tuple[KeepLast, ...] = ()
    tags_pin: bool = True
    uncommitted_min_age: str | None = None

    def rule_of(self, branch: str) -> BranchRule | None:
        """The most specific rule that matches, None where the default counts."""
        return _most_specific(self.branches, branch)

    def period_of(self, branch: str | None) -> str:
        """Return the period of a branch, or (None) of commits on no branch."""
        rule = None if branch is None else self.rule_of(branch)
        return self.default if rule is None else rule.period

    def since_ms(self, branch: str | None, now_ms: int) -> int:
        """The beginning of the retention period: of a branch, or (None) of commits on no branch."""
        return parse_duration(self.period_of(branch)).before_ms(now_ms)

    def pin_of(self, branch: str) -> KeepLast | None:
        return _most_specific(self.keep_last, branch)

    def keep_last_of(self, branch: str) -> int:
        """Return how many of the branch's newest commits stay whatever their age; 0 where no such rule matches."""
        rule = self.pin_of(branch)
        return 0 if rule is None else rule.commits

    def uncommitted_since_ms(self, now_ms: int) -> int | None:
        """Return the instant from which uploads are in no plan for uncommitted data. None: age does not count."""
        age = self.uncommitted_min_age
        return None if age is None else parse_duration(age).before_ms(now_ms)


PatternRule = TypeVar("PatternRule", BranchRule, KeepLast)
Function = TypeVar("Function", bound=Callable[..., object])


def _cached(function: Function) -> Function:
    """Cache as `functools.lru_cache` does, and keep the function's type."""
    cached: Any = functools.lru_cache(maxsize=64)(function)
    return cached  # type: ignore[no-any-return]  # it is called like `function`


def _most_specific(rules: tuple[PatternRule, ...], branch: str) -> PatternRule | None:
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
    """The same rules, the most specific first.

    Raises:
        InvalidRules: a duration or a pattern that is none, two rules for one pattern, too many rules, or a pin of no
            commits or of too many. The message says where.
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
    """Rules from a JSON file: the rules themselves, or a version of them as the server shows it (field `rules`).

    Raises:
        InvalidRules: no such JSON, an unknown field, or rules that `check_rules` refuses. `name` is in the message.
    """
    try:
        try:
            rules = msgspec.json.decode(data, type=Rules)
        except msgspec.ValidationError:
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


# The contract's words


def days_rules(default_days: int, branch_days: Mapping[str, int] | None = None) -> Rules:
    """Rules in whole days."""
    branches = [BranchRule(pattern=pattern, period=f"{days}d") for pattern, days in (branch_days or {}).items()]
    return Rules(default=f"{default_days}d", branches=most_specific_first(branches))


def in_days(rules: Rules) -> tuple[int, dict[str, int]]:
    """The default and each pattern's period, in whole days, rounded up."""
    branches = {rule.pattern: parse_duration(rule.period).days_at_most() for rule in rules.branches}
    return parse_duration(rules.default).days_at_most(), branches


def with_days(rules: Rules | None, default_days: int, branch_days: Mapping[str, int]) -> Rules:
    """Replace the periods of the rules; their pins stay."""
    written = days_rules(default_days, branch_days)
    if rules is None:
        return written
    shown, shown_branches = in_days(rules)
    untouched = {
        rule.pattern: rule for rule in rules.branches if shown_branches[rule.pattern] == branch_days.get(rule.pattern)
    }
    branches = tuple(untouched.get(rule.pattern, rule) for rule in written.branches)
    default = rules.default if shown == default_days else written.default
    return msgspec.structs.replace(rules, default=default, branches=branches)
