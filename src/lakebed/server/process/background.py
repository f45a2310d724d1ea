"""Tasks that continue in this process after their request was answered. They end with the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from lakebed.base import LakebedError

logger = logging.getLogger(__name__)

BEAT_S: Final = 5.0
CLOSE_S: Final = 8.0
"""Seconds for tasks to end when the process ends. A merge that an import began is not interrupted before."""

R = TypeVar("R", contravariant=True)


class Book(Protocol[R]):
    """Keep the records of background work."""

    async def beat(self, begun: R, /) -> None:
        """Record that the working process is alive."""

    async def stop(self, begun: R, why: str, /) -> None:
        """Record that the work failed."""


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def start(
        self, book: Book[R], begun: R, work: Callable[[Callable[[], bool]], Awaitable[object]], what: str
    ) -> None:
        """Run `work`, which checks regularly whether to stop and records its own end. Record a failure by our own
        error.

        `what` names the work in logs.
        """
        task = asyncio.create_task(self._run(book, begun, work, what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop running work. Work that does not end in time leaves no record of its end, and is treated as lost."""
        self._is_closing = True
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(
        self, book: Book[R], begun: R, work: Callable[[Callable[[], bool]], Awaitable[object]], what: str
    ) -> None:
        beating = asyncio.create_task(_beat(book, begun, what))
        try:
            await work(lambda: self._is_closing)
        except LakebedError as error:
            logger.warning("the end of %s is not recorded, it will count as lost: %s", what, error)
        except Exception:  # a bug must not leave work that seems to run
            logger.exception("%s failed", what)
            with contextlib.suppress(LakebedError):
                await book.stop(begun, "internal server error")
        finally:
            beating.cancel()


async def _beat(book: Book[R], begun: R, what: str) -> None:
    """Record a beat every BEAT_S, because one step of the work may take longer than the allowed silence."""
    while True:
        await asyncio.sleep(BEAT_S)
        try:
            await book.beat(begun)
        except LakebedError as error:
            logger.warning("%s: %s", what, error)
