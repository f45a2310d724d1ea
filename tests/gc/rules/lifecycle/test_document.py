"""Each example of the design document on lifecycle rules, table by table, and its two errors beside our reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from lakebed.base import CommitId, MetarangeId, format_address, slice_name
from lakebed.gc.rules import CommitFacts, History, Namespace
from lakebed.gc.rules.lifecycle import (
    NEVER_MS,
    CurrentRule,
    Entry,
    LifecycleVerdict,
    Policy,
    PolicyRow,
    check_policy,
    current_rules,
    earliest_by_branch,
    judge_objects,
    policy_table,
    potential_commits,
    potential_since_ms,
)
from lakebed.gc.rules.rules import SINCE_EVER_MS

SLICE = 7
NAMESPACE = Namespace(uri="s3://bucket/ns", closed={slice_name(SLICE)})

POLICY = b"""{
   "rule1" : {
   "prefix": "foo/bar",
   "days": 10,
   "enabled": true,
   "branch_days": {
   "b1": 5,
   "b2": 8
    }
   },
   "rule2" : {
   "prefix": "foo/zoo",
   "enabled": true,
   "branch_days": {
      "b1": 5
   }
   }
}"""
"""The document's, to the letter."""

TWO_DAYS = check_policy(POLICY.replace(b'"b2": 8', b'"b2": 2'))
"""What the dates in its tables need."""


def jan(day: int, hour: int = 0) -> int:
    return int(datetime(1998, 1, day, hour, tzinfo=UTC).timestamp() * 1000)


TODAY = jan(20, 9)


def row(run_id: str, rule_id: str, prefix: str, branch: str, date: int) -> PolicyRow:
    return PolicyRow(run_id=run_id, rule_id=rule_id, prefix=prefix, branch=branch, date_to_be_deleted=date)


RUN_2 = [
    row("2", "rule1", "foo/bar", "", jan(10)),
    row("2", "rule1", "foo/bar", "b1", jan(15)),
    row("2", "rule1", "foo/bar", "b2", jan(18)),
    row("2", "rule2", "foo/zoo", "b1", jan(15)),
]
RUN_1 = [
    row("1", "rule1", "foo/bar", "", jan(9)),
    row("1", "rule1", "foo/bar", "b1", jan(14)),
    row("1", "rule1", "foo/bar", "b2", jan(17)),
]


# Prepare data using rules


def test_policy_table() -> None:
    assert policy_table(TWO_DAYS, run_id="2", now_ms=TODAY) == RUN_2


def test_policy_table_of_the_day_before_with_rule_one_alone() -> None:
    only_one = Policy(rules=tuple(rule for rule in TWO_DAYS.rules if rule.id == "rule1"))

    assert policy_table(only_one, run_id="1", now_ms=jan(19, 9)) == RUN_1


def test_b2_8_is_twelve_days_and_not_the_date_in_the_table() -> None:
    """The document writes 8 days and shows 18/01. We go by its sentence: today less the days."""
    table = policy_table(check_policy(POLICY), run_id="2", now_ms=TODAY)

    assert [found.date_to_be_deleted for found in table if found.branch == "b2"] == [jan(12)]


def test_current_rules() -> None:
    assert current_rules(RUN_2 + RUN_1, run_id="2", ended={"1"}) == [
        CurrentRule(prefix="foo/bar", branch="", date_to_be_deleted=jan(10), last_deleted=jan(9)),
        CurrentRule(prefix="foo/bar", branch="b1", date_to_be_deleted=jan(15), last_deleted=jan(14)),
        CurrentRule(prefix="foo/bar", branch="b2", date_to_be_deleted=jan(18), last_deleted=jan(17)),
        CurrentRule(prefix="foo/zoo", branch="b1", date_to_be_deleted=jan(15), last_deleted=None),
    ]


def test_a_run_that_did_not_end_deleted_nothing_for_sure() -> None:
    rules = current_rules(RUN_2 + RUN_1, run_id="2", ended=set())

    assert {rule.last_deleted for rule in rules} == {None}


def test_a_rules_id_has_no_influence() -> None:
    renamed = [row("1", "another", found.prefix, found.branch, found.date_to_be_deleted) for found in RUN_1]

    assert current_rules(RUN_2 + renamed, run_id="2", ended={"1"}) == current_rules(
        RUN_2 + RUN_1, run_id="2", ended={"1"}
    )


def test_a_rule_that_was_loosened_keeps_the_latest_date_of_all_runs() -> None:
    looser = [row("0", "rule1", "foo/bar", "", jan(16))]

    (rule, *_) = current_rules(RUN_2 + RUN_1 + looser, run_id="2", ended={"0", "1"})

    assert rule.last_deleted == jan(16)


# Finding potential commits

EARLIEST = {"": jan(9), "b1": None, "b2": jan(17), "b3": jan(5)}


def test_earliest_by_branch() -> None:
    rules = current_rules(RUN_2 + RUN_1, run_id="2", ended={"1"})

    assert earliest_by_branch(rules) == {"": jan(9), "b1": None, "b2": jan(17)}


def test_earliest_by_branch_with_a_branch_b3() -> None:
    rules = current_rules(RUN_2 + RUN_1, run_id="2", ended={"1"})
    b3 = CurrentRule(prefix="foo/bar", branch="b3", date_to_be_deleted=jan(6), last_deleted=jan(5))

    assert earliest_by_branch([*rules, b3]) == EARLIEST


def test_a_commit_only_accessible_from_b1_all_commits() -> None:
    assert potential_since_ms(EARLIEST, ["b1"]) == SINCE_EVER_MS


def test_a_commit_only_accessible_from_b3_after_the_fifth() -> None:
    assert potential_since_ms(EARLIEST, ["b3"]) == jan(5)


def test_a_commit_accessible_from_b1_or_b3_after_the_fifth() -> None:
    assert potential_since_ms(EARLIEST, ["b1", "b3"]) == jan(5)


def test_a_commit_accessible_from_b1_and_b3_and_b2_after_the_ninth() -> None:
    assert potential_since_ms(EARLIEST, ["b1", "b2", "b3"]) == jan(9)


def test_a_commit_on_a_branch_that_no_rule_covers_is_never_potential() -> None:
    assert potential_since_ms({"b1": jan(9)}, ["b1", "other"]) == NEVER_MS


def history_of(commits: Sequence[tuple[str, Sequence[str], int]], heads: Mapping[str, str]) -> History:
    return History(
        commits={
            CommitId(name): CommitFacts(
                id=CommitId(name),
                parents=tuple(map(CommitId, parents)),
                created_ms=date,
                metarange_id=MetarangeId(f"m-{name}"),
            )
            for name, parents, date in commits
        },
        heads={branch: CommitId(head) for branch, head in heads.items()},
    )


def test_potential_commits_with_their_branches() -> None:
    history = history_of(
        [("root", (), jan(4)), ("one", ("root",), jan(6)), ("three", ("root",), jan(6)), ("all", ("one",), jan(8))],
        {"b1": "one", "b2": "all", "b3": "three"},
    )

    assert potential_commits(history, EARLIEST) == {"three": frozenset({"b3"})}
    assert potential_commits(history, {**EARLIEST, "": None}) == {
        "root": frozenset({"b1", "b2", "b3"}),
        "one": frozenset({"b1", "b2"}),
        "three": frozenset({"b3"}),
        "all": frozenset({"b2"}),
    }


# Matching and deduplication


def entries(*named: tuple[str, int], date: int = jan(1)) -> list[Entry]:
    return [
        Entry(path=path, address=format_address(SLICE, number), modified_ms=date, size_bytes=10)
        for path, number in named
    ]


def judge(policy: bytes, history: History, contents: Mapping[str, list[Entry]], now_ms: int) -> LifecycleVerdict:
    return judge_objects(
        history,
        {MetarangeId(f"m-{name}"): found for name, found in contents.items()},
        check_policy(policy),
        now_ms=now_ms,
        uncommitted=(),
        namespace=NAMESPACE,
    )


def numbers(keys: Sequence[str] | frozenset[str]) -> list[int]:
    return sorted(int(key[-8:]) for key in keys)


BAR_AND_TAR = b'{"one": {"prefix": "foo/bar", "days": 10}, "two": {"prefix": "foo/tar", "days": 10}}'
DEDUPLICATION = entries(("foo/bar/a", 1), ("foo/bar/b", 4), ("foo/tar/a", 1), ("foo/tar/b", 2), ("foo/other/c", 2))


def test_matching() -> None:
    """A path goes by the prefix, the branch and the date; all three must match."""
    history = history_of([("c", (), jan(1)), ("d", (), jan(1))], {"main": "c", "b1": "d"})
    contents = {
        "c": [*entries(("foo/bar/old", 1), ("foo/other", 2)), *entries(("foo/bar/young", 3), date=jan(12))],
        "d": entries(("foo/bar/young-there", 5), ("foo/zoo/x", 6), date=jan(12)),
    }

    verdict = judge(POLICY, history, contents, TODAY)

    assert numbers([*verdict.goes]) == [1, 5, 6]


def test_deduplication() -> None:
    verdict = judge(BAR_AND_TAR, history_of([("c", (), jan(1))], {"main": "c"}), {"c": DEDUPLICATION}, TODAY)

    assert numbers([*verdict.goes]) == [1, 4]
    assert numbers(verdict.spared) == [2]


def test_output_rows_name_all_paths_and_matched_rules() -> None:
    verdict = judge(BAR_AND_TAR, history_of([("c", (), jan(1))], {"main": "c"}), {"c": DEDUPLICATION}, TODAY)

    one, four = (verdict.goes[format_address(SLICE, number)] for number in (1, 4))

    assert (one.paths, one.rules) == (("foo/bar/a", "foo/tar/a"), ("one", "two"))
    assert (four.paths, four.rules) == (("foo/bar/b",), ("one",))


def test_what_was_spared_goes_once_its_other_path_is_gone() -> None:
    """The document gives such objects up. We look at them again: it costs nothing more."""
    rest = [entry for entry in DEDUPLICATION if entry.path != "foo/other/c"]

    verdict = judge(BAR_AND_TAR, history_of([("c", (), jan(1))], {"main": "c"}), {"c": rest}, TODAY)

    assert numbers([*verdict.goes]) == [1, 2, 4]


def test_the_intersection_misses_an_idle_commit() -> None:
    """The document finds candidates in potential commits alone. So this object stays for ever; by our reading it goes.

    The branches have 5 and 15 days and are idle at a commit of 4 January. On the 20th its object is due by both.
    """
    policy = b'{"one": {"prefix": "foo", "branch_days": {"b1": 5, "b3": 15}}}'
    history = history_of([("idle", (), jan(4, 12))], {"b1": "idle", "b3": "idle"})
    contents = {"idle": entries(("foo/x", 1), date=jan(4, 12))}
    rows: list[PolicyRow] = []
    ended: set[str] = set()
    found_by_document: set[int] = set()
    for day in range(5, 31):
        run, now_ms = f"run-{day}", jan(day, 9)
        rows += policy_table(check_policy(policy), run_id=run, now_ms=now_ms)
        earliest = earliest_by_branch(current_rules(rows, run_id=run, ended=ended))
        due = numbers([*judge(policy, history, contents, now_ms).goes])
        assert due == ([1] if day >= 20 else [])
        if potential_commits(history, earliest):
            found_by_document.update(due)
        ended.add(run)

    assert found_by_document == set()
