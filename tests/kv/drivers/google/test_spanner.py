"""The driver of Spanner keeps the contract, on Google's own emulator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import pytest

pytest.importorskip("google.cloud.spanner_v1")

import grpc
from google.cloud.spanner_admin_database_v1 import DatabaseAdminClient, DatabaseDialect
from google.cloud.spanner_v1 import SpannerClient
from google.cloud.spanner_v1.types import PartialResultSet
from google.protobuf.struct_pb2 import Value

from lakebed.kv import InvalidStoreUri, StoreFormat, StoreUnavailable, StoreUri, open_store
from lakebed.kv.drivers.google import spanner as spanner_driver
from lakebed.testing.contracts.network import faulty_network
from lakebed.testing.contracts.processes import COUNTER, PARTITION, increment
from lakebed.testing.contracts.store import held
from tests.kv.servers import SPANNER, OnServer, Server, a_slow_link_is_borne, a_value_put_back_is_noticed, spanner

DATABASE = "projects/tests/instances/tests/databases/tests"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with spanner() as server:
        yield server


@pytest.fixture(autouse=True)
def no_session_is_left(server: Server) -> None:
    """Undo the transactions of earlier tests, and delete their sessions.

    A killed process leaves its own, maybe with a transaction. Beside one, the emulator runs no other, for ever. A
    session must not be deleted with it: the emulator would keep its locks, and may crash.
    """
    with client_of(server) as client:
        for session in client.list_sessions(database=DATABASE):
            begun = client.begin_transaction(session=session.name, options=spanner_driver._READ_WRITE)
            client.rollback(session=session.name, transaction_id=begun.id)
            client.delete_session(name=session.name)


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    """Wait long: the emulator takes one writing transaction at a time, and other processes wait for their turns."""
    return f"{SPANNER}?table={name}&endpoint=http://127.0.0.1:{port}&wait_s={wait_s}"


class TestSpanner(OnServer):
    program_steps = 60
    increments = 10
    not_killed = "the emulator keeps all in memory"


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"))


async def test_a_store_connects_over_a_slow_link(server: Server) -> None:
    await a_slow_link_is_borne(server.port, lambda port: uri_of(port, name="slow"))


async def test_commits_that_spanner_aborts_are_begun_again_and_none_is_done_twice() -> None:
    with spanner("--enable_fault_injection") as faulty:
        store = open_store(uri_of(faulty.port, name="aborts"))

        await asyncio.gather(*(increment(store, 10) for _ in range(5)))

        assert (await held(store, PARTITION, COUNTER)).value == b"50"
        used = sessions_of(faulty)
        await store.close()
        assert (1 <= used <= 5, sessions_of(faulty)) == (True, 0)


async def test_sessions_in_which_a_transaction_may_be_open_are_deleted(server: Server) -> None:
    uri = uri_of(server.port, name="spoilt")
    store = open_store(uri)
    predicate = await store.set_if(b"p", b"key", b"value", None)
    database = store._database  # type: ignore[attr-defined]  # a RemoteStore

    for _ in range(3):
        with pytest.raises(StoreUnavailable):  # Spanner takes values of 10 MiB
            await store.set_if(b"p", b"key", bytes(11 << 20), predicate)
    await store.set(b"p", b"other", b"value")

    assert (sessions_of(server), len(database._idle), database._spoilt) == (1, 1, [])
    await store.close()
    assert sessions_of(server) == 0


async def test_a_transaction_whose_beginning_was_not_answered_is_undone_before_the_next_request(server: Server) -> None:
    """An idle session would do for the next request, but the transaction's locks stand in its way."""
    with faulty_network(server.port) as network:
        store = open_store(uri_of(network.port, name="begun"))
        predicate = await store.set_if(b"p", b"key", b"value", None)
        await asyncio.gather(*(store.scan(b"p", b"", 1) for _ in range(3)))
        database = store._database  # type: ignore[attr-defined]  # a RemoteStore
        idle = len(database._idle)

        network.lose_answer_to(b"key")
        await store.set_if(b"p", b"key", b"new", predicate)

        assert (idle, database._spoilt, sessions_of(server)) == (3, [], len(database._idle))
        await store.close()


async def test_a_session_that_could_not_be_deleted_is_deleted_later(server: Server) -> None:
    await open_store(uri_of(server.port, name="kept")).close()
    with faulty_network(server.port) as network:
        store = open_store(uri_of(network.port, name="kept"))
        await store.set(b"p", b"key", b"value")
        store._wait_s = 0  # type: ignore[attr-defined]  # a RemoteStore, which reads once from here on
        network.refuse()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.get(b"p", b"key")
        database = store._database  # type: ignore[attr-defined]  # a RemoteStore
        assert (len(database._spoilt), sessions_of(server)) == (1, 1)

        network.heal()
        await store.close()

        assert sessions_of(server) == 0


@contextmanager
def client_of(server: Server) -> Iterator[SpannerClient]:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield SpannerClient(transport=SpannerClient.get_transport_class("grpc")(channel=channel))


def sessions_of(server: Server) -> int:
    """Count those that the emulator keeps."""
    with client_of(server) as client:
        return len(list(client.list_sessions(database=DATABASE)))


async def test_a_session_that_has_ended_is_replaced(server: Server) -> None:
    """Spanner ends one that was idle for an hour."""
    store = open_store(uri_of(server.port, name="ended"))
    await store.set(b"p", b"key", b"value")
    database = store._database  # type: ignore[attr-defined]  # a RemoteStore
    database._idle = [f"{each}0" for each in database._idle]

    predicate = await store.set_if(b"p", b"other", b"value", None)

    assert (await store.scan(b"p", b"", 10)).keys == [b"key", b"other"]
    await store.delete_if(b"p", b"other", predicate)
    await store.close()


async def test_a_table_of_another_release_or_program_is_refused(server: Server) -> None:
    uri = uri_of(server.port, name="later")
    await open_store(uri).close()
    database = spanner_driver._from(StoreUri(uri.replace("&wait_s=60", "")), 10)
    await database._commit([database._put("update", b"", b"format", b"2")])
    await database.close()

    with pytest.raises(StoreFormat, match="in format b'2'"):
        open_store(uri)
    with pytest.raises(StoreFormat, match="another program"):
        spanner_driver._check_table("CREATE TABLE lakebed (\n  id INT64,\n) PRIMARY KEY(id)")


def test_settings_that_would_lose_answered_writes_are_refused_by_their_names(server: Server) -> None:
    make = spanner_driver.MAKE_TABLE.format(table="aged").replace("n BYTES(12) NOT NULL", "n BYTES(12), t TIMESTAMP")
    make += ", ROW DELETION POLICY (OLDER_THAN(t, INTERVAL 7 DAY))"
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        admin = DatabaseAdminClient(transport=DatabaseAdminClient.get_transport_class("grpc")(channel=channel))
        admin.update_database_ddl(database=DATABASE, statements=[make])

    with pytest.raises(StoreUnavailable, match="ROW DELETION POLICY"):
        open_store(uri_of(server.port, name="aged"))
    with pytest.raises(StoreUnavailable, match="database_dialect is POSTGRESQL"):
        spanner_driver._check_dialect(DatabaseDialect.POSTGRESQL)


def test_a_database_that_is_missing_is_refused_as_not_found(server: Server) -> None:
    with pytest.raises(StoreUnavailable, match="NOT_FOUND"):
        open_store(uri_of(server.port, name="t").replace("tests?", "missing?"))


async def parts(*each: tuple[Sequence[str], bool]) -> AsyncIterator[PartialResultSet]:
    for texts, is_cut in each:
        part = PartialResultSet(chunked_value=is_cut)
        PartialResultSet.pb(part).values.extend(Value(string_value=text) for text in texts)
        yield part


async def test_rows_are_put_together_from_parts_that_are_cut_within_a_value() -> None:
    found = await spanner_driver._rows_of(parts((["YQ==", "YW"], True), ([], True), (["Fh", "Yg==", "Yw=="], False)), 2)

    assert found == [(b"a", b"aaa"), (b"b", b"c")]


def test_options_that_make_no_sense_are_refused() -> None:
    for uri in (
        "spanner://",
        "spanner://project/instance",
        "spanner://project/instance/a/b",
        "spanner://project/instance/database?table=a-b",
        "spanner://project/instance/database?endpoint=here",
        "spanner://project/instance/database?staleness=15",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
