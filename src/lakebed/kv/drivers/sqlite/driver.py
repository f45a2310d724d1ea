"""`sqlite:///absolute/path`: a Store in one file, for one machine. Several processes may share the file.

Reads run on the caller's event-loop thread: a read takes microseconds, passing it to another thread several times that.
Each read is a transaction of its own, so it sees every write that any process answered before it.

Writes run in one thread, which commits in groups (`commits.py`). An answered write is on the disk, with the default
`synchronous=FULL`. A cancelled write may still be carried out.

Predicates are the values themselves: no column to store, no counter to share between processes. They allow A-B-A: a
value that was replaced and then put back looks unchanged.
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

from lakebed.base import ROWS_A_TURN, OutcomeUnknown
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
"""Keys or KiB of a `*_many` in one transaction. The next part waits for it, and lets other writes pass between."""

READ_MANY: Final = 256
READ_PAUSE_ROWS: Final = 500

_GET: Final = "SELECT value FROM kv WHERE partition = ? AND key = ?"
_SCAN: Final = "SELECT key, value FROM kv WHERE partition = ? AND key >= ? ORDER BY key LIMIT ?"


def open_uri(uri: StoreUri) -> SqliteStore:
    """Open `sqlite:///srv/lakebed/kv.db?synchronous=FULL&busy_timeout_s=10`. The folder must exist, the file need not.

    `?mode=read` opens a file that no process writes, such as a snapshot, and leaves no files beside it.
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
    """Made by `open`. Several event loops, even of different threads, may use it. Close it when all are done."""

    shares_reads = False

    def __init__(
        self, path: Path, *, reader: sqlite3.Connection, writer: sqlite3.Connection | None, busy_timeout_s: float
    ) -> None:
        self._path = path
        self._reader: sqlite3.Connection | None = reader
        # Threads that share a connection without a lock would see each other's older snapshots.
        self._reading = threading.Lock()
        self._busy_timeout_s = busy_timeout_s
        self._committer = None if writer is None else Committer(path, writer, busy_timeout_s)

    @classmethod
    def open(
        cls, path: Path, *, synchronous: Synchronous = "FULL", busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> SqliteStore:
        """Open the file, or make it, readable by its owner only: it contains secrets. Blocks.

        Raises:
            StoreMissing: the folder does not exist.
            StoreUnavailable: no permission, read-only, full, locked for `busy_timeout_s`.
            StoreFormat: not a database, not ours, or of a later format.
        """
        try:
            with ExitStack() as opened:
                if not path.exists():
                    path.touch(mode=0o600)
                writer = opened.enter_context(closing(connect(path, synchronous, busy_timeout_s)))
                prepare_file(path, writer, busy_timeout_s)
                reader = opened.enter_context(closing(connect(path, synchronous, busy_timeout_s)))
                reader.execute("PRAGMA query_only=ON")
                opened.pop_all()  # from here on the store closes them
        except FileNotFoundError as error:
            raise StoreMissing(f"{path}: its folder does not exist", path=str(path)) from error
        except OSError as error:
            raise StoreUnavailable(f"{path}: {error.strerror}", path=str(path)) from error
        except sqlite3.Error as error:
            raise translate(path, error) from error
        return cls(path, reader=reader, writer=writer, busy_timeout_s=busy_timeout_s)

    @classmethod
    def open_snapshot(cls, path: Path) -> SqliteStore:
        """Open a file that no process writes, for reading. Writes raise StoreUnavailable. Blocks.

        Raises:
            StoreMissing, StoreUnavailable: the file does not exist; no permission.
            StoreFormat: not a database, not ours, or of a later format.
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
            # Let other tasks run between chunks: a read of many rows must not occupy the event loop.
            if first:
                await asyncio.sleep(0)
            chunk = keys[first : first + READ_MANY]
            sql, asked = _get_many_sql(len(chunk))
            padding = [chunk[0]] * (asked - len(chunk))
            for key, value in await self._rows(sql, (partition, *chunk, *padding)):
                found[key] = Held(value, value)
        return [found.get(key) for key in keys]

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        """Read one row more than `limit`: it shows whether there is another page, and where it begins."""
        assert limit >= 1
        rows: list[tuple[bytes, bytes]] = []
        while True:
            asked = min(limit + 1 - len(rows), ROWS_A_TURN)
            found = await self._rows(_SCAN, (partition, start, asked))
            rows += found
            # Let other tasks run after each piece, also for the sake of callers that read many pages.
            if len(found) > READ_PAUSE_ROWS:
                await asyncio.sleep(0)
            if len(found) < asked or len(rows) > limit:
                break
            start = rows[-1][0] + b"\0"
        next_start: bytes | None = rows.pop()[0] if len(rows) > limit else None
        return Page([key for key, _ in rows], [value for _, value in rows], next_start)

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        check_key(partition, key)
        await self._submit(partition, ((key, value),), ANYTHING, _weight(value))

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Set the keys in consecutive transactions of up to 2 MiB or 2,048 keys. Other writes may occur between."""
        await self._write_many(partition, items)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        check_key(partition, key)
        await self._submit(partition, ((key, value),), predicate, _weight(value))
        return value

    async def delete(self, partition: bytes, key: bytes) -> None:
        check_key(partition, key)
        await self._submit(partition, ((key, None),), ANYTHING, 1)

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Delete the keys, in transactions as `set_many` uses."""
        await self._write_many(partition, [(key, None) for key in keys])

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        check_key(partition, key)
        assert predicate is not None
        await self._submit(partition, ((key, None),), predicate, 1)

    async def close(self) -> None:
        """Commit the queue, then close the file. The last process to close it leaves no log beside it."""
        with self._reading:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
        if self._committer is not None:
            await asyncio.to_thread(self._committer.close)

    async def _rows(self, sql: str, values: Sequence[bytes | int]) -> list[Any]:
        """Return all rows. Waits, without blocking the loop, only where another program locks out even readers."""
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
    """Yield consecutive pieces of the changes that one transaction may take, with their weights."""
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
    """Return the query, and its number of keys: a power of two, so that few texts serve all and stay compiled."""
    asked = 1 << (keys - 1).bit_length()
    marks = ",".join("?" * asked)
    return f"SELECT key, value FROM kv WHERE partition = ? AND key IN ({marks})", asked  # noqa: S608 - only marks
