"""Bodies on their way into a store: counted, held to their declared size, gathered while small, and outlasted."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TypeVar

from .store import Body, ShortBody, Stored

T = TypeVar("T")


def stored(data: bytes) -> Stored:
    return Stored(size_bytes=len(data), md5=hashlib.md5(data, usedforsecurity=False).hexdigest())


def check_size(found: int, declared: int | None) -> None:
    if declared is not None and found != declared:
        word = "is longer than" if found > declared else "ended before"
        raise ShortBody(f"the body {word} its declared {declared} bytes", found_bytes=found, declared_bytes=declared)


async def measured(body: AsyncIterable[bytes], size_bytes: int | None) -> AsyncIterator[bytes]:
    """The same chunks, none empty. A body too long is refused at the chunk that goes too far, one too short at its end.

    Raises:
        ShortBody: the body is not `size_bytes` long.
    """
    found = 0
    async for chunk in body:
        if not chunk:
            continue
        found += len(chunk)
        if size_bytes is not None and found > size_bytes:
            check_size(found, size_bytes)
        yield chunk
    check_size(found, size_bytes)


async def gather(body: Body, size_bytes: int | None, *, small_bytes: int) -> tuple[bytes, AsyncIterator[bytes] | None]:
    """The whole body and None where it is at most `small_bytes`; else its beginning, and an iterator over the rest.

    A body given as bytes is always whole. The declared size is checked here for what is whole, and by the iterator
    for the rest.
    """
    if isinstance(body, bytes):
        check_size(len(body), size_bytes)
        return body, None
    rest = measured(body, size_bytes)
    head: list[bytes] = []
    found = 0
    async for chunk in rest:
        head.append(chunk)
        found += len(chunk)
        if found > small_bytes:
            return b"".join(head), rest
    return head[0] if len(head) == 1 else b"".join(head), None


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
            future.exception()  # asyncio reports an exception that is never looked at
        raise
