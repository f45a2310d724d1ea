"""The listing of an old layout: everything but slices and our own folders, and those at a request each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from lakebed.base import slice_name
from lakebed.gc.kinds.uncommitted import old_layout
from lakebed.gc.kinds.uncommitted.old_layout import NamespaceInside, list_elsewhere
from lakebed.gc.mark.sets.bucketed import BUCKETS, LISTED, Share, read_bucketed
from lakebed.objectstore import ObjectStat, ObjectStore, ObjectStoreOptions, open_objectstore
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from tests.gc.garbage import task_of
from tests.objectstore.s3_servers import make_bucket, serve_s3

SLICES = [slice_name(number) for number in (5, 7, 1 << 62)]
ELSEWHERE = [
    "a",
    "data/0",
    f"data/{SLICES[0]}-x/1",
    f"data/{SLICES[1]}0",
    "data/flat",
    "data/z/ü",
    "z/1",
    "z/\U0010fffe",
]
OURS = [
    "_lakefs/dummy",
    "_lakefs/ranges/x",
    *(f"data/{name}/{sequence:08d}" for name in SLICES for sequence in range(3)),
    f"data/{SLICES[2]}/README",
]
FOLDER = "_lakefs/keys/"


async def fill(objectstore: ObjectStore, keys: Sequence[str]) -> None:
    for key in keys:
        await objectstore.put(key, b"1234")


async def listed(objectstore: ObjectStore) -> set[str]:
    files, found = await list_elsewhere(objectstore, FOLDER)
    tables = await read_bucketed(task_of(objectstore), files, Share(0, BUCKETS), LISTED)
    keys = [key for table in tables for key in table["key"].to_pylist()]
    assert len(keys) == len(set(keys)) == found.objects
    assert found.size_bytes == 4 * found.objects
    return set(keys)


async def test_in_a_folder_it_is_everything_outside_slices(tmp_path: Path) -> None:
    objectstore = open_objectstore("local://x", ObjectStoreOptions(local_root=tmp_path, local_durable=False))
    await fill(objectstore, [*ELSEWHERE, *OURS])

    assert await listed(objectstore) == set(ELSEWHERE)


async def test_in_s3_it_is_everything_outside_slices() -> None:
    with serve_s3() as options:
        objectstore = open_objectstore(f"s3://{make_bucket(options)}/a/repo", options)
        await fill(objectstore, [*ELSEWHERE, *OURS])

        assert await listed(objectstore) == set(ELSEWHERE)
        await objectstore.close()


class Counting(MemoryObjectStore):
    """How many listings were begun, and how many names were handed out."""

    def __init__(self) -> None:
        super().__init__("mem://x")
        self.begun = 0
        self.named = 0

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        self.begun += 1
        async for page in super().list(prefix, start_after=start_after):
            self.named += len(page)
            yield page


async def test_a_slice_costs_a_page_however_many_objects_it_holds() -> None:
    objectstore = Counting()
    await fill(objectstore, [*(f"data/{SLICES[0]}/{sequence:08d}" for sequence in range(5_000)), "data/zz"])

    assert await listed(objectstore) == {"data/zz"}
    assert (objectstore.begun, objectstore.named) == (2, 1_001)


async def test_a_name_that_sorts_behind_all_others_of_its_slice_is_told_and_kept() -> None:
    objectstore = MemoryObjectStore("mem://x")
    stray = f"data/{SLICES[0]}/\U0010ffff!"
    await fill(objectstore, [f"data/{SLICES[0]}/00000001", stray, "data/zz"])

    files, found = await list_elsewhere(objectstore, FOLDER)

    assert found.unknown_files == (stray,)
    assert files.rows == 1


async def test_many_are_written_down_as_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_layout, "HELD_MAX", 10)
    objectstore = MemoryObjectStore("mem://x")
    keys = {f"old/{number}" for number in range(35)}
    await fill(objectstore, sorted(keys))

    assert await listed(objectstore) == keys


async def test_nothing_is_nothing() -> None:
    assert await listed(MemoryObjectStore("mem://x")) == set()


@pytest.mark.parametrize(
    ("key", "inner"),
    [
        ("team/_lakefs/dummy", "team"),
        ("team/_lakefs/metaranges/x.parquet", "team"),
        ("a/b/_lakefs/c/_lakefs/dummy", "a/b"),
        ("data/team/_lakefs/dummy", "data/team"),
        (f"team/data/{SLICES[0]}/00000001", "team"),
        (f"a/data/data/{SLICES[2]}/99999999", "a/data"),
    ],
)
async def test_a_namespace_inside_stops_the_plan_and_is_named(key: str, inner: str) -> None:
    objectstore = MemoryObjectStore("mem://x")
    await fill(objectstore, ["a", key, "z"])

    with pytest.raises(NamespaceInside) as caught:
        await list_elsewhere(objectstore, FOLDER)

    assert caught.value.facts["namespace"] == f"mem://x/{inner}"
    assert f"mem://x/{inner} " in str(caught.value)


async def test_keys_that_only_resemble_those_of_a_namespace_inside_stop_nothing() -> None:
    keys = {
        "team/_lakefs-old/dummy",
        "team/x_lakefs/dummy",
        f"team/data/{SLICES[0]}/1",
        f"team/data/{SLICES[0]}x/00000001",
        f"team/mydata/{SLICES[0]}/00000001",
    }
    objectstore = MemoryObjectStore("mem://x")
    await fill(objectstore, sorted(keys))

    assert await listed(objectstore) == keys
