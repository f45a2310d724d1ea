"""`mysql://user:password@host:3306/database`: a Store in MySQL or MariaDB, for servers on any number of machines.

One InnoDB table has all pairs; its primary key is in byte order. Each operation is one statement and one transaction,
at READ COMMITTED. Statements carry bytes as hexadecimal literals, so character sets and SQL modes do not change them.

Predicates are the values themselves. They allow A-B-A: a value that was replaced and then put back looks unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import aiomysql
from pymysql import err
from pymysql.constants import CLIENT, CR, ER

from lakebed.base import LakebedError, OutcomeUnknown, in_words
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.http_client import certificates_of
from lakebed.kv.remote.kept import Kept
from lakebed.kv.remote.store import Passing, answer_of, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreSize, StoreUnavailable

FORMAT: Final = 1
CONNECTIONS: Final = 16
PORT: Final = 3306

ROLE: Final = "UNION ALL SELECT NULL, IF(@@global.read_only, '1', '0')"
"""A primary that becomes a replica keeps its connections open, so each read asks for the role after its rows."""
GET: Final = "(SELECT k, v FROM {kv} WHERE p = {} AND k IN ({})) {role}"
GET_ONE: Final = "SELECT (SELECT v FROM {kv} WHERE p = {} AND k = {}), @@global.read_only"
"""One row, where GET has two: each row of an answer costs this client a tenth of a read."""
SCAN: Final = "(SELECT k, v FROM {kv} WHERE p = {} AND k >= {} ORDER BY k LIMIT {limit}) {role}"
SET: Final = "REPLACE INTO {kv} (p, k, v) VALUES {rows}"
CREATE: Final = "INSERT INTO {kv} (p, k, v) VALUES ({}, {}, {})"
REPLACE: Final = "UPDATE {kv} SET v = {} WHERE p = {} AND k = {} AND v = {}"
DELETE: Final = "DELETE FROM {kv} WHERE p = {} AND k IN ({})"
DELETE_IF: Final = "DELETE FROM {kv} WHERE p = {} AND k = {} AND v = {}"
NEXT_PARTITION: Final = "SELECT p FROM {kv} WHERE p > {} ORDER BY p LIMIT 1"
MAKE_TABLES: Final = (
    "SET sql_notes = 0",  # no note that a table exists
    """
    CREATE TABLE IF NOT EXISTS {kv} (
        p VARBINARY(1024) NOT NULL, k VARBINARY(1024) NOT NULL, v LONGBLOB NOT NULL, PRIMARY KEY (p, k)
    ) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    """,
    "CREATE TABLE IF NOT EXISTS {format} (format INT NOT NULL PRIMARY KEY) ENGINE = InnoDB",
    # Of two concurrent first starts, the second finds the row. IGNORE would warn of it.
    """
    INSERT INTO {format} SELECT {number} FROM DUAL WHERE NOT EXISTS (SELECT * FROM {format})
    ON DUPLICATE KEY UPDATE {format}.format = {format}.format
    """,
)

REPLICA: Final = "mysql: read_only is ON: this is a replica. Name the primary"
SIZE: Final = (
    "SELECT data_length + index_length + data_free, data_free FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name = CONVERT({} USING utf8mb4)"
)
COMPACT_S_MAX: Final = 86_400
FORMAT_OF: Final = "SELECT MAX(format) FROM {format}"
SESSION: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
SAFE: Final = {"innodb_flush_log_at_trx_commit": "1", "innodb_doublewrite": "ON"}
"""Without these settings, a crash of the database loses answered writes, or the whole table."""

_DEMOTED: Final = {ER.OPTION_PREVENTS_STATEMENT, 1836}
"""A primary became a replica. MySQL has two numbers for this error."""
_PASSING: Final = {ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.CON_COUNT_ERROR, *_DEMOTED}
_ENDED: Final = {
    ER.SERVER_SHUTDOWN,
    1927,  # an operator ended the connection
    *(CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_COMMANDS_OUT_OF_SYNC, CR.CR_SERVER_LOST_EXTENDED),
}
_REFUSED: Final = {
    *(ER.DBACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR),
    *(ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.MUST_CHANGE_PASSWORD, ER.USER_LIMIT_REACHED),
    *(ER.NET_PACKET_TOO_LARGE, ER.RECORD_FILE_FULL),
}
"""Operational errors that come before a commit begins.

After other errors the write may be stored: a MySQL that cannot sync its log answers 1598, stops, and has the row after
a restart.
"""
_AWAY: Final = {CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR}


def size_uri(uri: StoreUri) -> StoreSize:
    """Return the size of the table with its index, as the database last counted it."""
    return answer_of(uri, _from, MysqlDatabase.size)


def compact_uri(uri: StoreUri) -> None:
    """Rewrite the table. The database needs space for a copy, and serves reads and writes meanwhile."""
    answer_of(uri, _from, MysqlDatabase.compact)


def _from(uri: StoreUri, wait_s: float) -> MysqlDatabase:
    """Open `mysql://user:password@host:3306/database?prefix=lakebed&connections=16&wait_s=10&tls=no&ca_file=`."""
    prefix = uri.text("prefix", "lakebed")
    if not prefix.isascii() or not prefix.isidentifier() or len(prefix) > 48:
        raise InvalidStoreUri(f"{uri.scheme}: prefix is letters, digits and _, not {prefix!r}", scheme=uri.scheme)
    connections = uri.count("connections", CONNECTIONS)
    tls, ca_file = uri.choice("tls", "no", "yes"), uri.text("ca_file", "")
    uri.check_all_taken()
    try:
        address = urlsplit(f"//{uri.authority}")
        port = address.port or PORT
    except ValueError as error:
        raise InvalidStoreUri(f"{uri.scheme}: the port is not a number", scheme=uri.scheme) from error
    if not address.hostname or uri.path.count("/") != 1 or len(uri.path) < 2:
        raise InvalidStoreUri(f"{uri.scheme}: an example: mysql://lakebed@127.0.0.1/lakebed", scheme=uri.scheme)
    target = {
        "host": address.hostname,
        "port": port,
        "user": unquote(address.username or ""),
        "password": unquote(address.password or ""),
        "db": uri.path[1:],
        "ssl": certificates_of(uri, ca_file, is_tls=tls == "yes"),
    }
    return MysqlDatabase(target, prefix=prefix, connections=connections, timeout_s=max(wait_s, 1))


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)


class MysqlDatabase:
    """Statements over a pool of connections. The first operation opens the first connection."""

    batch_keys_max = 1000
    batch_bytes_max = 2 << 20  # doubled by the hexadecimal digits, and a packet may have 16 MiB
    batches_at_once = 2
    reads_together = True

    def __init__(self, target: dict[str, Any], *, prefix: str, connections: int, timeout_s: float) -> None:
        self._target = target
        self._names = {"kv": f"{prefix}_kv", "format": f"{prefix}_format", "role": ROLE}
        self._timeout_s = timeout_s
        # The library's own pool checks each idle connection at each use, and makes a task.
        self._kept = Kept(
            connections,
            turn_s=timeout_s,
            make=self._connect_to_primary,
            is_full=lambda error: isinstance(error, err.Error) and _code(error) == ER.CON_COUNT_ERROR,
            is_open=_is_open,
            end=lambda connection: connection.close(),
        )

    async def prepare(self) -> None:
        with _nothing_sent():
            connection = await self._connect()
        try:
            _check_settings(dict(await self._ask(connection, "SHOW GLOBAL VARIABLES")))
            for statement in MAKE_TABLES:
                await self._ask(connection, statement.format(**self._names, number=FORMAT))
            [(found,)] = await self._ask(connection, FORMAT_OF.format(**self._names))
        finally:
            connection.close()
        if found != FORMAT:
            raise StoreFormat(
                f"mysql: written in format {found} by another release; this one reads format {FORMAT}", format=found
            )

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        if len(keys) == 1:
            sql = GET_ONE.format(_literal(partition), _literal(keys[0]), **self._names)
            [(value, _)] = await self._run(sql, is_replica=lambda rows: rows[0][1] != 0)
            return {} if value is None else {keys[0]: Held(value, value)}
        asked = ", ".join(map(_literal, keys))
        rows = await self._rows(GET.format(_literal(partition), asked, **self._names))
        return {key: Held(value, value) for key, value in rows}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        sql = SCAN.format(_literal(partition), _literal(start), limit=limit, **self._names)
        return sorted(await self._rows(sql))  # a union promises no order

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        head = _literal(partition)
        rows = ", ".join(f"({head}, {_literal(key)}, {_literal(value)})" for key, value in items)
        await self._run(SET.format(rows=rows, **self._names))

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        p, k, v = _literal(partition), _literal(key), _literal(value)
        if expected is None:
            return value if await self._run(CREATE.format(p, k, v, **self._names)) else None
        assert isinstance(expected, bytes)
        return value if await self._run(REPLACE.format(v, p, k, _literal(expected), **self._names)) else None

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        await self._run(DELETE.format(_literal(partition), ", ".join(map(_literal, keys)), **self._names))

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        if not isinstance(expected, bytes):
            return False
        sql = DELETE_IF.format(_literal(partition), _literal(key), _literal(expected), **self._names)
        return bool(await self._run(sql))

    async def partitions(self) -> list[bytes]:
        found = [b""]
        while rows := await self._run(NEXT_PARTITION.format(_literal(found[-1]), **self._names)):
            found += rows[0]
        return found[1:]

    async def size(self) -> StoreSize:
        """Return the size of the table, as the database last counted it.

        Raises:
            StoreFormat: the table does not exist.
        """
        found = await self._run(SIZE.format(_literal(self._names["kv"].encode())))
        if not found:
            raise StoreFormat(f"mysql: there is no table {self._names['kv']}")
        [(size, free)] = found
        return StoreSize(size_bytes=int(size), log_bytes=0, free_bytes=int(free))

    async def compact(self) -> None:
        """Rewrite the table.

        Raises:
            StoreFormat: the table does not exist.
            StoreUnavailable: the database could not rewrite it.
        """
        await self.size()
        self._timeout_s = COMPACT_S_MAX
        rows = await self._run(f"OPTIMIZE TABLE {self._names['kv']}")
        if errors := [str(text) for *_, kind, text in rows if str(kind).lower() == "error"]:
            raise StoreUnavailable(f"mysql: {'; '.join(errors)}")
        await self._run(f"ANALYZE TABLE {self._names['kv']}")

    async def close(self) -> None:
        for connection in self._kept.close():
            connection.close()

    async def _rows(self, sql: str) -> list[tuple[bytes, bytes]]:
        """Run a read that ends with ROLE. Return its rows."""
        rows = await self._run(sql, is_replica=_is_replica)
        return [(key, value) for key, value in rows if key is not None]

    async def _run(self, sql: str, *, is_replica: Callable[[Any], bool] | None = None) -> Any:
        """Run a statement.

        Return its rows, or the number of rows that it matched: 0 for an INSERT of a row that exists.

        `is_replica` reads the role from the rows, if the statement asks for it.
        """
        with _nothing_sent():
            connection = await self._kept.take()
        is_usable = False
        try:
            found = await self._ask(connection, sql)
            if is_replica is not None and is_replica(found):
                connection.close()  # the next attempt may reach another server
                raise Passing(REPLICA, setting="read_only")
            is_usable = True
        except LakebedError:
            is_usable = True  # `_ask` closed it where a late answer could meet the next statement
            raise
        finally:
            self._kept.give_back(connection, is_usable=is_usable)
        return found

    async def _ask(self, connection: Any, sql: str) -> Any:
        """Run a statement and translate its errors. The database rolls back a statement that it refuses."""
        # An asyncio timeout costs four times as much as this timer, a notable part of each small statement.
        abort = connection._writer.transport.abort  # noqa: SLF001 - the library offers no other way
        timer = asyncio.get_running_loop().call_later(self._timeout_s, abort)
        try:
            # Not closed: closing would only read further results, which our statements do not have.
            cursor = await connection.cursor()
            count = await cursor.execute(sql)
            return count if cursor.description is None else await cursor.fetchall()
        except err.IntegrityError as error:
            if error.args[0] == ER.DUP_ENTRY:
                return 0
            raise StoreUnavailable(f"mysql: {_shown(error)}") from error
        except (err.Error, RuntimeError, OSError, asyncio.IncompleteReadError) as error:
            code = _code(error)
            if code in _PASSING:
                if code in _DEMOTED:
                    connection.close()  # the next attempt may reach another server
                raise Passing(f"mysql: {_shown(error)}") from error
            connection.close()  # a late answer must not meet the next statement
            if code in _ENDED or isinstance(error, err.InternalError | err.InterfaceError):
                raise OutcomeUnknown(f"mysql: the answer was lost: {_shown(error)}") from error
            if isinstance(error, err.OperationalError) and code not in _REFUSED:
                raise OutcomeUnknown(f"mysql: {_shown(error)}", code=code) from error
            raise StoreUnavailable(f"mysql: {_shown(error)}", code=code) from error
        finally:
            timer.cancel()

    async def _connect_to_primary(self) -> Any:
        """Open a connection and check its role: after a failover it might reach a replica, whose reads are stale."""
        connection = await self._connect()
        try:
            [(is_read_only,)] = await self._ask(connection, "SELECT @@global.read_only")
        except OutcomeUnknown as error:  # nothing of the operation was sent
            raise Passing(str(error)) from error
        except BaseException:
            connection.close()
            raise
        if is_read_only:
            connection.close()  # the next attempt may reach another server
            raise Passing(REPLICA, setting="read_only")
        return connection

    async def _connect(self) -> Any:
        async with asyncio.timeout(self._timeout_s):
            return await aiomysql.connect(**self._options())

    def _options(self) -> dict[str, Any]:
        # Without FOUND_ROWS, MySQL would return 0 for an update that matches a row but changes nothing.
        return {
            **self._target,
            "autocommit": True,
            "charset": "utf8mb4",
            "client_flag": CLIENT.FOUND_ROWS,
            "connect_timeout": self._timeout_s,
            "init_command": SESSION,
            "sql_mode": "STRICT_ALL_TABLES",
        }


def _is_open(connection: Any) -> bool:
    """Return whether the server has sent no end, as the library's own pool does. A write must not be sent after an
    end.
    """
    if connection.closed:
        return False
    reader = connection._reader  # noqa: SLF001 - the library offers no other way
    return not reader.eof_received and reader.exception() is None


def _is_replica(rows: Any) -> bool:
    """Return whether the row of ROLE shows a replica."""
    return not {b"0", "0"}.intersection(value for key, value in rows if key is None)


def _literal(value: bytes) -> str:
    return f"x'{value.hex()}'"


def _check_settings(found: dict[str, str]) -> None:
    safe = {**SAFE, "sync_binlog": "1"} if found.get("log_bin") == "ON" else SAFE
    for name, wanted in safe.items():
        if found.get(name, wanted) != wanted:
            raise StoreUnavailable(
                f"mysql: {name} is {found[name]}: a crash would take back answered writes. Set {name} = {wanted}",
                setting=name,
            )
    if found.get("read_only", "OFF") != "OFF":
        raise Passing(REPLICA, setting="read_only")


@contextmanager
def _nothing_sent() -> Iterator[None]:
    """Translate errors while a connection is made or awaited."""
    try:
        yield
    except (err.Error, OSError, TimeoutError, asyncio.IncompleteReadError, RuntimeError) as error:
        if _code(error) in _PASSING | _ENDED | _AWAY:
            raise Passing(f"mysql: no connection: {_shown(error)}") from error
        raise StoreUnavailable(f"mysql: no connection: {_shown(error)}") from error  # such as a wrong password


def _code(error: Exception) -> int:
    """Return the number of an error, or that of a broken connection where it has none."""
    return int(error.args[0]) if isinstance(error, err.Error) and error.args else CR.CR_SERVER_LOST


def _shown(error: BaseException) -> str:
    return str(error.args[-1]) if error.args else in_words(error)
