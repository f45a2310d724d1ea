"""Connections are kept, and lent to one caller at a time. In virtual time, without a database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lakebed.kv.remote import kept
from lakebed.kv.remote.kept import FULL_S, Kept
from tests.kv.virtual_time import in_virtual_time


class FullError(Exception):
    """The database has no connection left."""


class Connections:
    """What opens and ends them. `room`: how many the database has for us."""

    def __init__(self, *, most: int = 2, room: int = 100) -> None:
        self.room = room
        self.open: set[int] = set()
        self.made = 0
        self.kept = Kept(
            most,
            turn_s=10,
            make=self._make,
            is_full=lambda error: isinstance(error, FullError),
            is_open=self.open.__contains__,
            end=self.open.discard,
        )

    async def _make(self) -> int:
        if len(self.open) >= self.room:
            raise FullError
        self.made += 1
        self.open.add(self.made)
        return self.made

    async def take(self, count: int) -> list[int]:
        return [await self.kept.take() for _ in range(count)]

    def give_back(self, *some: int, is_usable: bool = True) -> None:
        for connection in some:
            self.kept.give_back(connection, is_usable=is_usable)


async def passed_s(work: Callable[[], Awaitable[object]]) -> float:
    began = asyncio.get_running_loop().time()
    await work()
    return asyncio.get_running_loop().time() - began


def test_the_connection_that_was_used_last_is_lent_first() -> None:
    async def work() -> list[int]:
        connections = Connections()
        connections.give_back(*await connections.take(2))
        return await connections.take(2)

    assert in_virtual_time(work) == [2, 1]


def test_a_caller_waits_for_its_turn_and_not_for_ever() -> None:
    async def work() -> None:
        connections = Connections(most=2)
        [one, _] = await connections.take(2)
        with pytest.raises(TimeoutError):
            await connections.kept.take()
        waiting = asyncio.create_task(connections.kept.take())
        await asyncio.sleep(1)
        connections.give_back(one)
        assert await waiting == one

    in_virtual_time(work)


@pytest.mark.parametrize("is_usable", [True, False])
def test_a_connection_that_broke_or_may_meet_a_late_answer_is_ended(is_usable: bool) -> None:
    async def work() -> None:
        connections = Connections()
        [one] = await connections.take(1)
        if is_usable:
            connections.open.remove(one)
        connections.give_back(one, is_usable=is_usable)
        assert connections.open == set()
        assert await connections.take(2) == [2, 3]

    in_virtual_time(work)


def test_a_connection_that_broke_while_it_was_idle_is_not_lent() -> None:
    async def work() -> None:
        connections = Connections()
        connections.give_back(*await connections.take(2))
        connections.open.remove(2)
        assert await connections.take(1) == [1]

    in_virtual_time(work)


def test_what_was_idle_for_too_long_is_ended_and_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        connections = Connections(most=3)
        some = await connections.take(3)
        connections.give_back(*some[:2])
        monkeypatch.setattr(kept, "IDLE_S_MAX", 0)
        connections.give_back(some[2])
        assert connections.open == {3}
        assert await connections.take(1) == [4]
        assert connections.open == {4}

    in_virtual_time(work)


def test_where_the_database_is_full_the_next_turn_comes_later_unless_we_hold_none() -> None:
    async def work() -> tuple[float, float]:
        connections = Connections(most=2, room=1)

        async def refused() -> None:
            with pytest.raises(FullError):
                await connections.kept.take()

        [one] = await connections.take(1)
        await refused()
        with_one_s = await passed_s(refused)
        connections.give_back(one, is_usable=False)
        connections.room = 0
        await asyncio.sleep(FULL_S)
        return with_one_s, sum([await passed_s(refused) for _ in range(3)])

    assert in_virtual_time(work) == (FULL_S, 0)


def test_after_the_end_what_was_lent_is_ended_when_it_comes_back() -> None:
    async def work() -> None:
        connections = Connections()
        [one, other] = await connections.take(2)
        connections.give_back(one)
        assert connections.kept.close() == [one]
        connections.give_back(other)
        assert connections.open == {one}
        assert connections.kept.close() == []

    in_virtual_time(work)
