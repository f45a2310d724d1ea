"""Run against a DynamoDB that throttles: reads, writes and batches beside each other, in virtual time."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from awscrt import auth

from lakebed.kv import StoreUri
from lakebed.kv.drivers import dynamodb
from lakebed.kv.remote import store as remote
from lakebed.kv.remote.http_client import HttpAnswer
from lakebed.kv.remote.store import RemoteStore
from tests.kv.virtual_time import in_virtual_time

SECONDS = 30
THROTTLED = {"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException"}


class Bucket:
    """Take `per_s` keys a second, and those of a fifth of a second at once."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.taken = self.refused = 0
        self._tokens = per_s / 5
        self._filled_at = 0.0

    def take(self, asked: int) -> int:
        now = asyncio.get_running_loop().time()
        self._tokens = min(self._tokens + (now - self._filled_at) * self.per_s, self.per_s / 5)
        self._filled_at = now
        taken = min(asked, int(self._tokens))
        self._tokens -= taken
        self.taken += taken
        self.refused += asked - taken
        return taken


class Network:
    """Stand for the connections to a DynamoDB that limits reads and writes of the partition `p` apart."""

    def __init__(self, *, reads_per_s: float, writes_per_s: float) -> None:
        self.reads, self.writes = Bucket(reads_per_s), Bucket(writes_per_s)

    async def request(self, *_: object, headers: dict[str, str], content: bytes) -> HttpAnswer:
        answer = self.answer(headers["x-amz-target"].partition(".")[2], json.loads(content))
        await asyncio.sleep(0.01)
        return HttpAnswer(400 if answer is THROTTLED else 200, json.dumps(answer).encode())

    def answer(self, action: str, body: dict[str, Any]) -> object:
        if action == "PutItem":
            return {} if self.writes.take(1) else THROTTLED
        [(table, asked)] = body["RequestItems"].items()
        if action == "BatchWriteItem":
            taken = self.writes.take(len(asked))
            left = list(asked)[taken:]
            return {"UnprocessedItems": {table: left} if left else {}} if taken else THROTTLED
        assert action == "BatchGetItem"
        hot = [key for key in asked["Keys"] if key["p"] == {"B": "cA=="}]
        unread = hot[self.reads.take(len(hot)) :]
        if unread and len(unread) == len(asked["Keys"]):
            return THROTTLED
        return {"Responses": {}, "UnprocessedKeys": {table: {"Keys": unread}} if unread else {}}

    async def aclose(self) -> None:
        pass


class Calls:
    """Callers that ask without a rest, and how long each of their calls took."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store

    async def get(self, number: int, partition: bytes = b"p") -> None:
        await self.store.get(partition, b"%d" % number)

    async def set(self, number: int) -> None:
        await self.store.set(b"p", b"%d" % number, b"v")

    async def set_many(self, _: int) -> None:
        await self.store.set_many(b"p", [(b"m%d" % number, b"v") for number in range(25)])

    async def get_many(self, _: int) -> None:
        await self.store.get_many(b"p", [b"m%d" % number for number in range(25)])

    async def get_elsewhere(self, number: int) -> None:
        await self.get(number, b"elsewhere")


Call: TypeAlias = Callable[[int], Awaitable[None]]


def times_of(
    monkeypatch: pytest.MonkeyPatch, network: Network, callers: Callable[[Calls], list[tuple[int, Call]]]
) -> list[list[float]]:
    """Let so many callers ask at once, for SECONDS. Returns how long the calls of each kind took, sorted."""

    async def work() -> list[list[float]]:
        loop = asyncio.get_running_loop()
        clock = SimpleNamespace(monotonic=loop.time)
        monkeypatch.setattr(dynamodb, "time", clock)
        monkeypatch.setattr(remote, "time", clock)
        database = dynamodb._from(StoreUri("dynamodb://eu-central-1/table"), remote.WAIT_S)
        database._client = network  # type: ignore[assignment]  # answers as HttpClient does
        database._signer._credentials = auth.AwsCredentials("key", "secret")
        database._signer._asked_at_s = math.inf
        store = RemoteStore(database, name="dynamodb", wait_s=remote.WAIT_S)
        kinds = callers(Calls(store))
        found: list[list[float]] = [[] for _ in kinds]

        async def caller(call: Call, number: int, took_s: list[float]) -> None:
            while (began := loop.time()) < SECONDS:
                await call(number)
                took_s.append(loop.time() - began)

        await asyncio.gather(
            *(
                caller(call, number, took_s)
                for (count, call), took_s in zip(kinds, found, strict=True)
                for number in range(count)
            )
        )
        await store.close()
        return [sorted(took_s) for took_s in found]

    return in_virtual_time(work)


def test_writes_that_are_throttled_hold_up_no_reads_of_their_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(reads_per_s=1e6, writes_per_s=20)

    reads, writes = times_of(monkeypatch, network, lambda calls: [(4, calls.get), (16, calls.set)])

    assert reads[-1] <= 0.1
    assert writes[-1] <= remote.WAIT_S / 2
    assert network.writes.taken >= 0.8 * SECONDS * 20
    assert network.writes.refused <= 0.2 * network.writes.taken


def test_a_batch_is_written_beside_single_writes_though_all_are_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(reads_per_s=1e6, writes_per_s=20)

    batches, writes = times_of(monkeypatch, network, lambda calls: [(1, calls.set_many), (16, calls.set)])

    assert batches[-1] <= remote.WAIT_S / 2
    assert writes[-1] <= remote.WAIT_S


def test_batches_that_are_throttled_are_taken_as_fast_as_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(reads_per_s=20, writes_per_s=20)

    reads, writes = times_of(monkeypatch, network, lambda calls: [(2, calls.get_many), (2, calls.set_many)])

    assert reads[-1] <= remote.WAIT_S
    assert writes[-1] <= remote.WAIT_S
    assert network.writes.taken >= 0.9 * SECONDS * 20
    assert network.reads.taken >= 0.9 * SECONDS * 20


def test_reads_of_several_partitions_are_answered_beside_those_of_one_that_is_throttled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(reads_per_s=100, writes_per_s=1e6)

    hot, elsewhere = times_of(monkeypatch, network, lambda calls: [(4, calls.get), (4, calls.get_elsewhere)])

    assert hot[-1] <= remote.WAIT_S
    assert elsewhere[-1] <= 0.1
    assert network.reads.taken >= 0.9 * SECONDS * 100
