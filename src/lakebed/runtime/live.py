"""The ports of `lakebed.base.ports` on a running asyncio event loop, the machine's clock and its random numbers.

Fresh names are 100 bits in base 32 (`0-9a-v`, which sorts as the numbers do): 48 bits of Unix time in milliseconds,
then 52 random bits. Within a process each is larger than the one before, whatever the clock does, so none repeats.
Random numbers come from the operating system: they differ after a fork, and no client can foretell them.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from lakebed.base import DIGITS, Event, Ports

A = TypeVar("A")
T = TypeVar("T")

_PAIRS: Final = [high + low for high in DIGITS for low in DIGITS]
_RANDOM_BITS: Final = 52
_STEP_BITS: Final = 32


class LiveClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class LiveIds:
    """Make fresh ids. Safe to use from several threads."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def fresh(self) -> str:
        number = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        with self._lock:
            if number <= self._last:  # the same millisecond, or a clock that went back
                number = self._last + 1 + secrets.randbits(_STEP_BITS)
            self._last = number
        return "".join([_PAIRS[number >> shift & 1023] for shift in range(90, -1, -10)])

    def bits(self, count: int) -> int:
        return secrets.randbits(count)


class LiveEvent:
    """Signal between the tasks of one event loop. Do not set it from another thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return self._event.is_set()
        return True


class LiveTasks:
    def event(self) -> Event:
        return LiveEvent()

    async def gather(self, awaitables: Sequence[Awaitable[T]]) -> list[T]:
        """Do as the port says; "first" is in the order of `awaitables`. Cancelling it cancels what has not ended."""
        if len(awaitables) == 1:
            return [await awaitables[0]]  # no task for it
        outcomes = await asyncio.gather(*awaitables, return_exceptions=True)
        results: list[T] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            results.append(outcome)
        return results

    async def ahead(
        self, items: Sequence[A], read: Callable[[A], Awaitable[T]], *, most: int = 16
    ) -> AsyncIterator[tuple[A, T]]:
        async def one(item: A) -> T:
            return await read(item)

        waiting: list[asyncio.Task[T]] = []
        try:
            for position, item in enumerate(items):
                later = items[position + len(waiting) : position + most]
                waiting += [asyncio.create_task(one(next_item)) for next_item in later]
                yield item, await waiting.pop(0)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def apart(self, work: Callable[[], T], *, is_short: bool = False) -> T:
        """Do it in a thread. Meanwhile the event loop waits at most SWITCH_S for its turn of the interpreter."""
        _turns.shorten(1)
        try:
            if is_short:
                return await asyncio.get_running_loop().run_in_executor(_short_work, work)
            return await asyncio.to_thread(work)
        finally:
            _turns.shorten(-1)


class _Turns:
    """Shorten the turns of threads while work is done apart. At other times an upload would take 5 % more CPU."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._apart = 0
        self._usual_s = sys.getswitchinterval()

    def shorten(self, change: int) -> None:
        with self._lock:
            if not self._apart:
                self._usual_s = sys.getswitchinterval()
            self._apart += change
            sys.setswitchinterval(SWITCH_S if self._apart else self._usual_s)


SWITCH_S: Final = 0.0005
"""The usual 5 ms are the time of fifty look-ups."""
_turns: Final = _Turns()
# One thread, which reuses its memory: with two, a commit takes 6 % more CPU and 30 MiB more.
_short_work: Final = ThreadPoolExecutor(1, thread_name_prefix="lakebed-short-work")


def live_ports() -> Ports:
    """Return the ports of this machine. Works before an event loop runs."""
    return Ports(LiveClock(), LiveIds(), LiveTasks())
