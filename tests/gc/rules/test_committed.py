"""The worked examples of docs/design/0004-committed-retention.md, and what the document promises beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from lakebed.base import CommitId, MetarangeId, RangeId, format_address, slice_name
from lakebed.gc.rules import (
    DAY_MS,
    BrokenHistory,
    CommitFacts,
    EmptyLiveSet,
    History,
    InvalidRules,
    KeepLast,
    Namespace,
    Rules,
    Trees,
    check_rules,
    days_rules,
    garbage_addresses,
    judge_commits,
    kept_commits,
)

NOW = 1_000 * DAY_MS
SLICE = 7
NAMESPACE = Namespace(uri="s3://bucket/ns", closed={slice_name(SLICE)})


def commit(name: str, *parents: str, days_ago: float) -> CommitFacts:
    return CommitFacts(
        id=CommitId(name),
        parents=tuple(map(CommitId, parents)),
        created_ms=NOW - int(days_ago * DAY_MS),
        metarange_id=MetarangeId(f"m-{name}"),
    )


def history(*commits: CommitFacts, heads: Mapping[str, str], **named: object) -> History:
    return History(
        commits={c.id: c for c in commits},
        heads={name: CommitId(head) for name, head in heads.items()},
        **named,  # type: ignore[arg-type]  # tags and held, as given
    )


def address(number: int) -> str:
    return format_address(SLICE, number)


def ports(contents: Mapping[str, Collection[str]]) -> Trees:
    """One range for each commit: what it holds."""
    return Trees(
        ranges={MetarangeId(f"m-{name}"): (RangeId(f"r-{name}"),) for name in contents},
        addresses={RangeId(f"r-{name}"): addresses for name, addresses in contents.items()},
    )


def garbage(
    past: History, rules: Rules, contents: Mapping[str, Collection[str]], uncommitted: Collection[str] = ()
) -> set[str]:
    verdict = judge_commits(past, rules, now_ms=NOW)
    return garbage_addresses(past, verdict, ports(contents), uncommitted=uncommitted, namespace=NAMESPACE)


EXAMPLE1, EXAMPLE2, EXAMPLE3, KEPT = address(1), address(2), address(3), address(4)


def test_simple_example_cleanup_on_the_main_branch() -> None:
    """Seven days ago the head of main was B: what B holds stays, what only A held goes."""
    past = history(
        commit("A", days_ago=20),
        commit("B", "A", days_ago=10),
        commit("C", "B", days_ago=5),
        commit("D", "C", days_ago=1),
        heads={"main": "D"},
    )
    contents = {"A": [EXAMPLE1, EXAMPLE3], "B": [EXAMPLE1, EXAMPLE2], "C": [EXAMPLE2], "D": []}

    gone = garbage(past, days_rules(7), contents)

    assert gone == {EXAMPLE3}


COMPLEX = (
    commit("A", days_ago=30),
    commit("B", "A", days_ago=12),
    commit("C", "A", days_ago=9),
    commit("D", "C", days_ago=5),
    commit("E", "B", days_ago=4),
)
"""main: A ← B ← E; feature1: A ← C ← D. Seven days ago main was at B, three days ago feature1 was at D."""

COMPLEX_CONTENTS = {
    "A": [EXAMPLE1],
    "B": [EXAMPLE2],  # example1 was deleted in main, example2 is new
    "C": [EXAMPLE1, EXAMPLE3],  # example3 is new in feature1
    "D": [EXAMPLE1],  # and is deleted again
    "E": [],
}


def test_complex_example_cleanup_on_multiple_branches() -> None:
    past = history(*COMPLEX, heads={"main": "E", "feature1": "D"})
    rules = days_rules(7, {"main": 7, "feature1": 3})

    gone = garbage(past, rules, COMPLEX_CONTENTS)

    assert gone == {EXAMPLE3}
    assert kept_commits(past, rules, now_ms=NOW) == {"B", "D", "E"}


def test_dangling_example_with_seven_days_keeps_both_commits_of_the_deleted_branch() -> None:
    past = history(*COMPLEX, heads={"main": "E"})

    kept = kept_commits(past, days_rules(7), now_ms=NOW)

    assert {"C", "D"} <= kept
    assert garbage(past, days_rules(7), COMPLEX_CONTENTS) == set()


def test_dangling_example_with_three_days_expires_both_commits_of_the_deleted_branch() -> None:
    past = history(*COMPLEX, heads={"main": "E"})
    rules = days_rules(3, {"main": 7})

    verdict = judge_commits(past, rules, now_ms=NOW)

    assert verdict.expired == {"A", "C", "D"}
    assert garbage(past, rules, COMPLEX_CONTENTS) == {EXAMPLE1, EXAMPLE3}


def test_data_only_on_a_branch_deleted_long_ago_goes() -> None:
    past = history(commit("A", days_ago=30), commit("X", "A", days_ago=20), heads={"main": "A"})

    assert garbage(past, days_rules(7), {"A": [EXAMPLE1], "X": [EXAMPLE1, EXAMPLE2]}) == {EXAMPLE2}


def test_a_head_is_kept_however_old_it_is() -> None:
    past = history(commit("A", days_ago=900), heads={"main": "A"})

    assert kept_commits(past, days_rules(1), now_ms=NOW) == {"A"}


def test_objects_outside_the_storage_namespace_are_never_touched() -> None:
    past = history(commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"})
    outside = ["s3://other/file", "s3://bucket/ns2/data/x", "local://bucket/ns/data/x"]

    gone = garbage(past, days_rules(1), {"A": [*outside, EXAMPLE1], "B": [KEPT]}, uncommitted=["s3://other/y"])

    assert gone == {EXAMPLE1}


@pytest.mark.parametrize("scheme", ["s3", "S3"])
def test_an_object_named_by_its_uri_and_by_its_key_is_one_object(scheme: str) -> None:
    past = history(commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"})
    absolute = f"{scheme}://bucket/ns/{EXAMPLE1}"

    assert garbage(past, days_rules(1), {"A": [EXAMPLE1, EXAMPLE2], "B": [absolute]}) == {EXAMPLE2}
    assert garbage(past, days_rules(1), {"A": [absolute, EXAMPLE2], "B": [EXAMPLE1]}) == {EXAMPLE2}
    assert garbage(past, days_rules(1), {"A": [absolute], "B": [KEPT]}, uncommitted=[EXAMPLE1]) == set()


def test_staged_data_of_any_branch_is_never_touched() -> None:
    past = history(commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"})

    gone = garbage(past, days_rules(1), {"A": [EXAMPLE1, EXAMPLE2], "B": [KEPT]}, uncommitted=[EXAMPLE1])

    assert gone == {EXAMPLE2}


def test_an_object_in_a_slice_that_is_not_closed_is_never_deleted() -> None:
    past = history(commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"})
    open_ = format_address(SLICE + 1, 0)

    assert garbage(past, days_rules(1), {"A": [open_], "B": [EXAMPLE1]}) == set()


def test_what_lies_outside_data_is_special_and_never_touched() -> None:
    past = history(commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"})

    gone = garbage(past, days_rules(1), {"A": ["_lakefs/ranges/x.parquet", "old/layout"], "B": [EXAMPLE1]})

    assert gone == set()


def test_a_tag_pins_its_commit_and_nothing_before_it() -> None:
    past = history(
        commit("A", days_ago=30),
        commit("B", "A", days_ago=20),
        commit("C", "B", days_ago=15),
        heads={"main": "C"},
        tags={"v1": CommitId("B")},
    )

    assert kept_commits(past, days_rules(7), now_ms=NOW) == {"B", "C"}
    assert kept_commits(past, Rules(default="7d", tags_pin=False), now_ms=NOW) == {"C"}


def test_the_last_commits_of_a_branch_are_kept_along_first_parents() -> None:
    past = history(
        commit("A", days_ago=40),
        commit("B", "A", days_ago=30),
        commit("F", "A", days_ago=25),
        commit("M", "B", "F", days_ago=20),
        heads={"main": "M", "dev": "F"},
    )

    def kept(pattern: str, commits: int) -> set[CommitId]:
        rules = Rules(default="7d", keep_last=(KeepLast(pattern=pattern, commits=commits),))
        return kept_commits(past, rules, now_ms=NOW)

    assert kept("main", 1) == {"M", "F"}
    assert kept("main", 2) == {"M", "B", "F"}
    assert kept("ma*", 9) == {"M", "B", "A", "F"}
    assert kept("release-*", 9) == {"M", "F"}


def test_a_period_in_months_is_counted_back_from_the_one_now() -> None:
    """NOW is 27 September 1972: one month before it is 31 days ago."""
    past = history(
        commit("A", days_ago=33),
        commit("B", "A", days_ago=32),
        commit("C", "B", days_ago=31),
        commit("D", "C", days_ago=30),
        heads={"main": "D"},
    )

    assert kept_commits(past, Rules(default="1mo"), now_ms=NOW) == {"B", "C", "D"}


def test_a_commit_that_is_about_to_be_named_is_kept() -> None:
    past = history(
        commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"}, held=frozenset({CommitId("A")})
    )

    assert judge_commits(past, days_rules(7), now_ms=NOW).expired == set()


def test_a_merged_branchs_own_commits_dangle_under_the_default() -> None:
    """Only first parents are main ancestry: what came in by a merge hangs on no branch."""
    past = history(
        commit("A", days_ago=30),
        commit("F", "A", days_ago=6),
        commit("M", "A", "F", days_ago=5),
        heads={"main": "M"},
    )

    assert "F" in kept_commits(past, days_rules(7, {"main": 1}), now_ms=NOW)
    assert "F" not in kept_commits(past, days_rules(3, {"main": 100}), now_ms=NOW)


def test_dates_that_do_not_descend_hide_no_active_commit() -> None:
    """A commit imported with an old date does not cut off the newer ones below it."""
    past = history(
        commit("A", days_ago=3),
        commit("B", "A", days_ago=2),
        commit("C", "B", days_ago=500),
        commit("D", "C", days_ago=100),
        heads={"main": "D"},
    )

    assert kept_commits(past, days_rules(7), now_ms=NOW) == {"A", "B", "D"}


def test_a_commit_exactly_as_old_as_the_period_is_active() -> None:
    past = history(
        commit("A", days_ago=20), commit("B", "A", days_ago=7), commit("C", "B", days_ago=7), heads={"main": "C"}
    )

    assert kept_commits(past, days_rules(7), now_ms=NOW) == {"A", "B", "C"}


def test_a_swept_commit_is_neither_kept_nor_expired() -> None:
    swept = CommitFacts(id=CommitId("A"), created_ms=NOW, metarange_id=MetarangeId("m-A"), swept=True)
    past = history(swept, commit("B", "A", days_ago=1), heads={"main": "B"})

    verdict = judge_commits(past, days_rules(7), now_ms=NOW)

    assert verdict.kept == {"B"}
    assert not verdict.expired


def test_a_range_that_a_kept_commit_shares_is_not_opened() -> None:
    past = history(commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"})
    shared, mine = RangeId("shared"), RangeId("mine")
    trees = Trees(
        ranges={MetarangeId("m-A"): (shared, mine), MetarangeId("m-B"): (shared,)},
        addresses={shared: [EXAMPLE1], mine: [EXAMPLE1, EXAMPLE2]},
    )
    verdict = judge_commits(past, days_rules(1), now_ms=NOW)

    gone = garbage_addresses(past, verdict, trees, uncommitted=(), namespace=NAMESPACE)

    assert gone == {EXAMPLE2}


@pytest.mark.parametrize(
    "named",
    [
        {"heads": {"main": "gone"}},
        {"heads": {"main": "A"}, "tags": {"v1": CommitId("gone")}},
        {"heads": {"main": "A"}, "held": frozenset({CommitId("gone")})},
    ],
)
def test_a_name_for_a_commit_that_was_not_read_stops_the_run(named: dict[str, dict[str, str]]) -> None:
    with pytest.raises(BrokenHistory, match="gone"):
        judge_commits(history(commit("A", days_ago=1), **named), days_rules(1), now_ms=NOW)


def test_a_parent_that_was_not_read_stops_the_run() -> None:
    with pytest.raises(BrokenHistory, match="commit B names commit A"):
        judge_commits(history(commit("B", "A", days_ago=1), heads={"main": "B"}), days_rules(1), now_ms=NOW)


def test_a_metarange_or_range_that_was_not_read_stops_the_run() -> None:
    past = history(commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"})

    with pytest.raises(KeyError):
        garbage(past, days_rules(1), {"A": [EXAMPLE1]})


def test_kept_commits_with_entries_and_no_address_stop_the_run() -> None:
    past = history(commit("A", days_ago=30), commit("B", "A", days_ago=20), heads={"main": "B"})

    with pytest.raises(EmptyLiveSet):
        garbage(past, days_rules(1), {"A": [EXAMPLE1], "B": []})


@pytest.mark.parametrize(
    "rules",
    [
        days_rules(-1),
        days_rules(1, {"main": 10**9}),
        days_rules(1, {"": 1}),
    ],
)
def test_rules_nobody_can_have_meant_are_refused(rules: Rules) -> None:
    with pytest.raises(InvalidRules):
        check_rules(rules)
