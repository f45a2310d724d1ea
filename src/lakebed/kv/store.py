"""The Store port: the narrow key-value interface that every database can meet (docs/design/0002-metadata-on-kv.md).

Partitions are namespaces: (partition, key) is unique, key alone is not, and no operation spans two partitions. A
partition exists while it has a key. Keys and values are bytes. A key has at most 1,024 bytes; a value of 300 KB is
common. A read sees every write that was answered before the read (linearisable for each key). A scan returns, in byte
order, every key that is present throughout the scan. It may or may not return a key that is written or deleted
meanwhile.

Beyond the document's five operations there are `delete_if` (protocols need it) and `*_many` (for speed). A batch is
one operation to the caller but *not* atomic: each key behaves as if set alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lakebed.base import Conflict, Corrupt, Event, Invalid, NotFound, Tasks, Unavailable

__all__ = [
    "SCAN_PAGE",
    "AmortizedReads",
    "Held",
    "InvalidKey",
    "Page",
    "Predicate",
    "PredicateFailed",
    "Store",
    "StoreFormat",
    "StoreMissing",
    "StoreSize",
    "StoreUnavailable",
    "check_key",
    "prefix_end",
    "scan_pages",
    "scan_prefix",
]

Predicate: TypeAlias = bytes | int | str
"""Stands for the value that `get` returned. Only the driver can read it: the value, a hash, or a version number."""


class PredicateFailed(Conflict):
    """`set_if` or `delete_if`: the stored value is not the one that the predicate stands for. Nothing was changed."""


class InvalidKey(Invalid):
    """A key or partition that a driver may refuse: empty, or over 1,024 bytes."""


class StoreUnavailable(Unavailable):
    """The database cannot be reached, is locked, is read-only or is full. Nothing happened."""


class StoreMissing(NotFound, StoreUnavailable):
    """The file or its folder does not exist. Raised only while a store is opened."""


class StoreFormat(Corrupt):
    """The database was written by a later version, or is not ours."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value as it was read, with the predicate that `set_if` needs to replace it."""

    value: bytes
    predicate: Predicate


@dataclass(frozen=True, slots=True)
class Page:
    """Consecutive pairs of one partition, ascending. `next_start` begins the next page; it is None on the last page."""

    keys: list[bytes]
    values: list[bytes]
    next_start: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSize:
    """The size of a store on disk. `log_bytes` add to `size_bytes`. `free_bytes` of `size_bytes` are unused."""

    size_bytes: int
    log_bytes: int
    free_bytes: int


class Store(Protocol):
    """Every method may raise StoreUnavailable; writes may also raise OutcomeUnknown."""

    @property
    def shares_reads(self) -> bool:
        """Return whether concurrent calls of `get` share a request. The request begins after each of these calls."""
        ...

    async def get(self, partition: bytes, key: bytes) -> Held | None: ...

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        """Return the values in the order of `keys`, which may repeat. A missing key returns None."""
        ...

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        """Return one page: at most `limit` (≥ 1) pairs at or after `start`. An empty `start` is the beginning."""
        ...

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None: ...

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Set each key. Of a repeated key the last value is kept. A failure half-way raises OutcomeUnknown."""
        ...

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        """Set the key if the stored value is still the one of `predicate`; with None, if the key is absent.

        Returns the predicate of the value now stored.

        Raises:
            PredicateFailed: the stored value is another one, or the key is unexpectedly present or absent.
            OutcomeUnknown: the answer was lost.
        """
        ...

    async def delete(self, partition: bytes, key: bytes) -> None:
        """Delete a key. An absent key is no error."""
        ...

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Delete each key, in any order. A failure half-way raises OutcomeUnknown."""
        ...

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """Delete the key if the stored value is still the one that `predicate` stands for.

        Raises:
            PredicateFailed: the stored value is another one, or the key is absent.
            OutcomeUnknown: the answer was lost.
        """
        ...

    async def close(self) -> None: ...


SCAN_PAGE: int = 1000
FIRST_PAGE: int = 32
"""The first page is short: most prefixes have few keys, and a full page would read pairs of other prefixes in vain."""


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key after every key with this prefix, or None if none exists (empty prefix, or all 0xff)."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


async def scan_prefix(
    store: Store, partition: bytes, prefix: bytes, *, start: bytes = b"", page_size: int = SCAN_PAGE
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield each pair with this prefix, from `start` on, ascending. One `scan` a page; the first page is short."""
    first = min(FIRST_PAGE, page_size)
    async for keys, values in scan_pages(store, partition, prefix, start=start, first=first, page_size=page_size):
        for pair in zip(keys, values, strict=True):
            yield pair


class scan_pages:  # noqa: N801  # a function to its callers; a generator inside a generator costs 4 µs more
    """Iterate over pages of keys and of values, the first with at most `first` pairs. For callers that decode pages."""

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
    """Check a partition and a key. Drivers call this before every write.

    Raises:
        InvalidKey: one of them is empty, or over 1,024 bytes.
    """
    if not 0 < len(partition) <= 1024:
        raise InvalidKey(f"a partition has 1 to 1,024 bytes, this one {len(partition)}", size_bytes=len(partition))
    if not 0 < len(key) <= 1024:
        raise InvalidKey(f"a key has 1 to 1,024 bytes, this one {len(key)}", size_bytes=len(key))


# One KV read is shared by all requests that wait for it (docs/design/0002-metadata-on-kv.md, "amortized reads"). A
# request may only use a read that *began after* the request did: otherwise the second look of a writer would prove
# nothing. So a request that arrives during a read waits for the next one, and the first that waits leads it. No
# request waits when nothing is under way. An embedded store answers on the spot: then this is one dictionary look-up.
# A store that shares reads itself is simply asked: to wait for the answer of another first would make two requests of
# a burst.


class _Read:
    """The first request that waits makes `done`. Mostly none does."""

    __slots__ = ("done", "held", "is_over", "is_read")

    def __init__(self) -> None:
        self.done: Event | None = None
        self.held: Held | None = None
        self.is_over = False
        self.is_read = False

    async def wait(self, tasks: Tasks) -> None:
        if not self.is_over:
            if self.done is None:
                self.done = tasks.event()
            await self.done.wait()

    def end(self) -> None:
        self.is_over = True
        if self.done is not None:
            self.done.set()


class AmortizedReads:
    """Reads of one partition. Costs at most one `get` for each call, and one for all that wait together."""

    def __init__(self, store: Store, partition: bytes, tasks: Tasks) -> None:
        self._store = store
        self._partition = partition
        self._tasks = tasks
        self._running: dict[bytes, _Read] = {}
        self._following: dict[bytes, _Read] = {}

    async def get(self, key: bytes) -> Held | None:
        """The value as of some moment after this call began."""
        if self._store.shares_reads:
            return await self._store.get(self._partition, key)
        running = self._running.get(key)
        if running is None:
            return await self._lead(key, _Read())
        following = self._following.get(key)
        if following is None:
            following = self._following[key] = _Read()
            try:
                await running.wait(self._tasks)
            except BaseException:
                following.end()
                raise
            finally:
                del self._following[key]
            return await self._lead(key, following)
        await following.wait(self._tasks)
        # The leader failed or was cancelled: its error is not ours, so look for ourselves.
        return following.held if following.is_read else await self._lead(key, _Read())

    async def _lead(self, key: bytes, read: _Read) -> Held | None:
        self._running[key] = read
        try:
            read.held = await self._store.get(self._partition, key)
            read.is_read = True
            return read.held
        finally:
            if self._running.get(key) is read:
                del self._running[key]
            read.end()
