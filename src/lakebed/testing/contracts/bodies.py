"""Bodies for the contract of object stores: in pieces, large, and failing on the way."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

from lakebed.objectstore import ObjectStore

MIB = 1 << 20
LARGE_BYTES = 20 * MIB + 12345
"""More than a driver should send in one request, or keep in memory for long."""


async def pieces(data: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
        await asyncio.sleep(0)


async def large_body(size_bytes: int = LARGE_BYTES, *, piece_bytes: int = 300_001) -> AsyncIterator[bytes]:
    """Yield the same bytes each time, in pieces whose size is no power of two. No two mebibytes of the body are
    equal.
    """
    done = 0
    while done < size_bytes:
        piece = hashlib.sha256(done.to_bytes(8, "big")).digest() * (piece_bytes // 32 + 1)
        piece = piece[: min(piece_bytes, size_bytes - done)]
        yield piece
        done += len(piece)


async def md5_of(body: AsyncIterator[bytes]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    async for chunk in body:
        digest.update(chunk)
    return digest.hexdigest()


async def read_stream(objectstore: ObjectStore, key: str, *, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([chunk async for chunk in objectstore.stream(key, start=start, end=end)])


class BodyFailed(Exception):
    """The error of the bodies below."""


async def failing_body(size_bytes: int) -> AsyncIterator[bytes]:
    async for piece in large_body(size_bytes):
        yield piece
    raise BodyFailed


async def put_all_of(objectstore: ObjectStore, key: str, body: AsyncIterator[bytes]) -> None:
    await objectstore.put(key, body)
