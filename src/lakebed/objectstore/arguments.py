"""Check the keys and bodies that callers pass to a store, by one rule for all drivers.

A key is a relative path: segments joined by single slashes. Every driver refuses a key that a folder cannot store
unchanged: `..`, an empty segment, a segment over 255 bytes. It refuses a key that S3 or its XML cannot store: over
1,024 bytes, control characters. So a valid key is valid in every store. Keys are never encoded or normalised: a key is
stored under exactly its own bytes of UTF-8, so any other tool that reads the namespace sees the same name.

This rule does not cover one case: in a folder an object cannot have the name of a directory. So a store on a local
folder also refuses `a/b` if there is an object `a`, and vice versa. No layout of ours does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from typing import Final, TypeVar

from .store import Body, InvalidObjectKey, ShortBody, Stored

__all__ = ["BLOCK_KEY_BYTES_MAX", "check_object_key", "is_object_key", "names_of_no_keys"]


BLOCK_KEY_BYTES_MAX: Final = 1024
SEGMENT_BYTES_MAX: Final = 255

RESERVED_SEGMENT: Final = ".lakebed-tmp"
"""The directory of unfinished objects, at the root of a namespace on a local folder."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,127}(?:/[A-Za-z0-9_][A-Za-z0-9_.=-]{0,127}){0,6}")
"""Accepts most keys with a single match. Every other key is checked in full."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def check_object_key(key: str) -> str:
    """Return the key unchanged.

    Raises:
        InvalidObjectKey: it is no valid key; the message says why.
    """
    if not is_object_key(key):
        raise InvalidObjectKey(f"{key[:100]!a} is not a key: {_why_not(key)}", key=key)
    return key


def is_object_key(key: str) -> bool:
    return _PLAIN.fullmatch(key) is not None or _why_not(key) is None


def names_of_no_keys(names: Iterable[str]) -> list[str]:
    """Return the names that no store of ours can use. A name that ends with a slash is a folder's."""
    return [name for name in names if not is_object_key(name.removesuffix("/"))]


def are_plain_object_keys(keys: Sequence[str]) -> bool:
    """Return True if one match shows that all are keys. False shows nothing.

    Costs a quarter of a microsecond for each key.
    """
    return all(map(_PLAIN.fullmatch, keys))


def can_begin_object_key(prefix: str) -> bool:
    """Return whether a key can begin with this prefix. If not, a listing is empty without a request to the store."""
    folder, slash, name = prefix.rpartition("/")
    if slash and not is_object_key(folder):
        return False
    return not _CONTROL.search(name) and name.encode(errors="replace").decode() == name


def _why_not(key: str) -> str | None:
    if not key:
        return "it is empty"
    try:
        data = key.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(data) > BLOCK_KEY_BYTES_MAX:
        return f"it is {len(data)} bytes long, at most {BLOCK_KEY_BYTES_MAX} are allowed"
    if _CONTROL.search(key):
        return "it has a control character in it"
    if key.startswith("/"):
        return "it is absolute"
    for segment in key.split("/"):
        if segment in {"", ".", "..", RESERVED_SEGMENT}:
            return f"{segment!r} is not a segment of a key" if segment else "it has an empty segment"
        if len(segment.encode()) > SEGMENT_BYTES_MAX:
            return f"a segment is over {SEGMENT_BYTES_MAX} bytes long"
    return None


T = TypeVar("T")


def stored(data: bytes) -> Stored:
    return Stored(size_bytes=len(data), md5=hashlib.md5(data, usedforsecurity=False).hexdigest())


def check_size(found: int, declared: int | None) -> None:
    if declared is not None and found != declared:
        word = "is longer than" if found > declared else "ended before"
        raise ShortBody(f"the body {word} its declared {declared} bytes", found_bytes=found, declared_bytes=declared)


async def measured(body: AsyncIterable[bytes], size_bytes: int | None) -> AsyncIterator[bytes]:
    """Yield the same chunks, without empty ones.

    Raise at the chunk that exceeds the size, or at the end of a short body.

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
    """Return the whole body and None if it has at most `small_bytes`; else its beginning, and an iterator over the
    rest.

    A body given as bytes is always whole. The declared size of a whole body is checked here; the iterator checks the
    rest.
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
    """Wait for a future to its end, even if the caller is cancelled: then call `abandon`, wait, and raise the
    cancellation.

    So a cancelled put has no effect after its CancelledError was raised.
    """
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        abandon()
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # asyncio would report an exception that was never retrieved
        raise
