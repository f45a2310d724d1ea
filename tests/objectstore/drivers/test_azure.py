"""The Azure driver keeps the contract on Azurite, Microsoft's own emulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest

from lakebed.objectstore import (
    BucketMissing,
    Deleter,
    InvalidNamespace,
    InvalidObjectKey,
    ObjectStore,
    ObjectStoreOptions,
    ObjectStoreUnavailable,
    open_deleter,
    open_objectstore,
)
from lakebed.testing.contracts import ObjectStoreContract
from lakebed.testing.contracts.bodies import large_body, md5_of
from lakebed.testing.contracts.objectstore import UNSORTED_KEYS, keys_of, put_many
from tests.kv.servers import Server
from tests.objectstore.cloud_servers import azure_options, azurite, make_container, token_without_deletes

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with azurite() as server:
        yield server


@pytest.fixture
def options(server: Server) -> ObjectStoreOptions:
    return azure_options(server.port)


@pytest.fixture
def container(server: Server) -> str:
    return make_container(server.port, f"container-{next(_numbers)}")


class TestAzureBlobs(ObjectStoreContract):
    many = 1100
    unsorted_keys: ClassVar[Sequence[str]] = [key for key in UNSORTED_KEYS if key != "😀"]
    unkeepable: ClassVar[frozenset[str]] = frozenset({"back\\slash", "dots..", "...", "..a/b.."})

    @pytest.fixture
    def objectstore(self, options: ObjectStoreOptions, container: str) -> ObjectStore:
        return open_objectstore(f"az://{container}/some/prefix", options)

    @pytest.fixture
    def deleter(self, options: ObjectStoreOptions, container: str) -> Deleter:
        return open_deleter(f"az://{container}/some/prefix", options)


@pytest.mark.parametrize("key", ["a\\b", "a.", "a./b", "a/b.."])
async def test_keys_that_azure_takes_for_another_are_refused(
    options: ObjectStoreOptions, container: str, key: str
) -> None:
    uri = f"az://{container}/x"
    with pytest.raises(InvalidObjectKey):
        await open_objectstore(uri, options).put(key, b"")
    with pytest.raises(InvalidObjectKey):
        await open_deleter(uri, options).delete([key])


async def test_a_container_that_is_missing_is_no_word_about_objects(options: ObjectStoreOptions) -> None:
    objectstore = open_objectstore("az://no-such-container/x", options)
    with pytest.raises(BucketMissing):
        await objectstore.get("x")
    with pytest.raises(BucketMissing):
        await objectstore.put("x", b"", if_absent=True)
    with pytest.raises(BucketMissing):
        await keys_of(objectstore)


async def test_who_may_not_delete_reads_writes_and_lists(options: ObjectStoreOptions, container: str) -> None:
    planner = replace(options, azure_key=None, azure_sas_token=token_without_deletes(container))
    uri = f"az://{container}/x"
    objectstore = open_objectstore(uri, planner)

    await put_many(objectstore, ["a", "b"])
    await objectstore.put("large", large_body(), if_absent=True)
    failures = await open_deleter(uri, planner).delete(["a", "b"])

    assert [failure.key for failure in failures] == ["a", "b"]
    assert await keys_of(objectstore) == ["a", "b", "large"]
    assert await md5_of(objectstore.stream("large")) == await md5_of(large_body())


async def test_a_wrong_key_is_refused_in_every_method(options: ObjectStoreOptions, container: str) -> None:
    uri = f"az://{container}/x"
    await open_objectstore(uri, options).put("x", b"")
    wrong = replace(options, azure_key="d3Jvbmc=")
    objectstore = open_objectstore(uri, wrong)
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.get("x")
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.stat("x")
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await objectstore.put("y", b"", if_absent=True)
    with pytest.raises(ObjectStoreUnavailable, match="refused"):
        await keys_of(objectstore)
    assert [failure.key for failure in await open_deleter(uri, wrong).delete(["x"])] == ["x"]


async def test_a_listing_that_is_out_of_order_ends_with_an_error(options: ObjectStoreOptions, container: str) -> None:
    """Azurite sorts by UTF-16, in which an emoji comes before U+FFEE. A listing is complete and in order, or none."""
    objectstore = open_objectstore(f"az://{container}/x", options)
    await put_many(objectstore, ["\uffee", "😀"])
    with pytest.raises(ObjectStoreUnavailable, match="out of order"):
        await keys_of(objectstore)


def test_an_account_is_needed_and_the_refusal_says_how_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidNamespace, match="LAKEBED_AZURE_ACCOUNT"):
        open_objectstore("az://container/x", ObjectStoreOptions())
