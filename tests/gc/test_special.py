"""What the driver holds of a namespace's own files when it plans a collection of metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa
import pytest

from lakebed.gc.kinds.metadata import read_special, without_ids
from lakebed.gc.protocol import GC_PREFIX
from lakebed.objectstore import MemoryObjectStore, ObjectStat

RANGE, METARANGE = "a" * 64, "b" * 64


class Pages(MemoryObjectStore):
    """Counts the objects that are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.told = 0

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        async for page in super().list(prefix, start_after=start_after):
            for start in range(0, len(page), 10):
                self.told += len(page[start : start + 10])
                yield page[start : start + 10]


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


async def test_files_of_trees_and_of_runs_are_told_from_unknown_ones(store: Pages) -> None:
    special = await read_special(store)

    assert special.files["id"].to_pylist() == [METARANGE, RANGE]
    assert {run: [stat.key for stat in stats] for run, stats in special.runs.items()} == {
        ("committed", "r1"): [f"{GC_PREFIX}committed/r1/{name}.json" for name in ("deferred", "plan", "purge")]
    }
    assert {one: [stat.key for stat in stats] for one, stats in special.written.items()} == {("refs", "0" * 20): [DUMP]}
    assert special.unknown_files.keys == ("_lakefs/notes", f"{GC_PREFIX}ledger/notes", f"{GC_PREFIX}zzz")
    assert special.unknown_files.count == 3


async def test_files_that_something_names_are_taken_out(store: Pages) -> None:
    files = (await read_special(store)).files
    nobody = pa.chunked_array([], pa.string())

    left = without_ids(files, nobody, pa.chunked_array([[RANGE]]))

    assert left["key"].to_pylist() == [f"_lakefs/metaranges/{METARANGE}.parquet"]
    assert without_ids(files, nobody, nobody).num_rows == 2
    assert without_ids(files, pa.chunked_array([[METARANGE]]), pa.chunked_array([[RANGE]])).num_rows == 0
