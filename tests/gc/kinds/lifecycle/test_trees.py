"""Find the masks of each range of a history, from parts that share ranges, at a cost that follows its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.gc.engines.engine import encode, parts_of, write_part
from lakebed.gc.kinds.lifecycle.trees import TREE_RANGES, TREES, RangeMasks
from lakebed.gc.messages import TreePart
from lakebed.objectstore import ObjectStore, open_objectstore

_PLACES = st.integers(0, 20)
_TREES = st.dictionaries(_PLACES, st.sets(_PLACES, min_size=1), min_size=1, max_size=3)
_MASKS = st.sampled_from([0, 1, 2, 3, 1 << 70])


async def a_part(store: ObjectStore, name: str, trees: Mapping[str, Sequence[str]]) -> TreePart:
    ids = sorted({id_ for tree in trees.values() for id_ in tree})
    matrix = np.array([np.packbits([id_ in {*tree} for id_ in ids], bitorder="little") for tree in trees.values()])
    matrix[1:] ^= matrix[:-1].copy()
    facts = {"count": [len(id_) for id_ in ids], "file_bytes": [1] * len(ids)}
    spans = {"min_key": [id_.encode() for id_ in ids], "max_key": [b"z"] * len(ids)}
    ranges = TREE_RANGES.rows({"range_id": ids, **facts, **spans})
    rows = TREES.rows({"metarange_id": [*trees], "bits": [row.tobytes() for row in matrix]})
    [of_ranges] = parts_of(
        await write_part(store, "f/", f"r-{name}", encode(TREE_RANGES, ranges), rows=len(ids), note=None)
    )
    [of_trees] = parts_of(await write_part(store, "f/", f"t-{name}", encode(TREES, rows), rows=len(rows), note=None))
    return TreePart(folder="f/", trees=of_trees, ranges=of_ranges)


@given(st.lists(st.lists(_TREES, max_size=4), max_size=2), st.data())
async def test_a_range_has_the_union_of_the_masks_of_all_its_metaranges(
    adds: list[list[dict[int, set[int]]]], data: st.DataObject
) -> None:
    store, found, masks, wanted = open_objectstore("mem://masks"), RangeMasks(), dict[str, int](), dict[str, int]()
    for number, parts in enumerate(adds):
        written = []
        for at, trees in enumerate(parts):
            named = {f"m{number}-{at}-{tree}": [f"r{id_}" for id_ in sorted(ids)] for tree, ids in trees.items()}
            written.append(await a_part(store, f"{number}-{at}", named))
            for name, ids in named.items():
                masks[name] = data.draw(_MASKS)
                wanted |= {id_: wanted.get(id_, 0) | masks[name] for id_ in ids if masks[name]}
        await found.add(store, written, masks)

    rows = found.ranges().to_pylist()

    assert [row["range_id"] for row in rows] == sorted(wanted)
    assert {row["range_id"]: found.masks[row["mask"]] for row in rows} == wanted
    assert all(row["min_key"] == row["range_id"].encode() for row in rows)
    assert all(row["count"] == len(row["range_id"]) for row in rows)


async def test_small_parts_are_not_each_held_against_all_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    store, found = open_objectstore("mem://masks"), RangeMasks()
    every = [f"r{number:04}" for number in range(1_000)]
    trees = [("first", every), *((f"m{number}", [every[number], f"new{number}"]) for number in range(50))]
    parts = [await a_part(store, name, {name: ids}) for name, ids in trees]
    concat_tables, looked_at = pa.concat_tables, []

    def counted(tables: Sequence[pa.Table]) -> pa.Table:
        looked_at.append(sum(table.num_rows for table in tables))
        return concat_tables(tables)

    monkeypatch.setattr(pa, "concat_tables", counted)
    await found.add(store, parts, dict.fromkeys((name for name, _ in trees), 1))

    assert found.ranges().num_rows == 1_050
    assert sum(looked_at) < 5_000


def test_the_keys_of_all_ranges_may_take_more_than_two_gibibytes() -> None:
    # An array of `binary` holds no more, and a sort makes one of all rows.
    schema = RangeMasks().ranges().schema

    assert [schema.field(name).type for name in ("min_key", "max_key")] == [pa.large_binary()] * 2
