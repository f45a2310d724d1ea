"""`spanner://PROJECT/INSTANCE/DATABASE`: a Store in Google Cloud Spanner, over the asyncio stubs of its client library.

One table has all pairs, by partition and key, with a random version that every write makes anew. A write without a
condition, or on absence, is one commit. A write on a version is a read and a commit in one transaction: Spanner aborts
it where another writer changed the row between. Reads are strong.

Predicates are the versions, so a value that was put back is noticed (no A-B-A).
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

import grpc
from google.cloud.spanner_admin_database_v1.services.database_admin.transports import DatabaseAdminGrpcAsyncIOTransport
from google.cloud.spanner_admin_database_v1.types import (
    DatabaseDialect,
    GetDatabaseDdlRequest,
    GetDatabaseRequest,
    UpdateDatabaseDdlRequest,
)
from google.cloud.spanner_v1.services.spanner import SpannerAsyncClient
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcAsyncIOTransport
from google.cloud.spanner_v1.types import (
    BeginTransactionRequest,
    CommitRequest,
    CreateSessionRequest,
    DeleteSessionRequest,
    ExecuteSqlRequest,
    KeyRange,
    KeySet,
    Mutation,
    PartialResultSet,
    ReadRequest,
    RollbackRequest,
    TransactionOptions,
    TransactionSelector,
)
from google.protobuf.struct_pb2 import ListValue, Value

from lakebed.base import OutcomeUnknown
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.store import Passing, harmless, open_database, partitions_of, repeated
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable

from .gcloud import Aborted, AlreadyThere, NotThere, emulator_of, open_transport, translated

NAME: Final = "spanner"
FORMAT: Final = b"1"
NO_SIZE: Final = "the table SPANNER_SYS.TABLE_SIZES_STATS_1HOUR has it"
NO_COMPACTION: Final = "Spanner compacts its tables by itself, within a week of a deletion"
MARK: Final = (b"", b"format")
"""The place of the format's row. No other partition is empty."""
SESSIONS: Final = 16
DELETE_S: Final = 2.0
"""Wait at most this long for the deletion of sessions. The service drops a session that is idle for an hour."""

COLUMNS: Final = ("p", "k", "v", "n")
MAKE_TABLE: Final = """CREATE TABLE {table} (
  p BYTES(1024) NOT NULL, k BYTES(1024) NOT NULL, v BYTES(MAX) NOT NULL, n BYTES(12) NOT NULL
) PRIMARY KEY (p, k)"""
PARTITIONS: Final = "SELECT DISTINCT p FROM {table} WHERE p > b''"

_READ_WRITE: Final = TransactionOptions(
    read_write=TransactionOptions.ReadWrite(), isolation_level=TransactionOptions.IsolationLevel.SERIALIZABLE
)
_STRONG: Final = TransactionSelector(single_use=TransactionOptions(read_only=TransactionOptions.ReadOnly(strong=True)))
_ABORTED: Final = (grpc.StatusCode.ABORTED,)
"""Another transaction interfered: Spanner did nothing, and asks to begin again."""


def _from(uri: StoreUri, wait_s: float) -> SpannerDatabase:
    """Open `spanner://project/instance/database?table=lakebed&sessions=16&wait_s=10&endpoint=`.

    Make the table where it is missing.
    """
    table, sessions, emulator = uri.text("table", "lakebed"), uri.count("sessions", SESSIONS), emulator_of(uri)
    uri.check_all_taken()
    instance, _, database = uri.path.removeprefix("/").partition("/")
    if not uri.authority or not instance or not database or "/" in database:
        raise InvalidStoreUri(f"{uri.scheme}: an example: spanner://project/instance/database", scheme=uri.scheme)
    if not re.fullmatch("[a-z][a-z0-9_]{0,99}", table):
        raise InvalidStoreUri(
            f"{uri.scheme}: table is a name of lower case letters, digits and _, not {table!r}", scheme=uri.scheme
        )
    name = f"projects/{uri.authority}/instances/{instance}/databases/{database}"
    return SpannerDatabase(name, table, sessions=sessions, emulator=emulator, timeout_s=max(wait_s, 1))


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)  # reads the whole table's keys


class SpannerDatabase:
    """Requests to one table. Each request has a session to itself."""

    batch_keys_max = 500
    batch_bytes_max = 2 << 20
    batches_at_once = 4
    reads_together = True

    def __init__(self, name: str, table: str, *, sessions: int, emulator: str, timeout_s: float) -> None:
        self._name = name
        self._table = table
        self._emulator = emulator
        self._timeout_s = timeout_s
        self._options = {"retry": None, "timeout": timeout_s}
        self._short = {"retry": None, "timeout": min(timeout_s, DELETE_S)}
        self._client: SpannerAsyncClient | None = None
        self._idle: list[str] = []
        self._spoilt: list[str] = []
        """Sessions that may have an open transaction, with locks. They are deleted before the next request."""
        # The emulator takes one writing transaction at a time, and aborts others.
        self._turns = asyncio.Semaphore(1 if emulator else sessions)

    async def prepare(self) -> None:
        try:
            await self._check_or_make_table()
            with suppress(AlreadyThere):
                await self._commit([self._put("insert", *MARK, FORMAT)])
            found = (await self.read(MARK[0], [MARK[1]]))[MARK[1]]
        finally:
            await self.close()
        if found.value != FORMAT:
            raise StoreFormat(f"spanner: {self._table} is in format {found.value!r}: another release wrote it")

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        wanted = KeySet(keys=[_list(partition, key) for key in keys])
        async with self._session() as session:
            rows = await self._rows(session, _STRONG, wanted, ("k", "v", "n"))
        return {key: Held(value, version) for key, value, version in rows}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        wanted = KeySet(ranges=[KeyRange(start_closed=_list(partition, start), end_closed=_list(partition))])
        async with self._session() as session:
            rows = await self._rows(session, _STRONG, wanted, ("k", "v"), limit=limit)
        return [(key, value) for key, value in rows]

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        await self._commit([self._put("insert_or_update", partition, key, value) for key, value in items])

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        version = _new_version()
        if expected is None:
            try:
                await self._commit([self._put("insert", partition, key, value, version)])
            except AlreadyThere:
                return None
            return version
        mutation = self._put("update", partition, key, value, version)
        return version if await self._commit_if(partition, key, expected, mutation) else None

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        await self._commit([self._delete(partition, keys)])

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        return await self._commit_if(partition, key, expected, self._delete(partition, [key]))

    async def partitions(self) -> list[bytes]:
        async with self._session() as session, translated(NAME):
            request = ExecuteSqlRequest(session=session, sql=PARTITIONS.format(table=self._table), transaction=_STRONG)
            answers = await self._open().execute_streaming_sql(request, **self._options)
            return [partition for (partition,) in await _rows_of(answers, 1)]

    async def close(self) -> None:
        if self._client is not None:
            try:
                with suppress(StoreUnavailable):
                    await repeated(harmless(self._delete_all), time.monotonic() + DELETE_S)
            finally:
                client, self._client = self._client, None
                await client.transport.close()

    async def _commit(self, mutations: Sequence[Mutation]) -> None:
        async with self._turns, self._session() as session, translated(NAME, _ABORTED):
            request = CommitRequest(session=session, mutations=mutations, single_use_transaction=_READ_WRITE)
            await self._open().commit(request, **self._options)

    async def _commit_if(self, partition: bytes, key: bytes, expected: Any, mutation: Mutation) -> bool:
        """Commit if the row has the expected version. Return whether it had."""
        wanted = KeySet(keys=[_list(partition, key)])
        async with self._turns, self._session() as session:
            begun: list[bytes] = []
            selector = TransactionSelector(begin=_READ_WRITE)
            async with _nothing_sent():
                rows = await self._rows(session, selector, wanted, ("n",), begun=begun)
            if rows != [(expected,)]:
                async with _nothing_sent(), translated(NAME, _ABORTED):
                    rollback = RollbackRequest(session=session, transaction_id=begun[0])
                    await self._open().rollback(rollback, **self._options)
                return False
            async with translated(NAME, _ABORTED):
                request = CommitRequest(session=session, mutations=[mutation], transaction_id=begun[0])
                await self._open().commit(request, **self._options)
            return True

    async def _rows(
        self,
        session: str,
        transaction: TransactionSelector,
        wanted: KeySet,
        columns: Sequence[str],
        *,
        limit: int = 0,
        begun: list[bytes] | None = None,
    ) -> list[tuple[bytes, ...]]:
        """Read rows in the order of their keys. If the read begins a transaction, append its id to `begun`."""
        request = ReadRequest(
            session=session, transaction=transaction, table=self._table, columns=columns, key_set=wanted, limit=limit
        )
        async with translated(NAME, _ABORTED):
            answers = await self._open().streaming_read(request, **self._options)
            return await _rows_of(answers, len(columns), begun)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[str]:
        """Lend an idle session, or a new one. A session that failed is lent again only if it has no open
        transaction.
        """
        with suppress(StoreUnavailable, OutcomeUnknown):
            await self._delete_spoilt()
        session = self._idle.pop() if self._idle else await self._new_session()
        try:
            yield session
        except NotThere as error:
            if "Session" in str(error):
                raise Passing(f"spanner: the session has ended: {error}") from error
            self._spoilt.append(session)
            raise
        except (AlreadyThere, Aborted):
            self._idle.append(session)
            raise
        except BaseException:
            self._spoilt.append(session)
            raise
        else:
            self._idle.append(session)

    async def _new_session(self) -> str:
        async with _nothing_sent(), translated(NAME):
            made = await self._open().create_session(CreateSessionRequest(database=self._name), **self._options)
        return str(made.name)

    async def _delete_all(self) -> None:
        """Delete every session. Raises as `_delete_spoilt` does."""
        await self._delete_spoilt()
        while self._idle:
            with _taken_from(self._idle) as session:
                await self._delete_session(session)

    async def _delete_spoilt(self) -> None:
        """End the transactions of spoilt sessions, and delete these sessions. Without an answer a session stays spoilt.

        Raises:
            Passing, OutcomeUnknown: some spoilt sessions remain.
        """
        while self._spoilt:
            with _taken_from(self._spoilt) as session:
                # A session has one transaction: beginning another ends it, though its id is unknown where the answer
                # was lost. Deleting the session ends it too, but then the emulator keeps its locks (its issue 30).
                async with translated(NAME):
                    begin = BeginTransactionRequest(session=session, options=_READ_WRITE)
                    begun = await self._open().begin_transaction(begin, **self._short)
                    rollback = RollbackRequest(session=session, transaction_id=begun.id)
                    await self._open().rollback(rollback, **self._short)
                await self._delete_session(session)

    async def _delete_session(self, session: str) -> None:
        async with translated(NAME):
            await self._open().delete_session(DeleteSessionRequest(name=session), **self._short)

    async def _check_or_make_table(self) -> None:
        options = {"timeout": self._timeout_s}
        transport = self._transport(DatabaseAdminGrpcAsyncIOTransport)
        try:
            async with translated(NAME, _ABORTED):
                database = await transport.get_database(
                    GetDatabaseRequest(name=self._name), metadata=_routed(name=self._name), **options
                )
                _check_dialect(database.database_dialect)
                ddl = await transport.get_database_ddl(
                    GetDatabaseDdlRequest(database=self._name), metadata=_routed(database=self._name), **options
                )
                found = [each for each in ddl.statements if re.match(rf"CREATE TABLE `?{self._table}`? *\(", each)]
                if found:
                    _check_table(found[0])
                    return
                make = UpdateDatabaseDdlRequest(database=self._name, statements=[MAKE_TABLE.format(table=self._table)])
                try:
                    await transport.update_database_ddl(make, metadata=_routed(database=self._name), **options)
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
                        raise
                    # Another process made it since, or changes the schema now. The next attempt shows which.
                    raise Passing(f"spanner: {error.details()}") from error
        finally:
            await transport.close()
        raise Passing("spanner: the table is being made")

    def _open(self) -> SpannerAsyncClient:
        if self._client is None:
            self._client = SpannerAsyncClient(transport=self._transport(SpannerGrpcAsyncIOTransport))
        return self._client

    def _transport(self, made_by: Any) -> Any:
        return open_transport(made_by, self._emulator, NAME, self._timeout_s)

    def _put(self, kind: str, partition: bytes, key: bytes, value: bytes, version: bytes = b"") -> Mutation:
        values = [_list(partition, key, value, version or _new_version())]
        return Mutation(**{kind: Mutation.Write(table=self._table, columns=COLUMNS, values=values)})

    def _delete(self, partition: bytes, keys: Sequence[bytes]) -> Mutation:
        wanted = KeySet(keys=[_list(partition, key) for key in keys])
        return Mutation(delete=Mutation.Delete(table=self._table, key_set=wanted))


def _check_dialect(dialect: DatabaseDialect) -> None:
    if dialect == DatabaseDialect.POSTGRESQL:
        raise StoreUnavailable(
            "spanner: database_dialect is POSTGRESQL: name a database of GoogleSQL", setting="database_dialect"
        )


def _check_table(statement: str) -> None:
    if "ROW DELETION POLICY" in statement.upper():
        raise StoreUnavailable(
            "spanner: the table has a ROW DELETION POLICY, which would delete answered writes: drop it, and restore a "
            "backup if it was in force",
            setting="ROW DELETION POLICY",
        )
    if not re.search(r"PRIMARY KEY *\( *`?p`?, *`?k`? *\)", statement):
        raise StoreFormat("spanner: the table has other keys: it is of another program")


@contextmanager
def _taken_from(sessions: list[str]) -> Iterator[str]:
    """Take a session out, for requests that delete it. Put it back if these requests must be repeated."""
    session = sessions.pop()
    try:
        yield session
    except Passing:
        sessions.append(session)
        raise
    except StoreUnavailable:
        pass  # It is gone, or these credentials may not delete: a repetition would be refused too.
    except BaseException:  # no answer, or cancelled
        sessions.append(session)
        raise


async def _rows_of(answers: Any, width: int, begun: list[bytes] | None = None) -> list[tuple[bytes, ...]]:
    """Build rows from parts of an answer, which may end within a value."""
    texts: list[str] = []
    is_cut = False
    async for answer in answers:
        part = PartialResultSet.pb(answer)
        if begun is not None and part.metadata.transaction.id:
            begun.append(part.metadata.transaction.id)
        for value in part.values:
            if is_cut:
                texts[-1] += value.string_value
            else:
                texts.append(value.string_value)
            is_cut = False
        is_cut = is_cut or part.chunked_value
    values = [base64.b64decode(text) for text in texts]
    return [tuple(values[first : first + width]) for first in range(0, len(values), width)]


def _list(*values: bytes) -> ListValue:
    return ListValue(values=[Value(string_value=base64.b64encode(value).decode()) for value in values])


def _routed(**named: str) -> list[tuple[str, str]]:
    return [("x-goog-request-params", "&".join(f"{name}={value}" for name, value in named.items()))]


def _new_version() -> bytes:
    return os.urandom(12)


@asynccontextmanager
async def _nothing_sent() -> AsyncIterator[None]:
    """Translate a lost answer into `Passing`, before a commit is sent."""
    try:
        yield
    except OutcomeUnknown as error:
        raise Passing(str(error)) from error
