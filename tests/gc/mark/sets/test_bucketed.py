"""Foreign keys in files of their own, and their exact join, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.gc.engines import LocalEngine
from lakebed.gc.engines.engine import CANDIDATES
from lakebed.gc.engines.spark import JOB_S
from lakebed.gc.mark.mark import mark_expired
from lakebed.gc.mark.sets import bucketed as module
from lakebed.gc.mark.sets.bucketed import (
    BUCKETS,
    HELD_IN_JOIN,
    HELD_LEAST,
    LISTED,
    NAMED,
    SEGMENTS,
    Bucketed,
    BucketFile,
    Dealer,
    Segment,
    Share,
    buckets_of,
    by_bucket,
    effort_of,
    files_of,
    keep_unnamed,
    read_bucketed,
    rows_of_shares,
    shares_of,
    write_bucketed,
)
from lakebed.gc.mark.sets.packing import Cause, pack_numbered
from lakebed.gc.mark.sets.places import Namespace
from lakebed.gc.messages import BadInput
from lakebed.objectstore import MemoryObjectStore, ObjectStore, ObjectStoreOptions, open_deleter, open_objectstore
from lakebed.runtime import live_ports
from tests.gc.garbage import task_of

ALL = Share(0, BUCKETS)
FOLDER = "_lakefs/retention/gc/uncommitted/run/live/"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def listed(*keys: str, seen_ms: int = 1) -> pa.Table:
    same = {"size_bytes": pa.repeat(pa.scalar(7, pa.int64()), len(keys))}
    same["seen_ms"] = pa.repeat(pa.scalar(seen_ms, pa.int64()), len(keys))
    return by_bucket({"key": pa.array(keys, pa.string()), **same}, LISTED)


def named(*keys: str) -> pa.Table:
    return by_bucket({"key": pa.array(keys, pa.string())}, NAMED)


def left_of(ours: list[pa.Table], theirs: list[pa.Table]) -> list[str]:
    return sorted(keep_unnamed(ours, theirs, ALL)["key"].to_pylist())


async def written(store: ObjectStore, *tables: pa.Table) -> Bucketed:
    return Bucketed(folder=FOLDER, files=tuple([await write_bucketed(store, FOLDER, table) for table in tables]))


def counted(*rows: int) -> Bucketed:
    """Files of which only the numbers of rows matter, in the first segments."""
    segments = tuple(Segment(count, count, count, "") for count in [*rows, *[0] * (SEGMENTS - len(rows))])
    return Bucketed(folder=FOLDER, files=(BucketFile(name="x", segments=segments),))


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

    rows = keep_unnamed(tables, [named("data/b")], ALL).to_pylist()

    assert [(row["key"], row["seen_ms"]) for row in rows] == [("data/a", 9)]


async def test_keys_are_written_as_one_file_and_held_no_longer() -> None:
    store, keys = open_objectstore("mem://lake", ObjectStoreOptions()), Dealer(NAMED)
    many = [f"data/old/{number}" for number in range(500)]
    keys.add_keys(pa.array(many[:200]))
    keys.add_keys(pa.array([], pa.string()))
    keys.add_keys(pa.array(many[200:]))
    assert keys.held == 500

    row = await keys.write(store, FOLDER)

    assert keys.held == 0
    files = files_of(FOLDER, pa.concat_tables([row, row]))
    assert (len(files.files), files.rows) == (1, 500)
    found = await read_bucketed(task_of(store), files, ALL, NAMED)
    assert sorted(key for table in found for key in table["key"].to_pylist()) == sorted(many)


async def test_equal_keys_make_equal_files() -> None:
    store = open_objectstore("mem://lake", ObjectStoreOptions())

    once, again = [await written(store, named("data/a", "data/b")) for _ in range(2)]

    assert once == again


@given(st.lists(st.sets(texts, max_size=20), max_size=3), st.lists(st.sets(texts, max_size=20), max_size=3), st.data())
def test_a_join_in_shares_is_the_join_of_all(ours: list[set[str]], theirs: list[set[str]], data: st.DataObject) -> None:
    async def join() -> list[str]:
        store = open_objectstore("mem://lake", ObjectStoreOptions())
        left, right = (
            await written(store, *(listed(*s) for s in ours)),
            await written(store, *(named(*s) for s in theirs)),
        )
        shares = shares_of(left, [right], most=data.draw(st.integers(1, 30)))
        found = []
        for share in shares:
            ours_, theirs_ = (
                await read_bucketed(task_of(store), left, share, LISTED),
                await read_bucketed(task_of(store), right, share, NAMED),
            )
            found += keep_unnamed(ours_, theirs_, share)["key"].to_pylist()
        return found

    found = asyncio.run(join())

    assert sorted(found) == sorted(set().union(*ours) - set().union(*theirs))


def test_shares_hold_no_more_than_they_may_as_long_as_a_bucket_does_not() -> None:
    width = BUCKETS // SEGMENTS

    assert shares_of(counted(), [counted(9)], most=10) == []
    assert shares_of(counted(3, 3, 3, 1), [counted(1), counted(0, 1)], most=8) == [
        Share(0, 2 * width),
        Share(2 * width, 4 * width),
    ]
    assert shares_of(counted(1, 0, 1), [], most=8) == [Share(0, width), Share(2 * width, 3 * width)]
    halves = shares_of(counted(1, 12, 1), [counted(0, 4)], most=8)
    assert halves == [
        Share(0, width),
        Share(width, width + width // 2),
        Share(width + width // 2, 2 * width),
        Share(2 * width, 3 * width),
    ]
    assert len(shares_of(counted(10**9), [], most=8)) == width


def test_a_join_of_some_millions_has_work_for_many_cores_and_a_small_one_for_one() -> None:
    def shares(values: int) -> int:
        return len(rows_of_shares(counted(*[values // SEGMENTS] * SEGMENTS)).to_pylist())

    assert shares(72_000) == 1
    assert 16 <= shares(4_700_000) <= 32
    assert 32 <= shares(50_000_000) <= SEGMENTS
    assert shares(10**9) * HELD_IN_JOIN >= 10**9


def test_joining_a_million_packed_objects_is_no_small_step() -> None:
    packed = Segment(1, 1_000_000, 20_000_000, "")
    side = Bucketed(folder=FOLDER, files=(BucketFile(name="x", segments=(packed,) + (Segment(0, 0, 0, ""),) * 63),))

    assert effort_of(side).seconds > JOB_S


async def test_all_objects_of_a_slice_go_that_has_more_than_a_share_may_hold() -> None:
    """It is one bucket, so that the other buckets that were cut off it have nothing."""
    store, count = open_objectstore("mem://lake", ObjectStoreOptions()), HELD_LEAST + 1
    sequences, same = np.arange(count), np.ones(count, np.int64)
    dealer = Dealer(CANDIDATES)
    dealer.add(pack_numbered(same, sequences, same, same, Cause(reason="expired", rule="")))
    slice_ = files_of(FOLDER, await dealer.write(store, FOLDER))
    engine = LocalEngine(store, live_ports(), open_deleter=lambda: open_deleter("mem://lake"))

    _, totals = await mark_expired(engine, slice_, [], into="_lakefs/garbage/", now_ms=0)

    assert rows_of_shares(slice_).num_rows > 1
    assert totals.all.objects == count


async def test_a_share_reads_what_it_needs_and_no_more() -> None:
    class Counting(MemoryObjectStore):
        octets = 0

        async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            data = await super().get(key, start=start, end=end)
            self.octets += len(data)
            return data

    store = Counting("mem://lake")
    many = await written(store, named(*(f"data/old/{number}" for number in range(20_000))))
    size_bytes = sum(segment.size_bytes for segment in many.files[0].segments)

    tables = await read_bucketed(task_of(store), many, Share(0, BUCKETS // 4), NAMED)

    assert sum(table.num_rows for table in tables) == sum(segment.rows for segment in many.files[0].segments[:16])
    assert store.octets == sum(segment.size_bytes for segment in many.files[0].segments[:16]) < size_bytes / 3


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:200] + b"!" + data[201:]]
)
async def test_a_file_of_keys_that_differs_stops_the_run(damage: Callable[[bytes], bytes]) -> None:
    store = open_objectstore("mem://lake", ObjectStoreOptions())
    side = await written(store, named("data/a"))
    key = FOLDER + side.files[0].name

    with pytest.raises(BadInput, match="other columns"):
        await read_bucketed(task_of(store), side, ALL, LISTED)
    await store.put(key, damage(await store.get(key)))
    with pytest.raises(BadInput, match="contradicts"):
        await read_bucketed(task_of(store), side, ALL, NAMED)
    await open_deleter("mem://lake").delete([key])
    with pytest.raises(BadInput, match="missing"):
        await read_bucketed(task_of(store), side, ALL, NAMED)


ADDRESSES = [
    "data/x",
    "s3://other/data/y",
    "S3A://lake/main/data/y",
    "s3://lake/main/data/y",
    "s3://lake/mainly/data/y",
    "s3://other/s3://lake/main/z",
    "s3://lake/main/data/0000000000000/00000012",
    "s3n://lake/main/data/000000000000w/00000012",
    "s3N://lake/main/data/000000000000v/00000013",
    "s3://lake/main/data/abcdefghijk://lmnopqrst",
    "s3://other/data/0000000000000/00000012",
    "data/0000000000000/00000012",
    "data/000000000000w/00000012",
    "data/no/such/slice/at/all/0",
    "s3://lake/main/ü/00000001",
    "az://lake/main/data/y",
    "abfss://lake@account.dfs.core.windows.net/main/data/0000000000000/00000012",
    "wasb://lake@account.blob.core.windows.net/mainly/data/y",
    "https://account.blob.core.windows.net/lake/main/data/y",
    "https://account.blob.core.windows.net/other/lake/main/data/y",
    "data/lake/main/y",
]


@given(st.lists(st.sampled_from(ADDRESSES)), st.sampled_from(["s3://lake/main", "s3a://lake/main/", "az://lake/main"]))
def test_places_of_many_are_the_places_of_each(addresses: list[str], uri: str) -> None:
    here = Namespace(uri)

    keys, numbers = here.places_of(pa.array(addresses, pa.string()))

    places = [here.place_of(address) for address in addresses]
    assert sorted(keys.to_pylist()) == sorted(place for place in places if isinstance(place, str))
    assert sorted(numbers) == sorted(place for place in places if isinstance(place, tuple))
    assert sorted(here.numbers_of(pa.array(addresses, pa.string()))) == sorted(numbers)
