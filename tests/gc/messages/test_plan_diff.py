"""Two plans compared: what only one of them takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import FOREIGN_SLICE, Invalid, format_address, parse_address
from lakebed.gc.messages import (
    COMMITS,
    EXPIRED,
    GARBAGE,
    CommitCounts,
    Plan,
    PlanDiff,
    RangeCounts,
    RunKind,
    Total,
    Totals,
    arrow_schema,
    diff_plans,
    manifest_of,
)


def plan(run_id: str, kind: RunKind = RunKind.COMMITTED, **branches: int) -> Plan:
    manifest = manifest_of(COMMITS, "_lakefs/x/", [])
    return Plan(
        run_id=run_id,
        kind=kind,
        repository="repo",
        namespace="local://lake/repo",
        now_ms=0,
        closed_slices=0,
        rules=None,
        rules_version=1,
        commits=manifest,
        refs=manifest,
        commit_counts=CommitCounts(all=1, kept=1, expired=0, swept=0),
        range_counts=RangeCounts(live=0, expired=0),
        garbage=manifest,
        totals=Totals(by_branch={name: Total(objects=count) for name, count in branches.items()}),
    )


def row(address: str, **more: Any) -> dict[str, Any]:
    slice_, sequence = parse_address(address) or (FOREIGN_SLICE, 0)
    facts = {"size_bytes": 2, "reason": "expired", "rule": "r", "last_seen_at": 5, "path": "logs/a"}
    return {"address": address, "slice": slice_, "sequence": sequence} | facts | more


def diff(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]], **more: Any) -> PlanDiff:
    tables = [pa.Table.from_pylist(list(rows), arrow_schema(GARBAGE)) for rows in (a, b)]
    nothing = pa.Table.from_pylist([], arrow_schema(EXPIRED))
    return diff_plans(plan("a"), plan("b"), (tables[0], tables[1]), (nothing, nothing), **more)


OWN = [format_address(7, 1), format_address(7, 2), format_address(9, 1)]
ADDRESSES = st.sets(st.sampled_from([*OWN, "data/old/1", "data/old/2"]))


@settings(deadline=None)
@given(ADDRESSES, ADDRESSES)
def test_each_object_is_on_one_side_or_on_both(a: set[str], b: set[str]) -> None:
    found = diff([row(address) for address in sorted(a)], [row(address) for address in sorted(b)])

    assert {it.address for it in found.objects if it.side == "a"} == a - b
    assert {it.address for it in found.objects if it.side == "b"} == b - a
    assert (found.only_a.all.objects, found.only_b.all.objects) == (len(a - b), len(b - a))
    assert found.both == Total(objects=len(a & b), size_bytes=2 * len(a & b))


def test_totals_of_a_side_add_up_in_every_way() -> None:
    rows = [row(OWN[0], reason="dangling", path="top"), row(OWN[1], rule="other"), row("data/old/1", size_bytes=5)]

    only = diff(rows, []).only_a

    assert only.all == Total(objects=3, size_bytes=9)
    assert only.by_prefix == {"logs/": Total(objects=2, size_bytes=7), "": Total(objects=1, size_bytes=2)}
    for way in (only.by_reason, only.by_rule):
        assert sum(total.size_bytes for total in way.values()) == 9


def test_as_many_rows_are_shown_as_were_asked_for_and_all_are_counted() -> None:
    found = diff([row(address) for address in OWN], [], limit=1)

    assert [it.address for it in found.objects] == [OWN[0]]
    assert found.only_a.all.objects == 3


def test_commits_and_branches_are_compared() -> None:
    ids = [pa.table({"id": pa.array(names, pa.string())}) for names in (["c1", "c2"], ["c2", "c3", "c4"])]
    nothing = pa.Table.from_pylist([], arrow_schema(GARBAGE))

    found = diff_plans(plan("a", main=1, dev=2), plan("b", main=4), (nothing, nothing), (ids[0], ids[1]))

    assert (found.commits.a, found.commits.b, found.commits.both) == (1, 2, 1)
    assert (found.commits.only_a, found.commits.only_b) == (("c1",), ("c3", "c4"))
    assert {name: (a.objects, b.objects) for name, (a, b) in found.by_branch.items()} == {"dev": (2, 0), "main": (1, 4)}


def test_plans_of_two_kinds_are_not_compared() -> None:
    nothing = pa.Table.from_pylist([], arrow_schema(GARBAGE))

    with pytest.raises(Invalid, match="is of kind"):
        diff_plans(plan("a"), plan("b", RunKind.UNCOMMITTED), (nothing, nothing), (nothing, nothing))
