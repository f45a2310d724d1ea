"""One repository over in-memory stores: real drivers, real trees, a clock that the test can turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from lakebed.base import Entry, RepositoryUid, World
from lakebed.blocks import BlockStore
from lakebed.blocks.drivers.memory import MemoryBlocks
from lakebed.kv import Store
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.runtime import live_world
from lakebed.versions import Options, TreeCache, Trees, Versions
from tests.clocks import TurnableClock


@pytest.fixture
def clock() -> TurnableClock:
    return TurnableClock()


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@pytest.fixture
def blocks() -> BlockStore:
    return MemoryBlocks("mem://tests")


@pytest.fixture
def another(store: Store, blocks: BlockStore, clock: TurnableClock) -> Callable[[], Versions]:
    """Another server instance on the same repository, with caches of its own."""

    def make() -> Versions:
        live = live_world()
        world = World(clock, live.ids, live.tasks)
        trees = Trees(blocks, TreeCache(64 << 20), world)
        return Versions(
            uid=RepositoryUid("r1"), store=store, blocks=blocks, trees=trees, world=world, options=Options(owner="i")
        )

    return make


@pytest.fixture
async def repo(another: Callable[[], Versions]) -> Versions:
    versions = another()
    await versions.initialise("main")
    return versions


def body(blocks: BlockStore, data: bytes = b"data") -> Callable[[str], Awaitable[Entry]]:
    async def store_body(address: str) -> Entry:
        stored = await blocks.put(address, data)
        return Entry(address=address, size_bytes=stored.size_bytes, checksum=stored.md5, modified_ms=1)

    return store_body
