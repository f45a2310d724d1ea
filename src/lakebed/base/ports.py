"""The ports of the core besides its stores: time, fresh names, and tasks.

The core (versions, catalog, auth, gc/live) awaits these ports and its two stores, and nothing else. It never imports
asyncio, time, random, uuid or os. So a server runs it on an event loop (`lakebed.runtime`), and a simulation runs the
same code by hand, one effect at a time (`sim`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

__all__ = ["AT_ONCE", "ROWS_A_TURN", "Clock", "Event", "Ids", "Ports", "Tasks", "again", "each_item", "in_waves"]

A = TypeVar("A")
K = TypeVar("K", str, bytes)
T = TypeVar("T")

AT_ONCE: Final = 64
"""The number of concurrent conditional writes of one flow."""
ROWS_A_TURN: Final = 1024
"""The rows to read or to change before other tasks have a turn. Each such step takes 0.6 ms."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the Unix time in milliseconds. It may jump: use it for dates and ages, never for safety."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    def fresh(self) -> str:
        """Return a name that was never used before: 20 characters of `[0-9a-v]`, sorted roughly by time."""
        ...

    def bits(self, count: int) -> int:
        """Return `count` random bits."""
        ...


class Event(Protocol):
    """A signal that is set once, and then remains set."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the event is set and return True, or return False after `timeout_s`."""
        ...


class Tasks(Protocol):
    def event(self) -> Event: ...

    async def gather(self, awaitables: Sequence[Awaitable[T]]) -> list[T]:
        """Run all at once and return the results in order. Raise the first error after all have ended."""
        ...

    def ahead(
        self, items: Sequence[A], read: Callable[[A], Awaitable[T]], *, most: int = 16
    ) -> AsyncIterator[tuple[A, T]]:
        """Yield each item with the result of `read`, in order, with up to `most` reads under way.

        The first error ends the iteration, and cancels the reads under way.
        """
        ...

    async def apart(self, work: Callable[[], T], *, is_short: bool = False) -> T:
        """Do long work that awaits nothing, without blocking other tasks. Work of some ms, `is_short`, waits its turn.

        The work may use only values that no task changes until it has ended.
        """
        ...


class Ports:
    """Clock, ids and tasks together, so that constructors take one argument."""

    __slots__ = ("clock", "ids", "tasks")

    def __init__(self, clock: Clock, ids: Ids, tasks: Tasks) -> None:
        self.clock = clock
        self.ids = ids
        self.tasks = tasks


async def in_waves(
    tasks: Tasks, items: Sequence[A], act: Callable[[A], Awaitable[T]], *, most: int = AT_ONCE
) -> list[T]:
    """Act on every item, `most` at once, and return the results in the order of `items`.

    A wave begins when the one before it has ended, so after an error no call of `act` is under way.
    """
    results: list[T] = []
    for start in range(0, len(items), most):
        results += await tasks.gather([act(item) for item in items[start : start + most]])
    return results


async def each_item(
    pages: Callable[[K], Awaitable[tuple[Sequence[T], bool]]], key_of: Callable[[T], K], after: K
) -> AsyncIterator[T]:
    """Yield every item of a listing behind the key `after`, in order.

    `pages` returns the first items behind a key, and whether there are more.
    """
    has_more = True
    while has_more:
        items, has_more = await pages(after)
        for item in items:
            yield item
        after = key_of(items[-1]) if items else after


async def again(work: Callable[[], Awaitable[T]], *errors: type[Exception], most: int) -> T:
    """Return the result of `work`, which is called once more after each of these errors, `most` times in all."""
    for _ in range(most - 1):
        with suppress(*errors):
            return await work()
    return await work()
