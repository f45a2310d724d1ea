"""`cassandra://user:password@host,host:9042/keyspace`: a Store in Apache Cassandra, on its client's own threads.

One table has all pairs: `p` is the partition key and `k` the clustering key, so Cassandra stores a partition together
and in byte order. Every write is a light-weight transaction and every read is serial: clocks order plain writes, so a
plain write might lose to a write that was answered before it. A batch has one partition, so it is one transaction too.
A batch without a condition tests a static column that is always null.

Predicates are random versions that every write makes anew, so a value that was put back is noticed (no A-B-A).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import unquote
from weakref import WeakValueDictionary

import cassandra
from cassandra import ConsistencyLevel, cluster, connection, policies, protocol
from cassandra.auth import PlainTextAuthProvider
from cassandra.query import BatchStatement, BatchType, PreparedStatement, SimpleStatement, tuple_factory

from lakebed.base import OutcomeUnknown, in_words
from lakebed.kv.opening import InvalidStoreUri, StoreUri
from lakebed.kv.remote.http_client import certificates_of
from lakebed.kv.remote.store import Passing, open_database, partitions_of
from lakebed.kv.store import Held, Predicate, StoreFormat, StoreUnavailable

FORMAT: Final = b"1"
NO_SIZE: Final = "`nodetool tablestats` on each node shows it"
NO_COMPACTION: Final = "Cassandra compacts its tables by itself; `nodetool compact` on each node does it at once"
PORT: Final = 9042
CONNECT_S: Final = 5.0
"""Try again to reconnect after this long: a connection that is cut half-way sends no error."""
RECONNECT_S: Final = 0.02
MARK: Final = (bytes(1025), b"format")
"""The place of the format. No partition of a store is this long."""

MAKE_KEYSPACE: Final = (
    "CREATE KEYSPACE IF NOT EXISTS {keyspace} "
    "WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': {replicas}}}"
)
MAKE_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS {table}
    (p blob, k blob, always_null boolean STATIC, v blob, n blob, PRIMARY KEY (p, k))
"""
KEYSPACE: Final = "SELECT durable_writes, replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
RELEASE: Final = "SELECT release_version FROM system.local"
TABLE: Final = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
SYNC: Final = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'"
RELEASE_LEAST: Final = 4
"""Serial reads of earlier releases may miss a transaction whose answer was lost (CASSANDRA-12126)."""

GET: Final = "SELECT k, v, n FROM {table} WHERE p = ? AND k IN ?"
SCAN: Final = "SELECT k, v FROM {table} WHERE p = ? AND k >= ? LIMIT ?"
ALWAYS: Final = "UPDATE {table} SET always_null = null WHERE p = ? IF always_null = null"
SET: Final = "INSERT INTO {table} (p, k, v, n) VALUES (?, ?, ?, ?)"
CREATE: Final = "INSERT INTO {table} (p, k, v, n) VALUES (?, ?, ?, ?) IF NOT EXISTS"
REPLACE: Final = "UPDATE {table} SET v = ?, n = ? WHERE p = ? AND k = ? IF n = ?"
DELETE: Final = "DELETE FROM {table} WHERE p = ? AND k = ?"
DELETE_IF: Final = "DELETE FROM {table} WHERE p = ? AND k = ? IF n = ?"
PARTITIONS: Final = "SELECT DISTINCT p FROM {table}"

_NOTHING_HAPPENED: Final = (cluster.NoHostAvailable, protocol.IsBootstrappingErrorMessage)
"""Without Overloaded: a coordinator with too many hints also returns it for a write that the replicas accepted."""
_REFUSED: Final = (
    cassandra.RequestValidationException,
    cassandra.AuthenticationFailed,
    protocol.RequestValidationException,
)


def _from(uri: StoreUri, wait_s: float) -> CassandraDatabase:
    """Open `cassandra://host/keyspace?table=lakebed&replicas=3&serial=SERIAL&datacenter=&tls=no&ca_file=&wait_s=10`."""
    keyspace, table = uri.path.removeprefix("/"), uri.text("table", "lakebed")
    for name in (keyspace, table):
        if not re.fullmatch("[a-z][a-z0-9_]{0,47}", name):
            raise InvalidStoreUri(
                f"{uri.scheme}: an example: {uri.scheme}://10.0.0.1/lakebed; keyspace and table are lower case "
                f"letters, digits and _, not {name!r}",
                scheme=uri.scheme,
            )
    replicas, serial = uri.count("replicas", 3), uri.choice("serial", "SERIAL", "LOCAL_SERIAL")
    datacenter, is_local = uri.text("datacenter", ""), serial == "LOCAL_SERIAL"
    if is_local and not datacenter:
        # Else each server uses the data centre of the host that answers first, and two centres have two majorities.
        raise InvalidStoreUri(f"{uri.scheme}: serial=LOCAL_SERIAL asks for datacenter=NAME too", scheme=uri.scheme)
    tls, ca_file = uri.choice("tls", "no", "yes"), uri.text("ca_file", "")
    uri.check_all_taken()
    login, _, hosts = uri.authority.rpartition("@")
    addresses, ports = [], set()
    for host in hosts.split(","):
        address, _, port = host.partition(":")
        addresses.append(address)
        ports.add(port or str(PORT))
    if not all(addresses) or len(ports) > 1 or not all(port.isdecimal() for port in ports):
        raise InvalidStoreUri(f"{uri.scheme}: hosts stand before the keyspace, all with one port", scheme=uri.scheme)
    user, _, password = login.partition(":")
    options = {
        "contact_points": addresses,
        "port": int(ports.pop()),
        "auth_provider": PlainTextAuthProvider(unquote(user), unquote(password)) if login else None,
        "ssl_context": certificates_of(uri, ca_file, is_tls=tls == "yes"),
    }
    return CassandraDatabase(
        options,
        keyspace=keyspace,
        table=table,
        replicas=replicas,
        is_local=is_local,
        datacenter=datacenter,
        timeout_s=max(wait_s, 1),
    )


open_uri = partial(open_database, _from)
partitions_uri = partial(partitions_of, _from)  # reads the whole table


class CassandraDatabase:
    """Statements over the client's connections, which begin with the first operation."""

    batch_keys_max = 100
    batch_bytes_max = 1 << 20
    batches_at_once = 1  # transactions of one partition wait for each other
    reads_together = True

    def __init__(
        self,
        options: dict[str, Any],
        *,
        keyspace: str,
        table: str,
        replicas: int,
        is_local: bool,
        datacenter: str,
        timeout_s: float,
    ) -> None:
        self._options = options
        self._keyspace = keyspace
        self._table = table
        self._replicas = replicas
        self._is_local = is_local
        self._serial = ConsistencyLevel.LOCAL_SERIAL if is_local else ConsistencyLevel.SERIAL
        self._quorum = ConsistencyLevel.LOCAL_QUORUM if is_local else ConsistencyLevel.QUORUM
        self._datacenter = datacenter
        self._timeout_s = timeout_s
        self._opening = asyncio.Lock()
        self._session: cluster.Session | None = None
        self._statements: dict[str, PreparedStatement] = {}
        self._turns = WeakValueDictionary[bytes, asyncio.Lock]()

    async def prepare(self) -> None:
        try:
            session = await self._open()
            await self._make(session)
            await self._run(CREATE, *MARK, FORMAT, b"")
            [(_, found, _)] = await self._run(GET, MARK[0], [MARK[1]])
        finally:
            await self.close()
        if found != FORMAT:
            raise StoreFormat(f"cassandra: {self._table} is in format {found!r}: another release wrote it")

    async def read(self, partition: bytes, keys: Sequence[bytes]) -> dict[bytes, Held]:
        return {key: Held(value, version) for key, value, version in await self._run(GET, partition, list(keys))}

    async def scan(self, partition: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return [(key, value) for key, value in await self._run(SCAN, partition, start, limit)]

    async def write(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        await self._run_batch(SET, partition, [(partition, key, value, _new_version()) for key, value in items])

    async def write_if(
        self, partition: bytes, key: bytes, value: bytes, expected: Predicate | None
    ) -> Predicate | None:
        version = _new_version()
        async with self._turn(partition):
            if expected is None:
                [(is_done, *_)] = await self._run(CREATE, partition, key, value, version)
            else:
                [(is_done, *_)] = await self._run(REPLACE, value, version, partition, key, expected)
        return version if is_done else None

    async def remove(self, partition: bytes, keys: Sequence[bytes]) -> None:
        await self._run_batch(DELETE, partition, [(partition, key) for key in keys])

    async def remove_if(self, partition: bytes, key: bytes, expected: Predicate) -> bool:
        async with self._turn(partition):
            [(is_done, *_)] = await self._run(DELETE_IF, partition, key, expected)
        return bool(is_done)

    async def partitions(self) -> list[bytes]:
        session = await self._open()
        async with _translated():
            statement = SimpleStatement(self._named(PARTITIONS), consistency_level=self._quorum)
            rows = await asyncio.to_thread(lambda: list(session.execute(statement)))
        return [partition for (partition,) in rows if partition != MARK[0]]

    async def close(self) -> None:
        session, self._session = self._session, None
        self._statements = {}
        if session is not None:
            await asyncio.to_thread(session.cluster.shutdown)

    def _turn(self, partition: bytes) -> asyncio.Lock:
        # Overlapping transactions of one partition make each other restart, until they time out.
        return self._turns.setdefault(partition, asyncio.Lock())

    async def _make(self, session: cluster.Session) -> None:
        """Check the settings; make keyspace and table."""
        async with _translated():
            await asyncio.to_thread(self._check_and_make_keyspace, session)
        async with _not_heard_of(), _translated():
            await asyncio.to_thread(self._make_table, session)

    def _check_and_make_keyspace(self, session: cluster.Session) -> None:
        is_scylla = bool(list(session.execute(TABLE, ("system", "scylla_local"))))
        [(release,)] = session.execute(RELEASE)
        if not list(session.execute(KEYSPACE, (self._keyspace,))):
            session.execute(MAKE_KEYSPACE.format(keyspace=self._keyspace, replicas=self._replicas))
        found = list(session.execute(KEYSPACE, (self._keyspace,)))
        if not found:  # another node made it: this node learns of it in a moment
            raise Passing(f"cassandra: the keyspace {self._keyspace} is being made")
        [(is_durable, replication)] = found
        synced = "" if is_scylla else session.execute(SYNC).one()[0]
        _check_settings(
            release="" if is_scylla else release,
            is_durable=is_durable,
            replication=replication,
            sync=synced,
            centre=self._datacenter if self._is_local else None,
        )

    def _make_table(self, session: cluster.Session) -> None:
        if not list(session.execute(TABLE, (self._keyspace, self._table))):  # a change of the schema is slow
            session.execute(self._named(MAKE_TABLE))

    async def _run(self, text: str, *values: object) -> list[Any]:
        """Run one prepared statement. Returns its rows."""
        statement = (await self._prepared(text)).bind(values)
        statement.consistency_level = self._serial if text.startswith("SELECT") else self._quorum
        statement.serial_consistency_level = self._serial
        statement.fetch_size = None  # all rows in one page: a page's last row would look like the end of the partition
        return await self._ask(statement)

    async def _run_batch(self, text: str, partition: bytes, rows: Sequence[tuple[object, ...]]) -> None:
        always, each = await self._prepared(ALWAYS), await self._prepared(text)
        batch = BatchStatement(
            BatchType.UNLOGGED, consistency_level=self._quorum, serial_consistency_level=self._serial
        )
        batch.add(always, (partition,))
        for row in rows:
            batch.add(each, row)
        async with self._turn(partition):
            [(is_done, *_)] = await self._ask(batch)
        assert is_done, "nothing sets the column that is always null"

    async def _prepared(self, text: str) -> PreparedStatement:
        session = await self._open()
        if text not in self._statements:
            async with _not_heard_of(), _nothing_sent():
                self._statements[text] = await asyncio.to_thread(session.prepare, self._named(text))
        return self._statements[text]

    async def _ask(self, statement: object) -> list[Any]:
        session, loop = await self._open(), asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()

        def settle(put: str, value: object) -> None:
            if not answer.done():
                getattr(answer, put)(value)

        def from_its_thread(put: str, value: object) -> None:
            with suppress(RuntimeError):  # the loop has ended: no task waits for the answer
                loop.call_soon_threadsafe(settle, put, value)

        async with _translated():
            asked = session.execute_async(statement)
            asked.add_callbacks(partial(from_its_thread, "set_result"), partial(from_its_thread, "set_exception"))
            rows = await answer
        if asked.has_more_pages:
            raise StoreUnavailable("cassandra: the server sent one page of the rows, though it was asked for all")
        return rows

    async def _open(self) -> cluster.Session:
        async with self._opening:
            if self._session is None:
                async with _nothing_sent():
                    self._session = await asyncio.to_thread(self._connect)
            return self._session

    def _connect(self) -> cluster.Session:
        # The library would by default repeat a write whose outcome it does not know.
        profile = cluster.ExecutionProfile(
            load_balancing_policy=policies.TokenAwarePolicy(policies.DCAwareRoundRobinPolicy(self._datacenter)),
            retry_policy=policies.FallthroughRetryPolicy(),
            request_timeout=self._timeout_s,
            row_factory=tuple_factory,
        )
        made = cluster.Cluster(
            **self._options,
            protocol_version=4,
            execution_profiles={cluster.EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=policies.ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
            connect_timeout=self._timeout_s,
            control_connection_timeout=self._timeout_s,
            schema_metadata_enabled=False,
            token_metadata_enabled=True,
            prepare_on_all_hosts=False,
            reprepare_on_up=False,
            idle_heartbeat_interval=5,
            compression=False,
        )
        try:
            session = made.connect()
        except BaseException:
            made.shutdown()
            raise
        made.connect_timeout = min(CONNECT_S, self._timeout_s)
        return session

    def _named(self, text: str) -> str:
        return text.format(table=f"{self._keyspace}.{self._table}")


def _check_settings(
    *, release: str, is_durable: bool, replication: dict[str, str], sync: str, centre: str | None = None
) -> None:
    """Refuse a setting that would lose answered writes, by its name. Scylla has neither `release` nor `sync`.

    With `centre`, count only the copies in this data centre: its majority alone answers.
    """
    if release and int(release.partition(".")[0]) < RELEASE_LEAST:
        raise StoreUnavailable(
            f"cassandra: release_version is {release}: its serial reads may miss a write. Use release 4 or later",
            setting="release_version",
        )
    if not is_durable:
        raise StoreUnavailable(
            "cassandra: durable_writes is false: a crash would take back answered writes. "
            "Alter the keyspace: durable_writes = true",
            setting="durable_writes",
        )
    copies = sum(
        int(count) for name, count in replication.items() if name == centre or (not centre and name != "class")
    )
    if centre and not copies:
        raise StoreUnavailable(
            f"cassandra: the replication of the keyspace names no copies in the data centre {centre}. "
            "Alter it: NetworkTopologyStrategy with copies there, or use serial=SERIAL",
            setting="replication",
        )
    if copies == 1 and sync == "periodic":
        raise StoreUnavailable(
            "cassandra: commitlog_sync is periodic and the replication factor is 1: a crash would take back answered "
            "writes. Set commitlog_sync to batch or group, or the replication factor to 3",
            setting="commitlog_sync",
        )


def _new_version() -> bytes:
    return os.urandom(12)


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    """Translate the errors of a statement that runs."""
    try:
        yield
    except _NOTHING_HAPPENED as error:
        raise Passing(f"cassandra: {_shown(error)}") from error
    except _REFUSED as error:
        raise StoreUnavailable(f"cassandra: {in_words(error)}") from error
    except (
        cassandra.DriverException,  # also Unavailable: replicas may be missing only at the commit
        protocol.ErrorMessage,
        connection.ConnectionException,
        OSError,
    ) as error:
        raise OutcomeUnknown(f"cassandra: the answer was lost: {in_words(error)}") from error


def _shown(error: Exception) -> str:
    """Return what failed. If all nodes failed, the client's own text has its errors as Python shows them."""
    errors = getattr(error, "errors", None)
    if not isinstance(error, cluster.NoHostAvailable) or not isinstance(errors, dict):
        return in_words(error)
    each = [f"{node}: {in_words(why) if isinstance(why, Exception) else why}" for node, why in errors.items()]
    return ": ".join(filter(None, [str(error.args[0]), "; ".join(each)]))


@asynccontextmanager
async def _nothing_sent() -> AsyncIterator[None]:
    """Translate errors that come before the operation itself is sent."""
    try:
        async with _translated():
            yield
    except OutcomeUnknown as error:
        raise Passing(str(error)) from error
    except Passing as error:
        refused = getattr(error.__cause__, "errors", {})
        if any(isinstance(each, cassandra.AuthenticationFailed) for each in dict(refused).values()):
            raise StoreUnavailable(str(error)) from error
        raise


@asynccontextmanager
async def _not_heard_of() -> AsyncIterator[None]:
    """Translate the error of a node that does not know a keyspace or table yet: another node made it."""
    try:
        yield
    except StoreUnavailable as error:
        if re.search("does not exist|doesn't exist|unconfigured table", str(error)):
            raise Passing(str(error)) from error
        raise
