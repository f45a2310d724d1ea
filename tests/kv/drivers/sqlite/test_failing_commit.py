"""A commit of SQLite that fails may have worked; what fails before it, or for want of space, did nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import Held, StoreUnavailable
from lakebed.kv.drivers.sqlite import SqliteStore

P = b"partition"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore.open(tmp_path / "kv.db")
    yield store
    await store.close()


class Failing:
    """A writing connection that fails once, with an error of SQLite, right before or after a statement."""

    def __init__(self, connection: sqlite3.Connection, statement: str, code: int, *, is_done: bool) -> None:
        self._connection, self._statement, self._code, self._is_done = connection, statement, code, is_done

    def execute(self, sql: str, values: Sequence[bytes] = ()) -> object:
        if not self._statement or not sql.startswith(self._statement):
            return self._connection.execute(sql, values)
        self._statement = ""
        if self._is_done:
            self._connection.execute(sql, values)
        error = sqlite3.OperationalError("as SQLite words it")
        error.sqlite_errorcode = self._code
        raise error

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


def fail_at(store: SqliteStore, statement: str, code: int, *, is_done: bool = False) -> None:
    committer = store._committer
    assert committer is not None
    committer._connection = Failing(committer._connection, statement, code, is_done=is_done)  # type: ignore[assignment]  # it does what is used of one


@pytest.mark.parametrize(("statement", "expected"), [("COMMIT", b"old"), ("REPLACE", None)])
async def test_who_was_told_that_a_commit_failed_may_find_it_done(
    store: SqliteStore, statement: str, expected: bytes | None
) -> None:
    """A lone write is a transaction by itself. One on a condition has a COMMIT."""
    await store.set(P, b"key", b"old")
    fail_at(store, statement, sqlite3.SQLITE_IOERR_FSYNC, is_done=True)

    with pytest.raises(OutcomeUnknown, match="may yet be found done"):
        await (store.set(P, b"key", b"new") if expected is None else store.set_if(P, b"key", b"new", expected))

    assert await store.get(P, b"key") == Held(b"new", b"new")
    await store.set_if(P, b"key", b"newer", b"new")


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("BEGIN", sqlite3.SQLITE_IOERR_READ),
        ("REPLACE", sqlite3.SQLITE_IOERR_WRITE),
        ("REPLACE", sqlite3.SQLITE_FULL),
        ("COMMIT", sqlite3.SQLITE_FULL),
    ],
)
async def test_what_failed_before_its_commit_or_on_a_full_disk_did_nothing(
    store: SqliteStore, statement: str, code: int
) -> None:
    await store.set(P, b"key", b"old")
    fail_at(store, statement, code)

    with pytest.raises(StoreUnavailable):
        await store.set_if(P, b"key", b"new", b"old")

    assert await store.get(P, b"key") == Held(b"old", b"old")
    await store.set_if(P, b"key", b"newer", b"old")


async def test_no_write_of_a_commit_that_failed_is_done_again(store: SqliteStore) -> None:
    fail_at(store, "COMMIT", sqlite3.SQLITE_IOERR_FSYNC, is_done=True)

    outcomes = await asyncio.gather(
        store.set_if(P, b"a", b"1", None), store.set_if(P, b"b", b"2", None), return_exceptions=True
    )

    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, OutcomeUnknown]
    assert (await store.scan(P, b"", 10)).keys == [b"a", b"b"]
