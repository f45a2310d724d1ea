"""Group commit: one thread, and one transaction for all writes that arrived during the sync of the last transaction.

A write waits for the end of its event loop's round, for the transaction under way, if any, and for its own. The
thread takes the queue, reads the rows of all conditions, and computes in memory the effect of each write after the
writes before it. Then it writes the net effect. So a failed condition fails only its own caller, and a group of any
size needs few statements.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias, TypeVar

from lakebed.base import LakebedError, OutcomeUnknown, name_in_words
from lakebed.kv.store import PredicateFailed, StoreUnavailable

from .file import is_busy, patiently, translate

R = TypeVar("R")

Place: TypeAlias = tuple[bytes, bytes]
"""Partition and key."""

ANYTHING: Final = object()
"""The condition of an unconditional write."""

ROWS_A_STATEMENT: Final = 64
GROUP_WEIGHT_MAX: Final = 8192
"""A group with this many keys or KiB takes no further write: the log stays small, and no write waits for long."""


@dataclass(frozen=True, slots=True)
class Write:
    """One call's changes. `expected`: a value, None for absent, or ANYTHING. A conditional write has one change."""

    answer: asyncio.Future[None]
    partition: bytes
    changes: Sequence[tuple[bytes, bytes | None]]
    expected: object
    weight: int


class Committer:
    """Owns the writing connection and its thread, until `close`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, busy_timeout_s: float) -> None:
        self._path = path
        self._connection = connection
        self._busy_timeout_s = busy_timeout_s
        self._queue: SimpleQueue[Write | None] = SimpleQueue()
        self._entry = threading.Lock()
        self._round: dict[asyncio.AbstractEventLoop, list[Write]] = {}
        """Writes of each loop's present round, which go into the queue together at its end."""
        self._closed = False
        self._finishing = False
        self._thread = threading.Thread(target=self._run, name=f"lakebed-kv {path.name}", daemon=True)
        self._thread.start()

    def submit(
        self, partition: bytes, changes: Sequence[tuple[bytes, bytes | None]], expected: object, weight: int
    ) -> asyncio.Future[None]:
        """Queue a write of the running loop, at the end of the loop's present round.

        The future ends when the write is committed, or raises the write's own error.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        with self._entry:  # no write may follow the end mark: it would get no answer
            if self._closed:
                raise StoreUnavailable(f"{self._path}: this store is closed", path=str(self._path))
            writes = self._round.get(loop)
            if writes is None:
                # Not at once: the thread would begin a transaction with the first of the writes that this round makes.
                writes = self._round[loop] = []
                loop.call_soon(self._end_round, loop)
            writes.append(Write(answer, partition, changes, expected, weight))
        return answer

    def _end_round(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._entry:
            for write in self._round.pop(loop, ()):
                self._queue.put(write)

    def close(self) -> None:
        """Commit the queue, then end the thread and close the connection. Blocks. Closing twice is no error."""
        with self._entry:  # the rounds and the end mark as one: a write between them would get no answer
            if not self._closed:
                for writes in self._round.values():
                    for write in writes:
                        self._queue.put(write)
                self._round.clear()
                self._closed = True
                self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        running = True
        while running:
            group, running = self._take_group()
            if group:
                _answer(group, self._outcomes(group))

    def _take_group(self) -> tuple[list[Write], bool]:
        """Wait for a write, then take the queue behind it. Return the group, and whether more writes may follow."""
        group: list[Write] = []
        weight = 0
        write = self._queue.get()
        while write is not None:
            group.append(write)
            weight += write.weight
            if weight >= GROUP_WEIGHT_MAX:
                return group, True
            try:
                write = self._queue.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _outcomes(self, group: Sequence[Write]) -> list[LakebedError | None]:
        """Commit the group. Return None or an error for each write.

        Raises no error: without this thread every caller would wait without end.
        """
        try:
            return self._commit(group)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the callers'
            self._roll_back()
            return [self._unforeseen(error) for _ in group]

    def _unforeseen(self, error: Exception) -> OutcomeUnknown:
        # Without the error's own message: formatting it may be the step that failed.
        unforeseen = OutcomeUnknown(f"{self._path}: writing failed in an unforeseen way: {name_in_words(type(error))}")
        unforeseen.__cause__ = error
        return unforeseen

    def _commit(self, group: Sequence[Write]) -> list[LakebedError | None]:
        self._finishing = False
        try:
            return self._transact(group)
        except sqlite3.Error as error:
            failure = translate(self._path, error, committing=self._finishing)
            apart = len(group) > 1 and isinstance(failure, StoreUnavailable) and not is_busy(error)
        self._roll_back()
        if apart:  # a write that does not fit must not fail the others
            return [self._outcomes([write])[0] for write in group]
        # Each caller gets its own error, since callers add their tracebacks to it.
        return [type(failure)(str(failure), **failure.facts) for _ in group]

    def _roll_back(self) -> None:
        with suppress(Exception):  # if this fails, the next transaction fails too, and rolls back
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _transact(self, group: Sequence[Write]) -> list[LakebedError | None]:
        conditions = sorted(
            {(write.partition, write.changes[0][0]) for write in group if write.expected is not ANYTHING}
        )
        stored: dict[Place, bytes] = {}
        if conditions:
            self._begin()
            stored = self._read(conditions)
        errors, net = net_effect(group, stored)
        statements = _statements(net)
        if not conditions and len(statements) == 1:
            self._finish(*statements[0])  # a transaction by itself, without BEGIN and COMMIT
            return errors
        # Few statements matter beyond SQLite's time: between two statements this thread must get Python's global lock
        # back. A busy event loop can delay that by milliseconds.
        if not conditions:
            self._begin()
        for sql, values in statements:
            self._connection.execute(sql, values)
        self._finish("COMMIT", ())
        return errors

    def _begin(self) -> None:
        patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"), self._busy_timeout_s)

    def _read(self, places: Sequence[Place]) -> dict[Place, bytes]:
        found: dict[Place, bytes] = {}
        for chunk in _chunks(places):
            rows = self._connection.execute(_select_sql(len(chunk)), [part for place in chunk for part in place])
            found.update({chunk[number]: value for number, value in rows})
        return found

    def _finish(self, sql: str, values: Sequence[bytes]) -> None:
        """Execute the statement that makes the transaction durable: COMMIT, or a statement outside any transaction."""
        self._finishing = True
        patiently(lambda: self._connection.execute(sql, values), self._busy_timeout_s)


def net_effect(
    group: Sequence[Write], stored: Mapping[Place, bytes]
) -> tuple[list[LakebedError | None], dict[Place, bytes | None]]:
    """Compute the effect of a group, one write after the other. `stored` has the values that the conditions test.

    Returns an error or None for each write, and the final value of each changed place (None: absent).
    """
    errors: list[LakebedError | None] = []
    net: dict[Place, bytes | None] = {}
    for write in group:
        partition = write.partition
        if write.expected is not ANYTHING:
            place = (partition, write.changes[0][0])
            if (net[place] if place in net else stored.get(place)) != write.expected:
                what = "the stored value is not the one that was read"
                errors.append(PredicateFailed(what, partition=place[0], key=place[1]))
                continue
        for key, value in write.changes:
            net[partition, key] = value
        errors.append(None)
    return errors, net


def _statements(net: Mapping[Place, bytes | None]) -> list[tuple[str, list[bytes]]]:
    """Return the statements of a net effect, in key order: so each page of the file is touched once."""
    sets: list[tuple[bytes, bytes, bytes]] = []
    deletes: dict[bytes, list[bytes]] = {}
    for (partition, key), value in sorted(net.items()):
        if value is None:
            deletes.setdefault(partition, []).append(key)
        else:
            sets.append((partition, key, value))
    statements = [(_replace_sql(len(chunk)), [part for row in chunk for part in row]) for chunk in _chunks(sets)]
    for partition, keys in deletes.items():
        statements += [(_delete_sql(len(chunk)), [partition, *chunk]) for chunk in _chunks(keys)]
    return statements


def _chunks(rows: Sequence[R]) -> Iterator[Sequence[R]]:
    for first in range(0, len(rows), ROWS_A_STATEMENT):
        yield rows[first : first + ROWS_A_STATEMENT]


# One text for each number of rows, so that sqlite3's cache finds the compiled statement.


@cache
def _replace_sql(rows: int) -> str:
    marks = ",".join(["(?,?,?)"] * rows)
    return f"REPLACE INTO kv (partition, key, value) VALUES {marks}"  # noqa: S608 - only marks


@cache
def _delete_sql(rows: int) -> str:
    marks = ",".join("?" * rows)
    return f"DELETE FROM kv WHERE partition = ? AND key IN ({marks})"  # noqa: S608 - only marks


@cache
def _select_sql(rows: int) -> str:
    """Return a query for rows of (position of the place, value).

    A row-value IN would read the whole table; this join seeks once for each place.
    """
    marks = ",".join(f"({number},?,?)" for number in range(rows))
    wanted = f"WITH wanted (number, p, k) AS (VALUES {marks})"
    return f"{wanted} SELECT number, value FROM wanted CROSS JOIN kv ON partition = p AND key = k"  # noqa: S608 - as above


def _answer(group: Sequence[Write], errors: Sequence[LakebedError | None]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], LakebedError | None]]] = {}
    for write, error in zip(group, errors, strict=True):
        by_loop.setdefault(write.answer.get_loop(), []).append((write.answer, error))
    # One wake-up for each event loop, whatever the size of the group.
    for loop, answers in by_loop.items():
        with suppress(Exception):  # the loop is closed, so no task waits in it; a failure must not stop the other loops
            loop.call_soon_threadsafe(_settle, answers)


def _settle(answers: Sequence[tuple[asyncio.Future[None], LakebedError | None]]) -> None:
    for answer, error in answers:
        if answer.done():  # cancelled; the write is done nevertheless
            continue
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)
