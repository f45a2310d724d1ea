"""One flow stopped at one operation of the store while another runs, or while that operation fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lakebed.kv import Predicate
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.versions import PathNotFound, Versions

from .conftest import body

Hook = Callable[[], Awaitable[None]]


class HookedStore(MemoryStore):
    """Before the next operation of this name on a key that begins so, does something else; once."""

    def __init__(self) -> None:
        super().__init__()
        self._hooks: list[tuple[str, bytes, Hook]] = []

    def before(self, operation: str, key: bytes, hook: Hook) -> None:
        self._hooks.append((operation, key, hook))

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        await self._stop_at("set", key)
        await super().set(partition, key, value)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        await self._stop_at("set_if", key)
        return await super().set_if(partition, key, value, predicate)

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
def store() -> HookedStore:
    return HookedStore()


async def test_an_object_reset_while_a_commit_has_read_it_does_not_come_back(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await repo.upload("main", b"k", body(repo.blocks))
    other = another()
    publish = asyncio.Event()
    committed: list[asyncio.Task[object]] = []

    async def commit_up_to_its_claim() -> None:
        claimed = asyncio.Event()

        async def wait() -> None:
            claimed.set()
            await publish.wait()

        store.before("set", b"claim/", wait)
        committed.append(asyncio.ensure_future(other.commit("main", message="m", committer="c")))
        await claimed.wait()

    store.before("delete_if", b"k", commit_up_to_its_claim)
    await repo.reset_object("main", b"k")
    publish.set()
    await committed[0]

    with pytest.raises(PathNotFound):
        await another().get("main", b"k")


async def test_an_object_reset_does_not_undo_a_merge_that_ran_beside_it(
    repo: Versions, another: Callable[[], Versions], store: HookedStore
) -> None:
    await repo.create_branch("dev", "main")
    await repo.upload("dev", b"k", body(repo.blocks, b"merged"))
    await repo.commit("dev", message="m", committer="c")
    await repo.upload("main", b"k", body(repo.blocks, b"staged"))
    await repo._seal("main")  # a committer that died

    async def merge() -> None:
        await another().merge("dev", "main", committer="c")

    store.before("set_if", b"k", merge)
    await repo.reset_object("main", b"k")

    assert (await repo.get("main", b"k")).size_bytes == len(b"merged")
