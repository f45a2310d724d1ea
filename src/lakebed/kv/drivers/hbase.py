"""`hbase://host:8080,host:8080/TABLE`: a Store in Apache HBase, over the HTTP API of its REST server.

No client for asyncio speaks another protocol of HBase. A row's key is the partition, `.` and the key, in hexadecimal
digits: so a partition is one range, in byte order. A row has two cells, the value and its history: a random version
that every write makes anew, then the last versions that it replaced, at most seven.

- Every write is conditional. The REST server repeats a write for minutes after we gave up: it would undo later writes.
  Only a deletion may be undone: an absent row has no history, so a repeated creation brings the key back.
- Cells have timestamp 1, so no clock orders them. With NEW_VERSION_BEHAVIOR HBase orders them by arrival.
- Where HBase fails, its REST server answers that rows are absent. So each read also reads a row that exists.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import PORT_MAX, InvalidStoreUri, StoreUri
from lakebed.kv.remote.gathered import Gathered, copied
from lakebed.kv.remote.http_client import AnswerLost, HttpAnswer, NotSent, Origin, Servers, certificates_of, origin_of
from lakebed.kv.remote.store import (
    Passing,
    answers_of_each,
    open_database,
    partitions_of,
    repeated,
)
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable

T = TypeVar("T")

HEADERS: Final = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
}
FORMAT: Final = b"1"
NO_SIZE: Final = "`status 'detailed'` in HBase's shell shows that of each region"
NO_COMPACTION: Final = "HBase compacts its tables by itself; `major_compact` in its shell does it at once"
MARK: Final = "~format"
"""The key of the format's row. It sorts behind every other row: a scan that reaches it has missed no row."""
FAMILY: Final = b"c"
VALUE: Final = b"c:v"
HISTORY: Final = b"c:n"
VERSION_BYTES: Final = 12
VERSIONS_KEPT: Final = 8
TIMESTAMP: Final = 1
FOREVER: Final = "2147483647"
RELEASE_LEAST: Final = (2, 6)
ROUNDS_MAX: Final = 30
WRITES_AT_ONCE: Final = 4
"""For one batch. With more, the client's CPU for each write grows with its connections, and the batch is no faster."""
CONNECTIONS: Final = 16
PORT: Final = 8080
ADDRESS_LENGTH_MAX: Final = 32 << 10
"""The REST server takes 64 KiB of address and headers."""


class _Cell(msgspec.Struct, rename={"value": "$"}, kw_only=True):
    column: bytes
    timestamp: int = TIMESTAMP
    value: bytes = b""


class _Row(msgspec.Struct, rename={"cells": "Cell"}, kw_only=True):
    key: bytes
    cells: list[_Cell]


class _Rows(msgspec.Struct, rename={"rows": "Row"}, kw_only=True):
    rows: list[_Row]


class _Cluster(msgspec.Struct, rename={"release": "Version"}, kw_only=True):
    release: str


class _Family(msgspec.Struct, kw_only=True):
    name: str
    new_version_behavior: str = msgspec.field(name="NEW_VERSION_BEHAVIOR", default="false")
    lifetime_s: str = msgspec.field(name="TTL", default=FOREVER)


class _Schema(msgspec.Struct, kw_only=True):
    families: list[_Family] = msgspec.field(name="ColumnSchema")
    durability: str = msgspec.field(name="DURABILITY", default="USE_DEFAULT")


def _from(uri: StoreUri, wait_s: float) -> HBaseDatabase:
    """Open `hbase://host:8080,other:8080/table?connections=16&tls=no&ca_file=&wait_s=10`. Make the table where it is
    missing.
    """
    connections = uri.count("connections", CONNECTIONS)
    tls, ca_file = uri.choice("tls", "no", "yes"), uri.text("ca_file", "")
    uri.check_all_taken()
    table, hosts = uri.path.removeprefix("/"), uri.authority.split(",")
    if "@" in uri.authority or not all(re.fullmatch(r"(\[[0-9a-fA-F:.]+]|[^:/?#]+)(:[0-9]+)?", host) for host in hosts):
        raise InvalidStoreUri(f"{uri.scheme}: an example: hbase://127.0.0.1:8080/lakebed", scheme=uri.scheme)
    # The name is part of the request's address: with other characters, the request would name another resource.
    if not re.fullmatch(r"(\w[\w.-]*:)?\w[\w.-]*", table, re.ASCII):
        raise InvalidStoreUri(
            f"{uri.scheme}: a table has letters of ASCII, digits, '_', '.' and '-', perhaps behind a "
            f"namespace and ':'; not {table!r}",
            scheme=uri.scheme,
        )
    timeout_s = max(wait_s, 1)
    servers = Servers(
        [_origin(uri, host, is_tls=tls == "yes") for host in hosts],
        connections=connections,
        timeout_s=timeout_s,
        certificates=certificates_of(uri, ca_file, is_tls=tls == "yes"),
    )
    return HBaseDatabase(servers, table=table, timeout_s=timeout_s)


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


def _origin(uri: StoreUri, host: str, *, is_tls: bool) -> Origin:
    address = host if re.search(":[0-9]+$", host) else f"{host}:{PORT}"
    if not 0 < int(address.rpartition(":")[2]) <= PORT_MAX:
        raise InvalidStoreUri(f"{uri.scheme}: a port is a number from 1 to {PORT_MAX}", scheme=uri.scheme)
    return origin_of(uri, address, is_tls=is_tls)


class HBaseDatabase:
    """Send requests to a REST server."""

    batch_keys_max = 64
    batch_bytes_max = 2 << 20
    batches_at_once = 1
    reads_together = True

    def __init__(self, servers: Servers, *, table: str, timeout_s: float) -> None:
        self._servers = servers
        self._table = table
        self._timeout_s = timeout_s
        self._histories = Gathered(self._histories_of, self.batch_keys_max, equal_share=True)

    async def prepare(self) -> None:
        try:
            _check_release(await self._release())
            schema = await self._schema()
            if schema is None:
                await self._make_table()
                raise Passing("hbase: the table is being made")
            _check_schema(schema)
            await self._put(MARK, FORMAT, b"")
            found = _cells(*await self._multiget([MARK]))[VALUE]
        finally:
            await self.close()
        if found != FORMAT:
            raise StoreFormat(f"hbase: {self._table} is in format {found!r}: another release wrote it")

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        stem = _stem(partition)
        rows = await self._rows([stem + key.hex() for key in keys])
        return {_key(row, stem): Held(cells[VALUE], cells[HISTORY]) for row, cells in rows.items()}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Read rows, then ask for the row behind the last one: a scan that fails half-way looks complete."""
        stem = _stem(partition)
        found: list[tuple[bytes, bytes]] = []
        while True:
            rows = await self._scanned(stem + start.hex(), limit - len(found), end=_end(stem))
            found += [(_key(row.key.decode(), stem), _cells(row)[VALUE]) for row in rows]
            if len(found) == limit:
                return found
            start = found[-1][0] + b"\0" if found else start
            if not (await self._next_row(stem + start.hex())).startswith(stem):
                return found
            if not rows:
                raise OutcomeUnknown("hbase: the scan broke off")

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        stem = _stem(partition)
        values = {stem + key.hex(): value for key, value in items}

        async def put(row: str, held: bytes, deadline: float) -> bool:
            return await self._put(row, values[row], held, deadline) is not None

        await self._change(list(values), put)

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        return await self._put(_stem(partition) + key.hex(), value, b"" if expected is None else expected)

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        stem = _stem(partition)

        async def delete(row: str, held: bytes, deadline: float) -> bool:
            return not held or await self._check("delete", row, [_Cell(column=FAMILY)], held, deadline)

        await self._change([stem + key.hex() for key in keys], delete)

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        """Read the row first: the refusal of a deletion does not show that the row had another version."""
        row = _stem(partition) + key.hex()
        held = (await self._held([row])).get(row, b"")
        if held != expected:
            return False
        if await self._check("delete", row, [_Cell(column=FAMILY)], held):
            return True
        # The REST server repeats a deletion whose answer it lost, and reports that the repetition failed. A row that
        # was replaced still has this version in its history. A new row has not: then this deletion may have been first.
        if held[:VERSION_BYTES] in (await self._versions(row))[1:]:
            return False
        raise OutcomeUnknown("hbase: the row is deleted, by this writer or by another one")

    async def partitions(self) -> list[bytes]:
        found: list[bytes] = []
        row = await self._next_row("0")
        while row != MARK:
            found.append(bytes.fromhex(row.partition(".")[0]))
            row = await self._next_row(_end(_stem(found[-1])))
        return found

    async def close(self) -> None:
        await self._histories.ended()
        await self._servers.aclose()

    async def _change(self, rows: Sequence[str], change: Callable[[str, bytes, float], Awaitable[bool]]) -> None:
        """Change each row, whatever its value. Read a row again where another writer changed it before.

        All changes wait for a disabled table until one deadline. After a failure no further change begins.
        """
        left, gate, held = list(rows), asyncio.Semaphore(WRITES_AT_ONCE), dict[str, bytes]()
        deadline, has_failed = time.monotonic() + self._timeout_s, False

        async def attempt(row: str) -> bool:
            nonlocal has_failed
            async with gate:
                if has_failed:
                    return False
                try:
                    return await change(row, held.get(row, b""), deadline)
                except Exception:
                    has_failed = True
                    raise

        try:
            for _ in range(ROUNDS_MAX):
                held = await self._held(left)
                outcomes = await asyncio.gather(*(attempt(row) for row in left), return_exceptions=True)
                left = [row for row, outcome in zip(left, outcomes, strict=True) if outcome is not True]
                failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
                # Raise the least certain failure first: a refusal means that nothing happened, which is not true of
                # every row.
                for failure in sorted(failures, key=lambda each: isinstance(each, StoreUnavailable)):
                    raise failure
                if not left:
                    return
            raise Passing("hbase: other writers were faster")
        except StoreUnavailable as error:
            if len(left) < len(rows):
                raise OutcomeUnknown(f"hbase: a part of the batch is not done: {error}") from error
            raise

    async def _held(self, rows: Sequence[str]) -> dict[str, bytes]:
        """Read the histories of rows before a change. A single row is read together with rows of other callers."""
        if len(rows) > 1:
            return await self._read_histories(rows)
        held = await self._histories.do(rows[0])
        return {} if held is None else {rows[0]: held}

    async def _histories_of(self, rows: Sequence[str]) -> list[bytes | Exception | None]:
        distinct = list(dict.fromkeys(rows))
        found = await answers_of_each(distinct, lambda: self._read_histories(distinct), self._history)
        return [copied(held) if isinstance(held := found.get(row), Exception) else held for row in rows]

    async def _history(self, row: str) -> bytes | None:
        return (await self._read_histories([row])).get(row)

    async def _read_histories(self, rows: Sequence[str]) -> dict[str, bytes]:
        try:
            return {row: cells[HISTORY] for row, cells in (await self._rows(rows)).items()}
        except OutcomeUnknown as error:
            raise Passing(str(error), **error.facts) from error

    async def _put(self, row: str, value: bytes, held: object, deadline: float | None = None) -> bytes | None:
        """Write a row that is absent, or has this history. Return its new history, or None where it has another one."""
        assert isinstance(held, bytes)
        version = os.urandom(VERSION_BYTES)
        history = version + held[: (VERSIONS_KEPT - 1) * VERSION_BYTES]
        cells = [_Cell(column=VALUE, value=value), _Cell(column=HISTORY, value=history)]
        if await self._check("put", row, cells, held, deadline):
            return history
        # The REST server repeats a write whose answer it lost, and reports that the repetition failed.
        return history if version in await self._versions(row) else None

    async def _versions(self, row: str) -> list[bytes]:
        """Read the present and past versions of a row, after a write that may be done."""
        try:
            history = (await self._rows([row])).get(row, {}).get(HISTORY, b"")
        except StoreUnavailable as error:
            raise OutcomeUnknown(str(error), **error.facts) from error
        return [history[first : first + VERSION_BYTES] for first in range(0, len(history), VERSION_BYTES)]

    async def _check(
        self, kind: str, row: str, cells: Sequence[_Cell], held: object, deadline: float | None = None
    ) -> bool:
        """Change a row that has this history. Return whether HBase changed it. An empty history means an absent row.

        Waits for a disabled table, until `deadline` if given. An earlier attempt may be done: each caller handles
        repetitions.
        """
        assert isinstance(held, bytes)
        changed = _Row(key=row.encode(), cells=[*cells, _Cell(column=HISTORY, value=held)])
        body = msgspec.json.encode(_Rows(rows=[changed]))

        was_disabled = False

        async def attempt() -> HttpAnswer:
            nonlocal was_disabled
            response = await self._send("PUT", f"{self._table}/{row}", {"check": kind}, body)
            # A process that saw no table asks HBase to make one. If another process made it meanwhile, the REST server
            # takes the request for an alteration: it disables the table, alters it to the same schema, and enables it.
            if response.status_code == 503 and "TableNotEnabledException" in response.text:
                was_disabled = True
                raise Passing(f"hbase: the table {self._table} is disabled")
            return response

        try:
            response = await repeated(attempt, deadline or time.monotonic() + self._timeout_s)
        except Passing as error:
            if not was_disabled:
                raise
            raise OutcomeUnknown(str(error), **error.facts) from error
        if response.status_code not in {200, 304}:
            raise _refusal(response)
        return response.status_code == 200

    async def _rows(self, rows: Sequence[str]) -> dict[str, dict[bytes, bytes]]:
        """Read the rows that exist, each with its cells."""
        found: dict[str, dict[bytes, bytes]] = {}
        ahead = list(rows)
        while ahead:
            count = max(1, ADDRESS_LENGTH_MAX // max(len(row) + len("&row=") for row in ahead))
            asked, ahead = ahead[:count], ahead[count:]
            found |= {row.key.decode(): _cells(row) for row in await self._multiget([MARK, *asked])}
        found.pop(MARK, None)
        return found

    async def _multiget(self, rows: Sequence[str]) -> list[_Row]:
        """Read the rows that exist. The format's row must be among them, or the answer does not show HBase's data."""
        found = _decoded(await self._get(f"{self._table}/multiget", row=rows), _Rows).rows
        if MARK not in {row.key.decode() for row in found}:
            raise OutcomeUnknown("hbase: it answers no row, not even the one of the format")
        return found

    async def _next_row(self, start: str) -> str:
        """Return the first row from `start` on. The format's row is the last, so one always exists."""
        rows = await self._scanned(start, 1, column=HISTORY.decode())
        if not rows:
            raise OutcomeUnknown("hbase: the scan broke off")
        return rows[0].key.decode()

    async def _scanned(self, start: str, limit: int, *, end: str = "", column: str = "") -> list[_Row]:
        """Read rows in order. An answer with fewer than `limit` may be incomplete."""
        asked = {"startrow": start, "limit": str(limit)} | ({"endrow": end} if end else {})
        asked |= {"column": column} if column else {}
        return _decoded(await self._get(f"{self._table}/*", **asked), _Rows).rows

    async def _release(self) -> str:
        answer_s = self._servers.greeting_s
        return _decoded(await self._send("GET", "version/cluster", {}, answer_s=answer_s), _Cluster).release

    async def _schema(self) -> _Schema | None:
        response = await self._get(f"{self._table}/schema")
        if response.status_code == 404 and "TableNotFoundException" in response.text:
            return None
        return _decoded(response, _Schema)

    async def _make_table(self) -> None:
        family = {"name": FAMILY.decode(), "NEW_VERSION_BEHAVIOR": "true", "VERSIONS": "1"}
        schema = {"name": self._table, "DURABILITY": "FSYNC_WAL", "ColumnSchema": [family]}
        response = await self._send("PUT", f"{self._table}/schema", {}, msgspec.json.encode(schema))
        if response.status_code not in {200, 201, 304}:  # 304: another process made it
            raise _refusal(response)

    async def _get(self, path: str, **asked: str | Sequence[str]) -> HttpAnswer:
        return await self._send("GET", path, asked)

    async def _send(
        self,
        method: str,
        path: str,
        asked: Mapping[str, str | Sequence[str]],
        content: bytes = b"",
        *,
        answer_s: float | None = None,
    ) -> HttpAnswer:
        server = self._servers.all[0]
        target = f"/{path}?{urlencode(asked, doseq=True)}" if asked else f"/{path}"
        try:
            response = await self._servers.request(
                method, target, headers=HEADERS, content=content, timeout_s=answer_s, server=server
            )
        except NotSent as error:
            raise Passing(f"hbase: no connection: {error}") from error
        except AnswerLost as error:
            raise OutcomeUnknown(f"hbase: the answer was lost: {error}") from error
        if response.status_code == 503:
            self._servers.pass_over(server)
        return response


def _check_release(release: str) -> None:
    """Refuse releases whose REST server reports a row as absent that it could not read."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is None or tuple(map(int, numbers.groups())) < RELEASE_LEAST:
        raise StoreUnavailable(
            f"hbase: Version is {release}: its REST server may answer that a stored row is absent. Use 2.6 or later",
            setting="Version",
        )


def _check_schema(schema: _Schema) -> None:
    """Refuse a setting that would lose answered writes, by its name."""
    name = FAMILY.decode()
    family = next((family for family in schema.families if family.name == name), None)
    if family is None:
        raise StoreFormat(f"hbase: the table has no column family {name}: it is of another program")
    if family.new_version_behavior.lower() != "true":
        raise StoreUnavailable(
            f"hbase: NEW_VERSION_BEHAVIOR of the column family {name} is false: a write after a deletion would be "
            "lost. Alter it to true, and restore a backup if this store was written without it",
            setting="NEW_VERSION_BEHAVIOR",
        )
    if family.lifetime_s not in {FOREVER, "FOREVER"}:
        raise StoreUnavailable(
            f"hbase: TTL of the column family {name} is {family.lifetime_s}: it would delete every answered write. "
            "Alter it to FOREVER, and restore a backup if it was in force",
            setting="TTL",
        )
    if schema.durability in {"SKIP_WAL", "ASYNC_WAL"}:
        raise StoreUnavailable(
            f"hbase: DURABILITY of the table is {schema.durability}: a crash would take back answered writes. "
            "Alter it to SYNC_WAL or FSYNC_WAL",
            setting="DURABILITY",
        )


def _stem(partition: bytes) -> str:
    # The dot sorts before all digits, so no partition is among the keys of another.
    return f"{partition.hex()}."


def _end(stem: str) -> str:
    """Return the first row behind all rows with this stem: a slash follows the dot."""
    return stem[:-1] + "/"


def _key(row: str, stem: str) -> bytes:
    return bytes.fromhex(row[len(stem) :])


def _cells(row: _Row) -> dict[bytes, bytes]:
    cells = {cell.column: cell.value for cell in row.cells}
    if not {VALUE, HISTORY} <= cells.keys():
        raise StoreFormat(f"hbase: the row {row.key!r} lacks a cell: another program wrote it")
    return cells


def _decoded(response: HttpAnswer, type_: type[T]) -> T:
    if response.status_code != 200:
        raise _refusal(response)
    try:
        return msgspec.json.decode(response.content, type=type_)
    except msgspec.DecodeError as error:
        raise OutcomeUnknown(f"hbase: its answer is not one of HBase: {error}") from error


def _refusal(response: HttpAnswer) -> Exception:
    """Translate a refusal. HBase answers 400 for unforeseen failures too, and may have begun."""
    status, text = response.status_code, response.text
    message = f"hbase: it answered {status}: {' '.join(text.split()[:20])}"
    if status == 429:
        return Passing(message)
    is_unforeseen = status == 400 and not re.search("Bad request: |IllegalArgumentException", text)
    if status < 200 or status >= 500 or is_unforeseen:
        return OutcomeUnknown(message, status=status)
    return StoreUnavailable(message, status=status)
