"""The DynamoDB driver keeps the contract, on Amazon's own emulator."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import (
    InvalidStoreUri,
    PredicateFailed,
    Store,
    StoreFormat,
    StoreUnavailable,
    StoreUri,
    open_store,
    store_partitions,
)
from lakebed.kv.drivers import dynamodb as dynamodb_driver
from lakebed.kv.drivers.remote import RemoteStore
from lakebed.testing.contracts import RemoteStoreContract
from tests.kv.servers import Server, dynamodb

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with dynamodb() as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    """The emulator takes any. The processes that a test starts inherit them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        yield


def uri_of(port: int, *, table: str, wait_s: float = 10) -> str:
    return f"dynamodb://eu-central-1/{table}?endpoint=http://127.0.0.1:{port}&wait_s={wait_s}"


class TestDynamoDB(RemoteStoreContract):
    @pytest.fixture
    def server_port(self, server: Server) -> int:
        return server.port

    @pytest.fixture
    def uri_at(self) -> Callable[..., str]:
        return partial(uri_of, table=f"test{next(_numbers)}")

    @pytest.fixture
    def restart(self, server: Server) -> Callable[[], None]:
        return server.restart


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    store = open_store(uri_of(server.port, table="back"))
    predicate = await store.set_if(b"p", b"key", b"A", None)
    await store.set(b"p", b"key", b"B")
    await store.set(b"p", b"key", b"A")

    with pytest.raises(PredicateFailed):
        await store.set_if(b"p", b"key", b"ours", predicate)

    assert store_partitions(uri_of(server.port, table="back")) == [b"p"]
    await store.close()


@asynccontextmanager
async def answering(*answers: tuple[int, str]) -> AsyncIterator[str]:
    """Answer requests with these, one after the other, as DynamoDB would. Yields the URI of a store there."""
    ahead = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
        status, body = next(ahead)
        writer.write(f"HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        yield uri_of(listener.sockets[0].getsockname()[1], table="answers")


THROTTLED = (400, '{"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException", "message": "slower"}')


def bare_store(uri: str) -> Store:
    """Make the store without asking the server anything yet."""
    parsed = StoreUri(uri)
    return RemoteStore(dynamodb_driver._from(parsed, parsed.seconds("wait_s", 10)), name="dynamodb", wait_s=10)


async def test_a_database_that_throttles_is_asked_again_after_a_pause() -> None:
    taken = (200, '{"UnprocessedItems": {}}')
    too_many = (200, '{"UnprocessedItems": {"answers": [{"DeleteRequest": {"Key": {}}}]}}')
    async with answering(THROTTLED, THROTTLED, (200, "{}"), THROTTLED, too_many, taken) as uri:
        store = bare_store(uri)

        await store.set(b"p", b"key", b"value")
        await store.delete_many(b"p", [b"a", b"b"])

        await store.close()


async def test_a_failure_inside_the_database_leaves_a_write_unknown_and_a_read_is_asked_again() -> None:
    failed = (500, '{"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError"}')
    async with answering(failed, failed, (200, '{"Responses": {}}')) as uri:
        store = bare_store(uri)

        with pytest.raises(OutcomeUnknown, match="InternalServerError"):
            await store.set(b"p", b"key", b"value")
        assert await store.get(b"p", b"key") is None

        await store.close()


async def test_a_table_of_another_program_is_refused() -> None:
    table = {
        "TableStatus": "ACTIVE",
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "AttributeDefinitions": [],
    }
    async with answering((200, json.dumps({"Table": table}))) as uri:
        with pytest.raises(StoreFormat, match="of another program"):
            await asyncio.to_thread(open_store, uri)
    async with answering((400, '{"__type": "x#AccessDeniedException", "message": "no"}')) as uri:
        with pytest.raises(StoreUnavailable, match="AccessDeniedException: no"):
            await asyncio.to_thread(open_store, uri)


def test_a_uri_without_region_or_table_is_refused() -> None:
    for uri in ("dynamodb://", "dynamodb://eu-central-1", "dynamodb:///table", "dynamodb://r/table?color=red"):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
