"""Overlay, application and comparison of sorted tables, against plain dicts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import Entry, Row, to_row
from lakebed.ranges import (
    CHANGES_SCHEMA,
    ENTRIES_SCHEMA,
    apply_changes,
    changes_from_rows,
    differing,
    overlay,
    rows_from_table,
    table_from_rows,
)
from lakebed.ranges.changing import find_keys

searched = settings(deadline=None, max_examples=100)
keys = st.integers(0, 60).map(lambda number: b"k%02d" % number)
models = st.dictionaries(keys, st.integers(1, 3), max_size=50)
layers = st.lists(st.dictionaries(keys, st.integers(0, 3), max_size=30), max_size=4)


def row(key: bytes, version: int) -> Row:
    return to_row(key, Entry(address=f"a{version}", size_bytes=version, checksum="", modified_ms=0))


def entries(model: Mapping[bytes, int]) -> pa.Table:
    ordered = sorted(model)
    return table_from_rows(ordered, [row(key, model[key]) for key in ordered])


def changes(layer: Mapping[bytes, int]) -> pa.Table:
    """Version 0 is a tombstone."""
    ordered = sorted(layer)
    return changes_from_rows(ordered, [row(key, layer[key]) if layer[key] else None for key in ordered])


@searched
@given(layers)
def test_of_each_key_the_newest_change_stays(newest_first: list[dict[bytes, int]]) -> None:
    expected: dict[bytes, int] = {}
    for layer in reversed(newest_first):
        expected |= layer

    assert overlay([changes(layer) for layer in newest_first]).equals(changes(expected))


@searched
@given(models, models | st.dictionaries(keys, st.integers(0, 3), max_size=50))
def test_changes_put_replace_and_remove(model: dict[bytes, int], layer: dict[bytes, int]) -> None:
    before = entries(model)
    change = apply_changes(before, changes(layer))

    after = {key: version for key, version in {**model, **layer}.items() if version}
    assert change.entries.equals(entries(after))
    assert [sorted(after)[position] for position in change.fresh.tolist()] == sorted(after.keys() - model.keys())
    assert change.added == len(after.keys() - model.keys())
    assert change.removed == len(model.keys() - after.keys())
    assert change.changed == sum(after[key] != model[key] for key in after.keys() & model.keys())
    assert change.is_none == (after == model)
    if change.is_none:
        assert change.entries is before


@searched
@given(models, models)
def test_rows_that_differ_are_found_by_their_digests(left: dict[bytes, int], right: dict[bytes, int]) -> None:
    tables = entries(left), entries(right)
    of_left, of_right = differing(*(table.column("digest").to_numpy() for table in tables))

    assert [sorted(left)[at] for at in of_left] == [key for key in sorted(left) if left[key] != right.get(key)]
    assert [sorted(right)[at] for at in of_right] == [key for key in sorted(right) if right[key] != left.get(key)]


@pytest.mark.parametrize("step", [1, 7, 100])
def test_keys_are_found_whether_few_or_many_are_asked_for(step: int) -> None:
    have = np.array([b"%04d" % number for number in range(0, 2000, 2)], dtype=object)
    wanted = np.array([b"%04d" % number for number in range(0, 2010, step)], dtype=object)

    positions, found = find_keys(have, wanted)

    assert positions.tolist() == np.searchsorted(have, wanted).tolist()
    assert found.tolist() == [key in set(have.tolist()) for key in wanted]


def test_nothing_over_nothing_is_nothing() -> None:
    assert overlay([]).equals(CHANGES_SCHEMA.empty_table())
    assert overlay([CHANGES_SCHEMA.empty_table()]).equals(CHANGES_SCHEMA.empty_table())
    assert table_from_rows([], []).equals(ENTRIES_SCHEMA.empty_table())
    assert changes_from_rows([], []).equals(CHANGES_SCHEMA.empty_table())
    assert rows_from_table(ENTRIES_SCHEMA.empty_table()) == []
    assert apply_changes(ENTRIES_SCHEMA.empty_table(), CHANGES_SCHEMA.empty_table()).is_none
