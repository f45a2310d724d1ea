"""What is read of a range whose objects may go, without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import Entry, format_address, slice_number, to_row
from lakebed.gc.engines import LocalEngine
from lakebed.gc.engines.engine import CANDIDATES, LIVE, parts_of
from lakebed.gc.mark.holding import metaranges_of
from lakebed.gc.mark.inputs import named, ranges
from lakebed.gc.mark.inputs.ranges import (
    ListedRanges,
    _written_ms,
    deal_expired,
    from_ranges,
    pack_rows,
    read_ranges,
)
from lakebed.gc.mark.sets.bucketed import BUCKETS, Share, read_bucketed
from lakebed.gc.mark.sets.packing import Cause
from lakebed.gc.mark.sets.places import PREFIXES_MAX, Namespace, first_folders
from lakebed.gc.messages import BadInput
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore, ObjectStore, ObjectStoreOptions, open_objectstore
from lakebed.ranges import RangeInfo, encode_metarange, encode_range, metarange_key, range_key, table_from_rows
from lakebed.runtime import live_ports
from tests.gc.garbage import context_of, ranges_of, task_of

SLICE = slice_number(opened_at_ms=1_790_000_000_000, random_bits=7)
NAMESPACE = Namespace("local://lake/repo")
paths = st.lists(st.sampled_from(["a", "a/", "a/1", "a/b/1", "a0", "b/1", "b/2", "c", "ü/1"]), min_size=1, unique=True)


NUMBERED = pc.field("bucket") >= 0
FOREIGN = pc.field("bucket") < 0
ADDRESSES = [format_address(SLICE, 1), f"local://lake/repo/{format_address(SLICE, 2)}", "data/old/1", "data/old/2"]


def seen(found: pa.Table, which: pc.Expression) -> set[int]:
    return {n for row in found.filter(which)["seen_ms"].to_pylist() for n in np.frombuffer(row, "<i8").tolist()}


def packed(entries: dict[str, str]) -> pa.Table:
    keys = sorted(path.encode() for path in entries)
    made = [Entry(address=entries[key.decode()], size_bytes=4, checksum="", modified_ms=0) for key in keys]
    rows = table_from_rows(keys, [to_row(key, entry) for key, entry in zip(keys, made, strict=True)])
    return pa.concat_tables(pack_rows(rows, Cause(reason="expired"), np.full(len(rows), 1), NAMESPACE))


@given(paths)
def test_every_key_is_counted_under_its_first_folder(drawn: list[str]) -> None:
    keys = sorted(path.encode() for path in drawn)

    runs = first_folders(pa.chunked_array([pa.array(keys, pa.binary())]))

    assert [at for _, start, stop in runs for at in range(start, stop)] == list(range(len(keys)))
    for folder, start, stop in runs:
        for key in keys[start:stop]:
            assert key.decode().partition("/")[0] + "/" == folder if b"/" in key else folder == ""


def test_a_range_with_very_many_folders_is_counted_under_none() -> None:
    keys = [f"{number:04d}/x".encode() for number in range(PREFIXES_MAX + 1)]

    assert first_folders(pa.chunked_array([pa.array(keys, pa.binary())])) == [("", 0, len(keys))]


@pytest.mark.parametrize(
    ("address", "kept_as"),
    [
        (format_address(SLICE, 3), SLICE),
        (f"local://lake/repo/{format_address(SLICE, 3)}", SLICE),
        ("data/old/1", "data/old/1"),
        ("local://lake/repo/data/old/1", "data/old/1"),
    ],
)
def test_what_lies_in_the_namespace_may_go_however_it_is_written(address: str, kept_as: int | str) -> None:
    row = packed({"a": address}).filter(pc.field("sizes") != b"").to_pylist()[0]

    assert (row["bucket"] if isinstance(kept_as, int) else row["addresses"]) == (
        kept_as if isinstance(kept_as, int) else [kept_as]
    )


@pytest.mark.parametrize(("modified_ms", "seen_ms"), [(900, 900), (1_100, 1_000), (0, 0), (-5, -5)])
def test_a_key_outside_slices_was_seen_when_it_was_written_and_not_after_the_commit(
    modified_ms: int, seen_ms: int
) -> None:
    entries = {
        address: Entry(address=address, size_bytes=4, checksum="", modified_ms=modified_ms) for address in ADDRESSES
    }
    keys = sorted(address.encode() for address in entries)
    rows = table_from_rows(keys, [to_row(key, entries[key.decode()]) for key in keys])

    info, data = encode_range(rows)
    commit_ms = np.full(len(rows), 1_000)
    written_ms = _written_ms(rows, info.id, data, commit_ms)
    found = pa.concat_tables(pack_rows(rows, Cause(reason="expired"), commit_ms, NAMESPACE, keys_seen_ms=written_ms))

    assert seen(found, FOREIGN) == {seen_ms}
    assert seen(found, NUMBERED) == {1_000}


def test_every_object_comes_with_its_path_wherever_it_lies() -> None:
    own, away = [format_address(SLICE, number) for number in (2, 1)], "local://lake/repo/data/old/1"

    rows = packed({"a/2": own[0], "a/1": own[1], "b": away, "c": f"local://lake/repo/{format_address(SLICE, 9)}"})

    assert sorted(path for paths in rows["paths"].to_pylist() for path in paths) == ["a/1", "a/2", "b", "c"]


@pytest.mark.parametrize(
    "address", ["s3://elsewhere/x", "local://lake/repo2/data/x", "_lakefs/dummy", "x", "data/../x"]
)
def test_what_lies_elsewhere_may_not(address: str) -> None:
    assert packed({"a": address, "b": format_address(SLICE, 1)})["addresses"].to_pylist() == [[]]


async def write_ranges(store: ObjectStore, entries: list[list[str]]) -> list[RangeInfo]:
    """Write one for each list of addresses."""
    infos = []
    for number, addresses in enumerate(entries):
        keys = [b"p%02d/%d" % (number, at) for at in range(len(addresses))]
        made = [Entry(address=address, size_bytes=4, checksum="", modified_ms=0) for address in addresses]
        info, data = encode_range(
            table_from_rows(keys, [to_row(key, entry) for key, entry in zip(keys, made, strict=True)])
        )
        await store.put(range_key(info.id), data)
        infos.append(info)
    return infos


async def ranges_in(store: ObjectStore, entries: list[list[str]]) -> pa.Table:
    """RANGES: one for each list of addresses."""
    return ranges_of({info.id: (info.count, info.file_bytes, True) for info in await write_ranges(store, entries)})


async def test_a_task_holds_no_more_keys_than_it_may_before_it_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "HELD_MAX", 4)
    store = open_objectstore("mem://lake/repo", ObjectStoreOptions())
    keys = [f"data/old/{number}" for number in range(10)]
    in_ranges = [keys[start : start + 2] for start in range(0, 10, 2)]
    uris = [f"mem://lake/repo/{format_address(SLICE, number)}" for number in (3, 5)]
    rows = await ranges_in(store, [*in_ranges, [*uris, "s3://elsewhere/x"]])
    engine, task, effort = context_of(store).engine, task_of(store), ListedRanges(rows).effort_of_ends

    sides = [
        await named.deal_live(
            engine, from_ranges, rows, uri=store.uri, folder=f"_lakefs/{with_keys}/", with_keys=with_keys, effort=effort
        )
        for with_keys in (True, False)
    ]
    dealt = await named.deal_keys(engine, from_ranges, rows, uri=store.uri, folder="_lakefs/keys/", effort=effort)

    for side, wanted, files in zip(sides, (keys, []), (3, 1), strict=True):
        tables = await read_bucketed(task, side, Share(0, BUCKETS), LIVE)
        found = [row for table in tables for row in table.to_pylist()]
        assert len(side.files) == files
        assert sorted(key for row in found for key in row["addresses"]) == wanted
        assert [row["bitmap"] for row in found if row["bucket"] == SLICE] == [bytes([1 << 3 | 1 << 5])]
    assert sorted(sum(part.rows for part in file.segments) for file in dealt.files) == [2, 4, 4]


@pytest.mark.parametrize(("is_lost", "error"), [(True, "missing"), (False, "contradicts")])
async def test_a_file_of_ranges_that_is_not_as_it_was_written_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool, error: str
) -> None:
    monkeypatch.setattr(ranges, "IN_ROWS_MAX", 0)
    store = MemoryObjectStore("mem://lake/repo")
    id_, data = encode_metarange(await write_ranges(store, [["s3://elsewhere/x"]]))
    await store.put(metarange_key(id_), data)
    context = context_of(store)
    found = await read_ranges(context.engine, metaranges_of({id_: True}), folder="_lakefs/ranges/")
    assert (found.in_files, found.count, found.of(live=True).count, found.of(live=False).count) == (True, 1, 1, 0)
    [part] = parts_of(found.rows)
    if is_lost:
        await MemoryDeleter(store).delete([part.name])
    else:
        await store.put(part.name, b"x")

    effort = found.effort_of_ends
    with pytest.raises(BadInput, match=error):
        await named.deal_keys(
            context.engine, from_ranges, found.rows, uri=store.uri, folder="_lakefs/keys/", effort=effort
        )
    with pytest.raises(BadInput, match=error):
        await anext(found.each(context))


@pytest.mark.parametrize("lives", [(), (True,), (False,), (True, False)], ids=str)
@pytest.mark.parametrize("shares", [1, 3])
async def test_files_of_ranges_name_what_rows_of_them_do_and_are_the_same_if_written_again(
    monkeypatch: pytest.MonkeyPatch, lives: tuple[bool, ...], shares: int
) -> None:
    monkeypatch.setattr(ranges, "FILE_RANGES", 2)
    monkeypatch.setattr(ranges, "FILES_WANTED", 1)
    monkeypatch.setattr(ranges, "HELD_FILES", 2)
    store = MemoryObjectStore("mem://lake/repo")
    trees, shared = dict[str, bool](), list[RangeInfo]()
    # So many that a task has several of them.
    for place, live in enumerate(lives):
        own = await write_ranges(store, [[format_address(SLICE, 100 * place + number)] for number in range(60)])
        id_, data = encode_metarange([*shared, *own[len(shared) :]])
        await store.put(metarange_key(id_), data)
        trees[id_], shared = live, own[:2]
    context = replace(context_of(store), engine=local_engine(store, shares=shares))

    async def list_with(in_rows_max: int) -> ListedRanges:
        monkeypatch.setattr(ranges, "IN_ROWS_MAX", in_rows_max)
        return await read_ranges(context.engine, metaranges_of(trees), folder="_lakefs/ranges/")

    rows, files, again = await list_with(1000), await list_with(-1), await list_with(-1)

    assert (rows.in_files, files.in_files) == (False, True)
    assert again.rows.sort_by("name") == files.rows.sort_by("name")
    assert [part.rows for part in parts_of(files.rows) if part.rows > 2] == []
    assert await content_of(context, files) == await content_of(context, rows)
    for live in (True, False):
        assert await content_of(context, files.of(live=live)) == await content_of(context, rows.of(live=live))
    kept, going = files.of(live=True).count, files.of(live=False).count
    assert (kept, going) == (60 * (True in lives), 58 if len(lives) == 2 else 60 * (False in lives))


@pytest.mark.parametrize("in_rows_max", [30, 60])
async def test_few_ranges_of_many_trees_come_back_from_their_files_as_rows(
    monkeypatch: pytest.MonkeyPatch, in_rows_max: int
) -> None:
    store = MemoryObjectStore("mem://lake/repo")
    made = await write_ranges(store, [[format_address(SLICE, number)] for number in range(48)])
    trees = dict[str, bool]()
    # Each tree shares all its ranges but one with the one before, and each task has two trees.
    for first in range(16):
        id_, data = encode_metarange(made[first : first + 32])
        await store.put(metarange_key(id_), data)
        trees[id_] = first == 15
    context = replace(context_of(store), engine=local_engine(store, shares=8))
    wanted = await read_ranges(context.engine, metaranges_of(trees), folder="_lakefs/ranges/")
    monkeypatch.setattr(ranges, "IN_ROWS_MAX", in_rows_max)

    found = await read_ranges(context.engine, metaranges_of(trees), folder="_lakefs/ranges/")

    assert found.in_files is (in_rows_max < 47)
    # Either way a step over what expired has work for every task, and not only for one.
    assert (found.of(live=True).count, found.of(live=False).count, found.of(live=False).rows.num_rows) == (32, 15, 15)
    assert await content_of(context, found) == await content_of(context, wanted)


def local_engine(store: ObjectStore, *, shares: int) -> LocalEngine:
    return LocalEngine(store, live_ports(), open_deleter=lambda: pytest.fail("nothing is deleted here"), shares=shares)


async def content_of(context: RunContext, listed: ListedRanges) -> tuple[Any, ...]:
    """Return what they are, how much there is to read, and what tasks find in them: what stays, and what may go."""
    found = [row async for some in listed.each(context) for row in some.to_pylist()]
    engine, effort, uri = context.engine, listed.effort_of_ends, context.store.uri
    live = await named.deal_live(
        engine, from_ranges, listed.rows, uri=uri, folder="_lakefs/live/", with_keys=False, effort=effort
    )
    stays = {
        number
        for table in await read_bucketed(task_of(context.store), live, Share(0, BUCKETS), LIVE)
        for bitmap in table["bitmap"].to_pylist()
        for number in range(8 * len(bitmap))
        if bitmap[number // 8] >> number % 8 & 1
    }
    going = await deal_expired(engine, listed, uri=uri, folder="_lakefs/going/", closed=[SLICE])
    goes = [
        number
        for table in await read_bucketed(task_of(context.store), going, Share(0, BUCKETS), CANDIDATES)
        for sequences in table["sequences"].to_pylist()
        for number in np.frombuffer(sequences, "<u4").tolist()
    ]
    assert len(goes) == listed.count == len(found)
    assert stays == {*goes}
    return (
        sorted(row["range_id"] for row in found),
        sorted(map(str, found)),
        sorted(goes),
        effort,
        listed.effort_of_whole,
        listed.entries,
        listed.sublists,
    )
