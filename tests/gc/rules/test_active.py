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
    first_parent_indices,
    kept_commits,
    kept_indices,
    rows_of,
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


def fast(history: History, rules: Rules) -> set[CommitId]:
    commits = list(history.commits.values())
    ids = pa.array([commit.id for commit in commits])
    pinned = [*history.held, *(history.tags.values() if rules.tags_pin else ())]
    kept = kept_indices(
        first_parent=first_parent_indices(
            ids, pa.array([list(commit.parents) for commit in commits], pa.list_(pa.string()))
        ),
        created_ms=np.array([commit.created_ms for commit in commits], np.int64),
        heads=dict(zip(history.heads, rows_of(ids, list(history.heads.values()), who="a branch"), strict=True)),
        pinned=rows_of(ids, pinned, who="a tag"),
        rules=rules,
        now_ms=NOW,
    )
    return {commit.id for commit, is_kept in zip(commits, kept, strict=True) if is_kept}


@settings(deadline=None)
@given(history=histories(), rules=RULES)
def test_the_fast_verdict_equals_the_specification(history: History, rules: Rules) -> None:
    assert fast(history, rules) == kept_commits(history, rules, now_ms=NOW)


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
        first_parent_indices(pa.array(["a"]), pa.array([["gone"]]))


def test_a_head_that_was_not_read_stops_the_run() -> None:
    with pytest.raises(BrokenHistory, match="branch main names commit gone"):
        rows_of(pa.array(["a"]), ["gone"], who="branch main")


def test_first_parents_of_a_part_of_a_table_are_found() -> None:
    ids = pa.array(["a", "b", "c"])
    parents = pa.array([["x"], [], ["a", "b"], ["b"]]).slice(1)

    assert first_parent_indices(ids, parents).tolist() == [-1, 0, 1]
