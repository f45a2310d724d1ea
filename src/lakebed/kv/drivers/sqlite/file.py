"""One SQLite file of ours: how it is laid out, opened and recognised, and what SQLite's errors mean.

The layout is docs/formats/kv.md. A file that is not ours, or of a later format, is refused before anything is written
to it. All connections are WAL with autocommit; transactions are begun in words, by the one place that writes.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from lakebed.base import LakebedError, OutcomeUnknown
from lakebed.kv.store import StoreFormat, StoreMissing, StoreSize, StoreUnavailable

T = TypeVar("T")

Synchronous: TypeAlias = Literal["FULL", "EXTRA", "NORMAL", "OFF"]
"""SQLite's words. FULL (as EXTRA) outlives a power cut; NORMAL and OFF outlive `kill -9`, but a power cut may take the
last writes back."""

FORMAT: Final = 1
APPLICATION_ID: Final = int.from_bytes(b"Lkbd", "big")

_TABLE: Final = """
CREATE TABLE kv (
    partition BLOB NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (partition, key)
) WITHOUT ROWID
"""
_WHOSE: Final = """
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
FROM pragma_application_id, pragma_user_version
"""
"""One statement, so that all three are of one moment: another process may be just making the file."""
_SIZE_BYTES_MIN: Final = 512
_CACHE_KIB: Final = 32 * 1024
SNAPSHOT_PAGES: Final = 4096

# What SQLite did not do, even when COMMIT itself says so. With WAL a commit is done by writing its last frame: where
# that could not be written for lack of space, or was never tried, nothing happened. After any other failure of a COMMIT
# (a sync, most of all) the frame may be in the file, and a recovery may find it there.
_NOTHING_HAPPENED: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISUSE}
)


def connect(path: Path, synchronous: Synchronous, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection for any thread, one at a time. Once open it never waits for a lock by itself: see `patiently`."""
    with ExitStack() as opened:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        opened.enter_context(closing(connection))
        for setting in (f"synchronous={synchronous}", f"cache_size=-{_CACHE_KIB}", "temp_store=MEMORY"):
            # Even this may find the file locked, by a process that is just making it.
            patiently(partial(connection.execute, f"PRAGMA {setting}"), busy_timeout_s)
        opened.pop_all()
    return connection


def prepare_file(path: Path, connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Make a new file ours, or check that an old one is; leaves no trace in one that is not.

    Raises:
        StoreFormat: not a database, another program's, or of a later format.
        StoreUnavailable: read-only, locked, or on a file system without what WAL needs.
    """
    if 0 < path.stat().st_size < _SIZE_BYTES_MIN:  # SQLite would take it for empty, and write over it
        raise StoreFormat(f"{path}: not an SQLite database", path=str(path))
    if not patiently(lambda: _is_ours(path, connection), busy_timeout_s):
        patiently(lambda: connection.execute("PRAGMA journal_mode=WAL"), busy_timeout_s)
    patiently(lambda: connection.execute("BEGIN IMMEDIATE"), busy_timeout_s)
    try:
        is_new = not _is_ours(path, connection)  # asked again: another process may have been as new as we are
        if is_new:
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        try:
            # Written even where it is so already: only writing tells whether we can, BEGIN lets read-only files pass.
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # A full disk takes no writes now, and later it may. Until then the store reads; each write is refused.
            if is_new or primary_code(error) != sqlite3.SQLITE_FULL:
                raise
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    (mode,) = patiently(lambda: connection.execute("PRAGMA journal_mode"), busy_timeout_s).fetchone()
    if mode != "wal":
        raise StoreUnavailable(f"{path}: this file system cannot hold a write-ahead log", path=str(path), mode=mode)


def copy_snapshot(source: Path, target: Path, *, pages_a_step: int = SNAPSHOT_PAGES) -> None:
    """Copy the database as it is at one moment into a new file, while others write to it. Blocks.

    Takes as long as the copy of the file. The source's log grows meanwhile by what is written.

    Raises:
        StoreMissing, StoreUnavailable: no such file; no permission, or no space for the copy.
        StoreFormat: the source is not one of ours.
    """
    target.touch(mode=0o600, exist_ok=False)
    try:
        with closing(_connect_to(source, "mode=rw")) as reading, closing(sqlite3.connect(target)) as writing:
            # A read transaction pins the moment. Without it SQLite begins the copy again after each foreign commit,
            # and beside a busy server it never ends.
            reading.execute("BEGIN")
            _check_ours(source, reading)
            reading.backup(writing, pages=pages_a_step)
    except sqlite3.Error as error:
        target.unlink(missing_ok=True)
        raise refusal(source, error) from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def connect_to_snapshot(path: Path) -> sqlite3.Connection:
    """Connect to a file that nothing writes, without locks, log or shared memory.

    Raises:
        StoreFormat: not one of ours.
    """
    with ExitStack() as opened:
        connection = opened.enter_context(closing(_connect_to(path, "mode=ro&immutable=1")))
        _check_ours(path, connection)
        opened.pop_all()
    return connection


def partitions_in(path: Path) -> list[bytes]:
    """
    Raises:
        StoreMissing, StoreFormat: there is no such file, or it is not one of ours.
    """
    found = [b""]
    try:
        with closing(_connect_to(path, "mode=rw")) as connection:
            _check_ours(path, connection)
            sql = "SELECT partition FROM kv WHERE partition > ? ORDER BY partition LIMIT 1"
            while row := connection.execute(sql, (found[-1],)).fetchone():
                found += row
    except sqlite3.Error as error:
        raise refusal(path, error) from error
    return found[1:]


def size_of(path: Path) -> StoreSize:
    """
    Raises:
        StoreMissing, StoreFormat: there is no such file, or it is not one of ours.
    """
    log = path.with_name(path.name + "-wal")
    try:
        with closing(_connect_to(path, "mode=rw")) as connection:
            _check_ours(path, connection)
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            log_bytes = log.stat().st_size if log.exists() else 0
    except sqlite3.Error as error:
        raise refusal(path, error) from error
    return StoreSize(size_bytes=pages * page_bytes, log_bytes=log_bytes, free_bytes=free * page_bytes)


def compact(path: Path, timeout_s: float) -> None:
    """Write the database anew without its free pages. Readers go on; writers wait, and so does this for a writer.

    Raises:
        StoreMissing, StoreUnavailable: no such file; locked for `timeout_s`, or no room for a second copy.
        StoreFormat: not one of ours.
    """
    try:
        with closing(_connect_to(path, "mode=rw")) as connection:
            _check_ours(path, connection)
            patiently(lambda: connection.execute("VACUUM"), timeout_s)
            # The file shrinks when the log is folded into it. A reader may hold that up; then a server does it later.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise refusal(path, error) from error


def _connect_to(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?{options}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _check_ours(path: Path, connection: sqlite3.Connection) -> None:
    if not _is_ours(path, connection):
        raise StoreFormat(f"{path}: empty, not a store", path=str(path))


def _is_ours(path: Path, connection: sqlite3.Connection) -> bool:
    """False for an empty file.

    Raises:
        StoreFormat: something else is in it.
    """
    application_id, version, objects = connection.execute(_WHOSE).fetchone()
    if application_id == APPLICATION_ID and version == FORMAT:
        return True
    if application_id == APPLICATION_ID:
        raise StoreFormat(
            f"{path}: written in format {version} by another release; this one reads and writes format {FORMAT}",
            path=str(path),
            format=version,
        )
    if application_id or version or objects:
        raise StoreFormat(f"{path}: an SQLite database, but not one of ours", path=str(path))
    return False


def patiently(act: Callable[[], T], timeout_s: float) -> T:
    """Do it again and again while another connection has the lock, for that long; for threads that may block.

    The pauses are short and random, since the lock is held for a commit's length, typically under a millisecond;
    SQLite's own pauses grow to 100 ms, with which one busy process starves another.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311 - jitter, no secret


def is_busy(error: sqlite3.Error) -> bool:
    return primary_code(error) == sqlite3.SQLITE_BUSY


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; SQLITE_MISUSE for what the Python module itself refused."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)) & 0xFF


def refusal(path: Path, error: sqlite3.Error) -> LakebedError:
    """The error of ours where a file could not be opened. Of an open store a lost file is no answer `not found`."""
    if primary_code(error) == sqlite3.SQLITE_CANTOPEN and not path.exists():
        return StoreMissing(f"{path}: there is no such file", path=str(path))
    return translate(path, error)


def _can_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def translate(path: Path, error: sqlite3.Error, *, committing: bool = False) -> LakebedError:
    """The error of ours that says what the caller can do. `committing`: raised by a COMMIT, which may have worked."""
    code = primary_code(error)
    facts = {"path": str(path), "sqlite": getattr(error, "sqlite_errorname", type(error).__name__)}
    if committing and code not in _NOTHING_HAPPENED:
        return OutcomeUnknown(f"{path}: the commit failed, and may yet be found done: {error}", **facts)
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(f"{path}: locked by another program", **facts)
        # SQLite cannot open its log on a read-only disk, and says no more than that.
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN if not _can_write(path.parent):
            return StoreUnavailable(
                f"{path}: its folder or disk is read-only: make it writable, and try again", **facts
            )
        case sqlite3.SQLITE_READONLY:
            return StoreUnavailable(f"{path}: the file is read-only: make it writable, and try again", **facts)
        case sqlite3.SQLITE_CANTOPEN:
            return StoreUnavailable(
                f"{path}: it, or its log beside it ({path.name}-wal, -shm), cannot be opened: look at their owners and"
                " permissions",
                **facts,
            )
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"{path}: the disk is full", **facts)
        case sqlite3.SQLITE_NOTADB:
            return StoreFormat(f"{path}: not an SQLite database", **facts)
        case sqlite3.SQLITE_CORRUPT:
            return StoreFormat(f"{path}: the database is damaged", **facts)
        case _:
            return StoreUnavailable(f"{path}: {error}", **facts)
