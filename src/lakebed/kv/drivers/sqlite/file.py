"""One SQLite file of a store: its layout, how it is opened and recognised, and the meaning of SQLite's errors.

The layout is docs/formats/kv.md. A file of another program or a later format is refused before anything is written to
it. All connections use WAL with autocommit; explicit statements begin each transaction.
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
"""SQLite's words. FULL and EXTRA survive a power cut.

NORMAL and OFF survive `kill -9`, but a power cut may lose the last writes.
"""

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
"""One statement, so that all three values are of one moment: another process may be making the file."""
_SIZE_BYTES_MIN: Final = 512
_CACHE_KIB: Final = 32 * 1024
SNAPSHOT_PAGES: Final = 4096

# SQLite did nothing after these errors, even of COMMIT itself. With WAL, a commit is done once its last frame is
# written: if there was no space for it, or no attempt, nothing happened. After any other failure of a COMMIT (above all
# a sync) the frame may be in the file, and a recovery may find it.
_NOTHING_HAPPENED: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISUSE}
)


def connect(path: Path, synchronous: Synchronous, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a connection for any thread, one at a time. Once open it never waits for a lock by itself: see
    `patiently`.
    """
    with ExitStack() as opened:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        opened.enter_context(closing(connection))
        for setting in (f"synchronous={synchronous}", f"cache_size=-{_CACHE_KIB}", "temp_store=MEMORY"):
            # Even a PRAGMA may meet a lock, of a process that is making the file.
            patiently(partial(connection.execute, f"PRAGMA {setting}"), busy_timeout_s)
        opened.pop_all()
    return connection


def prepare_file(path: Path, connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Make a new file ours, or check that an old file is ours. Leaves a foreign file unchanged.

    Raises:
        StoreFormat: not a database, another program's, or of a later format.
        StoreUnavailable: read-only, locked, or on a file system without support for WAL.
    """
    if 0 < path.stat().st_size < _SIZE_BYTES_MIN:  # SQLite would take the file for empty, and overwrite it
        raise StoreFormat(f"{path}: not an SQLite database", path=str(path))
    if not patiently(lambda: _is_ours(path, connection), busy_timeout_s):
        patiently(lambda: connection.execute("PRAGMA journal_mode=WAL"), busy_timeout_s)
    patiently(lambda: connection.execute("BEGIN IMMEDIATE"), busy_timeout_s)
    try:
        # Checked again under the lock: another process may have made the file since.
        is_new = not _is_ours(path, connection)
        if is_new:
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        try:
            # Write the version even where it is set: only a write shows whether we can, since BEGIN succeeds on a
            # read-only file.
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # A full disk refuses writes now, and may accept them later. Until then the store serves reads and refuses
            # each write.
            if is_new or primary_code(error) != sqlite3.SQLITE_FULL:
                raise
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    (mode,) = patiently(lambda: connection.execute("PRAGMA journal_mode"), busy_timeout_s).fetchone()
    if mode != "wal":
        raise StoreUnavailable(f"{path}: this file system cannot hold a write-ahead log", path=str(path), mode=mode)


def copy_snapshot(source: Path, target: Path, *, pages_a_step: int = SNAPSHOT_PAGES) -> None:
    """Copy the database, as of one moment, into a new file, while other processes write to it. Blocks.

    Takes as long as a copy of the file. Meanwhile the source's log keeps all new writes.

    Raises:
        StoreMissing, StoreUnavailable: the file does not exist; no permission, or no space for the copy.
        StoreFormat: the source is not ours.
    """
    target.touch(mode=0o600, exist_ok=False)
    try:
        with closing(_connect_to(source, "mode=rw")) as reading, closing(sqlite3.connect(target)) as writing:
            # A read transaction pins the moment. Without it SQLite restarts the copy after each foreign commit, and
            # beside a busy server the copy would never end.
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
    """Connect to a file that no process writes, without locks, log or shared memory.

    Raises:
        StoreFormat: the file is not ours.
    """
    with ExitStack() as opened:
        connection = opened.enter_context(closing(_connect_to(path, "mode=ro&immutable=1")))
        _check_ours(path, connection)
        opened.pop_all()
    return connection


def partitions_in(path: Path) -> list[bytes]:
    """List the partitions in a file, ascending.

    Raises:
        StoreMissing, StoreFormat: the file does not exist, or is not ours.
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
    """Return the size of a store's file and of its log.

    Raises:
        StoreMissing, StoreFormat: the file does not exist, or is not ours.
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
    """Rewrite the database without its free pages. Readers continue.

    Writers wait for this, and this waits for a writer.

    Raises:
        StoreMissing, StoreUnavailable: the file does not exist; it is locked for `timeout_s`, or a second copy has no
            space.
        StoreFormat: the file is not ours.
    """
    try:
        with closing(_connect_to(path, "mode=rw")) as connection:
            _check_ours(path, connection)
            patiently(lambda: connection.execute("VACUUM"), timeout_s)
            # The file shrinks when the log is folded into it. A reader may delay that; then a server does it later.
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
    """Return whether the file is ours. False for an empty file.

    Raises:
        StoreFormat: the file has other contents.
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
    """Repeat while another connection has the lock, for at most `timeout_s`. Call it from threads that may block.

    The pauses are short and random, since a commit holds the lock for typically under a millisecond. SQLite's own
    pauses grow to 100 ms, so one busy process starves another.
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
    """Return SQLite's result code without its extension; SQLITE_MISUSE for errors of the Python module itself."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)) & 0xFF


def refusal(path: Path, error: sqlite3.Error) -> LakebedError:
    """Translate the error of a file that could not be opened.

    For an open store, a lost file must not read as `not found`.
    """
    if primary_code(error) == sqlite3.SQLITE_CANTOPEN and not path.exists():
        return StoreMissing(f"{path}: there is no such file", path=str(path))
    return translate(path, error)


def _can_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def translate(path: Path, error: sqlite3.Error, *, committing: bool = False) -> LakebedError:
    """Translate an error, by the action left to the caller. `committing`: a COMMIT raised it, which may have worked."""
    code = primary_code(error)
    facts = {"path": str(path), "sqlite": getattr(error, "sqlite_errorname", type(error).__name__)}
    if committing and code not in _NOTHING_HAPPENED:
        return OutcomeUnknown(f"{path}: the commit failed, and may yet be found done: {error}", **facts)
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(f"{path}: locked by another program", **facts)
        # SQLite cannot open its log on a read-only disk, and returns no more than this code.
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
