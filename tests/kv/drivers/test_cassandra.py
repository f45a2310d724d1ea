"""The driver of Cassandra keeps the contract, on a real node."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("cassandra")

from cassandra import InvalidRequest, Unavailable, protocol
from cassandra.cluster import Cluster, NoHostAvailable
from cassandra.connection import ConnectionShutdown

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, Store, StoreFormat, StoreUnavailable, StoreUri, open_store, store_partitions
from lakebed.kv.drivers import cassandra as cassandra_driver
from lakebed.kv.remote.store import Passing
from lakebed.testing.contracts.network import FaultyNetwork
from tests.kv.servers import OnServer, Server, a_value_put_back_is_noticed, cassandra

ALONE = pytest.mark.skipif(
    "LAKEBED_TEST_CASSANDRA" not in os.environ,
    reason="its transactions time out beside other tests: LAKEBED_TEST_CASSANDRA=alone runs this one",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with cassandra() as server:
        yield server


def uri_of(port: int, *, name: str, keyspace: str = "tests", wait_s: float = 60) -> str:
    return f"cassandra://127.0.0.1:{port}/{keyspace}?table={name}&replicas=1&wait_s={wait_s}"


class TestCassandra(OnServer):
    many = 1000
    program_steps = 60
    increments = 20
    cuts_s = (0.1, 0.3)

    @ALONE
    async def test_processes_that_open_it_at_the_same_moment_lose_no_increment(self, store_uri: str) -> None:
        await super().test_processes_that_open_it_at_the_same_moment_lose_no_increment(store_uri)

    @ALONE
    async def test_no_acknowledged_write_is_lost_or_done_twice_while_connections_break(
        self, distant: Store, network: FaultyNetwork
    ) -> None:
        await super().test_no_acknowledged_write_is_lost_or_done_twice_while_connections_break(distant, network)


def run(server: Server, *statements: str) -> None:
    cluster = Cluster(["127.0.0.1"], port=server.port, protocol_version=4)
    try:
        session = cluster.connect()
        for statement in statements:
            session.execute(statement)
    finally:
        cluster.shutdown()


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"))


async def test_a_partition_whose_last_key_is_deleted_is_gone(server: Server) -> None:
    uri = uri_of(server.port, name="emptied")
    store = open_store(uri)
    await store.set(b"p", b"key", b"A")
    assert store_partitions(uri) == [b"p"]

    await store.delete(b"p", b"key")

    assert store_partitions(uri) == []
    await store.close()


async def test_settings_that_would_lose_answered_writes_are_refused_by_their_names(server: Server) -> None:
    await open_store(uri_of(server.port, name="any", keyspace="lossy")).close()
    run(server, "ALTER KEYSPACE lossy WITH durable_writes = false")

    with pytest.raises(StoreUnavailable, match="durable_writes is false"):
        open_store(uri_of(server.port, name="any", keyspace="lossy"))
    settings: dict[str, Any] = {
        "release": "5.0.4",
        "is_durable": True,
        "replication": {"class": "x", "dc1": "1"},
        "sync": "batch",
    }
    cassandra_driver._check_settings(**settings)
    for change, name in (
        ({"sync": "periodic"}, "commitlog_sync is periodic and the replication factor is 1"),
        ({"release": "3.11.19"}, "release_version is 3.11.19"),
        (
            {"sync": "periodic", "replication": {"class": "x", "dc1": "1", "dc2": "3"}, "centre": "dc1"},
            "commitlog_sync is periodic and the replication factor is 1",
        ),
        ({"centre": "dc3"}, "no copies in the data centre dc3"),
        (
            {"centre": "dc1", "replication": {"class": "x", "replication_factor": "3"}},
            "no copies in the data centre dc1",
        ),
    ):
        with pytest.raises(StoreUnavailable, match=name):
            cassandra_driver._check_settings(**settings | change)
    cassandra_driver._check_settings(**settings | {"sync": "periodic", "replication": {"class": "x", "dc1": "3"}})


async def test_a_later_format_is_refused_and_so_is_a_table_of_another_program(server: Server) -> None:
    store = open_store(uri_of(server.port, name="later"))
    await store.set(bytes(1024), b"format", b"2")  # beside the mark
    await open_store(uri_of(server.port, name="later")).close()
    await store.close()
    mark = bytes(1025).hex()
    run(server, f"UPDATE tests.later SET v = 0x32 WHERE p = 0x{mark} AND k = 0x{b'format'.hex()} IF EXISTS")
    run(server, "CREATE TABLE tests.theirs (id int PRIMARY KEY)")

    with pytest.raises(StoreFormat, match="in format b'2'"):
        open_store(uri_of(server.port, name="later"))
    with pytest.raises(StoreUnavailable, match="Undefined column"):
        open_store(uri_of(server.port, name="theirs"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NoHostAvailable("none", {}), Passing),
        (protocol.IsBootstrappingErrorMessage(0x1002, "starts", None), Passing),
        (protocol.OverloadedErrorMessage(0x1001, "Too many in flight hints", None), OutcomeUnknown),
        (Unavailable("too few replicas"), OutcomeUnknown),
        (protocol.SyntaxException(0x2000, "no", None), StoreUnavailable),
    ],
)
async def test_each_failure_says_what_became_of_the_request(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected) as raised:
        async with cassandra_driver._translated():
            raise error

    assert type(raised.value) is expected


async def test_a_failure_of_all_nodes_says_why_of_each() -> None:
    refused = ConnectionRefusedError(111, "Tried [('n1', 9042)]. Last error: Connection refused")
    error = NoHostAvailable("Unable to connect", {"n1:9042": refused, "n2:9042": ConnectionShutdown("it was closed")})

    with pytest.raises(Passing) as raised:
        async with cassandra_driver._translated():
            raise error

    assert str(raised.value) == (
        "cassandra: Unable to connect: n1:9042: Tried [('n1', 9042)]. Last error: Connection refused;"
        " n2:9042: it was closed"
    )


class LateNode:
    """Stands for a client of several nodes. Of a keyspace that was made one has not heard, and is asked this once."""

    def __init__(self, asked: str) -> None:
        self.asked = asked
        self.is_made = False

    def execute(self, text: str, values: object = ()) -> list[tuple[object, ...]]:
        if text == cassandra_driver.RELEASE:
            return [("5.0.4",)]
        if values == ("system", "scylla_local"):
            return [("scylla_local",)]  # of it fewer settings are asked
        if "CREATE KEYSPACE" in text:
            self.is_made = True
        if self.is_made and self.asked in text:
            self.asked = "nothing more"
            if "CREATE TABLE" in text:
                raise InvalidRequest("Keyspace 'lakebed' doesn't exist")
            return []
        return [(True, {"class": "x", "dc1": "3"})] if self.is_made and text == cassandra_driver.KEYSPACE else []


@pytest.mark.parametrize("asked", ["FROM system_schema.keyspaces", "CREATE TABLE"])
async def test_a_keyspace_of_which_a_node_has_not_heard_yet_is_waited_for(asked: str) -> None:
    database = cassandra_driver._from(StoreUri("cassandra://h/lakebed"), 1)
    session: Any = LateNode(asked)

    with pytest.raises(Passing):
        await database._make(session)

    await database._make(session)
    assert session.asked == "nothing more"


class OnePage:
    """Stands for a client whose server ends a page after two rows, as Scylla may by size."""

    has_more_pages = True

    def bind(self, values: object) -> OnePage:
        return self

    def execute_async(self, statement: object) -> OnePage:
        return self

    def add_callbacks(self, callback: Callable[[object], None], errback: object) -> None:
        callback([(b"a", b"1"), (b"b", b"2")])


async def test_a_page_that_is_not_the_last_one_does_not_end_a_scan() -> None:
    database = cassandra_driver._from(StoreUri("cassandra://h/lakebed"), 1)
    page: Any = OnePage()
    database._session, database._statements = page, {cassandra_driver.SCAN: page}

    with pytest.raises(StoreUnavailable, match="one page of the rows"):
        await database.scan(b"p", b"", 100)

    assert page.fetch_size is None


def test_options_that_make_no_sense_are_refused() -> None:
    for uri in (
        "cassandra://",
        "cassandra://h",
        "cassandra://h/A-b",
        "cassandra://h/lakebed?ca_file=/absent",
        "cassandra://h/lakebed?tls=yes&ca_file=/absent",
        "cassandra:///lakebed",
        "cassandra://h:1,g:2/lakebed",
        "cassandra://h/lakebed?serial=ONE",
        "cassandra://h/lakebed?serial=LOCAL_SERIAL",
        "cassandra://h/lakebed?color=red",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
