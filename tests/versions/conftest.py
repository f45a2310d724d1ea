"""One repository over in-memory stores: real drivers, real trees, a clock that the test can turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from lakebed.base import Entry, Ports, RepositoryUid
from lakebed.kv import Store
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import ObjectStore
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from lakebed.runtime import live_ports
from lakebed.versions import Options, TreeCache, Trees, Versions
from tests.clocks import TurnableClock


@pytest.fixture
def clock() -> TurnableClock:
    return TurnableClock()


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@pytest.fixture
def objectstore() -> ObjectStore:
    return MemoryObjectStore("mem://tests")


@pytest.fixture
def another(store: Store, objectstore: ObjectStore, clock: TurnableClock) -> Callable[[], Versions]:
    """Another server instance on the same repository, with caches of its own."""

    def make() -> Versions:
        live = live_ports()
        ports = Ports(clock, live.ids, live.tasks)
        trees = Trees(objectstore, TreeCache(64 << 20), ports)
        return Versions(
            uid=RepositoryUid("r1"),
            store=store,
            objectstore=objectstore,
            trees=trees,
            ports=ports,
            options=Options(owner="i"),
        )

    return make


@pytest.fixture
async def repo(another: Callable[[], Versions]) -> Versions:
    versions = another()
    await versions.commits.initialise("main")
    return versions


def body(objectstore: ObjectStore, data: bytes = b"data") -> Callable[[str], Awaitable[Entry]]:
    async def store_body(address: str) -> Entry:
        stored = await objectstore.put(address, data)
        return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=1)

    return store_body
