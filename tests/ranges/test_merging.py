"""The three-way merge of tables, against the rule on dicts."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import Entry, to_row
from lakebed.ranges import ENTRIES_SCHEMA, Strategy, merge_tables, table_from_rows

searched = settings(deadline=None, max_examples=150)
strategies: st.SearchStrategy[Strategy] = st.sampled_from(["none", "source-wins", "dest-wins"])
keys = st.integers(0, 30).map(lambda number: b"k%02d" % number)
models = st.dictionaries(keys, st.integers(1, 3), max_size=25)


def entries(model: dict[bytes, int]) -> pa.Table:
    names = sorted(model)
    rows = [to_row(key, Entry(address=f"a{model[key]}", size_bytes=0, checksum="", modified_ms=0)) for key in names]
    return table_from_rows(names, rows)


@searched
@given(models, models, models, strategies, st.dictionaries(keys, st.sampled_from(["source-wins", "dest-wins"])))
def test_each_key_follows_the_side_that_changed_it(
    base: dict[bytes, int],
    source: dict[bytes, int],
    destination: dict[bytes, int],
    strategy: Strategy,
    choices: dict[bytes, Literal["source-wins", "dest-wins"]],
) -> None:
    expected, conflicts = {}, []
    for key in base.keys() | source.keys() | destination.keys():
        was, ours, theirs = base.get(key), source.get(key), destination.get(key)
        value = ours if was == theirs else theirs
        if was not in (ours, theirs) and ours != theirs:
            side = choices.get(key, strategy)
            if side == "none":
                conflicts.append(key)
            value = ours if side == "source-wins" else theirs
        if value is not None:
            expected[key] = value

    merged = merge_tables(
        base=entries(base), source=entries(source), destination=entries(destination), strategy=strategy, choices=choices
    )

    assert merged.conflicts == sorted(conflicts)
    assert merged.entries.equals(entries(expected))


def test_nothing_merges_with_nothing() -> None:
    nothing = ENTRIES_SCHEMA.empty_table()

    merged = merge_tables(base=nothing, source=nothing, destination=nothing, strategy="none")

    assert merged.entries.equals(nothing)
    assert merged.conflicts == []
