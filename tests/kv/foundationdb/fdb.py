"""A double of the client of FoundationDB: its Python interface, as far as the driver uses it, over a SQLite file.

It stands beside the cluster file, so that processes share it. Transactions read one moment and buffer what they write;
a commit is refused where another one changed what the transaction read. The limits are those of FoundationDB.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

KEY_MAX, VALUE_MAX, TRANSACTION_MAX, LIFE_S = 10_000, 100_000, 10_000_000, 5.0
STATUS = b"\xff\xff/status/json"
status: dict[str, Any] = {"cluster": {"configuration": {"storage_engine": "ssd-2"}}}
TEXTS = {1007: "Transaction is too old", 1020: "Transaction not committed due to conflict with another transaction"}

_chosen: int | None = None


class FDBError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
        self.description = TEXTS.get(code, "It failed")


class StreamingMode:
    want_all = -2
    iterator = -1


def api_version(version: int) -> None:
    global _chosen
    if _chosen not in (None, version):
        raise RuntimeError("FDB API already loaded at another version")
    _chosen = version


def open(cluster_file: str) -> Database:  # noqa: A001 - the client names it so
    assert _chosen is not None
    return Database(f"{cluster_file}.data")


class Database:
    def __init__(self, file: str) -> None:
        self.file = file
        connection = self.connect()
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(
            "CREATE TABLE IF NOT EXISTS kv (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID;"
            "CREATE TABLE IF NOT EXISTS changes (version INTEGER, first BLOB, last BLOB, at REAL);"
            "CREATE TABLE IF NOT EXISTS latest (version INTEGER);"
            "INSERT INTO latest SELECT 1 WHERE NOT EXISTS (SELECT * FROM latest);"
        )
        connection.close()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.file, isolation_level=None, timeout=60, check_same_thread=False)

    def create_transaction(self) -> Transaction:
        return Transaction(self)


@dataclass
class KeyValue:
    key: bytes
    value: bytes


class Future:
    def __init__(self, value: bytes | None) -> None:
        self.value = value

    def wait(self) -> bytes | None:
        return self.value


class Commit:
    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction

    def wait(self) -> None:
        self.transaction.carry_out()


class Options:
    def set_timeout(self, timeout_ms: int) -> None:
        assert timeout_ms > 0


class Transaction:
    def __init__(self, database: Database) -> None:
        self.options = Options()
        self._database = database
        self._connection = database.connect()
        self._began: float | None = None
        self._version = 0
        self._reads: list[tuple[bytes, bytes]] = []
        self._writes: list[tuple[bytes, bytes, bytes | None]] = []

    def __del__(self) -> None:
        self._connection.close()

    def get(self, key: bytes) -> Future:
        if key == STATUS:
            return Future(json.dumps(status).encode())
        self._begin()
        self._reads.append((key, key + b"\0"))
        row = self._connection.execute("SELECT v FROM kv WHERE k = ?", (key,)).fetchone()
        return Future(None if row is None else bytes(row[0]))

    def get_range(
        self, begin: bytes, end: bytes, limit: int = 0, streaming_mode: int = StreamingMode.iterator
    ) -> Iterator[KeyValue]:
        """Read row after row, as far as the caller goes."""
        assert streaming_mode in {StreamingMode.iterator, StreamingMode.want_all}
        count = 0
        self._begin()
        position = begin
        while not limit or count < limit:
            self._begin()
            query = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT 100"
            rows = self._connection.execute(query, (position, end)).fetchall()
            for key, value in rows:
                self._begin()
                yield KeyValue(bytes(key), bytes(value))
                count += 1
                if count == limit:
                    return
            if len(rows) < 100:
                self._reads.append((begin, end))
                return
            position = bytes(rows[-1][0]) + b"\0"
            self._reads.append((begin, position))

    def set(self, key: bytes, value: bytes) -> None:
        if len(key) > KEY_MAX:
            raise FDBError(2102)
        if len(value) > VALUE_MAX:
            raise FDBError(2103)
        self._writes.append((key, key + b"\0", value))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._writes.append((begin, end, None))

    def commit(self) -> Commit:
        return Commit(self)

    def carry_out(self) -> None:
        if sum(len(first) + len(value or b"") for first, _, value in self._writes) > TRANSACTION_MAX:
            raise FDBError(2101)
        if self._reads:
            self._begin()
            self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._apply()
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _begin(self) -> None:
        """Fix the moment that is read. It is too far back five seconds later."""
        if self._began is None:
            self._began = time.monotonic()
            self._connection.execute("BEGIN")
            [(self._version,)] = self._connection.execute("SELECT version FROM latest")
        elif time.monotonic() - self._began > LIFE_S:
            raise FDBError(1007)

    def _apply(self) -> None:
        for first, last in self._reads:
            changed = "SELECT 1 FROM changes WHERE version > ? AND first < ? AND last > ? LIMIT 1"
            if self._connection.execute(changed, (self._version, last, first)).fetchone():
                raise FDBError(1020)
        self._connection.execute("UPDATE latest SET version = version + 1")
        [(version,)] = self._connection.execute("SELECT version FROM latest")
        for first, last, value in self._writes:
            if value is None:
                self._connection.execute("DELETE FROM kv WHERE k >= ? AND k < ?", (first, last))
            else:
                self._connection.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (first, value))
            self._connection.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (version, first, last, time.time()))
        self._connection.execute("DELETE FROM changes WHERE at < ?", (time.time() - 4 * LIFE_S,))
