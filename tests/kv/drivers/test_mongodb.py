"""The driver of MongoDB keeps the contract, on a server of its protocol or the one that LAKEBED_TEST_MONGODB names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pymongo")

from pymongo import MongoClient, errors

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, StoreFormat, StoreUnavailable, StoreUri, open_store
from lakebed.kv.drivers import mongodb as mongodb_driver
from lakebed.kv.remote.store import Passing, partitions_of
from tests.kv.servers import RUN, OnServer, Server, a_value_put_back_is_noticed, mongodb

# The client leaves a socket unclosed when its connection is refused on the way.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with mongodb() as server:
        yield server


def uri_of(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"mongodb://127.0.0.1:{port}/tests?name=run{RUN}{name}&wait_s={wait_s}"


class TestMongoDB(OnServer):
    program_steps = 60
    increments = 20
    notices_s = 1.5  # its client asks each half second; a real server of MongoDB pushes its state
    not_killed = "mongo-java-server keeps all in memory, and a server of others is not ours to kill"


async def test_a_value_that_was_put_back_is_noticed(server: Server) -> None:
    await a_value_put_back_is_noticed(uri_of(server.port, name="back"), beside=b"\0q")


def test_a_collection_of_another_release_is_refused(server: Server) -> None:
    with MongoClient[dict[str, Any]]("127.0.0.1", server.port) as client:
        client["tests"][f"run{RUN}later"].insert_one({"_id": "format", "v": b"2", "n": b""})

    with pytest.raises(StoreFormat, match="is not in format 1"):
        open_store(uri_of(server.port, name="later"))


def test_settings_that_would_lose_answered_writes_are_refused_by_their_names() -> None:
    mongodb_driver._check_replica_set({"config": {}})
    mongodb_driver._check_engine({"name": "wiredTiger", "persistent": True})
    assert mongodb_driver._is_replicated("ReplicaSetWithPrimary")
    assert not mongodb_driver._is_replicated("Single")

    with pytest.raises(StoreUnavailable, match="writeConcernMajorityJournalDefault is false"):
        mongodb_driver._check_replica_set({"config": {"writeConcernMajorityJournalDefault": False}})
    with pytest.raises(StoreUnavailable, match="storageEngine is inMemory"):
        mongodb_driver._check_engine({"name": "inMemory", "persistent": False})
    with pytest.raises(StoreUnavailable, match="sharded cluster"):
        mongodb_driver._is_replicated("Sharded")


def because(cause: OSError) -> errors.AutoReconnect:
    error = errors.AutoReconnect("127.0.0.1:1: lost")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ServerSelectionTimeoutError("none"), Passing),
        (errors.NotPrimaryError("no", {"code": 10107}), Passing),
        (errors.NotPrimaryError("stepped down on the way", {"code": 189}), OutcomeUnknown),
        (errors.WriteConcernError("waiting for replication timed out", 64), OutcomeUnknown),
        (errors.WriteConcernError("stepped down while it waited", 10107), OutcomeUnknown),
        (errors.OperationFailure("time limit", 50), OutcomeUnknown),
        (errors.AutoReconnect("connection closed"), OutcomeUnknown),
        (because(OSError("connection is already closed")), OutcomeUnknown),
        (because(OSError("Connection is closed")), Passing),
        (because(ConnectionRefusedError(111, "refused")), Passing),
        (errors.OperationFailure("not authorized", 13), StoreUnavailable),
    ],
)
async def test_each_failure_says_what_became_of_the_request(
    error: errors.PyMongoError, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as raised:
        async with mongodb_driver._translated():
            raise error

    assert type(raised.value) is expected


class FailsOver:
    """Stands for a collection: another writer's insert refuses some of a batch, then there is no primary."""

    def __init__(self, *refused: int) -> None:
        self.refused = [{"index": index, "code": 11000} for index in refused]
        self.sizes: list[int] = []

    async def bulk_write(self, writes: Sequence[object], *, ordered: bool) -> None:
        self.sizes.append(len(writes))
        if len(self.sizes) > 1:
            raise errors.ServerSelectionTimeoutError("no primary")
        raise errors.BulkWriteError({"writeErrors": self.refused, "writeConcernErrors": []})


@pytest.mark.parametrize(("refused", "expected"), [((1,), OutcomeUnknown), ((0, 1), Passing)])
async def test_a_batch_of_which_a_part_is_done_is_not_one_of_which_nothing_is(
    refused: tuple[int, ...], expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = mongodb_driver._from(StoreUri("mongodb://h/db"), 1)
    collection = FailsOver(*refused)
    monkeypatch.setattr(database, "_collection", lambda: collection)

    with pytest.raises(expected):
        await database.write(b"p", [(b"a", b"ours"), (b"b", b"ours")])

    assert collection.sizes == [2, len(refused)]


def test_the_partitions_of_a_server_that_stands_alone_are_listed() -> None:
    database = mongodb_driver._from(StoreUri("mongodb://h/db"), 1)
    documents = [{"_id": "70/key"}]

    class Alone:
        """Stands for the server's collection, which knows no linearisable reads."""

        def find(self, *_: object, **__: object) -> Alone:
            return self

        async def to_list(self) -> list[dict[str, Any]]:
            if database._is_replicated:
                raise errors.OperationFailure("node needs to be a replica set member to use read concern", 123)
            return [documents.pop()] if documents else []

    alone: Any = Alone()
    database._collection = lambda: alone  # type: ignore[method-assign]  # no such server is at hand

    assert partitions_of(lambda uri, wait_s: database, StoreUri("mongodb://h/db")) == [b"p"]


def test_options_that_make_no_sense_are_refused() -> None:
    for uri in (
        "mongodb://",
        "mongodb://h",
        "mongodb://h/a.b",
        "mongodb://h/db?name=a-b",
        "mongodb://h/db?w=1",
        "mongodb://h/db?tls=true&tlsCAFile=/absent",
        "mongodb://h/db?readPreference=secondary",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
