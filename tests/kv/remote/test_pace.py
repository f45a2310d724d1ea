"""The rate of a database that throttles is learned, in virtual time: no test here waits or depends on the machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv.remote.pace import FORGET_S, PACES_MAX, Pace, Paces, Throttled
from lakebed.kv.remote.store import PAUSE_S, PAUSE_S_MAX, WAIT_S
from tests.kv.virtual_time import in_virtual_time


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


class Owing:
    """A database that takes a batch whole while it owes nothing, and asks for a pause until then."""

    def __init__(self, per_s: float) -> None:
        self.per_s = self._tokens = per_s
        self.taken = 0
        self._filled_at = 0.0

    async def batch(self, units: int) -> None:
        now = asyncio.get_running_loop().time()
        self._tokens = min(self._tokens + (now - self._filled_at) * self.per_s, self.per_s)
        self._filled_at = now
        is_taken = self._tokens > 0
        self._tokens -= units * is_taken
        pause_s = -self._tokens / self.per_s
        await asyncio.sleep(0.01)
        if not is_taken:
            raise Throttled("too many", pause_s=min(pause_s, 1))
        self.taken += units


async def repeated_in_virtual_time(attempt: Callable[[], Awaitable[None]]) -> None:
    """Repeat it for WAIT_S, as a store does."""
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + WAIT_S, PAUSE_S
    while True:
        try:
            return await attempt()
        except Throttled:
            if loop.time() + pause_s >= deadline:
                raise
        await asyncio.sleep(pause_s * random.uniform(0.5, 1))
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


async def throttled_pace(*, wait_s: float = WAIT_S) -> Pace:
    """Make a pace that learned a rate of about ten a second."""
    pace = Pace(wait_s)
    await load(pace, Limited(10), callers=16, seconds=2)
    return pace


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


def test_no_request_waits_long_and_none_is_refused_by_the_pace() -> None:
    async def work() -> tuple[Limited, float]:
        pace = await throttled_pace(wait_s=5)
        database, loop = Limited(1e6), asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(pace.run(database.request) for _ in range(1_000)))
        return database, loop.time() - began

    database, passed_s = in_virtual_time(work)

    assert database.taken == 1_000
    assert passed_s <= 1.02  # a fifth of what the caller has, and the request


def test_who_is_cancelled_while_it_waits_gives_its_turn_back() -> None:
    async def work() -> tuple[float, int]:
        pace = await throttled_pace()
        database, loop = Limited(1e6), asyncio.get_running_loop()
        await asyncio.sleep(1)
        callers = [asyncio.create_task(pace.run(database.request)) for _ in range(500)]
        await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        began = loop.time()
        await pace.run(database.request)
        return loop.time() - began, database.taken

    waited_s, taken = in_virtual_time(work)

    assert waited_s <= 0.3
    assert taken == 1


def test_what_does_not_wait_owes_its_turn() -> None:
    async def work() -> list[float]:
        pace = await throttled_pace()
        loop, found = asyncio.get_running_loop(), []
        for units in (0, 1_000):
            await asyncio.sleep(5)
            pace.overdraw(units)
            began = loop.time()
            await pace.run(Limited(1e6).request)
            found.append(loop.time() - began)
        return found

    before_s, after_s = in_virtual_time(work)

    assert before_s == pytest.approx(0.01)
    assert 1 <= after_s <= 2.02


@pytest.mark.parametrize(("per_s", "callers", "longest_s"), [(60, 1, 3), (200, 4, WAIT_S), (1000, 16, WAIT_S)])
def test_batches_beyond_a_limit_are_all_taken_in_time(per_s: int, callers: int, longest_s: float) -> None:
    async def work() -> tuple[Owing, float]:
        pace, database, loop = Pace(), Owing(per_s), asyncio.get_running_loop()
        took_s = list[float]()

        async def caller() -> None:
            while loop.time() < 60:
                began = loop.time()
                await repeated_in_virtual_time(lambda: pace.run(lambda: database.batch(100), 100))
                took_s.append(loop.time() - began)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return database, max(took_s)

    database, found_s = in_virtual_time(work)

    assert database.taken >= 0.95 * 60 * per_s
    assert found_s < longest_s


def test_what_brings_no_answer_teaches_no_rate() -> None:
    async def work() -> float:
        pace, loop = await throttled_pace(), asyncio.get_running_loop()

        async def lost() -> None:
            await asyncio.sleep(0.01)
            raise OutcomeUnknown("lost")

        for _ in range(5):
            with pytest.raises(OutcomeUnknown):
                await pace.run(lost, 1_000)
        await asyncio.sleep(30)
        with pytest.raises(Throttled):
            await pace.run(Limited(0).request)
        return pace.rate(loop.time())

    assert in_virtual_time(work) <= 20


def test_a_refusal_pauses_for_as_long_as_it_asks_for() -> None:
    async def refused() -> None:
        raise Throttled("too many", pause_s=3)

    async def work() -> float:
        with pytest.raises(Throttled):
            await Pace().run(refused)
        return asyncio.get_running_loop().time()

    assert in_virtual_time(work) == 3


def test_an_answer_that_is_an_error_is_raised_and_counts_as_taken() -> None:
    async def failing() -> None:
        await asyncio.sleep(0.01)
        raise LookupError

    async def work() -> float:
        pace, loop = Pace(), asyncio.get_running_loop()
        while loop.time() < 2:
            with pytest.raises(LookupError):
                await pace.run(failing)
        with pytest.raises(Throttled):
            await pace.run(Limited(0).request)
        return pace.rate(loop.time())

    assert in_virtual_time(work) == pytest.approx(70, rel=0.1)


def test_what_is_throttled_is_forgotten_for_none_that_is_used_later() -> None:
    async def work() -> tuple[Pace, Pace, int]:
        paces = Paces()
        hot = paces.of(b"hot")
        await load(hot, Limited(10), callers=16, seconds=2)
        for number in range(3 * PACES_MAX):
            paces.of(number)
        return hot, paces.of(b"hot"), len(paces)

    before, after, kept = in_virtual_time(work)

    assert after is before
    assert kept <= PACES_MAX + 1


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
