"""The driver of Cosmos DB keeps the contract, on a double of its HTTP API and where LAKEBED_TEST_COSMOS_URI says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("azure.cosmos")

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, StoreFormat, StoreUnavailable, open_store
from lakebed.testing.contracts import DurableStoreContract
from lakebed.testing.contracts.store import P, held, read_all
from tests.kv.cosmos_double import Cosmos
from tests.kv.doubles import Answer, Limit, Request, served
from tests.kv.servers import WRITES, OnServer, Server, a_value_put_back_is_noticed, double, writes_by_16


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with double("cosmos") as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"cosmos://:a2V5@127.0.0.1:{port}/tests/{name}?tls=no&wait_s={wait_s}"


class TestCosmos(OnServer):
    many = 1100
    program_steps = 60
    increments = 10


if service := os.environ.get("LAKEBED_TEST_COSMOS_URI"):

    class TestService(DurableStoreContract):
        many = 300
        program_steps = 20
        increments = 5
        steady = 40

        @pytest.fixture
        def store_uri(self) -> str:
            """A container for each test, in the database that the variable names: `cosmos://:KEY@host/database`."""
            return f"{service}/test{os.urandom(4).hex()}?wait_s=60"


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"))


async def test_long_keys_that_begin_alike_are_different(server: Server) -> None:
    store = open_store(uri_of(server.port, name="long"))
    keys = [b"x" * 400, *(b"x" * 400 + b"%03d" % number for number in range(30)), b"x" * 1024]

    await store.set_many(P, [(key, key[-3:]) for key in keys])
    await store.delete_many(P, [keys[3], b"absent", keys[5], b"x" * 1023])

    left = {key: key[-3:] for key in keys if key not in (keys[3], keys[5])}
    assert await read_all(store, P) == left
    assert [found and found.value for found in await store.get_many(P, keys)] == [left.get(key) for key in keys]
    await store.close()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"level": "Session"}, "defaultConsistencyLevel is Session"),
        ({"level": "BoundedStaleness"}, "defaultConsistencyLevel is BoundedStaleness"),
        ({"many_regions": True}, "enableMultipleWriteLocations is true"),
        ({"container": {"defaultTtl": 60}}, "defaultTtl of the container is 60"),
        ({"container": {"indexingPolicy": {"indexingMode": "lazy"}}}, "indexingMode of the container is lazy"),
        ({"container": {"partitionKey": {"paths": ["/p"], "kind": "Hash"}}}, "partitionKey.version"),
    ],
)
def test_settings_that_would_lose_answered_writes_are_refused_by_their_names(
    settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    with (
        served(Cosmos(str(tmp_path / "kept.db"), **settings)) as port,
        pytest.raises(StoreUnavailable, match=name),
    ):
        open_store(uri_of(port, name="weak"))


def test_a_container_of_another_program_is_refused(tmp_path: Path) -> None:
    theirs = {"partitionKey": {"paths": ["/tenant"], "kind": "Hash", "version": 2}}
    with (
        served(Cosmos(str(tmp_path / "kept.db"), container=theirs)) as port,
        pytest.raises(StoreFormat, match="another program"),
    ):
        open_store(uri_of(port, name="theirs"))


async def test_a_container_that_vanished_is_an_error_and_not_absence(tmp_path: Path) -> None:
    service = Cosmos(str(tmp_path / "kept.db"))
    with served(service) as port:
        store = open_store(uri_of(port, name="gone"))
        await store.set(P, b"key", b"value")
        service.database.execute("DELETE FROM things")

        with pytest.raises(StoreUnavailable):
            await store.get(P, b"key")
        await store.close()


class Overtaken(Cosmos):
    """Have another process make each database and container a moment before us."""

    def answer(self, request: Request) -> Answer:
        if request.method == "POST" and request.path.strip("/").split("/")[-1] in {"dbs", "colls"}:
            super().answer(request)
        return super().answer(request)


async def test_what_another_process_makes_at_the_same_moment_is_taken(tmp_path: Path) -> None:
    with served(Overtaken(str(tmp_path / "kept.db"))) as port:
        store = open_store(uri_of(port, name="overtaken"))

        await store.set(P, b"key", b"value")

        assert await read_all(store, P) == {b"key": b"value"}
        await store.close()


class BeingMade(Cosmos):
    """Refuse the first batches, as Cosmos does while it makes the container for another process."""

    refusals = 2

    def answer(self, request: Request) -> Answer:
        if self.refusals and "x-ms-cosmos-is-batch-request" in request.headers:
            self.refusals -= 1
            return Answer(404, b"{}", headers={"x-ms-substatus": "1013"})
        return super().answer(request)


async def test_a_container_that_is_being_made_is_waited_for(tmp_path: Path) -> None:
    service = BeingMade(str(tmp_path / "kept.db"))
    with served(service) as port:
        store = open_store(uri_of(port, name="made"))
        service.refusals = 1

        await store.set(P, b"key", b"value")

        assert await read_all(store, P) == {b"key": b"value"}
        await store.close()


class Failing(Cosmos):
    """Answer writes of `mine` with these statuses first: before they are done, or after."""

    def __init__(self, file: str, *statuses: int, is_done: bool = False) -> None:
        super().__init__(file)
        self.statuses = list(statuses)
        self.is_done = is_done
        self.requests = 0

    def answer(self, request: Request) -> Answer:
        if b"bWluZQ==" not in request.body:
            return super().answer(request)
        self.requests += 1
        if self.is_done or not self.statuses:
            answer = super().answer(request)
        return Answer(self.statuses.pop(0), headers={"x-ms-retry-after-ms": "20"}) if self.statuses else answer


async def test_a_request_that_is_throttled_is_sent_again(tmp_path: Path) -> None:
    service = Failing(str(tmp_path / "kept.db"), 429, 449, 429)
    with served(service) as port:
        store = open_store(uri_of(port, name="busy"))

        await store.set_if(P, b"key", b"mine", None)

        assert (await held(store, P, b"key")).value == b"mine"
        assert service.requests == 4
        await store.close()


class Throttling(Cosmos):
    """Take only this number of batches a second."""

    def __init__(self, file: str, per_s: float) -> None:
        super().__init__(file)
        self.limit = Limit(per_s)

    def answer(self, request: Request) -> Answer:
        if "x-ms-cosmos-is-batch-request" in request.headers and not self.limit.lets_through():
            return Answer(429, headers={"x-ms-retry-after-ms": "20"})
        return super().answer(request)


async def test_writes_beyond_what_cosmos_takes_are_slowed_and_none_is_lost(tmp_path: Path) -> None:
    service = Throttling(str(tmp_path / "kept.db"), 100)
    with served(service) as port:
        store = open_store(uri_of(port, name="limited"))

        await writes_by_16(store, P)

        assert len(await read_all(store, P)) == WRITES
        assert service.limit.refused <= service.limit.taken / 2
        await store.close()


@pytest.mark.parametrize("status", [408, 410, 500, 503])
async def test_a_write_that_cosmos_may_have_done_is_not_sent_again(tmp_path: Path, status: int) -> None:
    service = Failing(str(tmp_path / "kept.db"), status, is_done=True)
    with served(service) as port:
        store = open_store(uri_of(port, name="late"))

        with pytest.raises(OutcomeUnknown):
            await store.set_if(P, b"key", b"mine", None)

        assert (await held(store, P, b"key")).value == b"mine"
        assert service.requests == 1
        await store.close()


async def test_a_refused_write_changes_nothing(tmp_path: Path) -> None:
    with served(Failing(str(tmp_path / "kept.db"), 413, 401)) as port:
        store = open_store(uri_of(port, name="refused"))

        for status in (413, 401):
            with pytest.raises(StoreUnavailable, match=f"cosmos: it answered {status}: "):
                await store.set(P, b"key", b"mine")

        assert await store.get(P, b"key") is None
        await store.close()


def test_options_that_make_no_sense_are_refused() -> None:
    for uri in (
        "cosmos://",
        "cosmos://host/db/container",
        "cosmos://:a2V5@host/db",
        "cosmos://:a2V5@host/db/a/b",
        "cosmos://:a2V5@host/a%3Fb/container",
        "cosmos://:a2V5@host/db/a%23b",
        "cosmos://:a2V5@host/../container",
        "cosmos://:a2V5@host/db/..",
        "cosmos://:no key@host/db/container",
        "cosmos://user:a2V5@host/db/container",
        "cosmos://:a2V5@host/db/container?level=Session",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
