"""The Cloud Storage driver keeps the contract on a double of the XML API: no emulator speaks that one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.objectstore import (
    BucketMissing,
    Deleter,
    InvalidNamespace,
    ObjectStore,
    ObjectStoreOptions,
    open_deleter,
    open_objectstore,
)
from lakebed.testing.contracts import ObjectStoreContract
from lakebed.testing.contracts.objectstore import keys_of
from tests.kv.servers import Server

from .cloud_servers import BUCKETS, gcs_double, gcs_options

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with gcs_double() as server:
        yield server


@pytest.fixture
def options(server: Server) -> ObjectStoreOptions:
    return gcs_options(server.port)


class TestCloudStorage(ObjectStoreContract):
    many = 1100

    @pytest.fixture
    def namespace(self) -> str:
        return f"gs://{BUCKETS[0]}/some/prefix-{next(_numbers)}"

    @pytest.fixture
    def objectstore(self, options: ObjectStoreOptions, namespace: str) -> ObjectStore:
        return open_objectstore(namespace, options)

    @pytest.fixture
    def deleter(self, options: ObjectStoreOptions, namespace: str) -> Deleter:
        return open_deleter(namespace, options)


async def test_a_bucket_that_is_missing_is_no_word_about_objects(options: ObjectStoreOptions) -> None:
    objectstore = open_objectstore("gs://no-such-bucket/x", options)
    with pytest.raises(BucketMissing):
        await objectstore.get("x")
    with pytest.raises(BucketMissing):
        await objectstore.put("x", b"", if_absent=True)
    with pytest.raises(BucketMissing):
        await keys_of(objectstore)


async def test_no_url_is_signed_where_no_key_is_at_hand(options: ObjectStoreOptions) -> None:
    objectstore = open_objectstore(f"gs://{BUCKETS[1]}", options)
    assert await objectstore.presign_get("x", expires_s=60) is None
    assert await objectstore.presign_put("x", expires_s=60) is None


def test_a_service_account_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidNamespace, match="gs://bucket cannot be opened"):
        open_objectstore("gs://bucket/x", ObjectStoreOptions(gs_service_account=Path("/nowhere/account.json")))
