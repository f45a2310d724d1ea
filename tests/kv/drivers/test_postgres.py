"""The PostgreSQL driver keeps the contract, on a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import (
    InvalidStoreUri,
    PredicateFailed,
    StoreFormat,
    StoreUnavailable,
    StoreUri,
    compact_store,
    migrate_store,
    open_store,
    snapshot_store,
    sqlite_uri,
    store_size,
)
from lakebed.kv.drivers import postgres as postgres_driver
from lakebed.kv.remote.store import RemoteStore
from tests.kv.servers import OnServer, Server, postgres, promote, replica_of, wait_until_it_answers

TARGET = "target_session_attrs"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres() as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"postgres://lakebed@127.0.0.1:{port}/postgres?schema={name}&wait_s={wait_s}"


class TestPostgres(OnServer):
    pass


@pytest.mark.parametrize("setting", ["fsync=off", "full_page_writes=off", "synchronous_commit=off"])
def test_a_setting_that_would_lose_answered_writes_is_refused_by_its_name(setting: str) -> None:
    with postgres(setting) as unsafe, pytest.raises(StoreUnavailable, match=setting.replace("=", " is ")):
        open_store(uri_of(unsafe.port, name="unsafe"))


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("postgres://nobody@{host}/postgres", 'role "nobody" does not exist'),
        ("postgres://lakebed@{host}/absent", 'database "absent" does not exist'),
    ],
)
def test_a_wrong_user_or_database_is_an_error_at_once(server: Server, uri: str, complaint: str) -> None:
    with pytest.raises(StoreUnavailable, match=complaint):
        open_store(uri.format(host=f"127.0.0.1:{server.port}"))


def test_options_that_make_no_sense_are_refused() -> None:
    for options in (
        "connections=0",
        "connections=many",
        "schema=",
        'schema=a"b',
        "sslmode=perhaps",
        "color=red",
        f"{TARGET}=any",
        f"{TARGET}=prefer-standby",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(f"postgres://lakebed@127.0.0.1:1/postgres?{options}")


async def statement(server: Server, sql: str) -> None:
    connection = await asyncpg.connect(f"postgresql://lakebed@127.0.0.1:{server.port}/postgres")
    await connection.execute(sql)
    await connection.close()


async def test_a_later_format_and_a_table_of_another_program_are_refused(server: Server) -> None:
    await open_store(uri_of(server.port, name="later")).close()
    await statement(server, "UPDATE later.format SET format = 2")
    await statement(server, "CREATE SCHEMA foreign_one; CREATE TABLE foreign_one.kv (id int)")

    with pytest.raises(StoreFormat, match="written in format 2 by another release"):
        open_store(uri_of(server.port, name="later"))
    with pytest.raises(StoreFormat, match="a table of another program"):
        open_store(uri_of(server.port, name="foreign_one"))


async def test_an_administrator_who_ends_connections_disturbs_no_reader(server: Server) -> None:
    store = open_store(uri_of(server.port, name="ended"))
    await store.set(b"p", b"key", b"value")

    await statement(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lakebed'")

    found = await store.get(b"p", b"key")
    assert found is not None
    await store.close()


async def test_a_write_on_a_connection_that_the_database_has_left_is_asked_again(server: Server) -> None:
    """The farewell has come, the end has not: a proxy keeps the connection open. So the client sends nothing."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(pass_on(reader, to_server), pass_on(from_server, writer))

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        if not holds.is_set():
            writer.close()
        farewell.set()

    holds, farewell = asyncio.Event(), asyncio.Event()
    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    uri = uri_of(proxy.sockets[0].getsockname()[1], name="left", wait_s=20)
    store = await asyncio.to_thread(open_store, uri)
    await store.set(b"p", b"key", b"value")
    farewell.clear()
    holds.set()
    await statement(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lakebed'")
    await farewell.wait()
    holds.clear()

    await store.set(b"p", b"key", b"another")

    found = await store.get(b"p", b"key")
    assert found is not None
    assert found.value == b"another"
    await store.close()
    proxy.close()
    for writer in writers:
        writer.close()


async def connections_of(server: Server, name: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(f"postgresql://lakebed@127.0.0.1:{server.port}/postgres")
    found = await connection.fetch("SELECT wait_event_type AS waits FROM pg_stat_activity WHERE datname = $1", name)
    await connection.close()
    return list(found)


async def database_in(server: Server, name: str) -> str:
    await statement(server, f"CREATE DATABASE {name}")
    return uri_of(server.port, name="lakebed").replace("/postgres?", f"/{name}?")


async def test_connections_that_one_caller_does_not_need_end_after_a_burst(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(await database_in(server, "bursts"))
    await asyncio.gather(*(store.scan(b"%d" % number, b"", 1) for number in range(4)))
    assert len(await connections_of(server, "bursts")) > 1
    monkeypatch.setattr("lakebed.kv.remote.kept.IDLE_S_MAX", 0.5)

    async with asyncio.timeout(60):
        while len(await connections_of(server, "bursts")) > 1:
            await store.scan(b"p", b"", 1)

    await store.close()


async def test_callers_for_whom_the_database_has_no_connection_wait_for_those_that_others_use(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = (await database_in(server, "fullness")).replace("lakebed@", "guest@")
    await statement(server, "CREATE ROLE guest LOGIN CONNECTION LIMIT 2")
    await statement(server, "GRANT ALL ON DATABASE fullness TO guest")
    refused = 0

    async def counted(*given: Any, **named: Any) -> Any:
        nonlocal refused
        try:
            return await connect(*given, **named)
        except asyncpg.TooManyConnectionsError:
            refused += 1
            raise

    connect = asyncpg.connect
    store = open_store(f"{uri}&connections=4")
    await store.set(b"p", b"key", b"old")
    async with asyncio.timeout(60):
        while len(await connections_of(server, "fullness")) > 1:
            pass
        holder = await connect(f"postgresql://lakebed@127.0.0.1:{server.port}/fullness")
        async with holder.transaction():
            await holder.execute("UPDATE lakebed.kv SET value = 'held'")
            writing = [asyncio.create_task(store.set(b"p", b"key", b"new")) for _ in range(2)]
            while [each["waits"] for each in await connections_of(server, "fullness")].count("Lock") < 2:
                pass
            monkeypatch.setattr("lakebed.kv.remote.kept.FULL_S", 600)
            monkeypatch.setattr(asyncpg, "connect", counted)
            writing += [asyncio.create_task(store.set(b"p", b"key", b"new")) for _ in range(2)]
            while refused < 2:
                await connections_of(server, "fullness")

            for _ in range(30):
                await connections_of(server, "fullness")

        await asyncio.gather(*writing)
        await holder.close()

    assert refused == 2
    await store.close()


async def test_a_connection_that_comes_back_after_the_end_is_ended_too(server: Server) -> None:
    uri = await database_in(server, "endings")
    await open_store(uri).close()
    database = postgres_driver._from(StoreUri(uri.partition("&wait_s")[0]), 60)
    await database.write(b"p", [(b"key", b"old")])
    holder = await asyncpg.connect(f"postgresql://lakebed@127.0.0.1:{server.port}/endings")
    async with asyncio.timeout(60):
        async with holder.transaction():
            await holder.execute("UPDATE lakebed.kv SET value = 'held'")
            writing = asyncio.create_task(database.write(b"p", [(b"key", b"new")]))
            while "Lock" not in {each["waits"] for each in await connections_of(server, "endings")}:
                assert not writing.done()

            await database.close()
        await writing
        await holder.close()

        while await connections_of(server, "endings"):
            pass


async def test_conditional_writes_at_once_lock_their_rows_in_one_order(server: Server) -> None:
    uri = await database_in(server, "orders")
    for join in ("nestloop", "mergejoin"):  # what is left reads the rows as they lie: 3 stands first
        await statement(server, f"ALTER DATABASE orders SET enable_{join} = off")
    store = open_store(uri)
    held = {b"%d" % number: await store.set_if(b"p", b"%d" % number, b"old", None) for number in (3, 2, 1)}
    holder = await asyncpg.connect(f"postgresql://lakebed@127.0.0.1:{server.port}/orders")
    async with asyncio.timeout(60):
        async with holder.transaction():
            await holder.execute("UPDATE lakebed.kv SET value = 'other' WHERE key = '1'")
            writing = asyncio.gather(
                *(store.set_if(b"p", key, b"new", predicate) for key, predicate in held.items()),
                return_exceptions=True,
            )
            while "Lock" not in {each["waits"] for each in await connections_of(server, "orders")}:
                assert not writing.done()

            # The first in order is held, so the writer that waits for it holds none of the others.
            free = await holder.fetch("SELECT key FROM lakebed.kv WHERE key > '1' FOR UPDATE SKIP LOCKED")
            assert len(free) == 2
        *written, refused = await writing
        await holder.close()

    assert [each for each in written if isinstance(each, BaseException)] == []
    assert isinstance(refused, PredicateFailed)
    found = await store.get_many(b"p", [b"1", b"2", b"3"])
    assert [each and each.value for each in found] == [b"other", b"new", b"new"]
    await store.close()


async def test_a_deletion_of_several_keys_locks_its_rows_in_the_order_of_conditional_writes(server: Server) -> None:
    uri = await database_in(server, "deletions")
    for scan in ("indexscan", "indexonlyscan", "bitmapscan"):  # what is left reads the rows as they lie: 3 stands first
        await statement(server, f"ALTER DATABASE deletions SET enable_{scan} = off")
    store = open_store(uri)
    held = {b"%d" % number: await store.set_if(b"p", b"%d" % number, b"old", None) for number in (3, 2, 1)}
    holder = await asyncpg.connect(f"postgresql://lakebed@127.0.0.1:{server.port}/deletions")
    async with asyncio.timeout(60):
        async with holder.transaction():
            await holder.execute("UPDATE lakebed.kv SET value = 'other' WHERE key = '1'")
            deleting = asyncio.create_task(store.delete_many(b"p", list(held)))
            while "Lock" not in {each["waits"] for each in await connections_of(server, "deletions")}:
                assert not deleting.done()
            writing = asyncio.gather(*(store.set_if(b"p", key, b"new", held[key]) for key in (b"3", b"2")))

            # The deletion waits for the first row and holds none of the others.
            await writing
            assert not deleting.done()
        await deleting
        await holder.close()

    assert (await store.scan(b"p", b"", 10)).keys == []
    await store.close()


async def test_a_primary_that_has_become_a_replica_is_not_read() -> None:
    with postgres() as server:
        uri = uri_of(server.port, name="demoted")
        await open_store(uri).close()
        (server.folder / "data" / "standby.signal").touch()
        server.restart()
        wait_until_it_answers(server.folder, server.port)
        # It waits long for each answer, and repeats nothing.
        database = postgres_driver._from(StoreUri(uri.partition("&wait_s")[0]), 60)
        store = RemoteStore(database, name="postgres", wait_s=0)

        for reading in (store.get(b"p", b"key"), store.scan(b"p", b"", 10)):
            with pytest.raises(StoreUnavailable, match="this is a replica"):
                await reading

        await store.close()


async def test_writers_go_on_at_the_replica_that_takes_over_and_no_answered_write_is_lost() -> None:
    """Each writer appends its marks to one value, and reads after a lost answer, as the callers of the port do."""
    with postgres() as primary, replica_of(primary) as replica:
        hosts = f"{primary.port},127.0.0.1:{replica.port}"
        store = open_store(f"postgres://lakebed@127.0.0.1:{hosts}/postgres?schema=taken&wait_s=600")
        half = asyncio.Event()
        has_new_primary = asyncio.Event()

        async def append(writer: int) -> None:
            for number in range(20):
                if number == 10:
                    half.set()
                if number == 15:
                    await has_new_primary.wait()
                mark = b"%d.%d " % (writer, number)
                while True:
                    found = await store.get(b"p", b"marks")
                    if found is not None and mark in found.value:
                        break  # also where the answer was lost
                    value, predicate = (b"", None) if found is None else (found.value, found.predicate)
                    with suppress(PredicateFailed, OutcomeUnknown):
                        await store.set_if(b"p", b"marks", value + mark, predicate)
                        break

        async def take_over() -> None:
            await half.wait()
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(promote, replica)
            has_new_primary.set()

        await asyncio.gather(take_over(), *(append(writer) for writer in range(4)))

        found = await store.get(b"p", b"marks")
        assert found is not None
        assert sorted(found.value.split()) == sorted(b"%d.%d" % (w, n) for w in range(4) for n in range(20))
        await store.close()


async def test_closing_waits_for_what_a_cancelled_caller_asked(server: Server) -> None:
    store = open_store(uri_of(server.port, name="closing"))
    await store.set(b"p", b"key", b"old")
    other = await asyncpg.connect(host="127.0.0.1", port=server.port, user="lakebed", database="postgres")
    blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND $1 = ANY(pg_blocking_pids(pid))"
    async with other.transaction():
        await other.execute("UPDATE closing.kv SET value = value")
        call = asyncio.create_task(store.set_if(b"p", b"key", b"new", b"old"))
        while not await other.fetchval(blocked, other.get_server_pid()):
            await other.execute("SELECT pg_sleep(0.01)")
        call.cancel()

        closing = asyncio.create_task(store.close())

        await asyncio.wait({call, closing}, timeout=0.2)
        assert call.cancelled()
        assert not closing.done()
    await closing
    assert await other.fetchval("SELECT value FROM closing.kv") == b"new"
    await other.close()


async def test_the_size_of_a_store_is_that_of_its_table(server: Server) -> None:
    uri = uri_of(server.port, name="sized")
    store = open_store(uri)
    empty = store_size(uri).size_bytes
    await store.set_many(b"p", [(b"%d" % number, bytes(1000)) for number in range(1000)])

    full = store_size(uri).size_bytes
    assert full > empty
    await store.delete_many(b"p", [b"%d" % number for number in range(1, 1000)])
    compact_store(uri)
    assert store_size(uri).size_bytes < full
    assert (await store.scan(b"p", b"", 10)).keys == [b"0"]
    await store.close()


@pytest.mark.parametrize("ask", [store_size, compact_store])
def test_what_is_no_store_is_neither_measured_nor_compacted(server: Server, ask: Callable[[str], object]) -> None:
    with pytest.raises(StoreFormat, match="holds no store"):
        ask(uri_of(server.port, name="absent"))


def test_migrating_makes_the_schema_in_a_new_database_and_leaves_one_that_is_there(server: Server) -> None:
    uri = uri_of(server.port, name="migrated")

    migrate_store(uri)
    migrate_store(uri)

    assert store_size(uri).size_bytes > 0


async def test_a_user_who_may_not_create_is_told_what_to_grant(server: Server) -> None:
    """And what is told is enough."""
    uri = uri_of(server.port, name="granted", wait_s=10)
    as_server = uri.replace("lakebed@", "writer@")
    connection = await asyncpg.connect(uri.partition("?")[0])
    await connection.execute("CREATE ROLE writer LOGIN")
    try:
        with pytest.raises(StoreUnavailable, match=r"kv migrate.*GRANT USAGE"):
            await asyncio.to_thread(migrate_store, as_server)
        await asyncio.to_thread(migrate_store, uri)
        with pytest.raises(StoreUnavailable, match=r"kv migrate.*GRANT USAGE") as refused:
            await asyncio.to_thread(migrate_store, as_server)
        for grant in re.findall("GRANT[^;…]+", str(refused.value)):
            await connection.execute(f"{grant} writer")
        await asyncio.to_thread(migrate_store, as_server)
    finally:
        await connection.close()


async def test_a_snapshot_is_of_one_moment_while_others_write(server: Server, tmp_path: Path) -> None:
    uri, written = uri_of(server.port, name="snapshot"), 0
    store = open_store(uri)
    old = {b"old %05d" % number: bytes(200) for number in range(3000)}
    await store.set_many(b"p", list(old.items()))
    await store.set(b"q", b"key", b"value")

    async def write() -> None:
        nonlocal written
        while True:
            await store.set(b"p", b"new %08d" % written, b"")
            written += 1

    writing = asyncio.create_task(write())
    await asyncio.to_thread(snapshot_store, uri, tmp_path / "copy.db")
    after = written
    writing.cancel()

    copy = open_store(sqlite_uri(tmp_path / "copy.db") + "?mode=read")
    keys = (await copy.scan(b"p", b"", 10**6)).keys
    new = [key for key in keys if key.startswith(b"new")]
    assert after > 0
    assert keys == [*(b"new %08d" % number for number in range(len(new))), *old]
    assert len(new) <= after + 1
    assert (await copy.scan(b"q", b"", 10)).values == [b"value"]
    await copy.close()
    await store.close()
