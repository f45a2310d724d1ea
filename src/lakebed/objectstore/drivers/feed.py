"""A body on its way to a remote store: in pieces as the client reads it, hashed as it passes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Final

from lakebed.objectstore.store import CHUNK_BYTES, Stored

SINGLE_PUT_BYTES: Final = 8 << 20
PARTS_MAX: Final = 10_000
INLINE_BYTES: Final = 1 << 16


class Feed:
    """A body as obstore reads it, hashed, in pieces of at least CHUNK_BYTES: each piece costs a call from its threads.

    obstore aborts a multipart upload when its source raises, but not when its own future is cancelled. So a cancelled
    put makes the source raise.
    """

    def __init__(self, head: bytes, rest: AsyncIterator[bytes] | None) -> None:
        self._head = head
        self._rest = rest
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._size_bytes = 0
        self._fetching: asyncio.Task[bytes] | None = None
        self._abandoned = False

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> bytes:
        if self._abandoned:
            raise _Abandoned
        self._fetching = asyncio.ensure_future(self._fetch())
        try:
            piece = await self._fetching
        except asyncio.CancelledError:
            raise _Abandoned from None
        if not piece:
            raise StopAsyncIteration
        return piece

    def abandon(self) -> None:
        self._abandoned = True
        if self._fetching is not None:
            self._fetching.cancel()

    def stored(self) -> Stored:
        return Stored(size_bytes=self._size_bytes, md5=self._md5.hexdigest())

    async def _fetch(self) -> bytes:
        chunks, found = [self._head], len(self._head)
        self._head = b""
        while found < CHUNK_BYTES and self._rest is not None:
            chunk = await anext(self._rest, None)
            if chunk is None:
                self._rest = None
                break
            chunks.append(chunk)
            found += len(chunk)
        piece = b"".join(chunks)
        await asyncio.to_thread(self._md5.update, piece)
        self._size_bytes += len(piece)
        return piece


class _Abandoned(Exception):
    """The put was cancelled."""


def part_bytes_for(size_bytes: int | None) -> int:
    """Return the smallest size of parts that their number allows. With an unknown size, 160 GB fit."""
    if size_bytes is None:
        return 16 << 20
    return max(SINGLE_PUT_BYTES, -(-size_bytes // PARTS_MAX))


async def hashed(data: bytes) -> Stored:
    md5 = hashlib.md5(usedforsecurity=False)
    if len(data) > INLINE_BYTES:
        await asyncio.to_thread(md5.update, data)
    else:
        md5.update(data)
    return Stored(size_bytes=len(data), md5=md5.hexdigest())
