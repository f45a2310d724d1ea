"""The Redis driver keeps the contract, on a real server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from redis.asyncio import ConnectionPool, Redis

from lakebed.base import OutcomeUnknown
from lakebed.kv import (
    InvalidStoreUri,
    Store,
    StoreFormat,
    StoreUnavailable,
    StoreUri,
    compact_store,
    open_store,
    store_size,
)
from lakebed.kv.drivers import redis as redis_driver
from lakebed.kv.remote.store import RemoteStore
from lakebed.testing.contracts.network import held_port
from tests.kv.servers import OnServer, Server, hanging_port, redis


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis() as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60, options: str = "") -> str:
    return f"redis://127.0.0.1:{port}/0?name={name}&wait_s={wait_s}{options}"


class TestRedis(OnServer):
    pass


@pytest.mark.parametrize(
    "setting",
    ["appendonly no", "appendfsync everysec", "no-appendfsync-on-rewrite yes", "maxmemory-policy allkeys-lru"],
)
def test_a_setting_that_would_lose_answered_writes_is_refused_by_its_name(setting: str) -> None:
    refused = pytest.raises(StoreUnavailable, match=setting.replace(" ", " is "))
    with redis("--maxmemory 100mb", f"--{setting}") as unsafe, refused:
        open_store(uri_of(unsafe.port, name="unsafe"))


async def test_losing_a_second_can_be_accepted_and_a_service_that_hides_its_settings_trusted() -> None:
    with redis("--appendfsync everysec") as relaxed:
        await open_store(uri_of(relaxed.port, name="a", options="&fsync=everysec")).close()
    with redis("--appendonly no") as relaxed:
        with pytest.raises(StoreUnavailable, match="appendonly"):
            open_store(uri_of(relaxed.port, name="a", options="&fsync=everysec"))
        await open_store(uri_of(relaxed.port, name="a", options="&fsync=unchecked")).close()


async def test_a_write_that_too_few_replicas_have_is_unknown(server: Server) -> None:
    """The server waits for replicas half of the limit: 11 s are left for a machine that stands still."""
    with redis(f"--replicaof 127.0.0.1 {server.port}") as replica:
        replicated = open_store(uri_of(server.port, name="replicated", wait_s=22, options="&replicas=1"))
        for _ in range(20):  # until the replica has connected
            with suppress(OutcomeUnknown):
                await replicated.set(b"p", b"key", b"value")
                break
        with pytest.raises(StoreUnavailable, match="read only replica"):
            open_store(uri_of(replica.port, name="replicated", wait_s=0))
    lonely = open_store(uri_of(server.port, name="replicated", wait_s=22, options="&replicas=1"))

    with pytest.raises(OutcomeUnknown, match="0 replicas have the write"):
        await lonely.set(b"p", b"key", b"other")

    await replicated.close()
    await lonely.close()


async def command(server: Server, *parts: str | int) -> None:
    pool = ConnectionPool.from_url(f"redis://127.0.0.1:{server.port}/0")
    await Redis(connection_pool=pool).execute_command(*parts)  # type: ignore[no-untyped-call]  # its library gives no type
    await pool.aclose()


async def test_a_write_that_some_of_the_replicas_have_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def lent(_: object) -> AsyncIterator[None]:
        yield

    async def written(*_: object) -> list[object]:
        return [1]

    async def reached(*_: object) -> int:
        return 1

    for name, double in (("_lent", lent), ("_call_each", written), ("_call", reached)):
        monkeypatch.setattr(redis_driver, name, double)

    def database(replicas: int) -> redis_driver.RedisDatabase:
        return redis_driver.RedisDatabase(
            "redis://127.0.0.1:1", name="a", fsync="always", replicas=replicas, connections=1, timeout_s=1
        )

    await database(1).write(b"p", [(b"k", b"v")])
    with pytest.raises(OutcomeUnknown, match="1 replicas have the write, and 2 should"):
        await database(2).write(b"p", [(b"k", b"v")])


async def test_a_connection_whose_command_was_cancelled_meets_no_other() -> None:
    class Connection:
        socket_connect_timeout = 60
        is_ended = False

        def pack_commands(self, commands: object) -> object:
            return commands

        async def send_packed_command(self, _: object) -> None:
            await asyncio.Event().wait()

        async def disconnect(self, *, nowait: bool) -> None:
            self.is_ended = nowait

    connection = Connection()
    asked = asyncio.create_task(redis_driver._call_each(connection, (b"GET", b"a")))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked

    assert connection.is_ended


async def test_a_primary_that_has_become_a_replica_is_not_read() -> None:
    with redis() as server, held_port() as nowhere:
        uri = uri_of(server.port, name="demoted")
        await open_store(uri).close()
        # It waits long for each answer, and repeats nothing.
        store = RemoteStore(redis_driver._from(StoreUri(uri.partition("&wait_s")[0]), 60), name="redis", wait_s=0)
        await store.set(b"p", b"key", b"value")
        await command(server, "REPLICAOF", "127.0.0.1", nowhere)

        for reading in (store.get(b"p", b"key"), store.scan(b"p", b"", 10)):
            with pytest.raises(StoreUnavailable, match="read only replica"):
                await reading

        await command(server, "REPLICAOF", "NO", "ONE")
        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        await store.close()


async def test_a_write_that_cannot_be_waited_for_is_unknown_and_a_server_does_not_start_then() -> None:
    with redis() as server:
        uri = uri_of(server.port, name="unwaited", wait_s=30, options="&replicas=1")
        store = open_store(uri)
        await command(server, "ACL", "SETUSER", "default", "-wait")

        with pytest.raises(OutcomeUnknown, match="how many replicas have the write is unknown"):
            await store.set_if(b"p", b"key", b"value", None)

        assert (await store.scan(b"p", b"", 10)).values == [b"value"]
        with pytest.raises(StoreUnavailable, match="permission"):
            open_store(uri)
        await store.close()


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes]) -> AsyncIterator[Store]:
    """Answer each write as this does for its key, in Redis' protocol. Yields a store there."""
    connections: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                parts = []
                for _ in range(int((await reader.readuntil(b"\r\n"))[1:])):
                    size = int((await reader.readuntil(b"\r\n"))[1:])
                    parts.append((await reader.readexactly(size + 2))[:-2])
                writer.write((answer(parts[5]) if parts[0] == b"EVAL" else b"+OK") + b"\r\n")
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        uri = StoreUri(uri_of(listener.sockets[0].getsockname()[1], name="answers", options="&fsync=unchecked"))
        wait_s = uri.seconds("wait_s", 60)
        store = RemoteStore(redis_driver._from(uri, wait_s), name="redis", wait_s=wait_s)
        yield store
        await store.close()
        await asyncio.gather(*(each for each in connections if each))


async def test_writes_of_one_request_that_are_refused_are_repeated_at_once_and_hold_up_no_other() -> None:
    asked, others_are_answered = Counter[bytes](), False

    def answer(key: bytes) -> bytes:
        asked[key] += 1
        is_late = key != b"good" and not (others_are_answered and asked[b"a"] > 1 and asked[b"b"] > 1)
        return b"-READONLY You can't write against a read only replica." if is_late else b":1"

    async with answering(answer) as store:
        good, *late = (asyncio.create_task(store.set_if(b"p", key, b"v", None)) for key in (b"good", b"a", b"b"))

        assert await good == b"v"
        assert asked[b"good"] == 1
        others_are_answered = True
        assert await asyncio.gather(*late) == [b"v", b"v"]


async def test_writes_of_one_request_wait_each_for_itself_while_redis_loads() -> None:
    asked = Counter[bytes]()

    def answer(key: bytes) -> bytes:
        asked[key] += 1
        is_early = key != b"b" and asked[key] == 1
        return b"-LOADING Redis is loading the dataset in memory" if is_early else b":1"

    async with answering(answer) as store:
        keys = (b"a", b"b", b"c")
        answers = await asyncio.gather(*(store.set_if(b"p", key, b"v", None) for key in keys))

    assert answers == [b"v", b"v", b"v"]
    assert asked == {b"a": 2, b"b": 1, b"c": 2}


async def test_full_memory_refuses_writes_and_loses_nothing() -> None:
    with redis("--maxmemory 3mb") as small:
        store = open_store(uri_of(small.port, name="small"))
        await store.set(b"p", b"a", b"value")

        items = [(b"large %d" % number, bytes(100_000)) for number in range(100)]
        with pytest.raises((StoreUnavailable, OutcomeUnknown), match="maxmemory"):
            await store.set_many(b"p", items)

        found = await store.get(b"p", b"a")
        assert found is not None
        assert found.value == b"value"
        await store.close()


async def test_compacting_shortens_the_append_only_file_and_keeps_what_is_there() -> None:
    with redis() as server:
        uri = uri_of(server.port, name="compacted")
        store = open_store(uri)
        for number in range(20):
            await store.set_many(b"p", [(b"%d" % number, bytes(100_000)), (b"kept", b"value")])
        await store.delete_many(b"p", [b"%d" % number for number in range(20)])
        before = store_size(uri).size_bytes

        compact_store(uri)

        assert store_size(uri).size_bytes < before // 10
        assert (await store.scan(b"p", b"", 10)).keys == [b"kept"]
        await store.close()


def test_without_an_append_only_file_there_is_no_size_and_nothing_to_compact() -> None:
    with redis("--appendonly no") as relaxed:
        for ask in (store_size, compact_store):
            with pytest.raises(StoreUnavailable, match="shows no append-only file"):
                ask(uri_of(relaxed.port, name="a", options="&fsync=unchecked"))


async def test_a_key_of_another_program_is_refused_and_so_is_a_wrong_password(server: Server) -> None:
    await open_store(uri_of(server.port, name="mine")).close()
    await command(server, "SET", "foreign:format", "theirs")

    with pytest.raises(StoreFormat, match="another release or program wrote it"):
        open_store(uri_of(server.port, name="foreign"))
    with pytest.raises(StoreUnavailable, match="no connection"):
        open_store(f"redis://someone:wrong@127.0.0.1:{server.port}/0?wait_s=0")


def test_a_server_that_hangs_is_an_error_that_says_why() -> None:
    with hanging_port() as silent, pytest.raises(StoreUnavailable, match=r"no connection: \w+"):
        open_store(uri_of(silent, name="silent", wait_s=0))


def test_options_that_make_no_sense_are_refused() -> None:
    for options in ("name=", "name=a{b", "replicas=-1", "fsync=never", "color=red", f"ssl_ca_certs={__file__}"):
        with pytest.raises(InvalidStoreUri):
            open_store(f"redis://127.0.0.1:1/0?{options}")
    with pytest.raises(InvalidStoreUri, match="ssl_ca_certs cannot be read"):
        open_store("rediss://127.0.0.1:1/0?ssl_ca_certs=/absent")
