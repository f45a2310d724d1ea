"""How a collection lists a namespace's own files: the driver a little, tasks the rest, and each file once."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest

from lakebed.gc.engines import Effort, LocalEngine
from lakebed.gc.engines.engine import RANGES, Table, Work
from lakebed.gc.kinds.metadata.plan import without_ids
from lakebed.gc.mark.inputs import listing as special
from lakebed.gc.mark.inputs.listing import TREE_FOLDERS, Special, find_unknown_files, list_special
from lakebed.gc.mark.inputs.ranges import ListedRanges
from lakebed.gc.messages import GC_PREFIX, BadInput
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore, ObjectStat, ObjectStore
from lakebed.runtime import live_ports
from tests.gc.garbage import context_of, ranges_of

RANGE, METARANGE = "a" * 64, "b" * 64
INTO = f"{GC_PREFIX}metadata/r2/special/"


class Pages(MemoryObjectStore):
    """Lists ten keys a page."""

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        async for page in super().list(prefix, start_after=start_after):
            for start in range(0, len(page), 10):
                yield page[start : start + 10]


@dataclass
class Dealing:
    """The local engine with shares; notes how many rows of each step it dealt."""

    store: ObjectStore
    shares: int = 1

    def __post_init__(self) -> None:
        self.dealt: list[int] = []
        self.efforts: list[Effort] = []
        self._engine = LocalEngine(
            self.store, live_ports(), open_deleter=lambda: pytest.fail("nothing is deleted here"), shares=self.shares
        )

    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        self.dealt.append(rows.num_rows)
        self.efforts.append(effort)
        return await self._engine.run(work, rows, out, effort=effort)

    run_deleting = LocalEngine.run_deleting


async def listed(store: ObjectStore, *, shares: int = 1) -> Special:
    return await list_special(Dealing(store, shares), store, folder=INTO)


async def keys_of(store: ObjectStore, found: Special) -> list[str]:
    return sorted([key async for files in found.tree_files(store) for key in files["key"].to_pylist()])


DUMP = f"_lakefs/refs/{'0' * 20}/{'a' * 64}.parquet"


@pytest.fixture
async def store() -> Pages:
    store = Pages()
    for key in (f"_lakefs/ranges/{RANGE}.parquet", f"_lakefs/metaranges/{METARANGE}.parquet"):
        await store.put(key, b"12")
    for key in ("committed/r1/plan.json", "ledger/date=2026-11-21/r1-part-0.parquet", "applying/000000000001.json"):
        await store.put(GC_PREFIX + key, b"")
    await store.put(DUMP, b"")
    for name in ("deferred.json", "purge.json"):
        await store.put(f"{GC_PREFIX}committed/r1/{name}", b"")
    for key in ("_lakefs/notes", f"{GC_PREFIX}ledger/notes", f"{GC_PREFIX}zzz"):
        await store.put(key, b"")
    return store


@pytest.mark.parametrize("here", [1, 10, special.LISTED_HERE])
async def test_files_of_trees_and_of_runs_are_told_from_unknown_ones(
    monkeypatch: pytest.MonkeyPatch, store: Pages, here: int
) -> None:
    monkeypatch.setattr(special, "LISTED_HERE", here)

    found = await listed(store)

    assert await keys_of(store, found) == [
        f"_lakefs/metaranges/{METARANGE}.parquet",
        f"_lakefs/ranges/{RANGE}.parquet",
    ]
    assert {run: [stat.key for stat in stats] for run, stats in found.runs.items()} == {
        ("committed", "r1"): [f"{GC_PREFIX}committed/r1/{name}.json" for name in ("deferred", "plan", "purge")]
    }
    assert {one: [stat.key for stat in stats] for one, stats in found.written.items()} == {("refs", "0" * 20): [DUMP]}
    assert found.unknown_files.keys == ("_lakefs/notes", f"{GC_PREFIX}ledger/notes", f"{GC_PREFIX}zzz")
    assert found.unknown_files.count == 3


async def filled(store: MemoryObjectStore, count: int) -> set[str]:
    """So many files in each folder of trees; returns their keys."""
    ids = [hashlib.sha256(bytes([number % 256, number // 256])).hexdigest() for number in range(count)]
    keys = {f"{folder}{id_}.parquet" for folder in TREE_FOLDERS for id_ in ids}
    for key in keys:
        await store.put(key, b"12")
    return keys


STRANGE = (
    "_lakefs/metaranges",
    "_lakefs/metaranges/!",
    "_lakefs/ranges/1",
    "_lakefs/ranges/1f",
    "_lakefs/ranges/f",
    "_lakefs/ranges/\U0010ffff",
    "_lakefs/ranges/\U0010ffff/x",
    "_lakefs/ranges0",
    "_lakefs/rangesx/y",
    "_lakefs/sublists0",
    "_lakefs/zz",
    "_lakefs/\U0010ffffx",
)


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("keys_a_stretch", [5, 100, 10_000])
@pytest.mark.parametrize("here", [1, 250, 10_000])
async def test_every_key_is_listed_once_however_the_folders_are_cut(
    monkeypatch: pytest.MonkeyPatch, here: int, keys_a_stretch: int, shares: int
) -> None:
    monkeypatch.setattr(special, "LISTED_HERE", here)
    monkeypatch.setattr(special, "KEYS_A_STRETCH", keys_a_stretch)
    store = Pages()
    expected = await filled(store, 200)
    for key in STRANGE:
        await store.put(key, b"")
    await store.put(f"{GC_PREFIX}committed/r1/plan.json", b"")

    found = await listed(store, shares=shares)
    unknown = await find_unknown_files(Dealing(store), store)

    assert await keys_of(store, found) == sorted(expected)
    assert found.files_count == len(expected)
    assert found.runs.keys() == {("committed", "r1")}
    assert unknown == found.unknown_files
    assert (unknown.keys, unknown.count) == (tuple(sorted(STRANGE)), len(STRANGE))


async def test_a_large_folder_is_cut_by_how_many_files_it_seems_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "LISTED_HERE", 1)
    monkeypatch.setattr(special, "KEYS_A_STRETCH", 100)
    store = MemoryObjectStore()
    await filled(store, 1000)
    engine = Dealing(store)

    await list_special(engine, store, folder=INTO)

    # The driver's first page ends in the last stretch of the first folder. There are two more, each of a page or so.
    assert engine.dealt == [1 + 2 * 16]
    assert 3 * 16 * 0.8 < engine.efforts[0].requests < 3 * 16 * 1.3


async def test_the_driver_alone_lists_what_is_little_and_where_a_listing_reads_a_folder_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for uri, here in (("mem://x", 1000), ("local://x", 1), ("az://x/y", 1)):
        monkeypatch.setattr(special, "LISTED_HERE", here)
        store = Pages(uri)
        expected = await filled(store, 20)
        engine = Dealing(store)

        found = await list_special(engine, store, folder=INTO)

        assert engine.dealt == []
        assert await keys_of(store, found) == sorted(expected)


@pytest.mark.parametrize("here", [1, special.LISTED_HERE])
async def test_files_that_something_names_are_taken_out(
    monkeypatch: pytest.MonkeyPatch, store: Pages, here: int
) -> None:
    monkeypatch.setattr(special, "LISTED_HERE", here)
    nothing, no_ranges = pa.chunked_array([], pa.string()), ListedRanges(RANGES.schema.empty_table())
    ranges = ListedRanges(ranges_of({RANGE: (1, 1, True)}))
    found = await listed(store)

    left = await without_ids(context_of(store), found, nothing, ranges)

    assert left["key"].to_pylist() == [f"_lakefs/metaranges/{METARANGE}.parquet"]
    assert (await without_ids(context_of(store), found, nothing, no_ranges)).num_rows == 2
    assert (await without_ids(context_of(store), found, pa.chunked_array([[METARANGE]]), ranges)).num_rows == 0


async def test_ranges_are_read_once_however_many_files_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "LISTED_HERE", 1)
    read = 0

    class Counted(ListedRanges):
        async def each(self, context: RunContext) -> AsyncIterator[pa.Table]:
            nonlocal read
            read += 1
            async for rows in ListedRanges.each(self, context):
                yield rows

    store = Pages()
    await filled(store, 20)
    found = await listed(store, shares=4)
    ids = sorted({key[-len(f"{RANGE}.parquet") :][: len(RANGE)] for key in await keys_of(store, found)})
    ranges = Counted(ranges_of(dict.fromkeys(ids[:-1], (1, 1, True))))

    left = await without_ids(context_of(store), found, pa.chunked_array([], pa.string()), ranges)

    assert len(found.file_parts.parts) > 1
    assert set(left["id"].to_pylist()) == {ids[-1]}
    assert read == 1


@pytest.mark.parametrize("name", ["", RANGE[1:], "x" * len(RANGE), " " * len(RANGE), f"é{RANGE[2:]}"])
async def test_a_name_that_is_no_id_stops_the_plan(store: Pages, name: str) -> None:
    ranges = ListedRanges(ranges_of({name: (1, 1, True)}))
    with pytest.raises(BadInput, match="is named by"):
        await without_ids(context_of(store), await listed(store), pa.chunked_array([], pa.string()), ranges)


async def test_a_list_of_files_that_was_lost_stops_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special, "LISTED_HERE", 1)
    store = Pages()
    await filled(store, 20)
    found = await listed(store)
    [part, *_] = found.file_parts.parts
    await MemoryDeleter(store).delete([found.file_parts.folder + part.name])

    no_ranges = ListedRanges(RANGES.schema.empty_table())
    with pytest.raises(BadInput, match="missing"):
        await without_ids(context_of(store), found, pa.chunked_array([], pa.string()), no_ranges)
