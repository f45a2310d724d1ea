"""The driver of FoundationDB keeps the contract, on a double of its client or a cluster that a variable names."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, StoreFormat, StoreUnavailable, open_store
from lakebed.testing.contracts import DurableStoreContract
from lakebed.testing.contracts.store import AWKWARD_KEYS, P, held, read_all
from tests.kv.servers import a_value_put_back_is_noticed, foundationdb

_run = f"{os.getpid()}-{os.urandom(2).hex()}-"  # a real cluster keeps what earlier runs left
_numbers = itertools.count()

double_only = pytest.mark.skipif("LAKEBED_TEST_FOUNDATIONDB" in os.environ, reason="the double fails as it is told")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Path]:
    with foundationdb() as cluster:
        yield cluster


@pytest.fixture
def fdb(cluster: Path) -> Any:
    """The client that the driver uses."""
    return importlib.import_module("fdb")


@pytest.fixture
def uri(cluster: Path) -> str:
    return f"foundationdb://{cluster}?name=run{_run}{next(_numbers)}"


class TestFoundationDB(DurableStoreContract):
    program_steps = 60
    increments = 20

    @pytest.fixture
    def store_uri(self, uri: str) -> str:
        return uri


async def test_a_value_that_was_put_back_is_noticed(uri: str) -> None:
    await a_value_put_back_is_noticed(uri)


async def test_a_value_of_several_rows_is_replaced_whole_and_deleted_whole(uri: str) -> None:
    store = open_store(uri)
    for key in AWKWARD_KEYS:
        await store.set(P, key, key[:1] * 270_001)
    for key in AWKWARD_KEYS[::2]:
        await store.set(P, key, b"short")
    await store.delete_many(P, AWKWARD_KEYS[1::4])

    found = await read_all(store, P, page_size=3)

    long = {key: key[:1] * 270_001 for key in AWKWARD_KEYS[3::4]}
    assert found == {**long, **dict.fromkeys(AWKWARD_KEYS[::2], b"short")}
    await store.close()


async def test_a_value_that_no_transaction_takes_is_refused(uri: str) -> None:
    store = open_store(uri)

    for size in (11_000_000, 30_000_000):
        with pytest.raises(StoreUnavailable):
            await store.set(P, b"key", bytes(size))

    assert await store.get(P, b"key") is None
    await store.close()


@double_only
async def test_a_scan_outlives_the_time_of_a_transaction(uri: str, fdb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(uri)
    items = [(b"%03d" % number, b"x" * 200_000) for number in range(40)]
    await store.set_many(P, items)
    reads = itertools.count(1)

    begin = fdb.Transaction._begin

    def too_old_now_and_then(transaction: Any) -> None:
        if next(reads) % 20 == 0:
            raise fdb.FDBError(1007)
        begin(transaction)

    monkeypatch.setattr(fdb.Transaction, "_begin", too_old_now_and_then)

    page = await store.scan(P, b"", 35)

    assert list(zip(page.keys, page.values, strict=True)) == items[:35]
    assert page.next_start == b"035"
    await store.close()


@double_only
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("code", [1021, 1031])
async def test_a_commit_whose_result_is_unknown_is_not_done_again(
    uri: str, fdb: Any, monkeypatch: pytest.MonkeyPatch, code: int, is_done: bool
) -> None:
    store = open_store(uri)
    predicate = await store.set_if(P, b"key", b"before", None)
    commits = []
    carry_out = fdb.Transaction.carry_out

    def lost(transaction: Any) -> None:
        commits.append(transaction._writes)
        if is_done:
            carry_out(transaction)
        raise fdb.FDBError(code)

    monkeypatch.setattr(fdb.Transaction, "carry_out", lost)

    with pytest.raises(OutcomeUnknown):
        await store.set_if(P, b"key", b"after", predicate)

    assert (await held(store, P, b"key")).value == (b"after" if is_done else b"before")
    assert len(commits) == 1
    await store.close()


@double_only
@pytest.mark.parametrize("code", [1009, 1037, 1051, 1213])
async def test_a_commit_that_did_not_happen_is_begun_again(
    uri: str, fdb: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = open_store(uri)
    carry_out, left = fdb.Transaction.carry_out, [1, 2, 3]

    def fails(transaction: Any) -> None:
        if left:
            left.pop()
            raise fdb.FDBError(code)
        carry_out(transaction)

    monkeypatch.setattr(fdb.Transaction, "carry_out", fails)

    await store.set_if(P, b"key", b"value", None)

    assert (await held(store, P, b"key")).value == b"value"
    await store.close()


@double_only
async def test_a_cluster_that_stays_away_is_an_error(
    cluster: Path, fdb: Any, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    store = open_store(f"{uri}&wait_s=0.1")

    def times_out(transaction: Any) -> None:
        raise fdb.FDBError(1031)

    monkeypatch.setattr(fdb.Transaction, "_begin", times_out)

    with pytest.raises(StoreUnavailable):
        await store.set_if(P, b"key", b"value", None)
    with pytest.raises(StoreUnavailable):
        await store.get(P, b"key")
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(open_store, f"{uri}&wait_s=0.1")
    await store.close()


@double_only
@pytest.mark.parametrize(
    ("status", "setting"),
    [
        ({"configuration": {"storage_engine": "ssd-rocksdb-experimental"}}, "storage_engine"),
        ({"database_lock_state": {"locked": True}}, "locked"),
    ],
)
def test_a_setting_that_would_lose_writes_is_refused_by_its_name(
    uri: str, fdb: Any, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], setting: str
) -> None:
    monkeypatch.setattr(fdb, "status", {"cluster": status})

    with pytest.raises(StoreUnavailable, match=setting):
        open_store(uri)


@double_only
def test_a_store_of_another_release_is_refused(uri: str, cluster: Path, fdb: Any) -> None:
    open_store(uri)
    transaction = fdb.open(str(cluster)).create_transaction()
    transaction.set(uri.partition("name=")[2].encode() + b"/format", b"2")
    transaction.commit().wait()

    with pytest.raises(StoreFormat, match="another release"):
        open_store(uri)


@double_only
def test_a_client_library_that_is_missing_is_told(uri: str, fdb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(version: int) -> None:
        raise RuntimeError("Unable to locate the FoundationDB API shared library!")

    monkeypatch.setattr(fdb, "api_version", lacks)

    with pytest.raises(InvalidStoreUri, match="client library of FoundationDB"):
        open_store(uri)


def test_options_that_make_no_sense_are_refused(cluster: Path) -> None:
    for uri in (
        "foundationdb://",
        "foundationdb://host/file",
        "foundationdb:///nowhere/fdb.cluster",
        f"foundationdb://{cluster}?name=a/b",
        f"foundationdb://{cluster}?threads=0",
        f"foundationdb://{cluster}?color=red",
    ):
        with pytest.raises(InvalidStoreUri):
            open_store(uri)
