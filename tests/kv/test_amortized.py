"""One read for all that wait, and never one that began before the request."""

from __future__ import annotations

import asyncio

import pytest

from lakebed.kv import AmortizedReads, Held, StoreUnavailable
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.runtime import live_ports


class SlowStore(MemoryStore):
    """Answers a `get` only when told to; counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []
        self.fail = False

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        gate = asyncio.Event()
        self.gates.append(gate)
        held = await super().get(partition, key)
        await gate.wait()
        if self.fail:
            raise StoreUnavailable("gone")
        return held


async def close() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_wait_share_the_next_read_not_the_one_under_way() -> None:
    store = SlowStore()
    await store.set(b"p", b"k", b"old")
    reads = AmortizedReads(store, b"p", live_ports().tasks)
    first = asyncio.create_task(reads.get(b"k"))
    await close()
    await store.set(b"p", b"k", b"new")

    later = [asyncio.create_task(reads.get(b"k")) for _ in range(5)]
    await close()
    store.gates[0].set()
    await close()
    store.gates[1].set()

    values = [held.value if held else None for held in [await first, *[await task for task in later]]]
    assert values == [b"old"] + [b"new"] * 5
    assert len(store.gates) == 2


async def test_a_store_that_shares_reads_itself_is_asked_by_each_at_once() -> None:
    store = SlowStore()
    store.shares_reads = True
    reads = AmortizedReads(store, b"p", live_ports().tasks)

    asked = [asyncio.create_task(reads.get(b"k")) for _ in range(3)]
    await close()

    assert len(store.gates) == 3
    for gate in store.gates:
        gate.set()
    assert await asyncio.gather(*asked) == [None, None, None]


async def test_a_leader_that_is_cancelled_leaves_nobody_waiting() -> None:
    store = SlowStore()
    reads = AmortizedReads(store, b"p", live_ports().tasks)
    first = asyncio.create_task(reads.get(b"k"))
    await close()
    leader, follower = asyncio.create_task(reads.get(b"k")), asyncio.create_task(reads.get(b"k"))
    await close()

    leader.cancel()
    await close()
    for gate in store.gates:
        gate.set()
    await close()
    for gate in store.gates:
        gate.set()

    assert await first is None
    assert await follower is None


async def test_an_error_is_the_readers_own() -> None:
    store = SlowStore()
    reads = AmortizedReads(store, b"p", live_ports().tasks)
    failing = asyncio.create_task(reads.get(b"k"))
    await close()
    store.fail = True
    store.gates[0].set()
    with pytest.raises(StoreUnavailable):
        await failing
    store.fail = False

    again = asyncio.create_task(reads.get(b"k"))
    await close()
    store.gates[1].set()

    assert await again is None
