"""Leaving a put only when it has come to rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def outlast(future: asyncio.Future[T], abandon: Callable[[], None]) -> T:
    """Wait for a future that goes on when its waiter is cancelled. Then `abandon` is called, the future awaited all the
    same, and the cancellation raised: nothing of a cancelled put happens after its CancelledError came out.
    """
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        abandon()
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # looked at, or asyncio would report that nobody did
        raise
