"""The rate of a database that throttles is learned, in virtual time: no test here waits or depends on the machine."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from lakebed.kv.drivers.pace import FORGET_S, Pace, Paces, Throttled

T = TypeVar("T")


class _NothingComes(selectors.DefaultSelector):
    """Let the time of a wait pass at once."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "every task waits for another"
        self.passed_s += timeout
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _NothingComes()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.passed_s


def in_virtual_time(work: Callable[[], Awaitable[T]]) -> T:
    async def run() -> T:
        return await work()

    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(run())


class Limited:
    """A database that takes `per_s` requests a second, and a fifth of a second's at once."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.taken = self.refused = 0
        self._tokens = per_s / 5
        self._filled_at = 0.0

    async def request(self) -> None:
        now = asyncio.get_running_loop().time()
        self._tokens = min(self._tokens + (now - self._filled_at) * self.per_s, self.per_s / 5)
        self._filled_at = now
        is_taken = self._tokens >= 1
        self._tokens -= is_taken
        await asyncio.sleep(0.01)
        if not is_taken:
            self.refused += 1
            raise Throttled("too many")
        self.taken += 1


async def load(pace: Pace, database: Limited, *, callers: int, seconds: float) -> None:
    """Ask without a rest, and after a refusal again after a pause, as a store does."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    async def caller() -> None:
        while loop.time() < end:
            try:
                await pace.run(database.request)
            except Throttled:
                await asyncio.sleep(0.5)

    await asyncio.gather(*(caller() for _ in range(callers)))


@pytest.mark.parametrize(("per_s", "callers"), [(20, 16), (100, 64), (1000, 64)])
def test_nearly_all_that_a_database_takes_is_asked_of_it_and_little_more(per_s: float, callers: int) -> None:
    async def work() -> Limited:
        pace, database = Pace(), Limited(per_s)
        await load(pace, database, callers=callers, seconds=5)  # learns
        database.taken = database.refused = 0
        await load(pace, database, callers=callers, seconds=30)
        return database

    database = in_virtual_time(work)

    assert database.taken >= 0.9 * 30 * per_s
    assert database.refused <= 0.03 * database.taken


def test_the_rate_follows_a_limit_that_moves() -> None:
    async def work() -> tuple[Limited, Limited]:
        pace = Pace()
        more, less = Limited(400), Limited(50)
        for database in (Limited(100), more, less):
            await load(pace, database, callers=64, seconds=20)
        return more, less

    more, less = in_virtual_time(work)

    assert more.taken >= 0.6 * 20 * 400
    assert less.taken >= 0.7 * 20 * 50
    assert less.refused <= 0.2 * less.taken


def test_a_turn_that_would_come_too_late_is_refused_and_nothing_is_sent() -> None:
    async def work() -> tuple[int, list[object]]:
        pace, database = Pace(), Limited(1)
        await load(pace, database, callers=1, seconds=1)
        database.per_s, asked = 10_000, database.taken + database.refused
        found = await asyncio.gather(*(pace.run(database.request) for _ in range(1_000)), return_exceptions=True)
        return database.taken + database.refused - asked, list(found)

    sent, found = in_virtual_time(work)

    late = [error for error in found if isinstance(error, Throttled) and "too many wait" in str(error)]
    assert sent == len(found) - len(late)
    assert 0 < len(late) < len(found)


def test_a_turn_is_taken_at_once_or_not_at_all() -> None:
    async def work() -> list[bool]:
        pace = Pace()
        found = [pace.turn_now(1_000) is not None]
        await load(pace, Limited(10), callers=16, seconds=2)
        found += [pace.turn_now(1_000) is not None for _ in range(2)]
        await asyncio.sleep(5)
        return [*found, pace.turn_now(1) is not None]

    assert in_virtual_time(work) == [True, False, False, True]


def test_a_partition_that_is_throttled_holds_up_no_other_and_is_forgotten_in_the_end() -> None:
    async def work() -> list[float]:
        paces, loop = Paces(), asyncio.get_running_loop()
        await load(paces.of(b"hot"), Limited(10), callers=16, seconds=2)

        async def time_of(partition: bytes) -> float:
            began = loop.time()
            await asyncio.gather(*(paces.of(partition).run(Limited(1e6).request) for _ in range(8)))
            return loop.time() - began

        found = [await time_of(b"hot"), await time_of(b"cold")]
        await asyncio.sleep(FORGET_S + 1)
        return [*found, await time_of(b"hot")]

    hot_s, cold_s, later_s = in_virtual_time(work)

    assert hot_s > 0.1
    assert [cold_s, later_s] == pytest.approx([0.01, 0.01])
