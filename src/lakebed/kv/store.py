"""The Store port: the narrow key-value interface that every database can meet (docs/design/0002-metadata-on-kv.md).

Partitions are namespaces: (partition, key) is unique, key alone is not, and no operation crosses two. They spring
into being with their first key. Keys and values are bytes; a key has at most 1,024 bytes, a value 300 KB is nothing
special. Reads see every write that was answered before them (linearisable for each key); a scan returns, in byte order,
every key that is present throughout it, and may or may not return one that comes or goes meanwhile.

Beyond the document's five operations there are `delete_if` (protocols need it) and `*_many` (speed needs them):
a batch is one operation to the caller but *not* atomic. Each key of it behaves as if set alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lakebed.base import Conflict, Corrupt, Invalid, NotFound, Unavailable

Predicate: TypeAlias = bytes | int | str
"""Stands for the value that `get` saw. Only the driver knows how: the value itself, a hash, or a version number."""


class PredicateFailed(Conflict):
    """`set_if` or `delete_if`: the stored value is not the one the predicate stands for. Nothing was changed."""


class InvalidKey(Invalid):
    """A key or partition that no driver has to take: empty partition or key, or over 1,024 bytes."""


class StoreUnavailable(Unavailable):
    """The database cannot be reached, is locked, is read-only or is full. Nothing happened."""


class StoreMissing(NotFound, StoreUnavailable):
    """There is no such file, or no folder for it. Raised only while a store is opened."""


class StoreFormat(Corrupt):
    """The database was written by a later version, or is no database of ours."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value as it was read, and what `set_if` needs to replace exactly it."""

    value: bytes
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Page:
    """Consecutive pairs of one partition, ascending. `next_start` begins the next page; None after the last."""

    keys: list[bytes]
    values: list[bytes]
    next_start: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSize:
    """The size of a store on disk. `log_bytes` come beside `size_bytes`, of which `free_bytes` hold nothing."""

    size_bytes: int
    log_bytes: int
    free_bytes: int


class Store(Protocol):
    """Every method may raise StoreUnavailable; writes may also raise OutcomeUnknown."""

    @property
    def shares_reads(self) -> bool:
        """Return whether calls of `get` that wait at the same time share a request, which begins after each of them."""
        ...

    async def get(self, partition: bytes, key: bytes) -> Held | None: ...

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        """In the order of `keys`, which may repeat."""
        ...

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        """One page: at most `limit` (≥ 1) pairs at or after `start`. An empty `start` is the beginning."""
        ...

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None: ...

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Set each. Of a repeated key the last value stays. A failure half-way raises OutcomeUnknown."""
        ...

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        """Set where the stored value is still the one `predicate` was read with; None means: where there is none.

        Returns the predicate of the value now stored.

        Raises:
            PredicateFailed: it is not.
            OutcomeUnknown: the answer was lost.
        """
        ...

    async def delete(self, partition: bytes, key: bytes) -> None:
        """Absent afterwards; it is no error if it was absent before."""
        ...

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Delete each, in any order. A failure half-way raises OutcomeUnknown."""
        ...

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """Delete where the stored value is still the one `predicate` was read with.

        Raises:
            PredicateFailed: it is not, or there is none.
            OutcomeUnknown: the answer was lost.
        """
        ...

    async def close(self) -> None: ...


SCAN_PAGE: int = 1000
FIRST_PAGE: int = 32
"""Most prefixes hold little, and what lies behind them would be read for nothing."""


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after every key with this prefix; None where there is none (an empty prefix, or all 0xff)."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


async def scan_prefix(
    store: Store, partition: bytes, prefix: bytes, *, start: bytes = b"", page_size: int = SCAN_PAGE
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Every pair whose key has this prefix, at or after `start`, ascending; one `scan` a page, the first one short."""
    first = min(FIRST_PAGE, page_size)
    async for keys, values in scan_pages(store, partition, prefix, start=start, first=first, page_size=page_size):
        for pair in zip(keys, values, strict=True):
            yield pair


class scan_pages:  # noqa: N801  # a function to its callers; a generator inside a generator costs 4 µs more
    """Iterate over pages of keys and of values; the first page has at most `first`. For callers that decode pages."""

    __slots__ = ("_limit", "_page_size", "_partition", "_position", "_prefix", "_store")

    def __init__(
        self,
        store: Store,
        partition: bytes,
        prefix: bytes,
        *,
        start: bytes = b"",
        first: int,
        page_size: int = SCAN_PAGE,
    ) -> None:
        self._store, self._partition, self._prefix = store, partition, prefix
        self._position: bytes | None = max(start, prefix)
        self._limit, self._page_size = first, page_size

    def __aiter__(self) -> scan_pages:
        return self

    async def __anext__(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        if self._position is None:
            raise StopAsyncIteration
        page = await self._store.scan(self._partition, self._position, self._limit)
        self._position, self._limit = page.next_start, self._page_size
        if not page.keys or page.keys[-1].startswith(self._prefix):
            return page.keys, page.values
        self._position, end = None, prefix_end(self._prefix)
        count = len(page.keys) if end is None else bisect_left(page.keys, end)
        return page.keys[:count], page.values[:count]


def check_key(partition: bytes, key: bytes) -> None:
    """Drivers call this before every write.

    Raises:
        InvalidKey: empty, or over 1,024 bytes.
    """
    if not 0 < len(partition) <= 1024:
        raise InvalidKey(f"a partition has 1 to 1,024 bytes, this one {len(partition)}", size_bytes=len(partition))
    if not 0 < len(key) <= 1024:
        raise InvalidKey(f"a key has 1 to 1,024 bytes, this one {len(key)}", size_bytes=len(key))
