"""Of several applies in one repository the one that began last goes on."""

from __future__ import annotations

from typing import Any

import pytest

from lakebed.gc.messages import APPLYING_PREFIX
from lakebed.gc.runs.context import Overtaken, claim
from lakebed.objectstore import MemoryDeleter, MemoryObjectStore, ObjectOutcomeUnknown
from lakebed.runtime import LiveClock


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


async def claims(store: MemoryObjectStore) -> list[str]:
    return [stat.key async for page in store.list(APPLYING_PREFIX) for stat in page]


async def test_who_is_alone_goes_on(store: MemoryObjectStore) -> None:
    fence, outdated = await claim(store, LiveClock(), "r1")

    await fence.check(store)

    assert outdated == []


async def test_who_began_earlier_stops_and_is_told_by_which_run(store: MemoryObjectStore) -> None:
    first, _ = await claim(store, LiveClock(), "r1")
    second, _ = await claim(store, LiveClock(), "r2")

    await second.check(store)
    with pytest.raises(Overtaken, match="run r2") as raised:
        await first.check(store)

    assert raised.value.facts == {"run_id": "r2"}


async def test_a_claim_whose_owner_died_holds_up_nobody_and_is_named_for_removal(store: MemoryObjectStore) -> None:
    dead, _ = await claim(store, LiveClock(), "r1")

    fence, outdated = await claim(store, LiveClock(), "r1")
    await MemoryDeleter(store).delete(outdated)

    assert outdated == [dead.key]
    assert await claims(store) == [fence.key]
    await fence.check(store)
    with pytest.raises(Overtaken):
        await dead.check(store)


async def test_numbers_go_on_when_old_claims_are_removed(store: MemoryObjectStore) -> None:
    for _ in range(3):
        fence, outdated = await claim(store, LiveClock(), "r1")
        await MemoryDeleter(store).delete(outdated)

    assert fence.key.endswith("/000000000003.json")


async def test_an_unknown_file_among_the_claims_stops_nobody(store: MemoryObjectStore) -> None:
    fence, _ = await claim(store, LiveClock(), "r1")
    await store.put(APPLYING_PREFIX + "zzz.txt", b"mine")

    await fence.check(store)
    later, outdated = await claim(store, LiveClock(), "r2")

    assert (later.key > fence.key, outdated) == (True, [fence.key])


@pytest.mark.parametrize("number", ["999999999999", "001000000000", "9999999999999", "1", "00000000000x"])
async def test_a_number_that_no_apply_reaches_is_no_claim(store: MemoryObjectStore, number: str) -> None:
    fence, _ = await claim(store, LiveClock(), "r1")
    await store.put(f"{APPLYING_PREFIX}{number}.json", b"{}")

    await fence.check(store)
    later, outdated = await claim(store, LiveClock(), "r2")

    assert (later.key[-6:], outdated) == ("2.json", [fence.key])
    await later.check(store)


async def test_a_number_of_somebody_else_that_an_apply_could_reach_is_gone_above(store: MemoryObjectStore) -> None:
    await store.put(APPLYING_PREFIX + "000999999998.json", b"not ours")

    fence, _ = await claim(store, LiveClock(), "r1")

    await fence.check(store)
    with pytest.raises(Overtaken, match=r"no number after .*000999999999\.json"):
        await claim(store, LiveClock(), "r2")


async def test_a_claim_that_cannot_be_read_counts_all_the_same(store: MemoryObjectStore) -> None:
    fence, _ = await claim(store, LiveClock(), "r1")
    later, _ = await claim(store, LiveClock(), "r2")
    await store.put(later.key, b"{")

    with pytest.raises(Overtaken, match="unknown"):
        await fence.check(store)


class Racing(MemoryObjectStore):
    """Somebody else takes a number, or our answer is lost, just as we do."""

    def __init__(self, *, lose: bool) -> None:
        super().__init__()
        self.times = 2
        self._lose = lose

    async def put(self, key: str, body: Any, **options: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            await super().put(key, b'{"run_id":"other","started_ms":1}')
            if self._lose:
                raise ObjectOutcomeUnknown("lost")
        return await super().put(key, body, **options)


@pytest.mark.parametrize("lose", [False, True])
async def test_two_that_begin_at_once_get_different_numbers(lose: bool) -> None:
    store = Racing(lose=lose)

    fence, outdated = await claim(store, LiveClock(), "r1")

    assert len(outdated) == 2
    await fence.check(store)


async def test_a_store_that_does_not_list_what_it_holds_is_given_up(store: MemoryObjectStore) -> None:
    class Blind(MemoryObjectStore):
        async def list(self, prefix: str = "", *, start_after: str = "") -> Any:
            for _ in ():
                yield prefix + start_after

    blind = Blind()
    await claim(blind, LiveClock(), "r1")

    with pytest.raises(Overtaken, match="100 other applies"):
        await claim(blind, LiveClock(), "r1")
