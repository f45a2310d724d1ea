"""Policies as a whole: read, refused with rule and place; when an object is due; what the one law lets go."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from lakebed.base import CommitId, MetarangeId, format_address, slice_name
from lakebed.gc.rules import BrokenHistory, CommitFacts, EmptyLiveSet, History, Namespace
from lakebed.gc.rules.lifecycle import (
    NEVER_MS,
    NO_BRANCH,
    POLICY_BYTES_MAX,
    RULES_MAX,
    Entry,
    InvalidPolicy,
    LifecycleVerdict,
    PathPattern,
    Policy,
    bits_of,
    branches_of,
    check_policy,
    classes_of,
    judge_objects,
    latest_due,
    parse_period,
    potential_commits,
    potential_rows,
    reach,
    read_policy,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SLICE = 7
NAMESPACE = Namespace(uri="s3://bucket/ns", closed={slice_name(SLICE)})
TEXT = dict[str, Any]


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


NOW = at(2026, 11, 20, 9, 30)


def policy_of(policy: TEXT) -> Policy:
    return check_policy(json.dumps(policy).encode())


def wide(pins: TEXT | None = None, **rules: TEXT) -> Policy:
    return policy_of({"rules": rules, "pins": pins or {}})


def errors_of(policy: TEXT | bytes, branches: Sequence[str] | None = None) -> list[tuple[str, str, str]]:
    data = policy if isinstance(policy, bytes) else json.dumps(policy).encode()
    _, problems = read_policy(data, branches=branches)
    return [(one.rule, one.place, one.message) for one in problems if not one.is_warning]


# Reading


def test_both_forms_of_one_policy_mean_the_same() -> None:
    document = policy_of({"r": {"prefix": "logs/", "days": 10, "branch_days": {"dev": 5}}})

    assert document == wide(r={"prefix": "logs/", "period": "10d", "branches": {"dev": "5d"}})
    assert document == wide(r={"prefix": "logs/", "days": 10, "branch_days": {"dev": 5}})


def test_a_rule_of_the_document_may_be_called_rules_or_pins() -> None:
    policy = policy_of({"rules": {"prefix": "a/", "days": 1}, "pins": {"prefix": "b/", "days": 1}})

    assert {rule.id for rule in policy.rules} == {"rules", "pins"}


@pytest.mark.parametrize(
    ("rule", "place", "words"),
    [
        ({"prefix": "a", "days": 0}, "r.days", "0 is not a whole number of days"),
        ({"prefix": "a", "days": -1}, "r.days", "-1 is not a whole number of days"),
        ({"prefix": "a", "days": 1.5}, "r.days", "1.5 is not a whole number of days"),
        ({"prefix": "a", "days": True}, "r.days", "True is not a whole number of days"),
        ({"prefix": "a", "days": 10**9}, "r.days", "is not a whole number of days"),
        ({"prefix": "a", "branch_days": {"b1": -5}}, "r.branch_days.b1", "-5 is not a whole number of days"),
        ({"prefix": "a", "branch_days": {"no such name": 5}}, "r.branch_days.no such name", "branch id must"),
        ({"prefix": "a", "branch_days": {"b*": 5}}, "r.branch_days.b*", "branch id must"),
        ({"prefix": "a", "branch_days": {"gone": 5}}, "r.branch_days.gone", "there is no branch gone"),
        ({"prefix": "a", "branch_days": 5}, "r.branch_days", "is a JSON object"),
        ({"prefix": "a", "day": 5}, "r.day", "unknown field"),
        ({"prefix": "a", "period": "5d", "days": 5}, "r.period", "unknown field"),
        ({"prefix": "a"}, "r", "names no period"),
        ({"prefix": "a", "branch_days": {}}, "r", "names no period"),
        ({"days": 5}, "r", "a rule has a prefix or a path"),
        ({"prefix": "a/../b", "days": 5}, "r.prefix", "paths have no .."),
        ({"prefix": "..", "days": 5}, "r.prefix", "paths have no .."),
        ({"prefix": "/a", "days": 5}, "r.prefix", "begin without a slash"),
        ({"prefix": "a" * 1025, "days": 5}, "r.prefix", "at most 1,024 bytes"),
        ({"prefix": 5, "days": 5}, "r.prefix", "a path is a text"),
        ({"prefix": "a", "days": 5, "enabled": "yes"}, "r.enabled", "true or false"),
    ],
)
def test_a_bad_rule_is_refused_with_its_place(rule: TEXT, place: str, words: str) -> None:
    problems = errors_of({"r": rule}, branches=["main", "b1"])

    assert [found for found in problems if found[1] == place and words in found[2]]
    assert {found[0] for found in problems} == {"r"}


@pytest.mark.parametrize(
    ("rule", "place", "words"),
    [
        ({"path": "a/***/b", "period": "5d"}, "rules.r.path", "three stars"),
        ({"path": "a?", "period": "5d"}, "rules.r.path", "no wildcard"),
        ({"path": "*/" * 9, "period": "5d"}, "rules.r.path", "more than 8 wildcards"),
        ({"path": "a", "prefix": "a", "period": "5d"}, "rules.r", "not both"),
        ({"path": "a", "period": "5"}, "rules.r.period", "has no unit"),
        ({"path": "a", "period": "5d", "days": 5}, "rules.r.period", "not both"),
        ({"path": "a", "branches": {"b": "5d"}, "branch_days": {"b": 5}}, "rules.r.branches.b", "two periods"),
        ({"path": "a", "branches": {"b": "6d"}, "branch_days": {"b": 5}}, "rules.r.branches.b", "two periods"),
        ({"path": "a", "branches": {"a.b": "5d"}}, "rules.r.branches.a.b", "matches no branch"),
        ({"path": "a", "period": "5d", "min_size": -1}, "rules.r.min_size", "-1 is not a whole number"),
        ({"path": "a", "period": "5d", "keep_versions": 1001}, "rules.r.keep_versions", "1001 is not a whole number"),
        ({"path": "a", "period": "5d", "metadata": {"class": 5}}, "rules.r.metadata", "object of texts"),
    ],
)
def test_a_bad_rule_of_the_wide_form_is_refused_with_its_place(rule: TEXT, place: str, words: str) -> None:
    problems = errors_of({"rules": {"r": rule}})

    assert [found for found in problems if found[1] == place and words in found[2]]


def test_overlapping_rules_of_the_document_are_refused_with_both_ids_and_places() -> None:
    problems = errors_of({"wide": {"prefix": "foo", "days": 5}, "narrow": {"prefix": "foo/bar", "days": 9}})

    assert problems == [("narrow", "narrow.prefix", "'foo/bar' overlaps with 'foo' (wide.prefix)")]


def test_each_of_many_overlaps_is_found() -> None:
    prefixes = ["a", "a/b", "a/b/c", "a/c", "b", "c/d", "c/d"]
    problems = errors_of({f"r{n}": {"prefix": prefix, "days": 5} for n, prefix in enumerate(prefixes)})

    assert [found[0] for found in problems] == ["r1", "r2", "r3", "r6"]


def test_a_disabled_rule_is_not_there_and_overlaps_with_nothing() -> None:
    data = json.dumps({"on": {"prefix": "a", "days": 5}, "off": {"prefix": "a", "days": 1, "enabled": False}}).encode()

    policy, problems = read_policy(data)

    assert [rule.id for rule in policy.rules] == ["on"]
    assert ("off", "the rule is disabled") in [(found.rule, found.message) for found in problems]


def test_equal_rules_of_the_wide_form_are_refused() -> None:
    rule = {"prefix": "a", "period": "5d"}

    assert errors_of({"rules": {"r": rule, "s": {**rule, "period": "9d"}}}) == [
        ("s", "rules.s", "covers the same entries as rule r")
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a policy in JSON"),
        (b"[]", "a policy is a JSON object"),
        (b'"rule1"', "a policy is a JSON object"),
        (b'{"a": {"prefix": "a", "days": NaN}}', "NaN is not a number"),
        (b'{"a": {"prefix": "a", "days": 1}, "a": {"prefix": "b", "days": 1}}', "'a' is given twice"),
        (b'{"a": {"prefix": "a", "days": 9, "days": 1}}', "'days' is given twice"),
        (b"[" * 50_000, "not a policy in JSON"),
        (b"\xff\xfe", "not a policy in JSON"),
        (b" " * 1_000_000, "1,000,000 bytes, at most 100,000"),
        (b'{"rules": {}, "pin": {}}', "unknown field"),
        (b'{"rules": {}, "pins": {"tag": []}}', "unknown field"),
        (b'{"rules": {}, "pins": {"tags": "v1"}}', "a list of at most"),
        (b'{"rules": {}, "pins": {"commits": ["abc"]}}', "64 hexadecimal digits"),
    ],
)
def test_what_is_no_policy_is_refused_saying_why(data: bytes, words: str) -> None:
    (problem, *_) = errors_of(data)

    assert words in problem[2]


def test_ten_thousand_rules_are_refused() -> None:
    rules: TEXT = {f"r{number}": {} for number in range(10_000)}

    assert len(json.dumps(rules)) > POLICY_BYTES_MAX
    assert errors_of({f"{number:x}": {} for number in range(RULES_MAX + 1)}) == [("", "", "1,001 rules, at most 1,000")]
    assert "bytes, at most" in errors_of(rules)[0][2]


def test_an_invalid_policy_bears_all_its_problems() -> None:
    with pytest.raises(InvalidPolicy, match=r"r\.prefix: .* \(and 1 more\)") as found:
        policy_of({"r": {"prefix": "..", "days": -1}})

    problems: Any = found.value.facts["problems"]
    assert {problem["place"] for problem in problems} == {"r.prefix", "r.days"}


def test_a_prefix_that_splits_a_name_and_a_rule_without_days_are_warned_of() -> None:
    _, problems = read_policy(b'{"r": {"prefix": "foo/bar", "branch_days": {"b1": 5}}}')

    assert all(problem.is_warning for problem in problems)
    assert "also covers 'foo/bar-x'" in problems[0].message
    assert "keep their objects for ever" in problems[1].message


# Paths


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("foo/bar", "foo/barista", False),
        ("logs/*.tmp", "logs/a.tmp", True),
        ("logs/*.tmp", "logs/a/b.tmp", False),
        ("logs/**/*.tmp", "logs/b.tmp", True),
        ("logs/**/*.tmp", "logs/a/b/c.tmp", True),
        ("logs/**", "logs/a/b", True),
        ("logs/**", "logs2/a", False),
        ("**.parquet", "a/b.parquet", True),
        ("a.b", "axb", False),
        ("*", "a/b", False),
        ("**", "a/b\nc", True),
    ],
)
def test_a_glob_matches_whole_paths(pattern: str, path: str, is_match: bool) -> None:
    found = PathPattern(pattern, False)

    assert found.matches(path) is is_match
    assert pc.match_substring_regex(pa.array([path]), found.regex()).to_pylist() == [is_match]


@given(
    pieces=st.lists(st.sampled_from(["a", "b", "/", "*", "**", "**/"]), max_size=7),
    path=st.text(alphabet="ab/", max_size=9),
)
def test_a_glob_matches_what_its_regular_expression_matches(pieces: list[str], path: str) -> None:
    assume("***" not in "".join(pieces))
    pattern = PathPattern("".join(pieces), False)

    assert pattern.matches(path) is pc.match_substring_regex(pa.array([path]), pattern.regex())[0].as_py()


@pytest.mark.parametrize(
    ("pattern", "path"), [("*a" * 8, "a" * 1_000 + "b"), ("**/a" * 8, "a/" * 500 + "b"), ("**a" * 8, "a" * 1_000 + "b")]
)
def test_a_glob_with_many_wildcards_takes_no_time_to_speak_of(pattern: str, path: str) -> None:
    assert not PathPattern(pattern, False).matches(path)


def test_a_prefix_is_plain_text_and_no_folder() -> None:
    assert PathPattern("foo/bar", True).matches("foo/barista")
    assert PathPattern("a*", True).matches("a*b")
    assert not PathPattern("a*", True).matches("ab")


def test_the_most_specific_rule_wins_whatever_the_order() -> None:
    rules: dict[str, TEXT] = {
        "all": {"path": "**", "period": "90d"},
        "logs": {"prefix": "logs/", "period": "10d"},
        "tmp": {"path": "logs/**/*.tmp", "period": "1d"},
        "one": {"path": "logs/keep.tmp", "period": "forever"},
        "pii": {"prefix": "logs/", "period": "2d", "metadata": {"class": "pii"}},
        "big": {"prefix": "logs/", "period": "5d", "min_size": 100},
    }
    for policy in (wide(**rules), wide(**dict(reversed(rules.items())))):

        def rule_of(path: str, size: int = 0, metadata: TEXT | None = None, policy: Policy = policy) -> str:
            number = policy.rule_of(path, size, metadata)
            assert number is not None
            return policy.rules[number].id

        assert rule_of("data/x") == "all"
        assert rule_of("logs/x") == "logs"
        assert rule_of("logs/x", 100) == "big"
        assert rule_of("logs/x", 100, {"class": "pii"}) == "pii"
        assert rule_of("logs/a/x.tmp") == "tmp"
        assert rule_of("logs/keep.tmp") == "one"


# Periods


@given(
    st.sampled_from(["1h", "36h", "1d", "10d", "2w", "1mo", "13mo"]),
    st.integers(0, 800 * 24 * 60),
)
@example("1mo", 424 * 24 * 60)  # The last of February, to which several days of March go back.
def test_due_is_the_first_instant_at_which_the_cutoff_is_later(text: str, minutes: int) -> None:
    period = parse_period(text)
    written_ms = at(2024, 1, 1) + minutes * 60_000

    due_ms = period.due_ms(written_ms)

    assert period.cutoff_ms(due_ms) > written_ms
    assert period.cutoff_ms(due_ms - 1) <= written_ms
    assert latest_due([period], pa.array([written_ms, written_ms]).to_numpy()).tolist() == [due_ms, due_ms]


def test_nothing_goes_early_by_rounding() -> None:
    assert parse_period("10d").cutoff_ms(at(2026, 1, 20, 23, 59)) == at(2026, 1, 10)
    assert parse_period("36h").cutoff_ms(at(2026, 1, 20, 13, 59)) == at(2026, 1, 19, 1)
    assert parse_period("1mo").cutoff_ms(at(2026, 3, 31, 10)) == at(2026, 2, 28)
    assert parse_period("forever").due_ms(0) == NEVER_MS


# Reach


def history_of(
    commits: Mapping[str, Sequence[str]], heads: Mapping[str, str], *, swept: Sequence[str] = (), **named: Any
) -> History:
    return History(
        commits={
            CommitId(name): CommitFacts(
                id=CommitId(name),
                parents=tuple(map(CommitId, parents)),
                created_ms=0,
                metarange_id=MetarangeId(f"m-{name}"),
                swept=name in swept,
            )
            for name, parents in commits.items()
        },
        heads={branch: CommitId(head) for branch, head in heads.items()},
        **named,
    )


def test_a_branch_reaches_a_commit_by_any_parent() -> None:
    history = history_of({"a": (), "b": (), "m": ("a", "b")}, {"main": "m", "dev": "b"})

    assert branches_of(history) == {"a": {"main"}, "b": {"main", "dev"}, "m": {"main"}}


def test_what_only_a_loose_commit_brings_along_may_come_to_any_branch() -> None:
    """A merge that was written may land on its branch later, and brings the history of both its parents."""
    commits = {"a": (), "b": ("a",), "c": (), "merge": ("b", "c"), "other": ()}
    history = history_of(commits, {"dev": "b", "main": "c", "side": "other"})

    on_dev, on_main = {"dev", NO_BRANCH}, {"main", NO_BRANCH}
    assert branches_of(history) == {"a": on_dev, "b": on_dev, "c": on_main, "merge": {NO_BRANCH}, "other": {"side"}}


def test_a_swept_commit_brings_nothing_along() -> None:
    """No branch can ever come to name it."""
    history = history_of({"a": (), "swept": ("a",)}, {"main": "a"}, swept=["swept"])

    assert branches_of(history) == {"a": {"main"}, "swept": {NO_BRANCH}}


def test_what_an_intent_names_may_come_to_any_branch() -> None:
    history = history_of({"a": (), "b": ("a",)}, {"main": "b"}, held=frozenset({CommitId("a")}))

    assert branches_of(history) == {"a": {"main", NO_BRANCH}, "b": {"main"}}


@st.composite
def histories(draw: st.DrawFn) -> History:
    count = draw(st.integers(1, 8))
    names = [f"c{number}" for number in range(count)]
    commits = {
        name: tuple(draw(st.lists(st.sampled_from(names[:place]), max_size=2, unique=True)) if place else ())
        for place, name in enumerate(names)
    }
    heads = draw(st.dictionaries(st.sampled_from(["main", "dev", "b1", "b2"]), st.sampled_from(names)))
    held = draw(st.sets(st.sampled_from(names), max_size=1))
    tags = draw(st.dictionaries(st.sampled_from(["v1", "v2"]), st.sampled_from(names), max_size=2))
    swept = draw(st.sets(st.sampled_from(names), max_size=2))
    return history_of(
        commits,
        heads,
        swept=tuple(swept),
        held=frozenset(map(CommitId, held)),
        tags={t: CommitId(c) for t, c in tags.items()},
    )


@given(histories())
def test_the_walk_over_columns_finds_the_same_branches(history: History) -> None:
    generations: dict[str, int] = {}
    for commit in history.commits.values():
        generations[commit.id] = 1 + max((generations[parent] for parent in commit.parents), default=0)
    classes = classes_of(Policy(), sorted(history.heads), each_alone=True)
    roots: dict[str, list[int]] = {}
    for branch, head in [*history.heads.items(), *((NO_BRANCH, commit) for commit in history.held)]:
        roots.setdefault(head, []).append(classes.of[branch])

    found = reach(
        pa.array([*history.commits]),
        pa.array([list(commit.parents) for commit in history.commits.values()], pa.list_(pa.string())),
        pa.array([generations[commit] for commit in history.commits]).to_numpy(),
        roots,
        swept=np.array([commit.swept for commit in history.commits.values()]),
        nowhere=1 << classes.of[NO_BRANCH],
    )

    name_of = {bit: branch for branch, bit in classes.of.items()}
    assert {
        commit: {name_of[bit] for bit in bits_of(found.sets[number])}
        for commit, number in zip(history.commits, found.set_of.tolist(), strict=True)
    } == branches_of(history)


DATES = st.one_of(st.none(), st.integers(0, 10))


@given(histories(), st.dictionaries(st.sampled_from([NO_BRANCH, "main", "dev", "b1", "b2"]), DATES))
def test_the_walk_over_columns_finds_the_same_potential_commits(
    history: History, earliest: dict[str, int | None]
) -> None:
    generations: dict[str, int] = {}
    for commit in history.commits.values():
        generations[commit.id] = 1 + max((generations[parent] for parent in commit.parents), default=0)
    dated = {
        id_: dataclasses.replace(commit, created_ms=place)
        for place, (id_, commit) in enumerate(history.commits.items())
    }
    dated_history = dataclasses.replace(history, commits=dated)
    rows = [
        {
            "id": commit.id,
            "parents": list(commit.parents),
            "generation": generations[commit.id],
            "creation_date": commit.created_ms,
            "swept": commit.swept,
        }
        for commit in dated.values()
    ]
    types = (pa.string(), pa.list_(pa.string()), pa.int64(), pa.timestamp("ms", tz="UTC"), pa.bool_())
    commits = pa.Table.from_pylist(rows, schema=pa.schema([*zip(rows[0], types, strict=True)]))

    found = potential_rows(commits, branches=history.heads, held=sorted(history.held), earliest=earliest)

    ids = commits["id"].to_pylist()
    assert {
        ids[row]: frozenset(found.branches(number))
        for row, number in zip(found.rows.tolist(), found.set_of.tolist(), strict=True)
    } == potential_commits(dated_history, earliest)


def test_a_root_without_a_record_stops_the_walk() -> None:
    parents = pa.array([[]], pa.list_(pa.string()))
    with pytest.raises(BrokenHistory):
        reach(pa.array(["a"]), parents, np.array([1]), {"b": [0]}, swept=np.array([False]), nowhere=1)


def test_branches_whose_periods_come_from_the_same_patterns_are_one_class() -> None:
    policy = wide(r={"prefix": "a/", "period": "10d", "branches": {"dev-*": "1d", "old": "1d"}})

    classes = classes_of(policy, ["main", "dev-1", "dev-2", "other", "old"])

    assert classes.of == {NO_BRANCH: 0, "main": 1, "dev-1": 2, "dev-2": 2, "other": 1, "old": 3}
    assert [set(periods) for (periods,) in classes.periods] == [{"10d", "1d"}, {"10d"}, {"1d"}, {"1d"}]
    assert classes.labels == [("",), ("*",), ("dev-*",), ("old",)]


# The one law

OLD = NOW - 30 * DAY_MS


def entry(path: str, number: int, *, days: float = 30, size: int = 10, **metadata: str) -> Entry:
    return Entry(
        path=path,
        address=format_address(SLICE, number),
        modified_ms=NOW - int(days * DAY_MS),
        size_bytes=size,
        metadata=metadata,
    )


def judge(
    policy: Policy,
    history: History,
    contents: Mapping[str, Sequence[Entry]],
    *,
    uncommitted: Sequence[int] = (),
    **named: Any,
) -> LifecycleVerdict:
    return judge_objects(
        history,
        {MetarangeId(f"m-{name}"): found for name, found in contents.items()},
        policy,
        now_ms=NOW,
        uncommitted=[format_address(SLICE, number) for number in uncommitted],
        namespace=NAMESPACE,
        **named,
    )


def numbers(verdict: LifecycleVerdict) -> list[int]:
    return sorted(int(key[-8:]) for key in verdict.goes)


LOGS = wide(logs={"prefix": "logs/", "period": "10d", "branches": {"dev": "1d", "archive": "forever"}})


def test_an_object_goes_although_the_head_names_it() -> None:
    verdict = judge(LOGS, history_of({"c": ()}, {"main": "c"}), {"c": [entry("logs/a", 1), entry("data/a", 2)]})

    assert numbers(verdict) == [1]


def test_of_several_branches_the_latest_counts() -> None:
    young = [entry("logs/a", 1, days=5)]

    assert numbers(judge(LOGS, history_of({"c": ()}, {"dev": "c"}), {"c": young})) == [1]
    assert numbers(judge(LOGS, history_of({"c": ()}, {"dev": "c", "main": "c"}), {"c": young})) == []
    assert numbers(judge(LOGS, history_of({"c": ()}, {"main": "c", "archive": "c"}), {"c": [entry("logs/a", 1)]})) == []


def test_a_branch_that_no_rule_covers_keeps_its_objects_for_ever() -> None:
    policy = wide(logs={"prefix": "logs/", "branches": {"dev": "1d"}})

    assert numbers(judge(policy, history_of({"c": ()}, {"dev": "c"}), {"c": [entry("logs/a", 1)]})) == [1]
    assert numbers(judge(policy, history_of({"c": ()}, {"dev": "c", "x": "c"}), {"c": [entry("logs/a", 1)]})) == []


def test_a_commit_that_no_branch_reaches_counts_as_on_every_branch() -> None:
    """A merge under way may land on any of them."""
    loose = history_of({"c": (), "loose": ()}, {"main": "c"})

    assert numbers(judge(LOGS, loose, {"c": [], "loose": [entry("logs/a", 1)]})) == []
    ten_days = wide(logs={"prefix": "logs/", "period": "10d", "branches": {"dev": "1d"}})
    assert numbers(judge(ten_days, loose, {"c": [], "loose": [entry("logs/a", 1), entry("logs/b", 2, days=5)]})) == [1]
    no_default = wide(logs={"prefix": "logs/", "branches": {"main": "1d"}})
    assert numbers(judge(no_default, loose, {"c": [], "loose": [entry("logs/a", 1)]})) == []


def test_what_a_swept_commit_named_is_no_occurrence() -> None:
    contents = {"c": [entry("logs/a", 1)], "gone": [entry("data/a", 1)]}

    assert numbers(judge(LOGS, history_of({"c": (), "gone": ()}, {"main": "c"}), contents)) == []
    assert numbers(judge(LOGS, history_of({"c": (), "gone": ()}, {"main": "c"}, swept=["gone"]), contents)) == [1]


def test_what_a_cell_names_stays() -> None:
    verdict = judge(
        LOGS, history_of({"c": ()}, {"main": "c"}), {"c": [entry("logs/a", 1), entry("logs/b", 2)]}, uncommitted=[1]
    )

    assert numbers(verdict) == [2]
    assert verdict.spared == {format_address(SLICE, 1)}


def test_what_went_before_goes_no_second_time() -> None:
    verdict = judge(
        LOGS, history_of({"c": ()}, {"main": "c"}), {"c": [entry("logs/a", 1)]}, taken={format_address(SLICE, 1)}
    )

    assert numbers(verdict) == []


def test_pins_keep_commits_tags_and_prefixes() -> None:
    history = history_of({"a": (), "b": ("a",)}, {"main": "b"}, tags={"v1.0": CommitId("a")})
    contents = {"a": [entry("logs/a", 1), entry("logs/b", 2)], "b": [entry("logs/b", 2), entry("logs/keep/c", 3)]}
    rule: TEXT = {"prefix": "logs/", "period": "10d"}

    assert numbers(judge(wide(logs=rule), history, contents)) == [1, 2, 3]
    assert numbers(judge(wide({"tags": ["v1.*"]}, logs=rule), history, contents)) == [3]
    assert numbers(judge(wide({"prefixes": ["logs/keep/"]}, logs=rule), history, contents)) == [1, 2]


def test_a_pinned_commit_keeps_what_it_names() -> None:
    pinned = "a" * 64
    history = history_of({pinned: (), "b": (pinned,)}, {"main": "b"})
    contents = {pinned: [entry("logs/a", 1), entry("logs/b", 2)], "b": [entry("logs/b", 2), entry("logs/c", 3)]}
    rule: TEXT = {"prefix": "logs/", "period": "10d"}

    assert numbers(judge(wide(logs=rule), history, contents)) == [1, 2, 3]
    assert numbers(judge(wide({"commits": [pinned]}, logs=rule), history, contents)) == [3]


def test_the_newest_versions_of_a_path_stay_on_each_branch() -> None:
    history = history_of({"a": (), "b": ("a",), "c": ("b",), "side": ("a",)}, {"main": "c", "dev": "side"})
    contents = {
        "a": [entry("logs/x", 1, days=50)],
        "b": [entry("logs/x", 2, days=40)],
        "c": [entry("logs/x", 3, days=30)],
        "side": [entry("logs/x", 4, days=45)],
    }
    one: TEXT = {"prefix": "logs/", "period": "10d", "keep_versions": 1}

    assert numbers(judge(wide(logs=one), history, contents)) == [1, 2]
    assert numbers(judge(wide(logs={**one, "keep_versions": 2}), history, contents)) == []


def test_least_size_and_metadata_narrow_a_rule() -> None:
    contents = {
        "c": [entry("logs/a", 1, size=99), entry("logs/b", 2, size=100), entry("logs/c", 3, size=500, kind="x")]
    }
    history = history_of({"c": ()}, {"main": "c"})
    rule: TEXT = {"prefix": "logs/", "period": "10d"}

    assert numbers(judge(wide(logs={**rule, "min_size": 100}), history, contents)) == [2, 3]
    assert numbers(judge(wide(logs={**rule, "metadata": {"kind": "x"}}), history, contents)) == [3]


def test_both_spellings_of_an_address_are_one_object() -> None:
    spelled = Entry(path="data/a", address=f"s3://bucket/ns/{format_address(SLICE, 1)}", modified_ms=OLD)

    verdict = judge(LOGS, history_of({"c": ()}, {"main": "c"}), {"c": [entry("logs/a", 1), spelled]})

    assert numbers(verdict) == []


def test_objects_of_open_slices_and_outside_the_namespace_stay() -> None:
    others = [
        Entry(path="logs/a", address=format_address(SLICE + 1, 1), modified_ms=OLD),
        Entry(path="logs/b", address="s3://other/x", modified_ms=OLD),
    ]

    for entries in (others, others[1:]):
        assert numbers(judge(LOGS, history_of({"c": ()}, {"main": "c"}), {"c": entries})) == []


def test_commits_with_entries_and_no_entry_read_stop_the_run() -> None:
    with pytest.raises(EmptyLiveSet):
        judge(LOGS, history_of({"c": ()}, {"main": "c"}), {"c": []})


def test_a_tree_that_was_not_read_stops_the_run() -> None:
    with pytest.raises(KeyError):
        judge(LOGS, history_of({"c": ()}, {"main": "c"}), {})
