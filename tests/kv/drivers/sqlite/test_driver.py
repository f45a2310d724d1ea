"""The SQLite driver keeps the contract of durable stores, and says clearly what is wrong when it cannot."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lakebed.base import ROWS_A_TURN, Corrupt, OutcomeUnknown, Unavailable
from lakebed.kv import (
    Held,
    InvalidStoreUri,
    PredicateFailed,
    StoreFormat,
    StoreMissing,
    StoreUnavailable,
    compact_store,
    open_store,
    snapshot_store,
    sqlite_uri,
    store_size,
)
from lakebed.kv.drivers.sqlite import SqliteStore
from lakebed.kv.drivers.sqlite.file import compact, connect, copy_snapshot, prepare_file, refusal, translate
from lakebed.testing.contracts import DurableStoreContract
from tests.conftest import fill_disk

P = b"partition"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore.open(path)
    yield store
    await store.close()


@contextmanager
def foreign_connection(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program at our file."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def writer_of(store: SqliteStore) -> sqlite3.Connection:
    assert store._committer is not None
    return store._committer._connection


def limit_to(store: SqliteStore, pages: int) -> None:
    """From now on the disk is full beyond that many pages."""
    writer_of(store).execute(f"PRAGMA max_page_count={pages}")


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def content_size(path: Path) -> int:
    return path.stat().st_size


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("as SQLite words it")
    error.sqlite_errorcode = code
    return error


def set_modes(folder: Path, folder_mode: int, file_mode: int) -> None:
    (folder / "kv.db").chmod(file_mode)
    folder.chmod(folder_mode)


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def damage_pages(path: Path) -> None:
    """All but the first."""
    content = bytearray(path.read_bytes())
    for offset in range(4096, len(content), 4096):
        content[offset : offset + 64] = b"\xa5" * 64
    path.write_bytes(content)


class TestSqliteStore(DurableStoreContract):
    @pytest.fixture
    def store_uri(self, path: Path) -> str:
        return sqlite_uri(path)


@pytest.mark.parametrize("synchronous", ["EXTRA", "FULL", "NORMAL", "OFF"])
async def test_synchronous_can_be_chosen(path: Path, synchronous: str) -> None:
    store = open_store(f"{sqlite_uri(path)}?synchronous={synchronous}")
    assert isinstance(store, SqliteStore)

    (level,) = writer_of(store).execute("PRAGMA synchronous").fetchone()
    await store.close()

    assert ["OFF", "NORMAL", "FULL", "EXTRA"][level] == synchronous


async def test_synchronous_is_full_unless_chosen(store: SqliteStore) -> None:
    assert writer_of(store).execute("PRAGMA synchronous").fetchone() == (2,)
    assert writer_of(store).execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_predicates_are_values_so_a_value_put_back_counts_as_unchanged(store: SqliteStore) -> None:
    predicate = await store.set_if(P, b"key", b"A", None)
    await store.set(P, b"key", b"B")
    await store.set(P, b"key", b"A")

    await store.set_if(P, b"key", b"ours", predicate)


async def test_writes_of_a_group_happen_in_the_order_of_the_calls(store: SqliteStore) -> None:
    results = await asyncio.gather(
        store.set(P, b"key", b"1"),
        store.set_if(P, b"key", b"2", b"1"),
        store.set_if(P, b"key", b"x", b"1"),
        store.delete_if(P, b"key", b"2"),
        store.delete_if(P, b"key", b"2"),
        store.set_if(P, b"key", b"3", None),
        store.delete(P, b"other"),
        return_exceptions=True,
    )

    failed = [number for number, result in enumerate(results) if isinstance(result, PredicateFailed)]
    assert failed == [2, 4]
    assert (await store.scan(P, b"", 10)).values == [b"3"]


async def test_writes_of_one_round_of_the_loop_share_a_transaction(store: SqliteStore) -> None:
    statements: list[str] = []
    writer_of(store).set_trace_callback(statements.append)

    await asyncio.gather(*[store.set_if(P, b"%02d" % number, b"v", None) for number in range(16)])

    assert [one for one in statements if one.startswith("COMMIT")] == ["COMMIT"]


async def test_a_store_that_closes_commits_the_writes_of_the_present_round(store: SqliteStore) -> None:
    write = asyncio.ensure_future(store.set(P, b"key", b"1"))
    await asyncio.sleep(0)  # The write is made, and its round has not ended.

    assert store._committer is not None
    store._committer.close()

    await write
    assert await store.get(P, b"key") == Held(b"1", b"1")


async def test_a_write_that_comes_while_the_store_closes_is_answered(store: SqliteStore) -> None:
    committer, loop = store._committer, asyncio.get_running_loop()
    assert committer is not None
    entry = committer._entry
    late: list[asyncio.Task[object]] = []

    async def begin_one() -> None:
        late.append(asyncio.ensure_future(store.set(P, b"late", b"1")))
        await asyncio.sleep(0)

    class Between:
        """The lock, which lets a write in each time that the closing thread lets it go."""

        lock = entry

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()
            if threading.current_thread() is not threading.main_thread():
                asyncio.run_coroutine_threadsafe(begin_one(), loop).result()

    early = asyncio.ensure_future(store.set(P, b"early", b"1"))
    await asyncio.sleep(0)
    committer._entry = Between()  # type: ignore[assignment]  # a lock, as far as `with` goes
    await asyncio.to_thread(committer.close)
    await asyncio.sleep(0.01)

    assert early.done()
    assert late
    assert all(one.done() for one in late)
    assert all(isinstance(one.exception(), StoreUnavailable) for one in late)


async def test_a_cancelled_caller_does_not_disturb_the_others(store: SqliteStore) -> None:
    tasks = [asyncio.ensure_future(store.set(P, b"key %d" % number, b"")) for number in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()

    await asyncio.gather(*tasks[:3], *tasks[4:])

    assert len((await store.scan(P, b"", 100)).keys) >= 9


def test_a_store_serves_several_event_loops(path: Path) -> None:
    store = SqliteStore.open(path)

    async def use(number: int) -> bytes:
        await store.set(P, b"key", b"%d" % number)
        found = await store.get(P, b"key")
        assert found is not None
        return found.value

    assert [asyncio.run(use(number)) for number in range(3)] == [b"0", b"1", b"2"]
    asyncio.run(store.close())


async def test_a_long_walk_lets_other_tasks_run(store: SqliteStore) -> None:
    await store.set_many(P, [(b"%06d" % number, b"") for number in range(4000)])
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(tick())
    start: bytes | None = b""
    while start is not None:
        start = (await store.scan(P, start, 1000)).next_start
    ticking.cancel()

    assert ticks >= 4


@pytest.mark.parametrize("end", [b"x", b"\x00"])
async def test_a_page_as_long_as_a_turn_of_the_loop_is_not_the_last(store: SqliteStore, end: bytes) -> None:
    keys = sorted(b"%05d" % (number // 2) + (end if number % 2 else b"") for number in range(ROWS_A_TURN + 1))
    await store.set_many(P, [(key, b"") for key in keys])

    page = await store.scan(P, b"", ROWS_A_TURN)

    assert (page.keys, page.next_start) == (keys[:-1], keys[-1])


async def test_the_file_is_for_its_owner_only(store: SqliteStore, path: Path) -> None:
    await store.set(P, b"key", b"")

    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


async def test_closing_leaves_one_file_and_no_log(store: SqliteStore, path: Path) -> None:
    await store.set(P, b"key", b"value")

    await store.close()

    assert [file.name for file in path.parent.iterdir()] == ["kv.db"]


async def test_a_path_may_have_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a b?c#d%20é"
    folder.mkdir()

    store = open_store(sqlite_uri(folder / "kv?.db"))
    await store.set(P, b"key", b"")
    await store.close()

    assert [file.name for file in folder.iterdir()] == ["kv?.db"]


# What can be wrong


async def test_a_full_disk_refuses_what_does_not_fit_and_loses_nothing(store: SqliteStore, path: Path) -> None:
    await store.set(P, b"key", b"value")
    limit_to(store, 10)

    with pytest.raises(StoreUnavailable, match=r"kv\.db: the disk is full"):
        await store.set(P, b"key", bytes(300_000))

    assert (await store.scan(P, b"", 10)).values == [b"value"]
    limit_to(store, 1000)
    await store.set(P, b"key", bytes(300_000))


async def test_what_fits_is_not_kept_out_by_what_does_not(store: SqliteStore) -> None:
    await store.set(P, b"key", b"value")
    limit_to(store, 10)

    outcomes = await asyncio.gather(
        store.set(P, b"small", b"1"),
        store.set(P, b"big", bytes(300_000)),
        store.set_if(P, b"key", b"2", b"value"),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes] == [type(None), StoreUnavailable, bytes]
    assert (await store.scan(P, b"", 10)).values == [b"2", b"1"]


async def test_a_batch_that_ends_half_way_has_an_unknown_outcome(store: SqliteStore) -> None:
    await store.set(P, b"key", b"value")
    limit_to(store, 100)

    with pytest.raises(OutcomeUnknown, match="only the first 2048 of 9000"):
        await store.set_many(P, [(b"%05d" % number, bytes(100)) for number in range(9000)])

    assert len((await store.scan(P, b"", 10_000)).keys) == 2049


async def test_a_lock_of_another_program_is_waited_for(store: SqliteStore, path: Path) -> None:
    with foreign_connection(path) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.set(P, b"key", b"value"))
        await asyncio.sleep(0.02)
        assert not writing.done()
        assert await store.get(P, b"key") is None  # readers are not locked out

        other.execute("COMMIT")
        await writing

    assert await store.get(P, b"key") is not None


async def test_a_lock_held_too_long_is_an_error_and_nothing_happened(path: Path) -> None:
    store = SqliteStore.open(path, busy_timeout_s=0.02)
    with foreign_connection(path) as other:
        other.execute("BEGIN IMMEDIATE")

        for attempt in (store.set(P, b"a", b""), store.set_if(P, b"b", b"", None), store.delete_many(P, [b"a", b"b"])):
            with pytest.raises(StoreUnavailable, match=r"kv\.db: locked by another program"):
                await attempt
        with pytest.raises(StoreUnavailable, match=r"kv\.db: locked by another program"):
            SqliteStore.open(path, busy_timeout_s=0.02)

    assert (await store.scan(P, b"", 10)).keys == []
    await store.close()


async def test_a_program_that_locks_out_readers_is_waited_for_without_blocking_the_loop(path: Path) -> None:
    await SqliteStore.open(path).close()
    with foreign_connection(path) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("CREATE TABLE t (x)")
        other.execute("DROP TABLE t")
        with pytest.raises(StoreUnavailable, match="locked by another program"):
            SqliteStore.open(path, busy_timeout_s=0.02)


class LockedOut:
    """A connection that finds the file locked, so many times."""

    def __init__(self, connection: sqlite3.Connection | None, times: int) -> None:
        assert connection is not None
        self.connection = connection
        self.times = times

    def execute(self, sql: str, values: Sequence[bytes | int]) -> sqlite3.Cursor:
        self.times -= 1
        if self.times >= 0:
            raise sqlite_error(sqlite3.SQLITE_BUSY_RECOVERY)
        return self.connection.execute(sql, values)

    def close(self) -> None:
        self.connection.close()


async def test_a_reader_waits_while_another_process_recovers_the_file(store: SqliteStore) -> None:
    await store.set(P, b"key", b"value")
    store._reader = LockedOut(store._reader, times=3)  # type: ignore[assignment]  # what of it is used

    found = await store.get(P, b"key")

    assert found is not None
    assert found.value == b"value"


async def test_a_reader_locked_out_too_long_gives_up(path: Path) -> None:
    store = SqliteStore.open(path, busy_timeout_s=0.01)
    store._reader = LockedOut(store._reader, times=1000)  # type: ignore[assignment]  # what of it is used

    with pytest.raises(StoreUnavailable, match="locked by another program"):
        await store.get(P, b"key")

    await store.close()


def as_nobody() -> int:
    """Root may write anywhere: become somebody else, where we are root. Returns whom to become afterwards."""
    uid = os.geteuid()
    if uid == 0:
        os.seteuid(65534)
    return uid


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o444, 0o555), (0o666, 0o555)])
async def test_a_read_only_file_or_folder_is_an_error_at_opening(file_mode: int, folder_mode: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "kv.db"
        await SqliteStore.open(path).close()
        set_modes(folder, folder_mode, file_mode)

        uid = as_nobody()
        try:
            with pytest.raises(StoreUnavailable, match=r"kv\.db: (the file|its folder or disk) is read-only"):
                SqliteStore.open(path)
        finally:
            os.seteuid(uid)
            set_modes(folder, 0o700, 0o600)


async def test_a_disk_that_became_read_only_is_named_at_opening(mount_disk: Callable[[str], Path]) -> None:
    """Its log is there, as after a kill, and SQLite says only that it cannot open it."""
    path = mount_disk("8m") / "kv.db"
    killed = "import sys; from tests.kv.drivers.sqlite.test_driver import write_and_die; write_and_die(sys.argv[1])"
    root = Path(__file__).parents[4]
    died = await asyncio.create_subprocess_exec(sys.executable, "-c", killed, str(path), cwd=root)
    assert await died.wait() == -signal.SIGKILL
    remount = await asyncio.create_subprocess_exec("mount", "-o", "remount,ro", str(path.parent))
    assert await remount.wait() == 0

    with pytest.raises(StoreUnavailable, match=r"kv\.db: its folder or disk is read-only: make it writable"):
        SqliteStore.open(path)


async def test_a_full_disk_opens_for_reading_after_a_kill_and_takes_writes_once_there_is_room(
    mount_disk: Callable[[str], Path],
) -> None:
    path = mount_disk("8m") / "kv.db"
    killed = "import sys; from tests.kv.drivers.sqlite.test_driver import write_and_die; write_and_die(sys.argv[1])"
    root = Path(__file__).parents[4]
    died = await asyncio.create_subprocess_exec(sys.executable, "-c", killed, str(path), cwd=root)
    assert await died.wait() == -signal.SIGKILL
    ballast = fill_disk(path.parent)

    store = SqliteStore.open(path)

    assert len((await store.scan(P, b"", 100)).keys) == 10
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await store.set_many(P, [(b"large %d" % number, bytes(100_000)) for number in range(20)])
    ballast.unlink()
    await store.set(P, b"later", b"1")
    await store.close()


def write_and_die(path: str) -> None:
    async def write() -> None:
        store = SqliteStore.open(Path(path))
        for number in range(10):
            await store.set(P, b"%d" % number, b"1")
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(write())


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match=r"nowhere/kv\.db: its folder does not exist"):
        SqliteStore.open(tmp_path / "nowhere" / "kv.db")


def test_only_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    """Another user's file cannot be opened either, and is there."""
    there, refused, broken = tmp_path / "kv.db", sqlite3.OperationalError(), sqlite3.OperationalError()
    there.touch()
    refused.sqlite_errorcode, broken.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR

    assert type(refusal(tmp_path / "nowhere.db", refused)) is StoreMissing
    assert type(refusal(there, refused)) is StoreUnavailable
    assert type(refusal(tmp_path / "nowhere.db", broken)) is StoreUnavailable


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened: look at their owners"):
        SqliteStore.open(tmp_path)


async def test_a_later_format_is_refused_and_left_alone(path: Path) -> None:
    await SqliteStore.open(path).close()
    with foreign_connection(path) as other:
        other.execute("PRAGMA user_version=2")
    before = content_of(path)

    with pytest.raises(StoreFormat, match=r"kv\.db: written in format 2 by another release.* format 1"):
        SqliteStore.open(path)

    assert content_of(path) == before


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    with foreign_connection(path) as other:
        other.execute("CREATE TABLE kv (key TEXT, value TEXT)")
    before = path.read_bytes()

    with pytest.raises(StoreFormat, match=r"kv\.db: an SQLite database, but not one of ours"):
        SqliteStore.open(path)

    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["kv.db"]


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\x00" + bytes(5000), b"x"])
def test_something_else_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(StoreFormat, match=r"kv\.db: (not an SQLite database|the database is damaged)"):
        SqliteStore.open(path)

    assert path.read_bytes() == content


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()

    store = SqliteStore.open(path)

    asyncio.run(store.close())
    asyncio.run(SqliteStore.open(path).close())


def test_a_file_that_another_process_makes_meanwhile_is_a_store(tmp_path: Path) -> None:
    """Whichever of our statements it comes before. Behind the last of these we hold the lock, and it waits."""
    is_over = False
    for number in range(20):
        path, statements = tmp_path / f"{number}.db", list[str]()

        def make(
            statement: str, *, path: Path = path, statements: list[str] = statements, number: int = number
        ) -> None:
            statements.append(statement)
            if len(statements) == number + 1 and not statement.startswith("BEGIN"):
                with closing(connect(path, "OFF", 10)) as other:
                    prepare_file(path, other, 10)

        with closing(connect(path, "OFF", 10)) as ours:
            ours.set_trace_callback(make)
            prepare_file(path, ours, 10)
            is_over = statements[number].startswith("BEGIN")
        if is_over:
            break

    assert is_over


async def test_a_damaged_page_is_found(path: Path) -> None:
    store = SqliteStore.open(path)
    await store.set_many(P, [(b"%05d" % number, bytes(100)) for number in range(3000)])
    await store.close()
    damage_pages(path)

    store = SqliteStore.open(path)
    with pytest.raises(Corrupt, match=r"kv\.db: the database is damaged"):
        await store.scan(P, b"", 10_000)

    await store.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_NOMEM])
def test_a_commit_that_failed_may_have_worked(path: Path, code: int) -> None:
    assert isinstance(translate(path, sqlite_error(code), committing=True), OutcomeUnknown)
    assert isinstance(translate(path, sqlite_error(code)), Unavailable)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY])
def test_a_commit_that_was_refused_did_nothing(path: Path, code: int) -> None:
    assert isinstance(translate(path, sqlite_error(code), committing=True), StoreUnavailable)


async def test_a_mistake_in_one_write_fails_that_one_only(store: SqliteStore) -> None:
    outcomes = await asyncio.gather(
        store.set(P, b"a", []),  # type: ignore[arg-type]  # the mistake
        store.set(P, b"b", b""),
        return_exceptions=True,
    )

    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable, type(None)]


class Unshowable(sqlite3.Error):
    def __str__(self) -> str:
        raise ValueError("this error has no words")


class Untranslatable(bytes):
    """A value that the database's client refuses with an error of which no message can be made."""

    def __conform__(self, _: object) -> bytes:
        raise Unshowable


async def test_a_write_after_one_that_failed_in_an_unforeseen_way_is_done(store: SqliteStore) -> None:
    with pytest.raises(OutcomeUnknown, match=r"kv\.db: writing failed in an unforeseen way: value error"):
        await store.set_if(P, b"a", Untranslatable(b"1"), None)

    await store.set_if(P, b"b", b"2", None)

    assert (await store.scan(P, b"", 10)).keys == [b"b"]


class DeafLoop(asyncio.SelectorEventLoop):
    """Other threads cannot wake it."""

    def call_soon_threadsafe(self, *_: object, **__: object) -> asyncio.Handle:
        raise MemoryError


async def test_a_loop_that_cannot_be_woken_keeps_no_answer_from_the_others(store: SqliteStore) -> None:
    def write_without_an_answer() -> None:
        loop = DeafLoop()
        writing = loop.create_task(store.set(P, b"deaf", b"1"))
        loop.run_until_complete(asyncio.sleep(0))  # it is queued
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(writing)
        loop.close()

    await asyncio.to_thread(write_without_an_answer)
    await store.set(P, b"ours", b"2")

    assert (await store.scan(P, b"", 10)).keys == [b"deaf", b"ours"]


async def test_a_snapshot_ends_while_others_write_and_is_of_one_moment(path: Path, tmp_path: Path) -> None:
    store = SqliteStore.open(path, synchronous="OFF")
    await store.set_many(P, [(b"old %06d" % number, bytes(200)) for number in range(5_000)])
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            await store.set(P, b"new %08d" % written, bytes(200))
            written += 1

    writing = asyncio.create_task(write())
    before = written
    await asyncio.to_thread(copy_snapshot, path, tmp_path / "copy.db", pages_a_step=8)
    after = written
    writing.cancel()

    assert after > before, "nothing was written meanwhile"
    copy = open_store(f"{sqlite_uri(tmp_path / 'copy.db')}?mode=read")
    keys = (await copy.scan(P, b"", 10**6)).keys
    new = [key for key in keys if key.startswith(b"new")]
    assert len(keys) - len(new) == 5_000
    assert new == [b"new %08d" % number for number in range(len(new))]
    assert before <= len(new) <= after + 1
    await copy.close()
    await store.close()


async def test_a_snapshot_takes_no_writes_and_leaves_no_trace(path: Path, tmp_path: Path) -> None:
    store = SqliteStore.open(path)
    await store.set(P, b"key", b"value")
    snapshot_store(sqlite_uri(path), tmp_path / "copy.db")
    await store.close()
    before = names_in(tmp_path)

    copy = SqliteStore.open_snapshot(tmp_path / "copy.db")

    with pytest.raises(StoreUnavailable, match="reading only"):
        await copy.set(P, b"key", b"other")
    with pytest.raises(StoreUnavailable, match="reading only"):
        await copy.delete_many(P, [b"key"])
    found = await copy.get(P, b"key")
    assert found is not None
    assert found.value == b"value"
    await copy.close()
    assert names_in(tmp_path) == before
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


def test_a_snapshot_of_what_is_no_store_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()

    with pytest.raises(StoreFormat, match="not a store"):
        snapshot_store(sqlite_uri(tmp_path / "empty.db"), tmp_path / "copy.db")
    with pytest.raises(StoreUnavailable):
        snapshot_store(sqlite_uri(tmp_path / "absent.db"), tmp_path / "copy.db")
    with pytest.raises(InvalidStoreUri, match="no snapshots"):
        snapshot_store("mem://", tmp_path / "copy.db")

    assert [file.name for file in tmp_path.iterdir()] == ["empty.db"]


async def test_compacting_gives_free_space_back_while_a_store_is_open(path: Path) -> None:
    uri, store = sqlite_uri(path), SqliteStore.open(path)
    await store.set_many(P, [(b"%06d" % number, bytes(500)) for number in range(5_000)])
    await store.delete_many(P, [b"%06d" % number for number in range(4_900)])
    before = store_size(uri)

    await asyncio.to_thread(compact_store, uri)
    after = store_size(uri)

    assert before.free_bytes > before.size_bytes // 2
    assert after.free_bytes < 10_000
    assert after.size_bytes < before.size_bytes // 10
    assert content_size(path) == after.size_bytes
    await store.set(P, b"later", b"1")
    assert len((await store.scan(P, b"", 1000)).keys) == 101
    await store.close()


async def test_compacting_waits_for_a_writer_and_then_says_that_it_is_locked(path: Path) -> None:
    await SqliteStore.open(path).close()
    with foreign_connection(path) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match="locked by another program"):
            compact(path, 0.02)

        other.execute("COMMIT")
    compact(path, 0.02)


def test_what_is_no_store_has_no_size_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        store_size(sqlite_uri(tmp_path / "absent.db"))
    with pytest.raises(StoreUnavailable):
        compact_store(sqlite_uri(tmp_path / "absent.db"))
    with pytest.raises(InvalidStoreUri, match="does not tell its size: nothing of it lies on a disk"):
        store_size("mem://")

    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "uri", ["sqlite:", "sqlite://", "sqlite:///", "sqlite://host/kv.db", "sqlite:relative.db", "sqlite:///folder/"]
)
def test_a_uri_without_an_absolute_path_is_refused(uri: str) -> None:
    with pytest.raises(InvalidStoreUri, match="absolute path"):
        open_store(uri)
