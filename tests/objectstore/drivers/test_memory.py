"""The memory driver keeps the contract, and dates objects by the clock it is given."""

from __future__ import annotations

import pytest

from lakebed.objectstore import Deleter, MemoryDeleter, MemoryObjectStore, ObjectStore
from lakebed.testing.contracts import ObjectStoreContract


class TestMemoryObjectStore(ObjectStoreContract):
    @pytest.fixture
    def objectstore(self) -> MemoryObjectStore:
        return MemoryObjectStore()

    @pytest.fixture
    def deleter(self, objectstore: ObjectStore) -> Deleter:
        assert isinstance(objectstore, MemoryObjectStore)
        return MemoryDeleter(objectstore)


async def test_objects_are_dated_by_the_clock_given() -> None:
    ticks = iter([1000, 2000, 3000])
    objectstore = MemoryObjectStore("mem://x", now_ms=lambda: next(ticks))
    await objectstore.put("a", b"")
    await objectstore.put("b", b"")
    await objectstore.copy("a", "c")
    assert [(stat.key, stat.modified_ms) async for page in objectstore.list() for stat in page] == [
        ("a", 1000),
        ("b", 2000),
        ("c", 3000),
    ]


async def test_a_store_on_memory_never_suspends() -> None:
    """So a simulator decides alone where other actors come in."""
    objectstore = MemoryObjectStore()
    put = objectstore.put("x", b"data")
    with pytest.raises(StopIteration) as ended:
        put.send(None)
    assert ended.value.value.size_bytes == 4
