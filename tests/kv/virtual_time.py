"""Run an event loop whose time passes at once. What it runs may wait for time alone, and for nothing outside."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

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
    """Run it, with the same chance each time."""
    before = random.getstate()
    random.seed(1)

    async def run() -> T:
        return await work()

    try:
        with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
            return runner.run(run())
    finally:
        random.setstate(before)
