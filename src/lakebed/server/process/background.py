"""Work that goes on in this process after its request was answered: tasks, which end with the process."""

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
"""How long work may take to end when the process does. A merge that an import began is not broken off before."""

R = TypeVar("R", contravariant=True)


class Book(Protocol[R]):
    """Keeps the records of such work."""

    async def beat(self, begun: R, /) -> None:
        """Record that the process at work lives."""

    async def stop(self, begun: R, why: str, /) -> None:
        """Record that the work failed."""


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def start(
        self, book: Book[R], begun: R, work: Callable[[Callable[[], bool]], Awaitable[object]], what: str
    ) -> None:
        """Do `work`, which asks now and then whether to stop. It records its end itself, and an error of ours too.

        `what` names it in logs.
        """
        task = asyncio.create_task(self._run(book, begun, work, what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End what runs. What does not end in time is left without a record of its end, and counts as lost."""
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
    """One step may take longer than work may be silent."""
    while True:
        await asyncio.sleep(BEAT_S)
        try:
            await book.beat(begun)
        except LakebedError as error:
            logger.warning("%s: %s", what, error)
