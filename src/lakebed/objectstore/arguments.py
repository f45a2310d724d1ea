"""Check what callers hand to a store, by one rule for all drivers: keys and bodies.

A key is a relative path: segments joined by single slashes. What a folder cannot hold as it stands (`..`, an empty
segment, a segment over 255 bytes) and what S3 or its XML cannot (over 1,024 bytes, control characters) is refused
everywhere, so a key good in one store is good in every other. Nothing is ever encoded or normalised: a key is stored
under exactly its own bytes of UTF-8, so any other tool that reads the namespace sees the same name.

One thing this rule cannot see: in a folder an object cannot have the name of a directory. So a store on a local folder
also refuses `a/b` while there is an object `a`, and the other way round. No layout of ours does that.

A body is counted on its way, held to its declared size, gathered while small, and outlasted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from typing import Final, TypeVar

from .store import Body, InvalidObjectKey, ShortBody, Stored

BLOCK_KEY_BYTES_MAX: Final = 1024
SEGMENT_BYTES_MAX: Final = 255

RESERVED_SEGMENT: Final = ".lakebed-tmp"
"""Unfinished objects of stores on a local folder lie in a directory of this name, at the root of the namespace."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,127}(?:/[A-Za-z0-9_][A-Za-z0-9_.=-]{0,127}){0,6}")
"""Most keys there are, found good at the price of one match. Anything else is looked at with care."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def check_object_key(key: str) -> str:
    """The key itself.

    Raises:
        InvalidObjectKey: it is none, and the message says why.
    """
    if not is_object_key(key):
        raise InvalidObjectKey(f"{key[:100]!a} is no key: {_why_not(key)}", key=key)
    return key


def is_object_key(key: str) -> bool:
    return _PLAIN.fullmatch(key) is not None or _why_not(key) is None


def names_of_no_keys(names: Iterable[str]) -> list[str]:
    """Return those under which no store of ours can do anything. A name that ends with a slash is a folder's."""
    return [name for name in names if not is_object_key(name.removesuffix("/"))]


def are_plain_object_keys(keys: Sequence[str]) -> bool:
    """Return True where one match shows that all are keys; False shows nothing. A quarter of a microsecond each."""
    return all(map(_PLAIN.fullmatch, keys))


def can_begin_object_key(prefix: str) -> bool:
    """Return whether any key can begin with this. Where none can, a listing is empty without asking the store."""
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
            return f"{segment!r} is no segment of a key" if segment else "it has an empty segment"
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
