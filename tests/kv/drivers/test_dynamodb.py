"""The DynamoDB driver keeps the contract, on Amazon's own emulator."""

from __future__ import annotations

import asyncio
import itertools
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path

import pytest
from awscrt import auth, http

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, Store, StoreFormat, StoreUnavailable, StoreUri, open_store
from lakebed.kv.drivers import dynamodb as dynamodb_driver
from lakebed.kv.remote.store import RemoteStore
from tests.kv.doubles import Answer, Limit, Request, Service, served
from tests.kv.servers import (
    START_S,
    WRITES,
    OnServer,
    Server,
    a_value_put_back_is_noticed,
    answering_http,
    dynamodb,
    writes_by_16,
)


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


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"dynamodb://eu-central-1/{name}?endpoint=http://127.0.0.1:{port}&wait_s={wait_s}"


class TestDynamoDB(OnServer):
    pass


async def test_a_page_goes_on_where_dynamodb_answers_less_than_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends an answer after 1 MB."""
    asked: list[dict[str, object]] = []

    async def ask(_: object, action: str, query: dict[str, object], __: object) -> object:
        asked.append({**query})
        number = len(asked)
        row = dynamodb_driver._Row(k=dynamodb_driver._Binary(b"%d" % number), v=dynamodb_driver._Binary(b"v"))
        return dynamodb_driver._Rows([row], last_key=number if number < 3 else None)

    monkeypatch.setattr(dynamodb_driver.DynamoDatabase, "_ask", ask)
    database = dynamodb_driver._from(StoreUri("dynamodb://eu-central-1/pages"), 1)

    assert await database.scan(b"p", b"", 9) == [(b"1", b"v"), (b"2", b"v"), (b"3", b"v")]
    assert [query.get("ExclusiveStartKey") for query in asked] == [None, 1, 2]


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"))


@asynccontextmanager
async def answering(*answers: tuple[int, str]) -> AsyncIterator[str]:
    """Answer requests with these, as DynamoDB would. Yields the URI of a store there."""
    async with answering_http(*answers) as port:
        yield uri_of(port, name="answers")


TYPES = {dynamodb_driver.ATTRIBUTES: dynamodb_driver.TYPES}
THROTTLED = (400, '{"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException", "message": "slower"}')


def bare_store(uri: str) -> Store:
    """Make the store without asking the server anything yet."""
    parsed = StoreUri(uri)
    wait_s = parsed.seconds("wait_s", 10)
    return RemoteStore(dynamodb_driver._from(parsed, wait_s), name="dynamodb", wait_s=wait_s)


async def test_a_database_that_throttles_is_asked_again_after_a_pause() -> None:
    taken = (200, '{"UnprocessedItems": {}}')
    too_many = (200, '{"UnprocessedItems": {"answers": [{"DeleteRequest": {"Key": {}}}]}}')
    async with answering(THROTTLED, THROTTLED, (200, "{}"), THROTTLED, too_many, taken) as uri:
        store = bare_store(uri)

        await store.set(b"p", b"key", b"value")
        await store.delete_many(b"p", [b"a", b"b"])

        await store.close()


async def test_the_first_start_waits_for_its_table_longer_than_for_a_database_that_is_away() -> None:
    """DynamoDB takes half a minute to make a table, and an operation waits for ten seconds."""
    states = [
        (200, json.dumps({"Table": {"TableStatus": state, "KeySchema": dynamodb_driver.SCHEMA, **TYPES}}))
        for state in ("CREATING", "CREATING", "ACTIVE")
    ]
    absent = (400, '{"__type": "x#ResourceNotFoundException", "message": "no"}')
    mark = (200, json.dumps({"Item": {"v": {"B": b64encode(dynamodb_driver.FORMAT).decode()}}}))
    async with answering(absent, (200, "{}"), *states, (200, "{}"), mark) as uri:
        store = await asyncio.to_thread(open_store, uri.replace("wait_s=60", "wait_s=1"))

        await store.close()


class Throttling(Service):
    """Stand before a DynamoDB, and refuse what is more than this number of writes a second."""

    def __init__(self, file: str, to: int, per_s: float) -> None:
        super().__init__(file)
        self.limit = Limit(per_s)
        self.connection = HTTPConnection("127.0.0.1", to, timeout=START_S)

    def answer(self, request: Request) -> Answer:
        if request.headers["x-amz-target"].endswith("PutItem") and not self.limit.lets_through():
            return Answer(THROTTLED[0], THROTTLED[1].encode())
        self.connection.request("POST", "/", request.body, request.headers)
        response = self.connection.getresponse()
        return Answer(response.status, response.read())


async def test_writes_beyond_what_dynamodb_takes_are_slowed_and_none_is_lost(server: Server, tmp_path: Path) -> None:
    service = Throttling(str(tmp_path / "kept.db"), server.port, 100)
    with served(service) as port, closing(service.connection):
        store = open_store(uri_of(port, name="limited"))

        await writes_by_16(store, b"p")

        assert len((await store.scan(b"p", b"", WRITES + 1)).keys) == WRITES
        assert service.limit.refused <= service.limit.taken / 2
        await store.close()


def partly_read(read: Sequence[bytes], unread: Sequence[bytes]) -> str:
    """Make an answer that has the value v at the key `a` of some partitions, and hands back that key of others."""

    def keys(partitions: Sequence[bytes]) -> list[dict[str, dict[str, str]]]:
        return [{"p": {"B": b64encode(partition).decode()}, "k": {"B": "YQ=="}} for partition in partitions]

    items = [{**key, "v": {"B": "dg=="}, "n": {"B": "bg=="}} for key in keys(read)]
    return json.dumps({"Responses": {"answers": items}, "UnprocessedKeys": {"answers": {"Keys": keys(unread)}}})


async def test_a_read_of_a_partition_that_is_throttled_holds_up_none_of_another() -> None:
    throttled = itertools.repeat((200, partly_read([], [b"hot"])))
    async with answering((200, partly_read([b"cold"], [b"hot"])), *itertools.islice(throttled, 1000)) as uri:
        store = bare_store(uri)
        hot, cold = (asyncio.create_task(store.get(partition, b"a")) for partition in (b"hot", b"cold"))

        found = await cold

        assert found is not None
        assert found.value == b"v"
        assert not hot.done()
        hot.cancel()
        await store.close()


async def test_what_a_throttled_partition_answers_in_part_is_put_together() -> None:
    parts = [partly_read([], [b"p"]), partly_read([b"p"], [])]
    async with answering(*((200, part) for part in parts)) as uri:
        store = bare_store(uri)

        found = await store.get_many(b"p", [b"a", b"b"])

        assert [held and held.value for held in found] == [b"v", None]
        await store.close()


async def test_a_failure_inside_the_database_leaves_a_write_unknown_and_a_read_is_asked_again() -> None:
    failed = (500, '{"__type": "com.amazonaws.dynamodb.v20120810#InternalServerError"}')
    async with answering(failed, failed, (200, '{"Responses": {}}')) as uri:
        store = bare_store(uri)

        with pytest.raises(OutcomeUnknown, match="InternalServerError"):
            await store.set(b"p", b"key", b"value")
        assert await store.get(b"p", b"key") is None

        await store.close()


async def test_a_batch_of_which_dynamodb_takes_only_a_part_is_unknown_and_one_that_it_reads_in_part_unavailable() -> (
    None
):
    unread = itertools.repeat((200, partly_read([], [b"p"])), 100)
    async with answering(*unread) as uri:
        store = bare_store(uri.replace("wait_s=60", "wait_s=0"))
        with pytest.raises(StoreUnavailable, match="unread"):
            await store.get_many(b"p", [b"a", b"b"])
        await store.close()
    undone = itertools.repeat((200, '{"UnprocessedItems": {"answers": [{"DeleteRequest": {"Key": {}}}]}}'), 100)
    async with answering(*undone) as uri:
        store = bare_store(uri.replace("wait_s=60", "wait_s=0"))
        with pytest.raises(OutcomeUnknown, match="a part of the batch was taken"):
            await store.delete_many(b"p", [b"a", b"b"])
        await store.close()


@pytest.mark.parametrize("answer", ["<html>", "[]", ""])
async def test_an_answer_that_is_not_of_dynamodb_leaves_a_write_unknown_and_a_read_is_asked_again(answer: str) -> None:
    async with answering((200, answer), (200, answer), (200, "{}"), (200, '{"Responses": {}}')) as uri:
        store = bare_store(uri)

        with pytest.raises(OutcomeUnknown, match="not one of DynamoDB"):
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


@asynccontextmanager
async def handing_out(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *credentials: dict[str, str]
) -> AsyncIterator[None]:
    """Be the place where AWS's chain finds the credentials of a container: these, one after the other.

    The last ones are given again: the chain may ask twice where an answer comes late.
    """
    given = [json.dumps({"SecretAccessKey": "secret", "Token": "token", **each}) for each in credentials]
    async with answering_http(*((200, each) for each in [*given, *given[-1:] * 9])) as port:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(folder / "absent"))
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/credentials")
        yield


def in_s(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_credentials_are_replaced_before_they_expire(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = (
        {"AccessKeyId": name, "Expiration": in_s(seconds)} for name, seconds in (("first", 15), ("second", 3600))
    )
    async with handing_out(monkeypatch, tmp_path, first, second):
        signer = dynamodb_driver._Signer("eu-central-1", "example.org")
        asked_at = datetime.now(UTC)

        while "Credential=first/" in (headers := await signer.headers("x", b""))["authorization"]:
            assert asked_at < datetime.fromisoformat(first["Expiration"])
            await asyncio.sleep(0.1)
            asked_at = datetime.now(UTC)

        assert "Credential=second/" in headers["authorization"]


async def test_a_request_whose_credentials_are_refused_is_sent_again_with_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = ({"AccessKeyId": name, "Expiration": in_s(3600)} for name in ("old", "new"))
    expired = (400, '{"__type": "com.amazon.coral.service#ExpiredTokenException", "message": "expired"}')
    async with handing_out(monkeypatch, tmp_path, old, new), answering(expired, (200, "{}")) as uri:
        store = bare_store(uri)

        await store.set(b"p", b"key", b"value")

        headers = await store._database._signer.headers("x", b"")  # type: ignore[attr-defined]  # signs the next one
        assert "Credential=new/" in headers["authorization"]
        await store.close()


async def test_a_closed_store_opens_no_connection_for_what_comes_late() -> None:
    async with answering((200, "{}")) as uri:
        database = dynamodb_driver._from(StoreUri(uri.partition("&wait_s")[0]), 60)
        await database.close()

        with pytest.raises(StoreUnavailable, match="closed"):
            await database.write(b"p", [(b"key", b"value")])


@pytest.mark.parametrize("session", [None, "a session"])
async def test_a_signature_is_that_of_the_makers_own_library(session: str | None) -> None:
    now, target, content = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC), "DynamoDB_20120810.GetItem", b'{"TableName":"x"}'
    key = auth.AwsCredentials("AKID", "secret", session)
    headers = http.HttpHeaders([("host", "example.org:8000"), ("x-amz-target", target)])
    headers.add("content-type", dynamodb_driver.CONTENT_TYPE)
    config = auth.AwsSigningConfig(
        algorithm=auth.AwsSigningAlgorithm.V4,
        credentials_provider=auth.AwsCredentialsProvider.new_static("AKID", "secret", session),
        region="eu-central-1",
        service="dynamodb",
        date=now,
    )
    asked = http.HttpRequest("POST", "/", headers, BytesIO(content))
    await asyncio.wrap_future(auth.aws_sign_request(asked, config))

    ours = dynamodb_driver._Signer("eu-central-1", "example.org:8000").signed(target, content, key, now)

    theirs = {name.lower(): value for name, value in headers}
    assert {"host": "example.org:8000", **ours} == theirs


def test_a_uri_without_region_or_table_is_refused() -> None:
    for uri in (
        "dynamodb://",
        "dynamodb://eu-central-1",
        "dynamodb:///table",
        "dynamodb://r/table?color=red",
        "dynamodb://r/table?endpoint=nowhere",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
