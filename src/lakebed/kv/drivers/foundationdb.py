"""`foundationdb:///etc/foundationdb/fdb.cluster`: a Store in FoundationDB, over its maker's client, run in threads.

A row's key is the store's name, the partition's length and bytes, the escaped key, and a number. FoundationDB takes
values of 100,000 bytes, so a longer value has several rows. The first row begins with a random version, which every
write makes anew, and the number of rows. An operation is one transaction: FoundationDB refuses to commit it where
another writer changed a row that it read. Reads are strict.

Predicates are the versions, so a value that was put back is noticed (no A-B-A).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import fdb
import msgspec

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.store import Passing, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable, prefix_end

T = TypeVar("T")

API: Final = 710
FORMAT: Final = b"1"
NO_SIZE: Final = "`fdbcli --exec status` shows that of the whole cluster"
NO_COMPACTION: Final = "FoundationDB uses free room again by itself, and its Redwood engine gives it back"
THREADS: Final = 16
VERSION_BYTES: Final = 12
HEAD_BYTES: Final = VERSION_BYTES + 1
ROW_BYTES: Final = 90_000
ROWS_MAX: Final = 0xFE
"""FoundationDB refuses more anyway: it takes transactions of 10,000,000 bytes."""
STATUS: Final = b"\xff\xff/status/json"

TOO_OLD: Final = 1007
"""A transaction may read for five seconds."""
_NOT_COMMITTED: Final = frozenset({TOO_OLD, 1009, 1020, 1037, 1042, 1051, 1078, 1213})
"""Too old, not yet there, a conflict, processes that lag, throttled. FoundationDB did nothing: try again."""
_PERHAPS_DONE: Final = frozenset({1004, 1021, 1025, 1026, 1031, 1039})
"""The client does not know whether it committed: lost result, timeout, or a changed version of the cluster."""


def _from(uri: StoreUri, wait_s: float) -> FoundationDatabase:
    """Open `foundationdb:///etc/foundationdb/fdb.cluster?name=lakebed&threads=16&wait_s=10`."""
    file, name, threads = uri.file(), uri.text("name", "lakebed"), uri.count("threads", THREADS)
    uri.check_all_taken()
    if not name or "/" in name or not name.isascii():
        raise InvalidStoreUri(f"{uri.scheme}: name is not empty, of ASCII and without a slash", scheme=uri.scheme)
    if not file.exists():
        raise InvalidStoreUri(f"{uri.scheme}: there is no cluster file {file}", scheme=uri.scheme)
    try:
        fdb.api_version(API)
    except (OSError, RuntimeError) as error:
        raise InvalidStoreUri(
            f"{uri.scheme}: the client library of FoundationDB, {API / 100} or later, cannot be used: {error}",
            scheme=uri.scheme,
        ) from error
    return FoundationDatabase(fdb.open(str(file)), name=name, threads=threads, timeout_s=max(wait_s, 1))


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


class FoundationDatabase:
    """Transactions, each in a thread."""

    batch_keys_max = 500
    batch_bytes_max = 1 << 20
    batches_at_once = 4
    reads_together = True

    def __init__(self, database: Any, *, name: str, threads: int, timeout_s: float) -> None:
        self._database = database
        self._prefix = name.encode() + b"/"
        self._threads = threads
        self._timeout_ms = int(1000 * timeout_s)
        self._executor: ThreadPoolExecutor | None = None

    async def prepare(self) -> None:
        try:
            await self._run(self._check_and_mark)
        finally:
            await self.close()

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        stem = self._stem(partition)
        return await self._run(lambda: self._read(stem, keys))

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        stem = self._stem(partition)
        return await self._run(lambda: self._scan(stem, start, limit))

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        stem = self._stem(partition)

        def write() -> None:
            transaction = self._begin()
            for key, value in items:
                _put(transaction, stem + _escaped(key), value, _new_version())
            _commit(transaction)

        await self._run(write)

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        row, version = self._stem(partition) + _escaped(key), _new_version()

        def write_if() -> bytes | None:
            transaction = self._begin()
            if _version(transaction, row) != expected:
                return None
            _put(transaction, row, value, version)
            _commit(transaction)
            return version

        return await self._run(write_if)

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        stem = self._stem(partition)

        def remove() -> None:
            transaction = self._begin()
            for key in keys:
                _clear(transaction, stem + _escaped(key))
            _commit(transaction)

        await self._run(remove)

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        row = self._stem(partition) + _escaped(key)

        def remove_if() -> bool:
            transaction = self._begin()
            if _version(transaction, row) != expected:
                return False
            _clear(transaction, row)
            _commit(transaction)
            return True

        return await self._run(remove_if)

    async def partitions(self) -> list[bytes]:
        return await self._run(lambda: list(self._partitions()))

    async def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.shutdown)

    def _stem(self, partition: bytes) -> bytes:
        # With its length in front, no partition is the beginning of another one's keys.
        return self._prefix + len(partition).to_bytes(2, "big") + partition

    async def _run(self, work: Callable[[], T]) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="foundationdb")

        def translated() -> T:
            with _translated():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._executor, translated)

    def _begin(self) -> Any:
        transaction = self._database.create_transaction()
        transaction.options.set_timeout(self._timeout_ms)
        return transaction

    def _check_and_mark(self) -> None:
        transaction = self._begin()
        _check_status(msgspec.json.decode(bytes(transaction.get(STATUS).wait() or b"{}"), type=dict[str, Any]))
        mark = self._prefix + b"format"
        found = transaction.get(mark).wait()
        if found is None:
            transaction.set(mark, FORMAT)
            _commit(transaction)
        elif bytes(found) != FORMAT:
            raise StoreFormat(f"foundationdb: {mark!r} is {bytes(found)!r}: another release or program wrote it")

    def _read(self, stem: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        transaction = self._begin()
        rows = [stem + _escaped(key) for key in keys]
        # Send every request before waiting for the first answer.
        heads = [transaction.get(_numbered(row, 0)) for row in rows]
        found = {}
        for key, row, asked in zip(keys, rows, heads, strict=True):
            head = asked.wait()
            if head is not None:
                more = [transaction.get(_numbered(row, number)) for number in range(1, head[VERSION_BYTES])]
                value = bytes(head)[HEAD_BYTES:] + b"".join(bytes(each.wait()) for each in more)
                found[key] = Held(value, bytes(head)[:VERSION_BYTES])
        return found

    def _scan(self, stem: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Read a page. After a transaction's time limit continue in another one: a page may span several moments."""
        pairs: list[tuple[bytes, bytes]] = []
        while True:
            before = len(pairs)
            begin = stem + (_escaped(pairs[-1][0]) + b"\xff" if pairs else _escaped(start)[:-1])
            try:
                rows = self._begin().get_range(begin, prefix_end(stem), streaming_mode=fdb.StreamingMode.iterator)
                for pair in itertools.islice(_pairs(rows, len(stem)), limit - before):
                    pairs.append(pair)  # noqa: PERF402 - those before a failure count
            except fdb.FDBError as error:
                if error.code != TOO_OLD or len(pairs) == before:
                    raise
            else:
                return pairs

    def _partitions(self) -> Iterator[bytes]:
        begin, end = self._prefix + b"\0", self._prefix + b"\5"  # partitions are shorter than 0x0500, the mark is text
        while rows := list(self._begin().get_range(begin, end, limit=1)):
            row = bytes(rows[0].key)[len(self._prefix) :]
            partition = row[2 : 2 + int.from_bytes(row[:2], "big")]
            yield partition
            after = prefix_end(self._stem(partition))
            assert after is not None
            begin = after


def _check_status(status: dict[str, Any]) -> None:
    """Refuse a setting that would lose answered writes, by its name."""
    cluster = status.get("cluster", {})
    engine = str(cluster.get("configuration", {}).get("storage_engine", ""))
    if "experimental" in engine:
        raise StoreUnavailable(
            f"foundationdb: storage_engine is {engine}: its files may be lost. Configure ssd", setting="storage_engine"
        )
    if cluster.get("database_lock_state", {}).get("locked"):
        raise StoreUnavailable("foundationdb: the database is locked, for a backup or a move", setting="lock")


def _commit(transaction: Any) -> None:
    try:
        transaction.commit().wait()
    except fdb.FDBError as error:
        if error.code in _PERHAPS_DONE:
            raise OutcomeUnknown(f"foundationdb: {_shown(error)}", code=error.code) from error
        raise


def _version(transaction: Any, row: bytes) -> bytes | None:
    """Read the version of a pair. The commit fails if another writer changes it before."""
    head = transaction.get(_numbered(row, 0)).wait()
    return None if head is None else bytes(head)[:VERSION_BYTES]


def _put(transaction: Any, row: bytes, value: bytes, version: bytes) -> None:
    parts = [value[first : first + ROW_BYTES] for first in range(0, len(value), ROW_BYTES)] or [b""]
    if len(parts) > ROWS_MAX:
        raise StoreUnavailable(f"foundationdb: a value of {len(value):,} bytes is too large", size_bytes=len(value))
    _clear(transaction, row)
    transaction.set(_numbered(row, 0), version + bytes([len(parts)]) + parts[0])
    for number, part in enumerate(parts[1:], start=1):
        transaction.set(_numbered(row, number), part)


def _clear(transaction: Any, row: bytes) -> None:
    transaction.clear_range(_numbered(row, 0), row + b"\xff")


def _pairs(rows: Any, skipped: int) -> Iterator[tuple[bytes, bytes]]:
    """Build pairs from their rows. A pair's first row has the number of its rows."""
    ahead = iter(rows)
    for row in ahead:
        name, head = bytes(row.key), bytes(row.value)
        rest = [bytes(each.value) for each in itertools.islice(ahead, head[VERSION_BYTES] - 1)]
        if len(rest) < head[VERSION_BYTES] - 1:
            raise StoreFormat("foundationdb: a value has lost a part of its rows")
        yield _unescaped(name[skipped:-1]), head[HEAD_BYTES:] + b"".join(rest)


def _escaped(key: bytes) -> bytes:
    """Escape and end a key, so that no key is a prefix of another. Keeps their order. Row numbers are below 0xff."""
    return key.replace(b"\0", b"\0\xff") + b"\0"


def _unescaped(row: bytes) -> bytes:
    return row[:-1].replace(b"\0\xff", b"\0")


def _numbered(row: bytes, number: int) -> bytes:
    return row + bytes([number])


def _new_version() -> bytes:
    return os.urandom(VERSION_BYTES)


@contextmanager
def _translated() -> Iterator[None]:
    """Translate errors before a commit. Nothing happened."""
    try:
        yield
    except fdb.FDBError as error:
        message = f"foundationdb: {_shown(error)}"
        if error.code in _NOT_COMMITTED | _PERHAPS_DONE:
            raise Passing(message, code=error.code) from error
        raise StoreUnavailable(message, code=error.code) from error


def _shown(error: Any) -> str:
    return f"{error.description} ({error.code})"
