"""Which branches reach a tree, and by which periods its rows go, where a random history seldom tells."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lakebed.gc import messages
from lakebed.gc.kinds.lifecycle.reaching import REACHED, Reached, reach_metaranges, sort_out, terms
from lakebed.gc.kinds.lifecycle.trees import MASKED_RANGES
from lakebed.gc.rules.lifecycle import NO_BRANCH, Policy, check_policy, classes_of

PERIODS = {"prefix": "a/", "branches": {"dev": "1d", "old": "2d"}}
"""Other branches keep their objects without end."""


def policy_of(rule: dict[str, Any]) -> Policy:
    return check_policy(json.dumps({"rules": {"r": rule}}).encode())


def reached(policy: Policy, *refs: tuple[str, str, str]) -> Reached:
    """Return what refs (kind, name, state) at one commit reach, whose tree is `m`."""
    commit = {"id": "c", "generation": 1, "creation_date": 0, "metarange_id": "m", "parents": [], "swept": False}
    named = [{"kind": kind, "name": name, "commit_id": "c", "state": state} for kind, name, state in refs]
    return reach_metaranges(
        pa.Table.from_pylist([{**commit, "expiring": False}], messages.arrow_schema(messages.COMMITS)),
        pa.Table.from_pylist(named, messages.arrow_schema(messages.REFS)),
        policy,
    )


@pytest.mark.parametrize(
    ("refs", "periods"),
    [
        ([("branch", "dev", "active")], ("1d",)),
        # It may yet get another name.
        ([("branch", "dev", "creating")], None),
        ([("branch", "dev", "active"), ("tag", "v1", "creating")], None),
        ([("branch", "dev", "active"), ("branch", "main", "active")], None),
        ([("branch", "dev", "active"), ("branch", "old", "active")], ("1d", "2d")),
        ([("branch", "dev", "active"), ("intent", "i", "active")], None),
    ],
)
def test_rows_go_by_the_periods_of_all_branches_that_their_commit_is_or_may_be_on(
    refs: list[tuple[str, str, str]], periods: tuple[str, ...] | None
) -> None:
    policy = policy_of(PERIODS)

    found = reached(policy, *refs)

    assert terms(found.masks()["m"], found, policy).periods == (periods,)


def test_a_tree_of_several_commits_is_on_the_branches_of_all() -> None:
    rows = REACHED.rows({"metarange_id": ["m", "m", "n"], "set": [0, 1, 1]})

    found = Reached(metaranges=rows, sets=[0b010, 0b100], classes=classes_of(policy_of(PERIODS), ["main"]), pinned=9)

    assert found.masks() == {"m": 0b110, "n": 0b100}


def test_a_range_whose_rows_are_never_due_is_read_for_the_versions_that_it_has() -> None:
    """Else an older version, of another branch's range, would count as the newest."""
    policy = policy_of({"prefix": "a/", "branches": {"dev": "1d"}, "keep_versions": 1})
    found = reached(policy, ("branch", "main", "active"))
    facts = {"range_id": ["r"], "count": [1], "file_bytes": [1], "min_key": [b"a/1"], "max_key": [b"a/2"], "mask": [0]}

    ranges = sort_out(MASKED_RANGES.rows(facts), [found.masks()["m"]], found, policy)

    assert (ranges.due["range_id"].to_pylist(), ranges.whole.num_rows) == (["r"], 0)
    assert NO_BRANCH not in ranges.terms[0].branches
