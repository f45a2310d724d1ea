"""Foreign keys in files of their own, and their exact join, without Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.blocks import BlockOptions, open_blocks
from lakebed.gc import keys as module
from lakebed.gc.buckets import BUCKETS, buckets_of
from lakebed.gc.keys import (
    GROUPS,
    LISTED,
    NAMED,
    by_bucket,
    files_of,
    group_of,
    keep_unnamed,
    read_keys,
    write_held,
    write_keys,
)
from lakebed.gc.mark import subtract
from lakebed.gc.packing import LiveSet
from lakebed.gc.places import Namespace
from lakebed.gc.tables import CANDIDATES
from lakebed.handoff import BadInput

FOLDER = "_lakefs/retention/gc/uncommitted/run/live/"
HERE = Namespace("local://lake/main")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def listed(*keys: str, seen_ms: int = 1) -> pa.Table:
    same = {"size_bytes": pa.repeat(pa.scalar(7, pa.int64()), len(keys))}
    same["seen_ms"] = pa.repeat(pa.scalar(seen_ms, pa.int64()), len(keys))
    return by_bucket({"key": pa.array(keys, pa.string()), **same}, LISTED)


def named(*keys: str) -> pa.Table:
    return by_bucket({"key": pa.array(keys, pa.string())}, NAMED)


def left_of(ours: list[pa.Table], theirs: list[pa.Table]) -> list[str]:
    return sorted(key for group in range(GROUPS) for key in keep_unnamed(ours, theirs, group)["key"].to_pylist())


@given(st.lists(texts, max_size=20))
def test_a_key_has_the_same_bucket_whatever_stands_beside_it(keys: list[str]) -> None:
    together = buckets_of(pa.array(["x", *keys, "y" * 30], pa.string()).slice(1, len(keys)))

    assert together.tolist() == [int(buckets_of(pa.array([key], pa.string()))[0]) for key in keys]
    assert all(0 <= bucket < BUCKETS for bucket in together.tolist())


def test_keys_that_differ_in_one_byte_anywhere_spread_over_buckets() -> None:
    keys = [f"data/{'a' * at}{digit}{'a' * (60 - at)}.parquet" for at in range(60) for digit in range(10)]

    counts = np.bincount(buckets_of(pa.array(keys)), minlength=BUCKETS)

    assert counts.max() < 10


@given(st.sets(texts, max_size=20), st.sets(texts, max_size=20), st.sets(texts, max_size=20))
def test_what_is_left_is_what_no_key_equals(ours: set[str], some: set[str], others: set[str]) -> None:
    left = left_of([listed(*ours)], [named(*some), named(*others)])

    assert left == sorted(ours - some - others)


def test_keys_of_one_hash_are_compared_as_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "buckets_of", lambda keys: np.zeros(len(keys), np.int16))

    assert left_of([listed("data/a", "data/b", "data/c")], [named("data/b"), named("data/a2")]) == ["data/a", "data/c"]


def test_a_key_listed_twice_goes_once_and_as_it_was_seen_last() -> None:
    tables = [listed("data/a", "data/b", seen_ms=9), listed("data/a", seen_ms=5)]

    rows = pa.concat_tables([keep_unnamed(tables, [named("data/b")], group) for group in range(GROUPS)]).to_pylist()

    assert [(row["key"], row["seen_ms"]) for row in rows] == [("data/a", 9)]


async def test_a_live_set_writes_its_keys_down_and_knows_their_files() -> None:
    store = open_blocks("mem://lake", BlockOptions())
    live = LiveSet()
    live.add((5, 3))
    many = [f"data/old/{number}" for number in range(500)]
    live.add_addresses(pa.array([*many, "local://lake/main/data/far", "local://other/data/x"]), HERE)

    await write_held(store, FOLDER, live, most=501)
    assert live.keys_held == 501
    await write_held(store, FOLDER, live, most=500)

    rows = live.rows()
    assert live.keys_held == 0
    assert [bucket for bucket in rows["bucket"].to_pylist() if bucket >= 0] == [5]
    files = files_of(pa.concat_tables([rows, rows]))
    assert len(files) == len({group_of(file) for file in files})
    found = await read_keys(store, FOLDER, files, NAMED)
    assert sorted(key for table in found for key in table["key"].to_pylist()) == sorted([*many, "data/far"])


async def test_rows_of_keys_and_files_of_keys_travel_together_through_a_live_set() -> None:
    store = open_blocks("mem://lake", BlockOptions())
    first, second = LiveSet(), LiveSet()
    first.add("data/a")
    await write_held(store, FOLDER, first)
    second.add_rows(first.rows())
    second.add("data/b")

    rows = second.rows()

    assert [file.name for file in files_of(rows)] == [file.name for file in files_of(first.rows())]
    assert rows["addresses"].to_pylist() == [["data/b"], []]


async def test_equal_keys_make_equal_files() -> None:
    store = open_blocks("mem://lake", BlockOptions())

    once, again = [await write_keys(store, FOLDER, named("data/a", "data/b")) for _ in range(2)]

    assert once == again


async def test_a_file_of_keys_that_differs_stops_the_run() -> None:
    store = open_blocks("mem://lake", BlockOptions())
    [part] = await write_keys(store, FOLDER, named("data/a"))

    with pytest.raises(BadInput, match="other columns"):
        await read_keys(store, FOLDER, [part], LISTED)
    await store.put(FOLDER + part.name, b"something else")
    with pytest.raises(BadInput, match="contradicts"):
        await read_keys(store, FOLDER, [part], NAMED)
    await store.delete([FOLDER + part.name])
    with pytest.raises(BadInput, match="missing"):
        await read_keys(store, FOLDER, [part], NAMED)


@given(
    st.lists(st.sampled_from(["data/x", "local://lake/main/data/y", "s3://lake/main/data/y", "LOCAL://lake/main/z"]))
)
def test_places_of_many_are_the_places_of_each(addresses: list[str]) -> None:
    addresses = [
        *addresses,
        "data/0000000000000/00000012",
        "data/000000000000w/00000012",
        "data/no/such/slice/at/all/0",
    ]

    keys, numbers = HERE.places_of(pa.array(addresses, pa.string()))

    places = [HERE.place_of(address) for address in addresses]
    assert sorted(keys.to_pylist()) == sorted(place for place in places if isinstance(place, str))
    assert sorted(numbers) == sorted(place for place in places if isinstance(place, tuple))


async def test_who_would_overlook_files_of_keys_stops_the_run() -> None:
    live = LiveSet()
    live.add("data/a")
    await write_held(open_blocks("mem://lake", BlockOptions()), FOLDER, live)

    with pytest.raises(BadInput, match="files of their own"):
        subtract(CANDIDATES.schema.empty_table(), live.rows())
