"""Columns of ids, against dictionaries."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.gc.rules.active import find_ids, repeated


def long_id(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def twin(number: int) -> str:
    """Begins as `long_id` does and ends otherwise: what is looked up first is the same for both."""
    return long_id(number)[:32] + "0" * 32


IDS = st.one_of(
    st.lists(st.integers(0, 9).map(long_id), unique=True, max_size=8),
    st.lists(st.integers(0, 9).flatmap(lambda n: st.sampled_from([long_id(n), twin(n)])), unique=True, max_size=8),
    st.lists(st.text(max_size=3), unique=True, max_size=8),
)


@settings(deadline=None)
@given(ids=IDS, data=st.data(), cut=st.integers(0, 2), second=st.integers(0, 10))
def test_each_name_is_found_where_it_is_and_not_where_its_twin_is(
    ids: list[str], data: st.DataObject, cut: int, second: int
) -> None:
    known = [*ids, *map(long_id, range(3)), *map(twin, range(3)), "other"]
    names = data.draw(st.lists(st.sampled_from(known), max_size=10))

    found = find_ids(pa.array(ids, pa.string()).slice(cut), pa.array(names, pa.string()))
    in_pieces = find_ids(
        pa.array(ids, pa.string()).slice(cut), pa.chunked_array([names[:second], names[second:]], pa.string())
    )

    assert found == in_pieces
    assert found.to_pylist() == [ids[cut:].index(name) if name in ids[cut:] else None for name in names]


@settings(deadline=None)
@given(ids=IDS, data=st.data())
def test_what_comes_more_than_once_is_told_and_twins_are_not_taken_for_it(ids: list[str], data: st.DataObject) -> None:
    column = data.draw(st.lists(st.sampled_from(ids), max_size=12)) if ids else []

    rows, numbers = repeated(pa.array(column, pa.string()))

    several = [row for row, id_ in enumerate(column) if column.count(id_) > 1]
    assert [row for row in rows.tolist() if row in several] == several
    for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
        same = [other for other, again in zip(rows.tolist(), numbers.tolist(), strict=True) if again == number]
        assert same == [other for other, id_ in enumerate(column) if id_ == column[row]]


@pytest.mark.parametrize("ids", [[], ["a"], [long_id(1)]])
def test_no_names_are_found_nowhere(ids: list[str]) -> None:
    assert find_ids(pa.array(ids), pa.array([], pa.string())).to_pylist() == []
