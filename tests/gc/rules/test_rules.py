"""Rules as a whole: checked, shown in days and taken back, explained, compared."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.gc.rules import (
    DAY_MS,
    KEEP_LAST_MAX,
    BranchRule,
    InvalidRules,
    KeepLast,
    RuleChange,
    Rules,
    check_rules,
    days_rules,
    diff_rules,
    explain,
    in_days,
    read_rules,
    with_days,
)

NOW_MS = 1_790_000_000_000
PERIODS = st.sampled_from(["1h", "36h", "2d", "7d", "2w", "6mo", "12000mo", "366000d", "forever"])
PATTERNS = st.sampled_from(["main", "dev", "feature-*", "?", "*"])
RULES = st.builds(
    Rules,
    default=PERIODS,
    branches=st.dictionaries(PATTERNS, PERIODS).map(
        lambda found: tuple(BranchRule(pattern=pattern, period=period) for pattern, period in found.items())
    ),
    keep_last=st.dictionaries(PATTERNS, st.integers(1, 9)).map(
        lambda found: tuple(KeepLast(pattern=pattern, commits=commits) for pattern, commits in found.items())
    ),
    tags_pin=st.booleans(),
    uncommitted_min_age=st.none() | PERIODS,
)


def period(pattern: str, period: str) -> BranchRule:
    return BranchRule(pattern=pattern, period=period)


FULL = Rules(
    default="7d",
    branches=(period("main", "6mo"), period("feature-*", "36h")),
    keep_last=(KeepLast(pattern="main", commits=10),),
    tags_pin=False,
    uncommitted_min_age="2d",
)


# Checking


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules(default="7"), "retention of the default: '7' has no unit"),
        (Rules(default="0d"), "too short"),
        (Rules(default="-1d"), "too short"),
        (Rules(default="7d", branches=(period("main", "3m"),)), "retention of main: '3m' could mean"),
        (Rules(default="7d", branches=(period("", "3d"),)), "without a name"),
        (Rules(default="7d", branches=(period("a.b", "3d"),)), "matches no branch"),
        (Rules(default="7d", branches=(period("main", "3d"), period("main", "4d"))), "two rules for main"),
        (Rules(default="7d", branches=tuple(period(f"b{i}", "1d") for i in range(1_001))), "at most 1000"),
        (Rules(default="7d", keep_last=(KeepLast(pattern="main", commits=0),)), "0 commits, must be 1"),
        (Rules(default="7d", keep_last=(KeepLast(pattern="main", commits=KEEP_LAST_MAX + 1),)), "must be 1 to"),
        (Rules(default="7d", keep_last=(KeepLast(pattern="m", commits=1),) * 2), "keep_last: two rules for m"),
        (Rules(default="7d", uncommitted_min_age="soon"), "uncommitted data: 'soon' is not a duration"),
    ],
)
def test_rules_nobody_can_have_meant_are_refused_saying_where(rules: Rules, words: str) -> None:
    with pytest.raises(InvalidRules, match=words):
        check_rules(rules)


def test_checked_rules_have_the_most_specific_first() -> None:
    rules = Rules(default="1d", branches=(period("*", "1d"), period("main", "2d"), period("m*", "3d")))

    assert [rule.pattern for rule in check_rules(rules).branches] == ["main", "m*", "*"]


def test_a_pin_and_a_period_of_a_branch_may_come_from_two_patterns() -> None:
    rules = Rules(
        default="1d",
        branches=(period("main", "2d"),),
        keep_last=(KeepLast(pattern="*", commits=3), KeepLast(pattern="dev", commits=1)),
    )

    assert (rules.period_of("main"), rules.keep_last_of("main")) == ("2d", 3)
    assert (rules.period_of("dev"), rules.keep_last_of("dev")) == ("1d", 1)
    assert (rules.period_of(None), FULL.keep_last_of("dev")) == ("1d", 0)


# Files


def test_rules_are_read_from_a_file_and_from_what_the_server_shows() -> None:
    plain = msgspec.json.encode(FULL)
    shown = msgspec.json.encode({"version": 3, "rules": FULL, "changed_ms": 0, "changed_by": "me"})

    assert read_rules(plain, name="f") == read_rules(shown, name="f") == FULL


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b'{"default": 7}',
        b'{"rules": null}',
        b'{"default": "7d", "keep_lsat": []}',
        b'{"rules": {"default":' + b"[" * 5_000,
    ],
    ids=repr,
)
def test_a_file_that_holds_no_rules_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(InvalidRules, match=r"my\.json"):
        read_rules(data, name="my.json")


# The contract's days


def test_days_read_back_as_they_were_written() -> None:
    assert in_days(days_rules(7, {"main": 20})) == (7, {"main": 20})


def test_what_days_cannot_say_is_rounded_up() -> None:
    assert in_days(FULL) == (7, {"main": 184, "feature-*": 2})


@given(rules=RULES)
def test_writing_the_days_that_were_read_changes_nothing(rules: Rules) -> None:
    checked = check_rules(rules)

    assert with_days(checked, *in_days(checked)) == checked


@given(rules=RULES, branch=st.sampled_from(["main", "feature-1", "x"]), now_ms=st.integers(0, 10**14))
def test_the_days_that_are_read_never_promise_more_deletion_than_there_is(
    rules: Rules, branch: str, now_ms: int
) -> None:
    shown = days_rules(*in_days(rules))

    if rules.period_of(branch) != "forever":
        assert shown.since_ms(branch, now_ms) <= rules.since_ms(branch, now_ms)


def test_written_days_replace_periods_and_leave_pins() -> None:
    written = with_days(FULL, 7, {"main": 30, "dev": 3})

    assert written.branches == (period("dev", "3d"), period("main", "30d"))
    assert (written.keep_last, written.tags_pin, written.uncommitted_min_age) == (FULL.keep_last, False, "2d")


# Explaining and comparing


def test_an_explanation_names_the_winner_and_what_it_won_over() -> None:
    rules = Rules(default="7d", branches=(period("*", "1d"), period("feature-*", "36h")))

    found = explain(rules, "feature-x", now_ms=NOW_MS)

    assert (found.pattern, found.period, found.since_ms) == ("feature-*", "36h", NOW_MS - DAY_MS * 3 // 2)
    assert found.why == "its literal beginning has 8 characters, that of * has 0"
    assert [(rule.pattern, rule.wins, rule.why) for rule in found.periods] == [
        ("feature-*", True, found.why),
        ("*", False, "feature-* is more specific"),
    ]


@pytest.mark.parametrize(
    ("patterns", "why"),
    [
        (["main"], "the only pattern that matches"),
        (["main", "m*"], "an exact name goes before the glob m*"),
        (["m*n", "m*"], "it has 2 literal characters, m* has 1"),
        (["m???", "m*"], "it has 0 times *, m* has 1"),
        (["m?*", "m*"], "it has 1 times ?, m* has 0"),
        (["m*a*", "m*i*"], "it is as specific as m*i*, and comes first by its text"),
        ([], "no pattern matches, so the default counts"),
    ],
)
def test_an_explanation_says_why(patterns: list[str], why: str) -> None:
    rules = Rules(default="7d", branches=tuple(period(pattern, "1d") for pattern in patterns))

    assert explain(rules, "main", now_ms=NOW_MS).why == why


@given(rules=RULES, branch=st.sampled_from(["main", "feature-1", "x", "long-name"]))
def test_an_explanation_says_what_the_rules_do(rules: Rules, branch: str) -> None:
    found = explain(rules, branch, now_ms=NOW_MS)

    assert (found.period, found.keep_last) == (rules.period_of(branch), rules.keep_last_of(branch))
    if found.since_ms is not None:
        assert found.since_ms == rules.since_ms(branch, NOW_MS)
    rule = rules.rule_of(branch)
    assert found.pattern == (None if rule is None else rule.pattern)


def test_commits_on_no_branch_are_explained_by_the_default() -> None:
    found = explain(FULL, None, now_ms=NOW_MS)

    assert (found.branch, found.pattern, found.period, found.keep_last) == (None, None, "7d", 0)


def test_a_difference_names_each_rule_that_changed() -> None:
    after = Rules(default="8d", branches=(period("feature-*", "36h"), period("dev", "1d")), uncommitted_min_age="2d")

    assert diff_rules(FULL, after) == [
        RuleChange(what="default", pattern="", before="7d", after="8d"),
        RuleChange(what="period", pattern="dev", before=None, after="1d"),
        RuleChange(what="period", pattern="main", before="6mo", after=None),
        RuleChange(what="keep_last", pattern="main", before="10", after=None),
        RuleChange(what="tags_pin", pattern="", before="off", after="on"),
    ]


@given(before=RULES, after=RULES)
def test_there_is_a_difference_exactly_where_rules_differ(before: Rules, after: Rules) -> None:
    assert (diff_rules(before, after) == []) == (check_rules(before) == check_rules(after))
    assert diff_rules(None, after) != []
