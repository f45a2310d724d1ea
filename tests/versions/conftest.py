"""One repository over in-memory stores: real drivers, real trees, a clock that the test can turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from lakebed.base import Entry, OutcomeUnknown, Ports, RepositoryUid
from lakebed.kv import Held, Predicate, Store
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import ObjectStore
from lakebed.objectstore.drivers.memory import MemoryObjectStore
from lakebed.runtime import live_ports
from lakebed.versions import Options, TreeCache, Trees, Versions
from tests.clocks import TurnableClock

Hook = Callable[[], Awaitable[None]]


class HookedStore(MemoryStore):
    """Before the next operation of this name on a key that begins so, does something else; once."""

    def __init__(self) -> None:
        super().__init__()
        self._hooks: list[tuple[str, bytes, Hook]] = []
        self._losses: list[tuple[bytes, Hook]] = []

    def before(self, operation: str, key: bytes, hook: Hook) -> None:
        self._hooks.append((operation, key, hook))

    def lose_answer(self, key: bytes, hook: Hook) -> None:
        """Carry out the next `set_if` of a key that begins so, run `hook`, and lose the answer."""
        self._losses.append((key, hook))

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        await self._stop_at("get", key)
        return await super().get(partition, key)

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        await self._stop_at("set", key)
        await super().set(partition, key, value)

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Stop at each item as at a `set`."""
        for key, _ in items:
            await self._stop_at("set", key)
        await super().set_many(partition, items)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        await self._stop_at("set_if", key)
        done = await super().set_if(partition, key, value, predicate)
        for loss in [one for one in self._losses if key.startswith(one[0])]:
            self._losses.remove(loss)
            await loss[1]()
            raise OutcomeUnknown("the answer was lost")
        return done

    async def delete(self, partition: bytes, key: bytes) -> None:
        await self._stop_at("delete", key)
        await super().delete(partition, key)

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        await self._stop_at("delete_if", key)
        await super().delete_if(partition, key, predicate)

    async def _stop_at(self, operation: str, key: bytes) -> None:
        for hook in self._hooks:
            if hook[0] == operation and key.startswith(hook[1]):
                self._hooks.remove(hook)
                await hook[2]()
                return


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
