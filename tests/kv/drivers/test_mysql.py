"""The driver of MySQL and MariaDB keeps the contract, on a real MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import aiomysql
import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, StoreFormat, StoreUnavailable, StoreUri, compact_store, open_store, store_size
from lakebed.kv.drivers import mysql as mysql_driver
from lakebed.kv.remote.store import RemoteStore
from tests.kv.servers import OnServer, Server, mariadb


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with mariadb("--log-bin=bin", "--sync-binlog=1") as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"mysql://root@127.0.0.1:{port}/mysql?prefix={name}&wait_s={wait_s}"


class TestMariadb(OnServer):
    pass


async def statement(server: Server, *sql: str) -> None:
    connection = await aiomysql.connect(host="127.0.0.1", port=server.port, user="root", db="mysql", autocommit=True)
    async with connection.cursor() as cursor:
        for each in sql:
            await cursor.execute(each)
    connection.close()


async def store_of_single_attempts(uri: str) -> RemoteStore:
    """Make a store whose operations wait long for each answer, and repeat nothing. It has no connection yet."""
    await open_store(uri).close()
    return RemoteStore(mysql_driver._from(StoreUri(uri.partition("&wait_s")[0]), 60), name="mysql", wait_s=0)


@pytest.mark.parametrize(("setting", "unsafe"), [("innodb_flush_log_at_trx_commit", 2), ("sync_binlog", 0)])
async def test_a_setting_that_would_lose_answered_writes_is_refused_by_its_name(
    server: Server, setting: str, unsafe: int
) -> None:
    await statement(server, f"SET GLOBAL {setting} = {unsafe}")
    try:
        with pytest.raises(StoreUnavailable, match=f"{setting} is {unsafe}"):
            open_store(uri_of(server.port, name="unsafe"))
    finally:
        await statement(server, f"SET GLOBAL {setting} = 1")


async def test_a_primary_that_has_become_a_replica_is_not_read_over_new_connections(server: Server) -> None:
    store = await store_of_single_attempts(uri_of(server.port, name="demoted"))
    await statement(server, "SET GLOBAL read_only = 1")
    try:
        for reading in (store.get(b"p", b"key"), store.scan(b"p", b"", 10)):
            with pytest.raises(StoreUnavailable, match="this is a replica"):
                await reading
    finally:
        await statement(server, "SET GLOBAL read_only = 0")

    assert await store.get(b"p", b"key") is None
    await store.close()


async def test_a_primary_that_has_become_a_replica_is_not_read_over_connections_that_it_kept(server: Server) -> None:
    store = await store_of_single_attempts(uri_of(server.port, name="kept"))
    for read in (
        lambda: store.get(b"p", b"key"),
        lambda: store.get(b"p", b"absent"),
        lambda: store.scan(b"p", b"", 10),
    ):
        await store.set(b"p", b"key", b"value")  # a refused read has closed its connection
        await statement(server, "SET GLOBAL read_only = 1")
        try:
            with pytest.raises(StoreUnavailable, match="this is a replica"):
                await read()
        finally:
            await statement(server, "SET GLOBAL read_only = 0")

    assert (await store.scan(b"p", b"", 10)).values == [b"value"]
    await store.close()


async def test_a_write_leaves_the_connections_to_a_primary_that_has_become_a_replica(server: Server) -> None:
    await statement(
        server,
        "CREATE USER IF NOT EXISTS writer@'%' IDENTIFIED BY 'x'",  # root may write to a replica
        "GRANT ALL ON mysql.* TO writer@'%'",
    )
    store = await store_of_single_attempts(uri_of(server.port, name="left").replace("root@", "writer:x@"))
    await store.set(b"p", b"key", b"value")
    await statement(server, "SET GLOBAL read_only = 1")
    try:
        for answer in ("read-only", "this is a replica"):  # the second is what new connections are asked
            with pytest.raises(StoreUnavailable, match=answer):
                await store.set(b"p", b"key", b"later")
    finally:
        await statement(server, "SET GLOBAL read_only = 0")

    await store.set(b"p", b"key", b"later")
    await store.close()


async def test_a_replica_is_refused_and_so_are_a_later_format_and_a_wrong_password(server: Server) -> None:
    await open_store(uri_of(server.port, name="later")).close()
    await statement(server, "UPDATE later_format SET format = 2", "SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreUnavailable, match="read_only is ON"):
            open_store(uri_of(server.port, name="fresh", wait_s=0))
    finally:
        await statement(server, "SET GLOBAL read_only = 0")

    with pytest.raises(StoreFormat, match="written in format 2 by another release"):
        open_store(uri_of(server.port, name="later"))
    with pytest.raises(StoreUnavailable, match="Access denied"):
        open_store(uri_of(server.port, name="fresh").replace("root@", "root:wrong@"))
    with pytest.raises(StoreUnavailable, match="Unknown database"):
        open_store(f"mysql://root@127.0.0.1:{server.port}/absent")


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1598, OutcomeUnknown), (1180, OutcomeUnknown), (1026, OutcomeUnknown), (1114, StoreUnavailable)],
)
async def test_a_write_that_failed_in_its_commit_is_unknown(
    server: Server, number: int, expected: type[Exception]
) -> None:
    """MySQL whose binary log cannot be synced answers 1598, and has the row once it is started again."""
    name = f"commit{number}"
    await statement(server, f"CREATE DATABASE {name}")  # the system's own takes no triggers
    store = open_store(uri_of(server.port, name="lakebed").replace("/mysql?", f"/{name}?"))
    failure = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'the log'"
    await statement(server, f"CREATE TRIGGER {name}.failing BEFORE INSERT ON {name}.lakebed_kv FOR EACH ROW {failure}")

    with pytest.raises(expected, match="the log"):
        await store.set_if(b"p", b"key", b"value", None)

    await statement(server, f"DROP TRIGGER {name}.failing")
    await store.set_if(b"p", b"key", b"value", None)
    await store.close()


def test_options_that_make_no_sense_are_refused() -> None:
    for uri in (
        "mysql://",
        "mysql://h",
        "mysql://h:port/db",
        "mysql://h/db?prefix=a-b",
        "mysql://h/db?color=red",
        "mysql://h/db?ca_file=/absent",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)


async def test_a_store_tells_its_size_and_gives_free_space_back(server: Server) -> None:
    uri = uri_of(server.port, name="sized")
    store = open_store(uri)
    await store.set_many(b"p", [(b"%d" % number, bytes(10_000)) for number in range(1000)])
    await store.delete_many(b"p", [b"%d" % number for number in range(1, 1000)])

    compact_store(uri)

    assert 0 < store_size(uri).size_bytes < 5_000_000
    assert (await store.scan(b"p", b"", 10)).keys == [b"0"]
    await store.close()


@pytest.mark.parametrize("ask", [store_size, compact_store])
def test_what_is_no_store_is_neither_measured_nor_compacted(server: Server, ask: Callable[[str], object]) -> None:
    with pytest.raises(StoreFormat, match="there is no table"):
        ask(uri_of(server.port, name="absent"))
