"""The fast verdict equals the specification, whatever the history."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import CommitId
from lakebed.gc.rules import (
    DAY_MS,
    BranchRule,
    BrokenHistory,
    CommitFacts,
    History,
    KeepLast,
    Rules,
    days_rules,
    kept_commits,
    kept_indices,
    lines_of,
    places_of,
)

NOW = 100 * DAY_MS


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any graph whose parents come before their children; dates in any order; heads and tags anywhere."""
    count = draw(st.integers(1, 12))
    commits: list[CommitFacts] = []
    for number in range(count):
        parents = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else []
        days = draw(st.integers(-1, 12))
        commits.append(
            CommitFacts(
                id=CommitId(f"c{number}"),
                parents=tuple(commits[parent].id for parent in parents),
                created_ms=NOW - days * DAY_MS,
            )
        )
    ids = [commit.id for commit in commits]
    return History(
        commits={commit.id: commit for commit in commits},
        heads=draw(st.dictionaries(st.sampled_from(["main", "dev", "old"]), st.sampled_from(ids))),
        tags=draw(st.dictionaries(st.sampled_from(["v1", "v2"]), st.sampled_from(ids))),
        held=draw(st.frozensets(st.sampled_from(ids), max_size=2)),
    )


PATTERNS = st.sampled_from(["main", "dev", "none", "*", "d*", "?ain", "???"])
PERIODS = st.sampled_from(["1h", "36h", "1d", "3d", "7d", "1w", "10d", "1mo", "forever"])
RULES = st.builds(
    Rules,
    default=PERIODS,
    branches=st.dictionaries(PATTERNS, PERIODS, max_size=4).map(
        lambda found: tuple(BranchRule(pattern=pattern, period=period) for pattern, period in found.items())
    ),
    keep_last=st.dictionaries(PATTERNS, st.integers(1, 13), max_size=4).map(
        lambda found: tuple(KeepLast(pattern=pattern, commits=commits) for pattern, commits in found.items())
    ),
    tags_pin=st.booleans(),
)


def fast(history: History, rules: Rules, *, now_ms: int = NOW, drawn_ms: int | None = None) -> set[CommitId]:
    """Return the kept commits. `drawn_ms`: the time at which the lines of branches are drawn, if not now."""
    commits = list(history.commits.values())
    ids = pa.array([commit.id for commit in commits])
    pinned = [*history.held, *(history.tags.values() if rules.tags_pin else ())]
    parents = pa.array([list(commit.parents) for commit in commits], pa.list_(pa.string()))
    named = [("a branch", head) for head in history.heads.values()] + [("a tag", commit) for commit in pinned]
    first_parent, rows = places_of(ids, parents, named)
    heads = dict(zip(history.heads, rows[: len(history.heads)], strict=True))
    drawn = None
    if drawn_ms is not None:
        drawn = lines_of(first_parent=first_parent, heads=heads, rules=rules, now_ms=drawn_ms).at(now_ms)
    kept = kept_indices(
        first_parent=first_parent,
        created_ms=np.array([commit.created_ms for commit in commits], np.int64),
        heads=heads,
        pinned=rows[len(heads) :],
        rules=rules,
        now_ms=now_ms,
        lines=drawn,
    )
    return {commit.id for commit, is_kept in zip(commits, kept, strict=True) if is_kept}


@settings(deadline=None)
@given(history=histories(), rules=RULES)
def test_the_fast_verdict_equals_the_specification(history: History, rules: Rules) -> None:
    assert fast(history, rules) == kept_commits(history, rules, now_ms=NOW)


@settings(deadline=None)
@given(history=histories(), rules=RULES, days=st.integers(0, 70))
def test_lines_that_were_drawn_earlier_give_the_verdict_of_a_later_day(
    history: History, rules: Rules, days: int
) -> None:
    later_ms = NOW + days * DAY_MS

    assert fast(history, rules, now_ms=later_ms, drawn_ms=NOW) == kept_commits(history, rules, now_ms=later_ms)


def test_lines_are_drawn_anew_where_a_month_and_days_change_places() -> None:
    march, april = 59 * DAY_MS, 89 * DAY_MS  # 1 March: a month is 28 days; 31 March: it is 31.
    rules = Rules(default="1d", branches=(BranchRule(pattern="a", period="1mo"), BranchRule(pattern="b", period="30d")))
    first_parent, heads = np.array([-1, 0], np.int64), {"a": 1, "b": 1}

    drawn = lines_of(first_parent=first_parent, heads=heads, rules=rules, now_ms=march)

    assert drawn.branches == ["b", "a"]
    assert drawn.at(april) is None
    later = lines_of(first_parent=first_parent, heads=heads, rules=rules, now_ms=april)
    assert later.branches == ["a", "b"]


def test_a_commit_of_two_branches_stays_as_long_as_the_longer_period_says() -> None:
    commits = [
        CommitFacts(id=CommitId(f"c{number}"), parents=tuple(map(CommitId, parents)), created_ms=NOW - days * DAY_MS)
        for number, (parents, days) in enumerate([((), 10), (("c0",), 9), (("c1",), 8)])
    ]
    history = History(
        commits={commit.id: commit for commit in commits},
        heads={"main": CommitId("c2"), "dev": CommitId("c1")},
    )

    assert fast(history, days_rules(1, {"main": 30, "dev": 1})) == {"c0", "c1", "c2"}


def test_a_repository_without_commits_has_none_to_keep() -> None:
    empty = History(commits={}, heads={})

    assert fast(empty, days_rules(1)) == set()


def test_a_first_parent_that_was_not_read_stops_the_run() -> None:
    with pytest.raises(BrokenHistory, match="gone"):
        places_of(pa.array(["a"]), pa.array([["gone"]]), [])


def test_a_head_that_was_not_read_stops_the_run() -> None:
    with pytest.raises(BrokenHistory, match="branch main names commit gone"):
        places_of(pa.array(["a"]), pa.array([[]], pa.list_(pa.string())), [("branch main", "gone")])


def test_first_parents_of_a_part_of_a_table_are_found() -> None:
    ids = pa.array(["a", "b", "c"])
    parents = pa.array([["x"], [], ["a", "b"], ["b"]]).slice(1)

    assert places_of(ids, parents, [])[0].tolist() == [-1, 0, 1]
