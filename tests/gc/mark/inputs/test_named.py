"""From commits to metaranges: what stays, what goes, and what is said of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebed.gc import messages
from lakebed.gc.mark.inputs.named import check_live, judge, metaranges_of_all, newly_kept
from lakebed.gc.rules import DAY_MS, BrokenHistory, EmptyLiveSet, Rules, days_rules

NOW_MS = 1_790_000_000_000


def commits(*rows: dict[str, Any]) -> pa.Table:
    full = [
        {
            "generation": 1,
            "creation_date": NOW_MS - row.pop("age_days", 0) * DAY_MS,
            "metarange_id": f"m-{row['id']}",
            "parents": [],
            "swept": False,
            "expiring": False,
        }
        | row
        for row in rows
    ]
    return pa.Table.from_pylist(full, messages.arrow_schema(messages.COMMITS))


def refs(*rows: tuple[str, str, str]) -> pa.Table:
    full = [
        {"kind": kind, "name": name, "commit_id": commit, "state": state}
        for row in rows
        for kind, name, commit, state in [(*row, "active")]
    ]
    return pa.Table.from_pylist(full, messages.arrow_schema(messages.REFS))


def said(metaranges: pa.Table) -> dict[str, tuple[object, ...]]:
    return {row["metarange_id"]: (row["is_live"], row["reason"], row["rule"]) for row in metaranges.to_pylist()}


HISTORY = commits(
    {"id": "a", "age_days": 30},
    {"id": "b", "age_days": 20, "parents": ["a"]},
    {"id": "c", "age_days": 10, "parents": ["b"]},
    {"id": "d", "age_days": 30},
)


def test_a_metarange_that_goes_carries_the_rule_that_let_it_go() -> None:
    judged = judge(HISTORY, refs(("branch", "main", "c")), days_rules(4, {"main": 7}), now_ms=NOW_MS)

    assert said(judged.metaranges)["m-a"] == (False, "expired", "main: 7d")
    assert said(judged.metaranges)["m-d"] == (False, "dangling", "default: 4d")
    assert said(judged.metaranges)["m-c"][0] is True
    assert sorted(judged.expired_ids().to_pylist()) == ["a", "b", "d"]


def test_a_metarange_that_any_kept_commit_has_is_live() -> None:
    history = commits(
        {"id": "a", "age_days": 30, "metarange_id": "m"},
        {"id": "b", "parents": ["a"], "metarange_id": "m"},
        {"id": "x", "age_days": 40, "metarange_id": "m"},
    )

    judged = judge(history, refs(("branch", "main", "b")), days_rules(1), now_ms=NOW_MS)

    assert [(row["metarange_id"], row["is_live"]) for row in judged.metaranges.to_pylist()] == [("m", True)]


def test_a_metarange_of_a_head_is_live_beside_a_younger_commit_that_goes() -> None:
    history = commits(
        {"id": "head", "age_days": 30, "metarange_id": "m"}, {"id": "gone", "age_days": 9, "metarange_id": "m"}
    )

    judged = judge(history, refs(("branch", "main", "head")), days_rules(1), now_ms=NOW_MS)

    assert judged.expired_ids().to_pylist() == ["gone"]
    assert [row["is_live"] for row in judged.metaranges.to_pylist()] == [True]


def test_of_several_commits_that_go_with_one_metarange_the_newest_speaks() -> None:
    history = commits({"id": "a", "age_days": 30, "metarange_id": "m"}, {"id": "b", "age_days": 9, "metarange_id": "m"})

    judged = judge(history, refs(), days_rules(1), now_ms=NOW_MS)

    assert judged.metaranges["seen_ms"].to_pylist() == [NOW_MS - 9 * DAY_MS]


def test_a_swept_commit_is_neither_kept_nor_expired() -> None:
    history = commits({"id": "a", "age_days": 30, "swept": True}, {"id": "b", "parents": ["a"]})

    judged = judge(history, refs(("branch", "main", "b")), days_rules(60), now_ms=NOW_MS)

    assert judged.kept.tolist() == [False, True]
    assert judged.expired.tolist() == [False, False]
    assert metaranges_of_all(history)["metarange_id"].to_pylist() == ["m-b"]


@pytest.mark.parametrize("kind", ["tag", "intent"])
def test_a_tag_or_a_hold_keeps_its_commit(kind: str) -> None:
    judged = judge(HISTORY, refs((kind, "v1", "d")), days_rules(1), now_ms=NOW_MS)

    assert said(judged.metaranges)["m-d"][0] is True


@pytest.mark.parametrize(("state", "stays"), [("active", False), ("creating", True)])
def test_where_tags_do_not_pin_one_that_is_being_made_keeps_its_commit_all_the_same(state: str, stays: bool) -> None:
    tag = {"kind": "tag", "name": "v1", "commit_id": "d", "state": state}
    found = pa.Table.from_pylist([tag], messages.arrow_schema(messages.REFS))

    judged = judge(HISTORY, found, Rules(default="1d", tags_pin=False), now_ms=NOW_MS)

    assert said(judged.metaranges)["m-d"][0] is stays


def test_a_ref_to_a_commit_without_record_stops_the_run() -> None:
    with pytest.raises(BrokenHistory, match="nowhere"):
        judge(HISTORY, refs(("branch", "main", "nowhere")), days_rules(1), now_ms=NOW_MS)


def test_a_recheck_reads_commits_that_are_new_and_such_as_were_taken_out() -> None:
    planned = HISTORY.slice(2, 1)
    now = commits({"id": "a", "expiring": True}, {"id": "b"}, {"id": "c"}, {"id": "d", "swept": True}, {"id": "new"})

    new, old = newly_kept(planned, now)

    assert sorted(new["metarange_id"].to_pylist()) == ["m-b", "m-new"]
    assert old["metarange_id"].to_pylist() == ["m-c"]


def test_no_live_range_where_commits_have_entries_stops_the_run() -> None:
    with pytest.raises(EmptyLiveSet):
        check_live(metaranges_of_all(HISTORY), live_ranges=0)


def test_a_repository_without_entries_may_have_no_live_range() -> None:
    check_live(metaranges_of_all(commits({"id": "a", "metarange_id": ""})), live_ranges=0)
