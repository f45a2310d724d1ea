"""`bigtable://PROJECT/INSTANCE/TABLE`: a Store in Google Cloud Bigtable, over the asyncio stubs of its client library.

A row's key is the partition's length and bytes, then the key: so a partition is one range, in byte order. A row has two
cells, the value and a random version that every write makes anew. Both cells always have timestamp 0, so a write
replaces them: otherwise Bigtable would keep several cells, and after a clock went back an old value would be first.
Conditions test the version, so a value that was put back is noticed (no A-B-A).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import grpc
from google.cloud.bigtable_admin_v2 import ColumnFamily, CreateTableRequest, GcRule, GetTableRequest, Table
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import (
    BigtableTableAdminGrpcAsyncIOTransport,
)
from google.cloud.bigtable_v2.services.bigtable import BigtableAsyncClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcAsyncIOTransport
from google.cloud.bigtable_v2.types import (
    CheckAndMutateRowRequest,
    MutateRowRequest,
    MutateRowsRequest,
    Mutation,
    ReadRowsRequest,
    ReadRowsResponse,
    RowFilter,
    RowRange,
    RowSet,
    ValueRange,
)

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.store import Passing, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable, prefix_end

from .gcloud import NotThere, emulator_of, open_transport, translated

NAME: Final = "bigtable"
FORMAT: Final = b"1"
NO_SIZE: Final = "Cloud Monitoring shows it, as bytes used by the table"
NO_COMPACTION: Final = "Bigtable compacts its tables by itself, within a week of a deletion"
MARK: Final = b"format"
"""The key of the format's row. Keys of other rows begin with a length, which is below 0x0401."""
PARTITIONS_END: Final = b"\x05"
FAMILY: Final = "c"
VALUE: Final = b"v"
VERSION: Final = b"n"


def _from(uri: StoreUri, wait_s: float) -> BigtableDatabase:
    """Open `bigtable://project/instance/table?app_profile=&wait_s=10&endpoint=`. Make the table where it is missing."""
    profile, emulator = uri.text("app_profile", ""), emulator_of(uri)
    uri.check_all_taken()
    instance, _, table = uri.path.removeprefix("/").partition("/")
    if not uri.authority or not instance or not table or "/" in table:
        raise InvalidStoreUri(f"{uri.scheme}: an example: bigtable://project/instance/lakebed", scheme=uri.scheme)
    parent = f"projects/{uri.authority}/instances/{instance}"
    return BigtableDatabase(parent, table, profile=profile, emulator=emulator, timeout_s=max(wait_s, 1))


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


class BigtableDatabase:
    """Requests to one table, over one channel."""

    batch_keys_max = 1000
    batch_bytes_max = 2 << 20
    batches_at_once = 4
    reads_together = True

    def __init__(self, parent: str, table: str, *, profile: str, emulator: str, timeout_s: float) -> None:
        self._parent = parent
        self._table = table
        self._target = {"table_name": f"{parent}/tables/{table}", "app_profile_id": profile}
        self._emulator = emulator
        self._timeout_s = timeout_s
        self._options = {"retry": None, "timeout": timeout_s}
        self._client: BigtableAsyncClient | None = None

    async def prepare(self) -> None:
        try:
            try:
                await self._check_table()
                await self._write_row_if(MARK, FORMAT, None)
            except NotThere:
                await self._make_table()
                raise Passing("bigtable: the table is being made") from None
            [(_, cells)] = await self._rows(RowSet(row_keys=[MARK]))
        finally:
            await self.close()
        if cells[VALUE] != FORMAT:
            raise StoreFormat(f"bigtable: {self._table} is in format {cells[VALUE]!r}: another release wrote it")

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        stem = _stem(partition)
        rows = await self._rows(RowSet(row_keys=[stem + key for key in keys]))
        return {row[len(stem) :]: Held(cells[VALUE], cells[VERSION]) for row, cells in rows}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        stem = _stem(partition)
        rows = await self._first_rows(stem + start, prefix_end(stem), limit, column=VALUE)
        return [(row[len(stem) :], cells[VALUE]) for row, cells in rows]

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        stem = _stem(partition)
        await self._mutate([(stem + key, _set(value, _new_version())) for key, value in items])

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        return await self._write_row_if(_stem(partition) + key, value, expected)

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        stem = _stem(partition)
        await self._mutate([(stem + key, [_delete()]) for key in keys])

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        return await self._check_and_mutate(_stem(partition) + key, _is_version(expected), matched=[_delete()])

    async def partitions(self) -> list[bytes]:
        found: list[bytes] = []
        start: bytes | None = b"\0"
        while start is not None and (rows := await self._first_rows(start, PARTITIONS_END, 1, column=VERSION)):
            row = rows[0][0]
            found.append(row[2 : 2 + int.from_bytes(row[:2], "big")])
            start = prefix_end(_stem(found[-1]))
        return found

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.transport.close()

    async def _write_row_if(self, row: bytes, value: bytes, expected: Predicate | None) -> bytes | None:
        version = _new_version()
        mutations = _set(value, version)
        if expected is None:
            is_there = await self._check_and_mutate(row, _one_cell(), absent=mutations)
            return None if is_there else version
        return version if await self._check_and_mutate(row, _is_version(expected), matched=mutations) else None

    async def _check_and_mutate(
        self,
        row: bytes,
        condition: RowFilter,
        *,
        matched: Sequence[Mutation] = (),
        absent: Sequence[Mutation] = (),
    ) -> bool:
        """Carry out the mutations for a true or a false condition. Return whether the condition was true."""
        request = CheckAndMutateRowRequest(
            **self._target, row_key=row, predicate_filter=condition, true_mutations=matched, false_mutations=absent
        )
        async with translated(NAME):
            done = await self._open().check_and_mutate_row(request, **self._options)
        return bool(done.predicate_matched)

    async def _mutate(self, rows: Sequence[tuple[bytes, list[Mutation]]]) -> None:
        async with translated(NAME):
            if len(rows) == 1:
                [(row, mutations)] = rows
                request = MutateRowRequest(**self._target, row_key=row, mutations=mutations)
                await self._open().mutate_row(request, **self._options)
                return
            entries = [MutateRowsRequest.Entry(row_key=row, mutations=mutations) for row, mutations in rows]
            answers = await self._open().mutate_rows(
                MutateRowsRequest(**self._target, entries=entries), **self._options
            )
            done = [entry.status async for answer in answers for entry in answer.entries]
        failed = [status for status in done if status.code]
        if failed or len(done) < len(rows):
            reason = failed[0].message if failed else "no answer for some"
            raise OutcomeUnknown(f"bigtable: a part of the batch may not be done: {reason}")

    async def _rows(self, rows: RowSet) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Read rows, in byte order, each with its cells."""
        return (await self._read_rows(rows, limit=0)).done

    async def _first_rows(
        self, start: bytes, end: bytes | None, limit: int, *, column: bytes
    ) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Read this cell of `limit` rows from `start` on, in byte order. Returns fewer rows only at the end."""
        found: list[tuple[bytes, dict[bytes, bytes]]] = []
        while True:
            wanted = limit - len(found)
            ahead = _range(found[-1][0] + b"\0" if found else start, end)
            read = await self._read_rows(ahead, limit=wanted, filter=_of_column(column))
            found += read.done
            # Bigtable may return a row that was just deleted without cells, and count it: this is not the end.
            if read.done_or_empty < wanted or len(found) == limit:
                return found

    async def _read_rows(self, rows: RowSet, *, limit: int, **chosen: RowFilter) -> _Rows:
        request = ReadRowsRequest(**self._target, rows=rows, rows_limit=limit, **chosen)
        found = _Rows()
        async with translated(NAME):
            async for answer in await self._open().read_rows(request, **self._options):
                # The library's wrapper costs more for each field than all work here, so read the plain message.
                found.take(ReadRowsResponse.pb(answer).chunks)
        return found

    async def _check_table(self) -> None:
        request = GetTableRequest(name=self._target["table_name"], view=Table.View.SCHEMA_VIEW)
        async with self._admin() as transport:
            metadata = [("x-goog-request-params", f"name={request.name}")]
            table = await transport.get_table(request, metadata=metadata, timeout=self._options["timeout"])
        if FAMILY in table.column_families:
            _check_collection(table.column_families[FAMILY].gc_rule)

    async def _make_table(self) -> None:
        family = ColumnFamily(gc_rule=GcRule(max_num_versions=1))
        request = CreateTableRequest(
            parent=self._parent, table_id=self._table, table=Table(column_families={FAMILY: family})
        )
        async with self._admin() as transport:
            try:
                metadata = [("x-goog-request-params", f"parent={self._parent}")]
                await transport.create_table(request, metadata=metadata, timeout=self._options["timeout"])
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.ALREADY_EXISTS:
                    raise

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        async with translated(NAME):
            transport = self._transport(BigtableTableAdminGrpcAsyncIOTransport)
            try:
                yield transport
            finally:
                await transport.close()

    def _open(self) -> BigtableAsyncClient:
        if self._client is None:
            self._client = BigtableAsyncClient(transport=self._transport(BigtableGrpcAsyncIOTransport))
        return self._client

    def _transport(self, made_by: Any) -> Any:
        return open_transport(made_by, self._emulator, NAME, self._timeout_s)


class _Rows:
    """Put rows together from the pieces in which Bigtable sends them."""

    def __init__(self) -> None:
        self.done: list[tuple[bytes, dict[bytes, bytes]]] = []
        self._empty = 0
        self._row, self._column, self._value = b"", b"", b""
        self._cells: dict[bytes, bytes] = {}

    @property
    def done_or_empty(self) -> int:
        """Return the number of rows, including rows that Bigtable returned without cells."""
        return len(self.done) + self._empty

    def take(self, chunks: Sequence[Any]) -> None:
        """Add the chunks of one answer. A chunk without a row key or column continues the row or column before it."""
        self._empty += not chunks
        for chunk in chunks:
            if chunk.reset_row:
                self._begin()
                continue
            if chunk.row_key:
                self._row = chunk.row_key
            if chunk.HasField("qualifier"):
                self._column = chunk.qualifier.value
            self._value += chunk.value
            if not chunk.value_size:  # else the next chunk continues the value
                self._cells[self._column] = self._value
                self._value = b""
            if chunk.commit_row:
                self.done.append((self._row, self._cells))
                self._begin()

    def _begin(self) -> None:
        self._row, self._column, self._value = b"", b"", b""
        self._cells = {}


def _check_collection(rule: GcRule) -> None:
    """Refuse a rule that deletes cells by age: ours have timestamp 0, so Bigtable would delete each at once."""
    kind = GcRule.pb(rule).WhichOneof("rule")
    if kind not in (None, "max_num_versions"):
        raise StoreUnavailable(
            f"bigtable: the garbage collection of the column family {FAMILY} has the rule {kind}: it would delete "
            "answered writes. Set the rule to one version, and restore a backup if it was in force",
            setting="gc_rule",
        )


def _stem(partition: bytes) -> bytes:
    # The length comes first, so that no partition is a prefix of another partition's keys.
    return len(partition).to_bytes(2, "big") + partition


def _range(start: bytes, end: bytes | None) -> RowSet:
    assert end is not None, "a stem does not consist of 0xff alone"
    return RowSet(row_ranges=[RowRange(start_key_closed=start, end_key_open=end)])


def _new_version() -> bytes:
    return os.urandom(12)


def _set(value: bytes, version: bytes) -> list[Mutation]:
    cells = ((VALUE, value), (VERSION, version))
    return [
        Mutation(set_cell=Mutation.SetCell(family_name=FAMILY, column_qualifier=column, timestamp_micros=0, value=cell))
        for column, cell in cells
    ]


def _delete() -> Mutation:
    return Mutation(delete_from_row=Mutation.DeleteFromRow())


def _one_cell() -> RowFilter:
    return RowFilter(cells_per_row_limit_filter=1)


def _of_column(column: bytes) -> RowFilter:
    return RowFilter(column_qualifier_regex_filter=column)


def _is_version(version: Any) -> RowFilter:
    """Make the condition that the row has this version."""
    value = RowFilter(value_range_filter=ValueRange(start_value_closed=version, end_value_closed=version))
    return RowFilter(chain=RowFilter.Chain(filters=[_of_column(VERSION), value]))
