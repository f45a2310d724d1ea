"""The rules of retention: how long a branch keeps a replaced commit, which are always kept, durations and patterns.

The rules are a default period, periods for branches by pattern, pins, and a least age for uncommitted data. Pins are
tags, and the last commits of a branch by number. docs/design/0004-committed-retention.md gives their effect
(history.py). Pins and the least age only keep more. A repository without rules never collects committed data.
Commits on no branch follow the default.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from lakebed.base import Invalid, np

__all__ = [
    "DAYS_MAX",
    "DAY_MS",
    "FOREVER",
    "HOUR_MS",
    "KEEP_LAST_MAX",
    "NO_RULES",
    "BranchRule",
    "InvalidDuration",
    "InvalidPattern",
    "InvalidRules",
    "KeepLast",
    "NoRules",
    "Rules",
    "check_pattern",
    "check_rules",
    "days_rules",
    "deleted_name",
    "in_days",
    "matches",
    "parse_duration",
    "parse_lifetime",
    "plain_name",
    "read_rules",
    "specificity",
    "with_days",
]

# Durations: `36h`, `20d`, `2w`, `6mo`, `forever`. Hours, days and weeks are fixed: a day is always 24 hours. A month
# is a calendar month in UTC, counted back from the run's now: the same day of the month and time of day, or the last
# day of a shorter month. So `1mo` before 31 March 10:00 is 28 February 10:00 (29 in a leap year).


HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
DAYS_MAX: Final = 366_000
"""A thousand years: a longer period is a typing error."""
MONTHS_MAX: Final = 12_000
FOREVER: Final = "forever"
SINCE_EVER_MS: Final = -(1 << 62)
"""Earlier than every date."""

_FORM: Final = re.compile(r"([+-]?[0-9]+)([a-z]*)")
_MINUTES: Final = re.compile(r"([1-9][0-9]{0,7})(?:m|min)")
_UNITS_MS: Final = {"min": HOUR_MS // 60, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_MAXIMA: Final = {"h": DAYS_MAX * 24, "d": DAYS_MAX, "w": DAYS_MAX // 7, "mo": MONTHS_MAX}
_KNOWN: Final = "say 36h (hours), 20d (days), 2w (weeks), 6mo (calendar months) or forever"
_CYCLE_MONTHS: Final = 4_800
"""The Gregorian calendar repeats after 400 years."""


class InvalidDuration(Invalid):
    """The text is not a duration, or is out of bounds."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Hold an amount and its unit: h, d, w or mo, or an empty unit for `forever`. A lifetime may be in min."""

    amount: int
    unit: str

    def before_ms(self, now_ms: int) -> int:
        """Return the instant that is this duration before now. An event at that instant is within the duration."""
        if not self.unit:
            return SINCE_EVER_MS
        if self.unit == "mo":
            return _months_before(now_ms, self.amount)
        return now_ms - self.amount * _UNITS_MS[self.unit]

    def over_ms(self, event_ms: int, from_ms: int) -> int | None:
        """Return the first instant from `from_ms` on at which an event is no longer within the duration, or None."""
        if not self.unit:
            return None
        if self.unit == "mo":
            return _months_over(event_ms, self.amount, from_ms)
        return max(from_ms, event_ms + self.amount * _UNITS_MS[self.unit] + 1)

    def days_at_most(self) -> int:
        """Return the fewest whole days that are never shorter, whatever the date. DAYS_MAX stands for `forever`."""
        if not self.unit:
            return DAYS_MAX
        if self.unit == "mo":
            return _days_of_months(self.amount)
        return -(-self.amount * _UNITS_MS[self.unit] // DAY_MS)


@functools.lru_cache(maxsize=1024)
def parse_duration(text: str) -> Duration:
    """Read a duration.

    Raises:
        InvalidDuration: no unit, an unknown unit, an amount of zero or less, or over a thousand years.
    """
    if text == FOREVER:
        return Duration(0, "")
    found = _FORM.fullmatch(text)
    if found is None or not text.isascii():
        raise InvalidDuration(f"{text!r} is not a duration: {_KNOWN}", duration=text)
    number, unit = found.groups()
    if not unit:
        raise InvalidDuration(f"{text!r} has no unit: {_KNOWN}", duration=text)
    if unit == "m":
        raise InvalidDuration(
            f"{text!r} could mean minutes or months: {_KNOWN}. Only a lifetime, such as --ttl, has minutes",
            duration=text,
        )
    if unit not in _MAXIMA:
        raise InvalidDuration(f"{text!r} has the unknown unit {unit!r}: {_KNOWN}", duration=text)
    if number.startswith("-") or not number.strip("+0"):
        raise InvalidDuration(f"{text!r} is too short: the least is 1h", duration=text)
    if number[0] in "+0":
        raise InvalidDuration(f"{text!r} is spelled {number.lstrip('+0')}{unit}", duration=text)
    if len(number) > 9 or int(number) > _MAXIMA[unit]:
        raise InvalidDuration(f"{text!r} is over a thousand years; say forever if that is meant", duration=text)
    return Duration(int(number), unit)


def parse_lifetime(text: str) -> Duration:
    """Read how long something lasts that is made: a duration, or minutes (`90m`, `90min`).

    Periods of retention have no minutes: a rule of `6m` that meant months would delete nearly everything.

    Raises:
        InvalidDuration: as for `parse_duration`.
    """
    if minutes := _MINUTES.fullmatch(text):
        return Duration(int(minutes[1]), "min")
    try:
        return parse_duration(text)
    except InvalidDuration as error:
        # Here `m` is no riddle: say so, too.
        raise InvalidDuration(str(error).replace("say ", "say 90m (minutes), "), **error.facts) from None


def _months_over(event_ms: int, months: int, from_ms: int) -> int:
    """Return the first instant from `from_ms` on that is more than `months` after the event.

    In the month that is `months` after the event's, the day and time of the event decide. Every later month is beyond.
    """
    month = np.datetime64(event_ms // DAY_MS, "D").astype("M8[M]") + months
    instant = max(from_ms, int(month.astype("M8[D]").astype(np.int64)) * DAY_MS)
    beyond = int((month + 1).astype("M8[D]").astype(np.int64)) * DAY_MS
    # If the event's day is the last of its month, every later day of the other month maps back to it. So each of these
    # days may begin within the duration and end beyond it.
    while instant < beyond:
        before_ms = _months_before(instant, months)
        if before_ms > event_ms:
            return instant
        tomorrow = (instant // DAY_MS + 1) * DAY_MS
        instant = min(instant + event_ms - before_ms + 1, tomorrow)
    return max(instant, beyond)


def _months_before(now_ms: int, months: int) -> int:
    # Count all months in one step: `2mo` before 30 April is 28 February, and not `1mo` before 30 March. A shorter month
    # gives its last day and does not roll over: the earlier date keeps more.
    day, time_ms = divmod(now_ms, DAY_MS)
    month = np.datetime64(day, "D").astype("M8[M]")
    first = month.astype("M8[D]").astype(np.int64)
    target = month - months
    start = int(target.astype("M8[D]").astype(np.int64))
    length = int((target + 1).astype("M8[D]").astype(np.int64)) - start
    return (start + min(day - int(first), length - 1)) * DAY_MS + time_ms


@functools.lru_cache(maxsize=256)
def _days_of_months(months: int) -> int:
    """Return the most days that this many months can have: from the last day of each month of the calendar's cycle."""
    ends = np.arange(months, months + _CYCLE_MONTHS)
    firsts = np.arange(0, months + _CYCLE_MONTHS + 1).astype("M8[M]").astype("M8[D]").astype(np.int64)
    lengths = np.diff(firsts)
    last_days = firsts[ends] + lengths[ends]
    starts = firsts[ends - months] + np.minimum(lengths[ends], lengths[ends - months])
    return int((last_days - starts).max())


# Patterns of branches: a name, or a glob with `*` (any characters, also none) and `?` (exactly one). The most specific
# pattern that matches a branch wins: an exact name before every glob; the longer literal beginning; more literal
# characters; fewer `*`, then more `?`; the text itself, by code point. The order is total, so the order in a file
# never matters.

PATTERN_MAX: Final = 256
_ALLOWED: Final = re.compile(r"[A-Za-z0-9_*?-]+")
_WILD_RUN: Final = re.compile(r"[*?]+")

_DELETED: Final = "@{deleted "

Specificity = tuple[bool, int, int, int, int, str]


class InvalidPattern(Invalid):
    """The text is not a pattern for names of branches."""


def check_pattern(text: str) -> str:
    """Return the pattern if it is valid, or raise InvalidPattern."""
    if not text:
        raise InvalidPattern("a rule for a branch without a name", pattern=text)
    if len(text) > PATTERN_MAX:
        raise InvalidPattern(f"a pattern of {len(text)} characters, at most {PATTERN_MAX}", pattern=text[:PATTERN_MAX])
    if not _ALLOWED.fullmatch(text):
        raise InvalidPattern(
            f"{text!r} matches no branch: letters, digits, underscores, dashes, * and ? are allowed", pattern=text
        )
    # A run of wildcards has one spelling: `?` first, then at most one `*`. So no two patterns match the same texts.
    if "**" in text or "*?" in text:
        canonical = _WILD_RUN.sub(_canonical_run, text)
        raise InvalidPattern(f"{text!r} is spelled {canonical!r}", pattern=text)
    return text


def _canonical_run(found: re.Match[str]) -> str:
    run = found[0]
    return "?" * run.count("?") + "*" * ("*" in run)


def is_glob(pattern: str) -> bool:
    return _WILD_RUN.search(pattern) is not None


def deleted_name(name: str, deletion: str) -> str:
    """Return the name of a deleted branch or tag as a ref, while it can be restored. Rules treat it as `name`."""
    return f"{name}{_DELETED}{deletion}}}"


def plain_name(name: str) -> str:
    """Return a ref's name, or its name before its deletion. No name of a branch or tag contains `@{`."""
    return name.partition(_DELETED)[0]


def matches(pattern: str, branch: str) -> bool:
    """Run in O(len(name) x stars). No pattern causes exponential backtracking."""
    return _compiled(pattern).match(plain_name(branch)) is not None


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    # Patterns have no `[`, so `fnmatch` sees only `*` and `?`.
    return re.compile(fnmatch.translate(pattern))


def specificity(pattern: str) -> Specificity:
    """Return a sort key: most specific first. Exact names sort by text, as each branch matches at most one."""
    if not is_glob(pattern):
        return False, 0, 0, 0, 0, pattern
    literals = len(pattern) - pattern.count("*") - pattern.count("?")
    return (
        True,
        -len(literal_beginning(pattern)),
        -literals,
        pattern.count("*"),
        -pattern.count("?"),
        pattern,
    )


def literal_beginning(pattern: str) -> str:
    return _WILD_RUN.split(pattern, maxsplit=1)[0]


def why_before(winner: str, loser: str) -> str:
    """Explain in words why the first of two matching patterns is more specific."""
    ours, theirs = specificity(winner), specificity(loser)
    if ours[0] != theirs[0]:
        return f"an exact name goes before the glob {loser}"
    if ours[1] != theirs[1]:
        return f"its literal beginning has {-ours[1]} characters, that of {loser} has {-theirs[1]}"
    if ours[2] != theirs[2]:
        return f"it has {-ours[2]} literal characters, {loser} has {-theirs[2]}"
    if ours[3] != theirs[3]:
        return f"it has {ours[3]} times *, {loser} has {theirs[3]}"
    if ours[4] != theirs[4]:
        return f"it has {-ours[4]} times ?, {loser} has {-theirs[4]}"
    return f"it is as specific as {loser}, and comes first by its text"


NO_RULES: Final = "no retention rules are set: `lakebed gc rules set-default` says how long committed data stays"
KEEP_LAST_MAX: Final = 10_000
RULES_MAX: Final = 1_000


class NoRules(Invalid):
    """No retention rules are set, so no commit expires."""


class InvalidRules(Invalid):
    """The rules are invalid: duplicate pattern, bad duration, or too many."""


class BranchRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give a `period` (a duration) to the branches that `pattern` matches, whether any exist or not."""

    pattern: str
    period: str


class KeepLast(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep the newest `commits` of a branch, counted along first parents from its head, which is the first."""

    pattern: str
    commits: int


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`default` is for branches that no rule matches and for commits on no branch.


    A field that this release does not know is an error, never ignored: it might keep data.
    """

    default: str
    branches: tuple[BranchRule, ...] = ()
    keep_last: tuple[KeepLast, ...] = ()
    # A tag keeps its commit. The bare rule of the design document has only branches.
    tags_pin: bool = True
    # No plan for uncommitted data has an object uploaded within this age before the run's now.
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
    if not rules:
        return None
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
