"""`postgres://user:password@host:5432/database`: a Store in PostgreSQL, for servers on any number of machines.

One table has all pairs; its primary key (partition, key) is a B-tree in byte order. Each operation is one statement and
one transaction at READ COMMITTED: a conditional update checks again a row that another writer changed meanwhile.

Predicates are the values themselves: connections need no shared counter. They allow A-B-A: a value that was replaced
and then put back looks unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import asyncpg

from lakebed.base import OutcomeUnknown, in_words
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.kept import Kept
from lakebed.kv.remote.store import (
    WAIT_S,
    Passing,
    Place,
    SetIf,
    answer_of,
    open_database,
    partitions_of,
    run_apart,
)
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreSize, StoreUnavailable

from .sqlite import SqliteStore

FORMAT: Final = 1
CONNECTIONS: Final = 16
SNAPSHOT_ROWS: Final = 1000
COMPACT_S_MAX: Final = 86_400
IDENTIFIER_BYTES_MAX: Final = 63
SAFE: Final = {"fsync": "on", "full_page_writes": "on"}
"""Without these settings, a crash of the database loses answered writes, or the whole table."""

GET: Final = "SELECT value FROM kv WHERE partition = $1 AND key = $2"
GET_MANY: Final = "SELECT key, value FROM kv WHERE partition = $1 AND key = ANY($2::bytea[])"
GET_PLACES: Final = """
    SELECT partition, key, value FROM unnest($1::bytea[], $2::bytea[]) AS places(p, k)
    JOIN kv ON partition = p AND key = k
"""
SCAN: Final = "SELECT key, value FROM kv WHERE partition = $1 AND key >= $2 ORDER BY key LIMIT $3"
SET: Final = """
    INSERT INTO kv VALUES ($1, $2, $3) ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value
"""
SET_MANY: Final = """
    INSERT INTO kv SELECT $1, k, v FROM unnest($2::bytea[], $3::bytea[]) AS pairs(k, v)
    ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value
"""
CREATE: Final = "INSERT INTO kv VALUES ($1, $2, $3) ON CONFLICT (partition, key) DO NOTHING"
REPLACE: Final = "UPDATE kv SET value = $3 WHERE partition = $1 AND key = $2 AND value = $4"
SET_IFS: Final = """
    WITH asked AS (
        SELECT p, k, v, e FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[]) AS given(p, k, v, e)
    ),
    made AS (
        INSERT INTO kv SELECT p, k, v FROM asked WHERE e IS NULL ORDER BY p, k
        ON CONFLICT (partition, key) DO NOTHING RETURNING partition, key
    ),
    locked AS (
        SELECT p, k, v, e FROM asked JOIN kv ON partition = p AND key = k AND value = e
        ORDER BY p, k FOR NO KEY UPDATE OF kv
    ),
    changed AS (
        UPDATE kv SET value = v FROM locked WHERE partition = p AND key = k AND value = e RETURNING partition, key
    )
    SELECT partition, key FROM made UNION ALL SELECT partition, key FROM changed
"""
"""Insert and lock rows in one order, or two statements could wait for each other: an UPDATE alone has no fixed order.

SET_IFS inserts all rows before it locks any, SET_MANY visits each key once: these two can still meet in a deadlock.
After `deadlock_timeout` the database rolls one of them back, which is `Passing`.
"""
DELETE: Final = "DELETE FROM kv WHERE partition = $1 AND key = $2"
DELETE_MANY: Final = """
    WITH locked AS (
        SELECT key AS k FROM kv WHERE partition = $1 AND key = ANY($2::bytea[]) ORDER BY key FOR UPDATE
    )
    DELETE FROM kv USING locked WHERE partition = $1 AND key = k
"""
"""In one order, as SET_IFS locks rows. A DELETE alone locks rows in the order of its plan."""
DELETE_IF: Final = "DELETE FROM kv WHERE partition = $1 AND key = $2 AND value = $3"
NEXT_PARTITION: Final = "SELECT partition FROM kv WHERE partition > $1 ORDER BY partition LIMIT 1"
EVERYTHING: Final = "SELECT partition, key, value FROM kv ORDER BY partition, key"
MAKE_TABLES: Final = """
    CREATE TABLE format (format integer NOT NULL);
    INSERT INTO format VALUES (1);
    CREATE TABLE kv (partition bytea NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (partition, key))
"""

OF_THE_CLIENT: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl")

_PASSING: Final = (
    asyncpg.TransactionRollbackError,  # deadlocks, and databases with the same protocol that ask for a repetition
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # a primary that just became a replica
    asyncpg.CannotConnectNowError,
    asyncpg.LockNotAvailableError,
)
_ENDED: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # an operator ended it, perhaps during its commit
    asyncpg.PostgresIOError,
    asyncpg.InternalClientError,  # the connection broke at a moment that the client did not expect
    OSError,
    TimeoutError,
)
_NOT_BEGUN: Final = "cannot switch to state"
"""The beginning of the client's message when a statement was not sent: the database said it would end the
connection.
"""
_BROKEN: Final = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)


def size_uri(uri: StoreUri) -> StoreSize:
    """Return the size of the table with its index. Only the database's own tools show the free space in it."""
    database = _from(uri, uri.seconds("wait_s", WAIT_S))
    return run_apart(database.size)


def compact_uri(uri: StoreUri) -> None:
    """Rewrite the table and its index. The database needs space for a copy; readers and writers wait meanwhile."""
    answer_of(uri, _from, PostgresDatabase.compact)


def snapshot_uri(uri: StoreUri, target: Path) -> None:
    """Copy the store, as of one moment, into a new SQLite file. Writers continue."""
    database = _from(uri, uri.seconds("wait_s", WAIT_S))
    run_apart(lambda: database.copy_to(target))


def _from(uri: StoreUri, wait_s: float) -> PostgresDatabase:
    """Open `postgres://user:password@host:5432/database?schema=lakebed&connections=16&wait_s=10`.

    With several hosts, every connection uses the primary. Options of libpq for TLS are passed on. A password may also
    come from PGPASSWORD or a password file.
    """
    schema = uri.text("schema", "lakebed")
    if not schema or '"' in schema or "\0" in schema or len(schema.encode()) > IDENTIFIER_BYTES_MAX:
        raise InvalidStoreUri(f"{uri.scheme}: schema is the name of one, not {schema!r}", scheme=uri.scheme)
    connections = uri.count("connections", CONNECTIONS)
    passed = {name: value for name in OF_THE_CLIENT if (value := uri.text(name, ""))}
    # Every connection checks this: after a failover it might reach a replica, whose reads are stale.
    passed["target_session_attrs"] = uri.choice("target_session_attrs", "read-write", "primary")
    uri.check_all_taken()
    dsn = f"postgresql://{uri.authority}{quote(uri.path)}?{urlencode(passed)}"
    return PostgresDatabase(dsn, schema=schema, connections=connections, timeout_s=max(wait_s, 1))


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


class PostgresDatabase:
    """Statements over a pool of connections. The first operation opens the first connection."""

    batch_keys_max = 1000
    batch_bytes_max = 4 << 20
    batches_at_once = 2
    reads_together = True

    def __init__(self, dsn: str, *, schema: str, connections: int, timeout_s: float) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        # The library's own pool makes two tasks for each use, which costs as much as the statement.
        self._kept = Kept(
            connections,
            turn_s=timeout_s,
            make=lambda: asyncpg.connect(self._dsn, **self._options()),
            is_full=lambda error: isinstance(error, asyncpg.TooManyConnectionsError),
            is_open=lambda connection: not connection.is_closed(),
            end=lambda connection: connection.terminate(),
        )
        self._schema = f'"{schema}"'

    async def prepare(self) -> None:
        async with self._alone() as connection:
            await self._check_settings(connection)
            # Two processes that create the tables at the same moment would collide in the database's catalogue.
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext('lakebed'))")
                try:
                    await self._prepare_tables(connection)
                except (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError) as error:
                    raise StoreUnavailable(self._grants(error), sqlstate=error.sqlstate) from error

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        async with self._connection() as connection:
            if len(keys) > 1:
                rows = await connection.fetch(GET_MANY, partition, list(keys))
                return {key: Held(value, value) for key, value in rows}
            value = await connection.fetchval(GET, partition, keys[0])
            return {} if value is None else {keys[0]: Held(value, value)}

    async def read_places(self, places: Sequence[Place]) -> dict[Place, Held]:
        columns = ([place[part] for place in places] for part in range(2))
        async with self._connection() as connection:
            rows = await connection.fetch(GET_PLACES, *columns)
        return {(partition, key): Held(value, value) for partition, key, value in rows}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        async with self._connection() as connection:
            # The client's records are pairs too: converting them to tuples costs as much as reading them.
            rows: list[tuple[bytes, bytes]] = await connection.fetch(SCAN, partition, start, limit)
            return rows

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        async with self._connection() as connection:
            if len(items) > 1:
                keys, values = [key for key, _ in items], [value for _, value in items]
                await connection.execute(SET_MANY, partition, keys, values)
            else:
                await connection.execute(SET, partition, *items[0])

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        async with self._connection() as connection:
            if expected is None:
                done = await connection.execute(CREATE, partition, key, value)
            else:
                done = await connection.execute(REPLACE, partition, key, value, expected)
        return value if _rows_of(done) else None

    async def write_ifs(self, asked: Sequence[SetIf]) -> list[Predicate | None]:
        columns = ([one[part] for one in asked] for part in range(4))
        async with self._connection() as connection:
            done = {(partition, key) for partition, key in await connection.fetch(SET_IFS, *columns)}
        return [value if (partition, key) in done else None for partition, key, value, _ in asked]

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        async with self._connection() as connection:
            if len(keys) > 1:
                await connection.execute(DELETE_MANY, partition, list(keys))
            else:
                await connection.execute(DELETE, partition, keys[0])

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        async with self._connection() as connection:
            return _rows_of(await connection.execute(DELETE_IF, partition, key, expected)) == 1

    async def partitions(self) -> list[bytes]:
        found = [b""]
        async with self._connection() as connection:
            while (name := await connection.fetchval(NEXT_PARTITION, found[-1])) is not None:
                found.append(name)
        return found[1:]

    async def close(self) -> None:
        for connection in self._kept.close():
            try:
                await connection.close(timeout=self._timeout_s)
            except (TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                connection.terminate()

    async def copy_to(self, target: Path) -> None:
        """Read all rows in one transaction, which sees no later commit."""
        copy = SqliteStore.open(target, synchronous="NORMAL")
        try:
            async with self._alone() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute("SET LOCAL statement_timeout = 0")
                rows: list[tuple[bytes, bytes]] = []
                partition = b""
                async for name, key, value in connection.cursor(EVERYTHING, prefetch=SNAPSHOT_ROWS):
                    if name != partition or len(rows) == SNAPSHOT_ROWS:
                        await copy.set_many(partition, rows)
                        partition, rows = name, []
                    rows.append((key, value))
                await copy.set_many(partition, rows)
        finally:
            await copy.close()

    async def size(self) -> StoreSize:
        async with self._alone() as connection:
            await self._check_store(connection)
            size = await connection.fetchval("SELECT pg_total_relation_size(to_regclass('kv'))")
        return StoreSize(size_bytes=size, log_bytes=0, free_bytes=0)

    async def compact(self) -> None:
        async with self._alone() as connection:
            await self._check_store(connection)
            await connection.execute("SET statement_timeout = 0")
            await connection.execute("VACUUM FULL kv", timeout=COMPACT_S_MAX)

    async def _check_store(self, connection: Any) -> None:
        if await connection.fetchval("SELECT to_regclass('kv')") is None:
            raise StoreFormat(f"postgres: the schema {self._schema} holds no store")

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """Lend a connection of the pool. A failure before that is `Passing`: nothing was sent."""
        async with _nothing_sent():
            connection = await self._kept.take()
        is_usable = False
        try:
            async with _one_statement():
                yield connection
            is_usable = True
        except StoreUnavailable as error:  # a refusal: its answer was read
            is_usable = not isinstance(error, Passing)
            raise
        finally:
            self._kept.give_back(connection, is_usable=is_usable)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Any]:
        """Open a connection for one use."""
        async with _nothing_sent():
            connection = await asyncpg.connect(self._dsn, **self._options())
        try:
            async with _one_statement():
                yield connection
        finally:
            await connection.close(timeout=self._timeout_s)

    def _options(self) -> dict[str, Any]:
        # The database's own defaults might be weaker (asynchronous) or stronger (serializable, which refuses more).
        settings = {
            "application_name": "lakebed",
            "search_path": self._schema,
            "default_transaction_isolation": "read committed",
            "default_transaction_read_only": "off",
        }
        return {"timeout": self._timeout_s, "command_timeout": self._timeout_s, "server_settings": settings}

    async def _check_settings(self, connection: Any) -> None:
        rows = await connection.fetch(
            "SELECT name, setting FROM pg_settings WHERE name = ANY($1)", [*SAFE, "synchronous_commit"]
        )
        found = dict(rows)
        for name, safe in SAFE.items():
            if found.get(name, safe) != safe:
                raise StoreUnavailable(
                    f"postgres: {name} is {found[name]}: a crash would take back answered writes. Set {name} = {safe}",
                    setting=name,
                )
        if found.get("synchronous_commit") == "off":
            raise StoreUnavailable(
                "postgres: synchronous_commit is off: a crash would take back answered writes. "
                "Set it for this user: ALTER ROLE … SET synchronous_commit = on",
                setting="synchronous_commit",
            )

    def _grants(self, error: asyncpg.PostgresError) -> str:
        """Name the missing rights. Without USAGE the schema looks absent, so the error alone shows little."""
        return (
            f"postgres: {in_words(error)}: this user may neither make nor use the tables. Run `lakebed kv migrate`"
            f" as a user who may create, who then grants this one: GRANT USAGE ON SCHEMA {self._schema} TO …; GRANT"
            f" SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {self._schema} TO …"
        )

    async def _prepare_tables(self, connection: Any) -> None:
        if await connection.fetchval("SELECT to_regclass('format')") is None:
            if await connection.fetchval("SELECT to_regclass('kv')") is not None:
                raise StoreFormat(f"postgres: the schema {self._schema} has a table of another program")
            if await connection.fetchval("SELECT to_regnamespace($1)", self._schema) is None:
                await connection.execute(f"CREATE SCHEMA {self._schema}")
            await connection.execute(MAKE_TABLES)
        found = await connection.fetchval("SELECT max(format) FROM format")
        if found != FORMAT:
            raise StoreFormat(
                f"postgres: written in format {found} by another release; this one reads format {FORMAT}",
                format=found,
            )


def _rows_of(status: str) -> int:
    """Read the count from a status such as `INSERT 0 1`."""
    return int(status.rpartition(" ")[2])


@asynccontextmanager
async def _nothing_sent() -> AsyncIterator[None]:
    """Translate errors while a connection is made or awaited."""
    try:
        yield
    except ValueError as error:  # its message may have the password
        raise InvalidStoreUri("postgres: the client library does not understand the URI", scheme="postgres") from error
    except asyncpg.TargetServerAttributeNotMatched as error:
        raise Passing("postgres: this is a replica, which takes no writes. Name the primary", setting="host") from error
    except (*_PASSING, *_ENDED, asyncpg.InterfaceError) as error:
        raise Passing(f"postgres: no connection: {in_words(error)}") from error
    except asyncpg.PostgresError as error:  # a wrong password, or no such database
        raise StoreUnavailable(f"postgres: no connection: {in_words(error)}") from error


@asynccontextmanager
async def _one_statement() -> AsyncIterator[None]:
    """Translate errors of a statement. The database rolls back a statement that it refuses."""
    try:
        yield
    except _PASSING as error:
        raise Passing(f"postgres: {in_words(error)}") from error
    except _BROKEN as error:
        raise StoreFormat(f"postgres: {in_words(error)}") from error
    except _ENDED as error:
        if isinstance(error, asyncpg.InternalClientError) and str(error).startswith(_NOT_BEGUN):
            raise Passing(f"postgres: {in_words(error)}") from error
        raise OutcomeUnknown(f"postgres: the answer was lost: {in_words(error)}") from error
    except asyncpg.PostgresError as error:
        raise StoreUnavailable(f"postgres: {in_words(error)}", sqlstate=error.sqlstate) from error
    except asyncpg.InterfaceError as error:  # the client saw the closed connection before it sent anything
        raise Passing(f"postgres: {in_words(error)}") from error
