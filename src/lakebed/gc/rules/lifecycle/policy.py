"""The policy: which objects are deleted by path, branch and age although commits still name them.

Two forms of JSON give the same kind of policy. The form of the design document maps rule ids to `prefix`, `days`,
`enabled` and `branch_days`, and refuses overlapping rules. The wide form is `{"rules": {…}, "pins": {…}}`. Its rules
may also have `path` (a glob), `period`, `branches`, `min_size`, `metadata`, `when` and `keep_versions`. Only the most
specific rule that matches an entry applies. Its field `branches` has rules for whole branches (branches.py).

`read_policy` checks the whole policy: it returns every problem, with the rule's id and the position in the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from lakebed.base import Invalid, InvalidName, check_branch, check_tag
from lakebed.gc.rules.rules import (
    DAYS_MAX,
    InvalidDuration,
    InvalidPattern,
    check_pattern,
    is_glob,
    matches,
    parse_duration,
    plain_name,
    specificity,
)

from .branches import IdleRule
from .conditions import Condition, InvalidCondition, condition_text, parse_condition
from .paths import PathPattern, wrong_in_glob

__all__ = [
    "POLICY_BYTES_MAX",
    "RULES_MAX",
    "InvalidPolicy",
    "LifecycleRule",
    "Pins",
    "Policy",
    "Problem",
    "check_policy",
    "is_wide",
    "read_policy",
]

POLICY_BYTES_MAX: Final = 100_000
"""A policy is one value of the key-value store, and each version is kept."""
RULES_MAX: Final = 1_000
BRANCHES_MAX: Final = 1_000
VERSIONS_MAX: Final = 1_000
SIZE_MAX: Final = 1 << 53
ID_MAX: Final = 128
PREFIX_BYTES_MAX: Final = 1_024
PROBLEMS_MAX: Final = 100

_OF_DOCUMENT: Final = frozenset({"prefix", "days", "enabled", "branch_days"})
_OF_WIDE: Final = _OF_DOCUMENT | {"path", "period", "branches", "min_size", "metadata", "when", "keep_versions"}
_PINS: Final = ("tags", "commits", "prefixes")
_OF_BRANCH: Final = frozenset({"idle", "merged", "into", "uncommitted", "enabled"})
_UNCOMMITTED: Final = ("keep", "drop")
_EVERY: Final = "*"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one problem. `place` is its path in the JSON (`rule1.branch_days.b2`). A warning refuses nothing."""

    rule: str
    place: str
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class InvalidPolicy(Invalid):
    """The policy is refused. Facts: `problems`, each with `rule`, `place` and `message`."""


class LifecycleRule(msgspec.Struct, frozen=True, kw_only=True):
    """Cover the entries that match path, least size and metadata. With `period` None, cover only `branches`.

    `branches` are (pattern, period), the most specific first. A branch's own period replaces `period`, even a shorter
    one. The newest `keep_versions` objects of each path on a branch are kept.
    """

    id: str
    pattern: PathPattern
    period: str | None = None
    branches: tuple[tuple[str, str], ...] = ()
    min_size: int = 0
    metadata: tuple[tuple[str, str], ...] = ()
    keep_versions: int = 0

    def period_of(self, branch: str) -> str | None:
        """Return the period of a branch, or None if the rule does not cover the branch."""
        return next((period for pattern, period in self.branches if matches(pattern, branch)), self.period)

    def pattern_of(self, branch: str) -> str:
        """Return the pattern whose period applies to a branch, or `*` for the rule's own period."""
        return next((pattern for pattern, _ in self.branches if matches(pattern, branch)), _EVERY)

    def periods(self) -> tuple[str, ...]:
        """Return every period that applies to some branch, each once."""
        own = () if self.period is None else (self.period,)
        return tuple(dict.fromkeys((*own, *(period for _, period in self.branches))))

    def matches(self, path: str, size_bytes: int, metadata: Mapping[str, str]) -> bool:
        return (
            size_bytes >= self.min_size
            and self.pattern.matches(path)
            and all(metadata.get(key) == value for key, value in self.metadata)
        )

    def order(self) -> tuple[Any, ...]:
        """Sort the most specific first: by path, then by more conditions on metadata, then by the larger size."""
        return (*self.pattern.specificity(), -len(self.metadata), -self.min_size, self.id)

    def text(self) -> str:
        """Return the rule in one line for people: `rule1: foo/bar 10d, dev 5d when metadata.class == "pii"`."""
        others = [f"{branch} {period}" for branch, period in self.branches]
        own = [] if self.period is None else [self.period]
        condition = condition_text(dict(self.metadata), self.min_size)
        when = f" when {condition}" if condition else ""
        return f"{self.id}: {self.pattern.text} {', '.join((*own, *others))}{when}"


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    """Name objects that are never due: those of these tags' commits, of these commits, and below these prefixes."""

    tags: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the enabled rules, the most specific first. `branches` are the rules for whole branches."""

    rules: tuple[LifecycleRule, ...] = ()
    pins: Pins = Pins()
    branches: tuple[IdleRule, ...] = ()

    def rule_of(self, path: str, size_bytes: int = 0, metadata: Mapping[str, str] | None = None) -> int | None:
        """Return the number of the rule that applies to an entry, or None if the entry is never due."""
        # A pin comes before every rule.
        if any(path.startswith(prefix) for prefix in self.pins.prefixes):
            return None
        found = (n for n, rule in enumerate(self.rules) if rule.matches(path, size_bytes, metadata or {}))
        return next(found, None)

    def pins_tag(self, tag: str) -> bool:
        return any(
            matches(pattern, tag) if is_glob(pattern) else pattern == plain_name(tag) for pattern in self.pins.tags
        )


def check_policy(data: bytes, *, branches: Iterable[str] | None = None) -> Policy:
    """Return the policy that the JSON describes.

    Raises:
        InvalidPolicy: a problem of `read_policy` is an error.
    """
    policy, problems = read_policy(data, branches=branches)
    errors = [problem for problem in problems if not problem.is_warning]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise InvalidPolicy(f"{errors[0]}{more}", problems=msgspec.to_builtins(errors))
    return policy


def read_policy(data: bytes, *, branches: Iterable[str] | None = None) -> tuple[Policy, list[Problem]]:
    """Return the policy and all problems, errors first. Ignore the policy if there is an error.

    `branches` are the existing names. If given, a period for another branch is an error.
    """
    reader = _Reader(None if branches is None else frozenset(branches))
    policy = Policy()
    if len(data) > POLICY_BYTES_MAX:
        reader.refuse("", "", f"the policy has {len(data):,} bytes, at most {POLICY_BYTES_MAX:,}")
    else:
        try:
            policy = reader.read(json.loads(data, object_pairs_hook=_once, parse_constant=_refuse_constant))
        except (ValueError, RecursionError) as error:
            reader.refuse("", "", f"not a policy in JSON: {error}")
    problems = sorted(reader.problems, key=lambda problem: problem.is_warning)
    # Errors come first, so the limit cuts warnings before errors.
    return policy, problems[:PROBLEMS_MAX]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # JSON keeps the last of two equal names, which would hide a mistake in a rule.
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number here")


class _Reader:
    """Read one policy and collect its mistakes."""

    def __init__(self, branches: frozenset[str] | None) -> None:
        self.problems: list[Problem] = []
        self._branches = branches

    def refuse(self, rule: str, place: str, message: str) -> None:
        self.problems.append(Problem(rule=rule, place=place, message=message))

    def warn(self, rule: str, place: str, message: str) -> None:
        self.problems.append(Problem(rule=rule, place=place, message=message, is_warning=True))

    def read(self, policy: Any) -> Policy:
        if not isinstance(policy, dict):
            self.refuse("", "", "a policy is a JSON object: rule ids with their rules")
            return Policy()
        if not is_wide(policy):
            return Policy(rules=self._rules(policy, "", allowed=_OF_DOCUMENT))
        for name in sorted(policy.keys() - {"rules", "pins", "branches"}):
            self.refuse("", name, _unknown(name, "a policy has", ("rules", "pins", "branches")))
        return Policy(
            rules=self._rules(policy.get("rules", {}), "rules.", allowed=_OF_WIDE),
            pins=self._pins(policy.get("pins", {})),
            branches=self._idle_rules(policy.get("branches", {})),
        )

    def _idle_rules(self, found: Any) -> tuple[IdleRule, ...]:
        if not isinstance(found, dict) or len(found) > BRANCHES_MAX:
            self.refuse("", "branches", f"branches is a JSON object of at most {BRANCHES_MAX:,} patterns")
            return ()
        rules = [rule for pattern, one in found.items() if (rule := self._idle_rule(pattern, one)) is not None]
        return tuple(sorted(rules, key=lambda rule: specificity(rule.pattern)))

    def _idle_rule(self, pattern: str, found: Any) -> IdleRule | None:
        id_, at = pattern[:ID_MAX], f"branches.{pattern[:ID_MAX]}"
        try:
            check_pattern(pattern)
        except InvalidPattern as error:
            self.refuse(id_, at, str(error))
            return None
        if not isinstance(found, dict):
            self.refuse(id_, at, "a rule is a JSON object")
            return None
        for name in sorted(found.keys() - _OF_BRANCH):
            self.refuse(id_, f"{at}.{name}", _unknown(name, "a rule for branches has", sorted(_OF_BRANCH)))
        if "idle" not in found:
            self.refuse(id_, at, "the rule does not say how long a branch is idle before it goes: give idle")
        idle = self._period(id_, found["idle"], f"{at}.idle") if "idle" in found else None
        merged, uncommitted = found.get("merged"), found.get("uncommitted", "keep")
        if "merged" in found and not isinstance(merged, bool):
            self.refuse(id_, f"{at}.merged", "merged is true (only merged branches go) or false (only the others)")
        if uncommitted not in _UNCOMMITTED:
            self.refuse(id_, f"{at}.uncommitted", "uncommitted is keep or drop")
        into = self._texts(found.get("into", []), f"{at}.into")
        if into and not isinstance(merged, bool):
            self.refuse(id_, f"{at}.into", "into says where branches are merged; it needs merged")
        for branch in into:
            self._check_branch(id_, branch, f"{at}.into", check_branch)
        if self._branches is not None and not any(matches(pattern, name) for name in self._branches):
            self.warn(id_, at, f"{pattern} matches no branch")
        if not self._is_enabled(id_, found, at) or idle is None:
            return None
        return IdleRule(
            pattern=pattern,
            idle=idle,
            merged=merged if isinstance(merged, bool) else None,
            into=into,
            drops_uncommitted=uncommitted == "drop",
        )

    def _is_enabled(self, id_: str, found: Mapping[str, Any], at: str) -> bool:
        is_enabled = found.get("enabled", True)
        if not isinstance(is_enabled, bool):
            self.refuse(id_, f"{at}.enabled", "enabled is true or false")
        elif not is_enabled:
            self.warn(id_, f"{at}.enabled", "the rule is disabled")
        return is_enabled is True

    def _rules(self, found: Mapping[str, Any], at: str, *, allowed: frozenset[str]) -> tuple[LifecycleRule, ...]:
        if len(found) > RULES_MAX:
            self.refuse("", at.rstrip("."), f"{len(found):,} rules, at most {RULES_MAX:,}")
            return ()
        rules = [rule for name, one in found.items() if (rule := self._rule(name, one, f"{at}{name}", allowed))]
        ordered = tuple(sorted(rules, key=LifecycleRule.order))
        # In the wide form the most specific rule applies, so only equal rules are ambiguous.
        if allowed is _OF_DOCUMENT:
            self._refuse_overlaps(ordered)
        else:
            self._refuse_equal(ordered, at)
        return ordered

    def _rule(self, id_: str, found: Any, at: str, allowed: frozenset[str]) -> LifecycleRule | None:
        if not id_ or len(id_) > ID_MAX or not id_.isprintable():
            self.refuse(id_[:ID_MAX], at[:ID_MAX], f"a rule's id has 1 to {ID_MAX} printable characters")
            return None
        if not isinstance(found, dict):
            self.refuse(id_, at, "a rule is a JSON object")
            return None
        for name in sorted(found.keys() - allowed):
            self.refuse(id_, f"{at}.{name}", _unknown(name, "a rule has", sorted(allowed)))
        pattern = self._pattern(id_, found, at)
        condition = self._condition(id_, found, at)
        rule = LifecycleRule(
            id=id_,
            # Continue without a valid pattern, to report the rule's other problems.
            pattern=pattern or PathPattern("", True),
            period=self._own_period(id_, found, at),
            branches=self._branch_periods(id_, found, at),
            min_size=condition.min_size,
            metadata=tuple(sorted(condition.metadata.items())),
            keep_versions=self._number(id_, found, at, "keep_versions", least=0, most=VERSIONS_MAX),
        )
        if not any(found.get(name) not in (None, {}) for name in ("days", "period", "branch_days", "branches")):
            self.refuse(id_, at, "the rule names no period: give days or branch_days")
        elif not found.keys() & {"days", "period"}:
            self.warn(id_, at, "without days, other branches keep their objects for ever, and so does what they share")
        is_enabled = self._is_enabled(id_, found, at)
        # A disabled rule is checked like any other, then left out.
        return rule if pattern is not None and is_enabled else None

    def _pattern(self, id_: str, found: Mapping[str, Any], at: str) -> PathPattern | None:
        names = [name for name in ("prefix", "path") if name in found]
        if len(names) != 1:
            self.refuse(id_, at, "a rule has a prefix or a path" + (", not both" if names else ""))
            return None
        name, text = names[0], found[names[0]]
        place = f"{at}.{name}"
        wrong = _wrong_with_path(text) or (wrong_in_glob(text) if name == "path" else None)
        if wrong:
            self.refuse(id_, place, wrong)
            return None
        if text in ("", "*", "**"):
            self.warn(id_, place, "the rule is for every path")
        elif name == "prefix" and not text.endswith("/"):
            self.warn(id_, place, f"{text!r} is a prefix of texts, not a folder: it also covers {text + '-x'!r}")
        if name == "path" and not text:
            self.refuse(id_, place, "an empty path matches nothing; write **")
            return None
        return PathPattern(text, name == "prefix")

    def _own_period(self, id_: str, found: Mapping[str, Any], at: str) -> str | None:
        if "days" in found and "period" in found:
            self.refuse(id_, f"{at}.period", "a rule has days or a period, not both")
        if "days" in found:
            return self._days(id_, found["days"], f"{at}.days")
        return self._period(id_, found["period"], f"{at}.period") if "period" in found else None

    def _branch_periods(self, id_: str, found: Mapping[str, Any], at: str) -> tuple[tuple[str, str], ...]:
        periods: dict[str, str] = {}
        for name, read, check in (
            ("branch_days", self._days, check_branch),
            ("branches", self._period, check_pattern),
        ):
            rules = found.get(name, {})
            place = f"{at}.{name}"
            if not isinstance(rules, dict) or len(rules) > BRANCHES_MAX:
                self.refuse(id_, place, f"{name} is a JSON object of at most {BRANCHES_MAX:,} branches")
                continue
            for branch, value in rules.items():
                self._check_branch(id_, branch, f"{place}.{branch}", check)
                # `branch_days` and `branches` may name the same branch.
                if branch in periods:
                    self.refuse(id_, f"{place}.{branch}", "two periods for one branch")
                period = read(id_, value, f"{place}.{branch}")
                if period is not None:
                    periods[branch] = period
        return tuple(sorted(periods.items(), key=lambda item: specificity(item[0])))

    def _check_branch(self, id_: str, branch: str, place: str, check: Any) -> None:
        try:
            check(branch)
        except (InvalidName, InvalidPattern) as error:
            self.refuse(id_, place, str(error))
            return
        if self._branches is None:
            return
        if is_glob(branch):
            # A glob may be for future branches, so it gets only a warning.
            if not any(matches(branch, name) for name in self._branches):
                self.warn(id_, place, f"{branch} matches no branch")
        elif branch not in self._branches:
            self.refuse(id_, place, f"there is no branch {branch}")

    def _days(self, id_: str, value: Any, place: str) -> str | None:
        # `true` in JSON is an int in Python.
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= DAYS_MAX:
            self.refuse(id_, place, f"{value!r} is not a whole number of days, 1 to {DAYS_MAX:,}")
            return None
        return f"{value}d"

    def _period(self, id_: str, value: Any, place: str) -> str | None:
        if not isinstance(value, str):
            self.refuse(id_, place, f"{value!r} is not text, such as 10d")
            return None
        try:
            parse_duration(value)
        except InvalidDuration as error:
            self.refuse(id_, place, str(error))
            return None
        return value

    def _number(self, id_: str, found: Mapping[str, Any], at: str, name: str, *, least: int, most: int) -> int:
        value = found.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(id_, f"{at}.{name}", f"{value!r} is not a whole number, {least} to {most:,}")
            return 0
        return value

    def _condition(self, id_: str, found: Mapping[str, Any], at: str) -> Condition:
        """Read `when`, or the fields `metadata` and `min_size`."""
        if "when" not in found:
            min_size = self._number(id_, found, at, "min_size", least=0, most=SIZE_MAX)
            return Condition(self._metadata(id_, found, at), min_size)
        text, place = found["when"], f"{at}.when"
        if found.keys() & {"metadata", "min_size"}:
            self.refuse(id_, place, "a rule has when, or metadata and min_size, not both")
        if not isinstance(text, str):
            self.refuse(id_, place, f"{text!r} is not text, such as metadata.class == 'pii'")
            return Condition({})
        try:
            condition = parse_condition(text)
        except InvalidCondition as error:
            self.refuse(id_, place, str(error))
            return Condition({})
        if condition.min_size > SIZE_MAX:
            self.refuse(id_, place, f"size is a whole number, 0 to {SIZE_MAX:,}")
        if not _is_unicode(condition.metadata):
            self.refuse(id_, place, "a text is not valid Unicode")
        return condition

    def _metadata(self, id_: str, found: Mapping[str, Any], at: str) -> dict[str, str]:
        wanted = found.get("metadata", {})
        if not isinstance(wanted, dict) or not all(isinstance(value, str) for value in wanted.values()):
            self.refuse(id_, f"{at}.metadata", "metadata is a JSON object of texts; a condition is a text in when")
            return {}
        if not _is_unicode(wanted):
            self.refuse(id_, f"{at}.metadata", "a text is not valid Unicode")
        return wanted

    def _pins(self, found: Any) -> Pins:
        if not isinstance(found, dict):
            self.refuse("", "pins", f"pins are a JSON object with {', '.join(_PINS)}")
            return Pins()
        for name in sorted(found.keys() - set(_PINS)):
            self.refuse("", f"pins.{name}", _unknown(name, "pins have", _PINS))
        texts = {name: self._texts(found.get(name, []), f"pins.{name}") for name in _PINS}
        for number, tag in enumerate(texts["tags"]):
            try:
                # A glob can match a tag only if it is a valid tag name once characters replace its wildcards.
                check_tag(tag.replace("*", "x").replace("?", "x"))
            except InvalidName as error:
                self.refuse("", f"pins.tags[{number}]", str(error))
        for number, commit in enumerate(texts["commits"]):
            if len(commit) != 64 or set(commit) - set("0123456789abcdef"):
                self.refuse("", f"pins.commits[{number}]", "a commit is named by its whole id, 64 hexadecimal digits")
        for number, prefix in enumerate(texts["prefixes"]):
            if wrong := _wrong_with_path(prefix):
                self.refuse("", f"pins.prefixes[{number}]", wrong)
        return Pins(**texts)

    def _texts(self, found: Any, place: str) -> tuple[str, ...]:
        if not isinstance(found, list) or len(found) > RULES_MAX or not all(isinstance(one, str) for one in found):
            self.refuse("", place, f"a list of at most {RULES_MAX:,} texts")
            return ()
        return tuple(found)

    def _refuse_overlaps(self, rules: Sequence[LifecycleRule]) -> None:
        """Refuse two prefixes if one begins with the other: the document does not define which rule applies."""
        # In this order a prefix comes before all prefixes that begin with it, so a stack of open prefixes is enough.
        ordered = sorted(rules, key=lambda rule: (rule.pattern.text, rule.id))
        outer: list[LifecycleRule] = []
        for rule in ordered:
            while outer and not rule.pattern.text.startswith(outer[-1].pattern.text):
                outer.pop()
            if outer:
                first = outer[-1]
                other = f"{first.pattern.text!r} ({first.id}.prefix)"
                self.refuse(rule.id, f"{rule.id}.prefix", f"{rule.pattern.text!r} overlaps with {other}")
            outer.append(rule)

    def _refuse_equal(self, rules: Sequence[LifecycleRule], at: str) -> None:
        seen: dict[tuple[Any, ...], str] = {}
        for rule in rules:
            key = (rule.pattern, rule.metadata, rule.min_size)
            if key in seen:
                self.refuse(rule.id, f"{at}{rule.id}", f"covers the same entries as rule {seen[key]}")
            seen.setdefault(key, rule.id)


def _unknown(name: str, has: str, known: Sequence[str]) -> str:
    """Return the message for an unknown field, with the nearest known name."""
    near = get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"unknown field; {meant}{has[:1].upper() + has[1:] if near else has} {', '.join(known)}"


def is_wide(policy: Mapping[str, Any]) -> bool:
    """Return whether a policy is in the wide form, and no document of rules by id."""
    # A document's rule may have the id `rules`. Its `prefix` is a text; in the wide form the value would be a rule.
    rules = policy.get("rules")
    return _holds_rules(rules) or ("rules" not in policy and _holds_rules(policy.get("branches")))


def _holds_rules(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())


def _is_unicode(metadata: Mapping[str, str]) -> bool:
    try:
        "".join((*metadata, *metadata.values())).encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong_with_path(text: Any) -> str | None:
    if not isinstance(text, str):
        return "a path is a text"
    try:
        if len(text.encode()) > PREFIX_BYTES_MAX:
            return f"a path has at most {PREFIX_BYTES_MAX:,} bytes"
    except UnicodeEncodeError:
        return "the path is not valid Unicode"
    if ".." in text.split("/"):
        return "paths have no .."
    if text.startswith("/"):
        return "paths begin without a slash"
    if "\0" in text:
        return "a path has no zero bytes"
    return None
