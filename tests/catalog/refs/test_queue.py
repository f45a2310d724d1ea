"""Turns: first come, first served, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from lakebed.base import Unavailable
from lakebed.catalog import BranchQueue
from lakebed.runtime import live_ports


async def test_turns_are_taken_in_the_order_of_arrival() -> None:
    queue = BranchQueue(live_ports(), wait_s_max=10)
    order: list[int] = []

    async def work(number: int) -> None:
        async def turn() -> None:
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

        await queue.run("main", turn)

    await asyncio.gather(*(work(number) for number in range(5)))

    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_branches_do_not_wait_for_each_other() -> None:
    queue = BranchQueue(live_ports(), wait_s_max=10)
    both_in = asyncio.Barrier(2)

    async def turn() -> None:
        await both_in.wait()

    await asyncio.gather(queue.run("a", turn), queue.run("b", turn))


async def test_who_waits_too_long_is_told_so_and_the_others_go_on() -> None:
    queue = BranchQueue(live_ports(), wait_s_max=0.02)
    release = asyncio.Event()

    async def quick() -> str:
        return "done"

    holder = asyncio.create_task(queue.run("main", release.wait))
    await asyncio.sleep(0)

    with pytest.raises(Unavailable, match="s behind other commits, try again") as caught:
        await queue.run("main", quick)
    assert isinstance(caught.value.facts["waited_s"], float)

    release.set()
    await holder
    assert await queue.run("main", quick) == "done"


async def test_a_waiter_that_goes_away_gives_its_turn_to_the_next() -> None:
    queue = BranchQueue(live_ports(), wait_s_max=10)
    release = asyncio.Event()

    async def quick() -> str:
        return "done"

    holder = asyncio.create_task(queue.run("main", release.wait))
    await asyncio.sleep(0)
    leaver = asyncio.create_task(queue.run("main", quick))
    stayer = asyncio.create_task(queue.run("main", quick))
    await asyncio.sleep(0)
    release.set()
    await holder
    leaver.cancel()

    assert await stayer == "done"
    assert leaver.cancelled() or leaver.done()
    assert await queue.run("main", quick) == "done"


async def test_a_waiter_that_is_cancelled_ends_as_cancelled_and_leaves_its_place() -> None:
    queue = BranchQueue(live_ports(), wait_s_max=10)
    release = asyncio.Event()
    holder = asyncio.create_task(queue.run("main", release.wait))
    await asyncio.sleep(0)
    leaver = asyncio.create_task(queue.run("main", release.wait))
    await asyncio.sleep(0)
    leaver.cancel()

    with pytest.raises(asyncio.CancelledError):
        await leaver

    assert queue.waiting == 0
    release.set()
    await holder


async def test_a_turn_that_fails_is_over() -> None:
    queue = BranchQueue(live_ports(), wait_s_max=10)

    async def fail() -> None:
        raise ValueError("as it happens")

    async def quick() -> str:
        return "done"

    with pytest.raises(ValueError, match="as it happens"):
        await queue.run("main", fail)

    assert await queue.run("main", quick) == "done"
