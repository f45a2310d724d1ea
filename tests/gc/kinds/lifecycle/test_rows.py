"""Rows at the edges that random histories seldom meet: of a cut-off, of a size, of a part of a range."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakebed.base import Entry, format_address, slice_number, to_row
from lakebed.gc.kinds.lifecycle.reaching import Terms
from lakebed.gc.kinds.lifecycle.rows import (
    MIXED,
    VERSIONS,
    Judging,
    due_rows,
    match_rules,
    rule_of_span,
    stale_versions,
)
from lakebed.gc.mark.sets.places import Namespace
from lakebed.gc.rules.lifecycle import Policy, check_policy
from lakebed.ranges import table_from_rows

SLICE = slice_number(opened_at_ms=1_790_000_000_000, random_bits=1)


def policy_of(*rules: dict[str, Any], **pins: list[str]) -> Policy:
    named = {f"r{number}": rule for number, rule in enumerate(rules)}
    return check_policy(json.dumps({"rules": named, "pins": pins}).encode())


def entries(*each: tuple[str, int, str]) -> pa.Table:
    """Return rows of a range: path, size and class of each."""
    rows = []
    for number, (path, size_bytes, class_) in enumerate(each):
        entry = Entry(
            address=format_address(SLICE, number),
            size_bytes=size_bytes,
            checksum="",
            modified_ms=number,
            metadata={"class": class_} if class_ else {},
        )
        rows.append(to_row(path.encode(), entry))
    return table_from_rows([path.encode() for path, _, _ in each], rows)


def test_what_was_written_at_the_cut_off_is_not_due_yet() -> None:
    rows = pa.table({"modified_ms": pa.array([99, 100, 101, 99], pa.int64())})

    assert due_rows(rows, np.array([0, 0, 0, -1]), [100]).tolist() == [True, False, False, False]


def test_a_rule_is_for_objects_of_its_size_and_metadata_in_its_part_of_a_range() -> None:
    policy = policy_of(
        {"prefix": "b/", "days": 1, "metadata": {"class": "pii"}}, {"prefix": "c/", "days": 1, "min_size": 50}
    )
    rows = entries(
        ("a/1", 9, "pii"), ("b/1", 9, ""), ("b/2", 9, "pii"), ("c/1", 49, ""), ("c/2", 50, ""), ("c/3", 51, "")
    )
    first, second = ([rule.id for rule in policy.rules].index(id_) for id_ in ("r0", "r1"))

    assert match_rules(rows, policy).tolist() == [-1, -1, first, -1, second, second]


@pytest.mark.parametrize(
    ("rule", "pins", "span"),
    [
        ({"prefix": "a/"}, {"prefixes": ["a/5"]}, ("a/5", "a/9")),
        ({"prefix": "a/"}, {"prefixes": ["a/5"]}, ("a/1", "a/5")),
        ({"prefix": "a/"}, {"prefixes": ["a/5"]}, ("a/5x", "a/5y")),
        ({"prefix": "a/"}, {}, ("a/1", "b/1")),
        ({"prefix": "a/"}, {}, ("Z", "a/1")),
        ({"prefix": "a/", "min_size": 1}, {}, ("a/1", "a/2")),
        ({"prefix": "a/", "metadata": {"class": "pii"}}, {}, ("a/1", "a/2")),
        ({"path": "a/**"}, {}, ("a/1", "a/2")),
    ],
)
def test_a_span_has_one_rule_only_where_it_is_for_each_entry(
    rule: dict[str, Any], pins: dict[str, list[str]], span: tuple[str, str]
) -> None:
    first, last = (path.encode() for path in span)

    assert rule_of_span(policy_of({"days": 1, **rule}, **pins), first, last) == MIXED
    assert rule_of_span(policy_of({"prefix": "a/", "days": 1}), b"a/1", b"a/2") == 0


@pytest.mark.parametrize(("classes", "goes"), [((1,), ["0"]), ((0, 1), [])])
def test_an_old_version_stays_where_its_commit_may_reach_any_branch(classes: tuple[int, ...], goes: list[str]) -> None:
    """The newer version may not be on that branch. A version has the latest date of all its rows."""
    policy = policy_of({"prefix": "a", "days": 1, "keep_versions": 1})
    rows = VERSIONS.rows(
        {
            "path": ["a"] * 3,
            "key": [b"a"] * 3,
            "slice": [SLICE] * 3,
            "sequence": [1, 0, 1],
            "address": [""] * 3,
            "size_bytes": [7] * 3,
            "modified_ms": [1, 2, 3],
            "seen_in": [0] * 3,
            "rule": [0] * 3,
            "terms": [0] * 3,
        }
    )
    judging = Judging(
        policy=policy,
        terms=[Terms((("1d",),), ("main",), classes)],
        namespace=Namespace("mem://x"),
        closed=pa.array([SLICE], pa.int64()),
        now_ms=0,
    )

    found = [
        str(row["sequence"]) for part, _, _ in stale_versions(rows, judging, lambda _: None) for row in part.to_pylist()
    ]

    assert found == goes
