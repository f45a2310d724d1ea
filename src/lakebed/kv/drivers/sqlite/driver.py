"""`sqlite:///absolute/path`: a Store in one file, for one machine; several processes may share it.

Reads run on the caller's event-loop thread: they take microseconds, a hop to another thread several times that. Each is
a transaction of its own and so sees all that was answered before it, by whatever process. A read of many rows lets
other tasks run once a page, or a walk through many pages would be one long silence of the loop.

Writes go to one thread, which commits in groups (`commits.py`). An answered write is on the disk, with the default
`synchronous=FULL`. A cancelled write may still be carried out.

Predicates are the values themselves: no column to store, no counter to share between processes. They allow A-B-A: a
value that was replaced and then put back counts as never having changed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any, Final

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import StoreUri
from lakebed.kv.store import Held, Page, Predicate, StoreMissing, StoreSize, StoreUnavailable, check_key

from .commits import ANYTHING, Committer
from .file import (
    Synchronous,
    compact,
    connect,
    connect_to_snapshot,
    copy_snapshot,
    is_busy,
    partitions_in,
    prepare_file,
    refusal,
    size_of,
    translate,
)

BUSY_TIMEOUT_S: Final = 10.0
"""Give up when another program holds the lock for this long. A commit of a group holds it for milliseconds."""

COMPACT_TIMEOUT_S: Final = 60.0

BATCH_WEIGHT_MAX: Final = 2048
"""Keys or KiB of a `*_many` that go into one transaction; the next wait for it, and let others come between."""

READ_MANY: Final = 256
READ_PAUSE_ROWS: Final = 500

_GET: Final = "SELECT value FROM kv WHERE partition = ? AND key = ?"
_SCAN: Final = "SELECT key, value FROM kv WHERE partition = ? AND key >= ? ORDER BY key LIMIT ?"


def open_uri(uri: StoreUri) -> SqliteStore:
    """`sqlite:///srv/lakebed/kv.db?synchronous=FULL&busy_timeout_s=10`. The folder must exist, the file need not.

    `?mode=read` opens a file that nothing writes, such as a snapshot, and leaves no trace beside it.
    """
    path = uri.file()
    if uri.choice("mode", "write", "read") == "read":
        uri.check_all_taken()
        return SqliteStore.open_snapshot(path)
    synchronous: Synchronous = uri.choice("synchronous", "FULL", "EXTRA", "NORMAL", "OFF")
    busy_timeout_s = uri.seconds("busy_timeout_s", BUSY_TIMEOUT_S)
    uri.check_all_taken()
    return SqliteStore.open(path, synchronous=synchronous, busy_timeout_s=busy_timeout_s)


def snapshot_uri(uri: StoreUri, target: Path) -> None:
    """Copy the file that this URI names. See `copy_snapshot`."""
    copy_snapshot(uri.file(), target)


def partitions_uri(uri: StoreUri) -> list[bytes]:
    """List the partitions of the file that this URI names."""
    return partitions_in(uri.file())


def size_uri(uri: StoreUri) -> StoreSize:
    return size_of(uri.file())


def compact_uri(uri: StoreUri) -> None:
    compact(uri.file(), COMPACT_TIMEOUT_S)


class SqliteStore:
    """Made by `open`. May be used from several event loops, even of different threads; close it when all are done."""

    shares_reads = False

    def __init__(
        self, path: Path, *, reader: sqlite3.Connection, writer: sqlite3.Connection | None, busy_timeout_s: float
    ) -> None:
        self._path = path
        self._reader: sqlite3.Connection | None = reader
        # Shared by threads, a connection would show one of them the other's older snapshot.
        self._reading = threading.Lock()
        self._busy_timeout_s = busy_timeout_s
        self._committer = None if writer is None else Committer(path, writer, busy_timeout_s)

    @classmethod
    def open(
        cls, path: Path, *, synchronous: Synchronous = "FULL", busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> SqliteStore:
        """Open the file, or make it (readable by its owner only, since it holds secrets). Blocks.

        Raises:
            StoreMissing: no such folder.
            StoreUnavailable: no permission, read-only, full, locked for `busy_timeout_s`.
            StoreFormat: not a database, not one of ours, or of a later format.
        """
        try:
            with ExitStack() as opened:
                if not path.exists():
                    path.touch(mode=0o600)
                writer = opened.enter_context(closing(connect(path, synchronous, busy_timeout_s)))
                prepare_file(path, writer, busy_timeout_s)
                reader = opened.enter_context(closing(connect(path, synchronous, busy_timeout_s)))
                reader.execute("PRAGMA query_only=ON")
                opened.pop_all()  # from here on they are the store's to close
        except FileNotFoundError as error:
            raise StoreMissing(f"{path}: its folder does not exist", path=str(path)) from error
        except OSError as error:
            raise StoreUnavailable(f"{path}: {error.strerror}", path=str(path)) from error
        except sqlite3.Error as error:
            raise translate(path, error) from error
        return cls(path, reader=reader, writer=writer, busy_timeout_s=busy_timeout_s)

    @classmethod
    def open_snapshot(cls, path: Path) -> SqliteStore:
        """Open a file that nothing writes, for reading. Writes raise StoreUnavailable. Blocks.

        Raises:
            StoreMissing, StoreUnavailable: no such file; no permission.
            StoreFormat: not a database, not one of ours, or of a later format.
        """
        try:
            with ExitStack() as opened:
                reader = opened.enter_context(closing(connect_to_snapshot(path)))
                opened.pop_all()
        except sqlite3.Error as error:
            raise refusal(path, error) from error
        return cls(path, reader=reader, writer=None, busy_timeout_s=0)

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        rows = await self._rows(_GET, (partition, key))
        return Held(rows[0][0], rows[0][0]) if rows else None

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        found: dict[bytes, Held] = {}
        for first in range(0, len(keys), READ_MANY):
            if first:
                await asyncio.sleep(0)
            chunk = keys[first : first + READ_MANY]
            sql, asked = _get_many_sql(len(chunk))
            padding = [chunk[0]] * (asked - len(chunk))
            for key, value in await self._rows(sql, (partition, *chunk, *padding)):
                found[key] = Held(value, value)
        return [found.get(key) for key in keys]

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        """One row more than `limit` is read, to know whether there is another page and where it begins."""
        assert limit >= 1
        rows = await self._rows(_SCAN, (partition, start, limit + 1))
        if len(rows) > READ_PAUSE_ROWS:
            await asyncio.sleep(0)
        next_start: bytes | None = rows.pop()[0] if len(rows) > limit else None
        return Page([key for key, _ in rows], [value for _, value in rows], next_start)

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        check_key(partition, key)
        await self._submit(partition, ((key, value),), ANYTHING, _weight(value))

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """In transactions of up to 2 MiB or 2,048 keys, one after the other: other writes come between."""
        await self._write_many(partition, items)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        check_key(partition, key)
        await self._submit(partition, ((key, value),), predicate, _weight(value))
        return value

    async def delete(self, partition: bytes, key: bytes) -> None:
        check_key(partition, key)
        await self._submit(partition, ((key, None),), ANYTHING, 1)

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Delete several keys, in as many transactions as `set_many` takes."""
        await self._write_many(partition, [(key, None) for key in keys])

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        check_key(partition, key)
        assert predicate is not None
        await self._submit(partition, ((key, None),), predicate, 1)

    async def close(self) -> None:
        """Commit what is queued, then close the file; the last process to do so leaves it without a log beside it."""
        with self._reading:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
        if self._committer is not None:
            await asyncio.to_thread(self._committer.close)

    async def _rows(self, sql: str, values: Sequence[bytes | int]) -> list[Any]:
        """All rows. Waits only where another program has locked even readers out; without blocking the loop."""
        deadline: float | None = None
        while True:
            try:
                with self._reading:
                    if self._reader is None:
                        raise StoreUnavailable(f"{self._path}: this store is closed", path=str(self._path))
                    return self._reader.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                now = time.monotonic()
                deadline = deadline or now + self._busy_timeout_s
                if not is_busy(error) or now >= deadline:
                    raise translate(self._path, error) from error
            await asyncio.sleep(0.002)

    async def _submit(
        self, partition: bytes, changes: Sequence[tuple[bytes, bytes | None]], expected: object, weight: int
    ) -> None:
        if self._committer is None:
            raise StoreUnavailable(f"{self._path}: opened for reading only", path=str(self._path))
        await self._committer.submit(partition, changes, expected, weight)

    async def _write_many(self, partition: bytes, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        for key, _ in changes:
            check_key(partition, key)
        done = 0
        for batch, weight in _batches(changes):
            try:
                await self._submit(partition, batch, ANYTHING, weight)
            except StoreUnavailable as error:
                if not done:
                    raise
                raise OutcomeUnknown(
                    f"only the first {done} of {len(changes)} were done: {error}", **error.facts
                ) from error
            done += len(batch)


def _batches(
    changes: Sequence[tuple[bytes, bytes | None]],
) -> Iterator[tuple[Sequence[tuple[bytes, bytes | None]], int]]:
    """Consecutive pieces that one transaction may take, and their weights."""
    first = weight = 0
    for position, (_, value) in enumerate(changes):
        weight += _weight(value)
        if weight >= BATCH_WEIGHT_MAX or position == len(changes) - 1:
            yield changes[first : position + 1], weight
            first, weight = position + 1, 0


def _weight(value: bytes | None) -> int:
    return 1 if value is None else 1 + (len(value) >> 10)


@cache
def _get_many_sql(keys: int) -> tuple[str, int]:
    """The text, and how many keys it asks for: a power of two, so that few texts serve all and stay compiled."""
    asked = 1 << (keys - 1).bit_length()
    marks = ",".join("?" * asked)
    return f"SELECT key, value FROM kv WHERE partition = ? AND key IN ({marks})", asked  # noqa: S608 - only marks
