"""The driver for object stores keeps the contract: on a double of Cloud Storage, on Azurite, and on moto's S3."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from lakebed.base import OutcomeUnknown
from lakebed.kv import InvalidStoreUri, PredicateFailed, StoreFormat, StoreUnavailable, open_store, store_partitions
from lakebed.testing.contracts import RemoteStoreContract
from lakebed.testing.contracts.network import held_port
from lakebed.testing.contracts.store import P, held, read_all
from tests.kv.servers import Server
from tests.objectstore.cloud_servers import ACCOUNT, BUCKETS, KEY, azurite, gcs_double, make_container
from tests.objectstore.gcs_double import Handler, Objects, Refused
from tests.objectstore.gcs_double import Server as DoubleServer
from tests.objectstore.s3_servers import client_of, make_bucket, serve_moto
from tests.serving import serving

_numbers = itertools.count()


@pytest.fixture(scope="module")
def gcs() -> Iterator[Server]:
    with gcs_double() as server:
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[Server]:
    with azurite() as server:
        make_container(server.port, "metadata")
        yield server


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[int, str]]:
    """The port of an S3 server, and a bucket."""
    with serve_moto() as options:
        assert options.s3_endpoint is not None
        yield int(options.s3_endpoint.rpartition(":")[2]), make_bucket(options)


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    """The processes that a test starts inherit them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        yield


def gs_uri(port: int, *, name: str, wait_s: float = 60) -> str:
    return f"gs://{BUCKETS[0]}/{name}?endpoint=http://127.0.0.1:{port}&wait_s={wait_s}"


class TestCloudStorage(RemoteStoreContract):
    many = 1100
    program_steps = 25
    increments = 5
    steady = 40

    @pytest.fixture
    def server_port(self, gcs: Server) -> int:
        return gcs.port

    @pytest.fixture
    def uri_at(self) -> Callable[..., str]:
        return partial(gs_uri, name=f"test{next(_numbers)}")

    @pytest.fixture
    def restart(self, gcs: Server) -> Callable[[], None]:
        return gcs.restart


class TestAzure(RemoteStoreContract):
    many = 100
    program_steps = 10
    increments = 5
    steady = 40

    @pytest.fixture
    def server_port(self, azure: Server) -> int:
        return azure.port

    @pytest.fixture
    def uri_at(self) -> Callable[..., str]:
        def uri_at(port: int, *, wait_s: float = 60) -> str:
            return f"az://metadata/{name}?endpoint=http://127.0.0.1:{port}/{ACCOUNT}&wait_s={wait_s}"

        name = f"test{next(_numbers)}"
        return uri_at

    @pytest.fixture
    def restart(self) -> Callable[[], None]:
        pytest.skip("Azurite loses the writes of its last seconds when it is killed")


class TestS3(RemoteStoreContract):
    many = 100
    program_steps = 10
    increments = 5
    steady = 40

    @pytest.fixture
    def server_port(self, place: tuple[int, str]) -> int:
        return place[0]

    @pytest.fixture
    def uri_at(self, place: tuple[int, str]) -> Callable[..., str]:
        def uri_at(port: int, *, wait_s: float = 60) -> str:
            return f"s3://{place[1]}/{name}?endpoint=http://127.0.0.1:{port}&wait_s={wait_s}"

        name = f"test{next(_numbers)}"
        return uri_at

    @pytest.fixture
    def restart(self) -> Callable[[], None]:
        pytest.skip("moto keeps objects in memory")


async def test_a_key_that_was_deleted_on_a_condition_is_absent_and_can_be_set_again(gcs: Server) -> None:
    store = open_store(gs_uri(gcs.port, name="again"))
    predicate = await store.set_if(P, b"key", b"old", None)
    await store.delete_if(P, b"key", predicate)

    assert await store.get(P, b"key") is None
    assert await read_all(store, P) == {}
    assert store_partitions(gs_uri(gcs.port, name="again")) == []
    with pytest.raises(PredicateFailed):
        await store.set_if(P, b"key", b"late", predicate)
    with pytest.raises(PredicateFailed):
        await store.delete_if(P, b"key", predicate)
    await store.set_if(P, b"key", b"new", None)
    assert (await held(store, P, b"key")).value == b"new"
    await store.close()


async def test_a_value_that_was_put_back_is_noticed(gcs: Server) -> None:
    store = open_store(gs_uri(gcs.port, name="back"))
    predicate = await store.set_if(P, b"key", b"A", None)
    await store.set(P, b"key", b"B")
    await store.set(P, b"key", b"A")

    with pytest.raises(PredicateFailed):
        await store.set_if(P, b"key", b"ours", predicate)
    await store.close()


async def test_long_keys_that_begin_alike_are_scanned_in_order(gcs: Server) -> None:
    """Their names end in digests, and are listed in the order of those."""
    store = open_store(gs_uri(gcs.port, name="long"))
    stem = b"x" * 300
    keys = sorted([stem[:299], stem, *(stem + b"%02d" % number for number in range(20)), b"x" * 200, b"y"])
    await store.set_many(P, [(key, key[-4:]) for key in keys])

    for first in range(len(keys)):
        page = await store.scan(P, keys[first], 3)
        assert page.keys == keys[first : first + 3]
        assert page.next_start == (keys[first + 3] if first + 3 < len(keys) else None)
    await store.close()


def test_a_bucket_that_is_missing_and_a_service_that_is_away_are_told(gcs: Server) -> None:
    with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
        open_store(f"gs://missing/metadata?endpoint=http://127.0.0.1:{gcs.port}&wait_s=0")
    with held_port() as silent, pytest.raises(StoreUnavailable):
        open_store(gs_uri(silent, name="away", wait_s=0))


@pytest.mark.parametrize(("kept", "lacking"), [("", "If-None-Match"), ("0", "If-Match")])
def test_a_service_that_keeps_no_conditions_is_refused_by_name(kept: str, lacking: str) -> None:
    class Careless(Objects):
        def put(self, bucket: str, name: str, body: bytes, expected: str | None) -> int:
            return super().put(bucket, name, body, expected if expected == kept else None)

    class Door(Handler):
        objects = Careless(":memory:", BUCKETS)

    with (
        serving(DoubleServer(("127.0.0.1", 0), Door)) as port,
        pytest.raises(StoreUnavailable, match=f"keeps no `{lacking}`"),
    ):
        open_store(gs_uri(port, name="careless"))


async def test_a_write_that_the_service_may_have_done_before_its_time_ran_out_is_not_sent_again() -> None:
    """Azure answers `OperationTimedOut` where an operation may have been done."""
    sent: list[bytes] = []

    class Late(Objects):
        def put(self, bucket: str, name: str, body: bytes, expected: str | None) -> int:
            generation = super().put(bucket, name, body, expected)
            if body.endswith(b"mine"):
                sent.append(body)
                raise Refused(500, "OperationTimedOut")
            return generation

    class Door(Handler):
        objects = Late(":memory:", BUCKETS)

    with serving(DoubleServer(("127.0.0.1", 0), Door)) as port:
        store = open_store(gs_uri(port, name="late"))
        with pytest.raises(OutcomeUnknown):
            await store.set(P, b"plain", b"mine")
        with pytest.raises(OutcomeUnknown):
            await store.set_if(P, b"on a condition", b"mine", None)
        await store.close()

    assert len(sent) == 2


def test_a_store_of_another_format_is_refused() -> None:
    with serve_moto() as options:
        bucket = make_bucket(options)
        uri = f"s3://{bucket}/metadata?endpoint={options.s3_endpoint}"
        client_of(options).put_object(Bucket=bucket, Key="metadata/format", Body=b"2")

        with pytest.raises(StoreFormat, match="another release"):
            open_store(uri)


def test_a_uri_without_a_path_is_answered_that_it_needs_one() -> None:
    with pytest.raises(InvalidStoreUri, match="a path are required: s3://bucket/metadata"):
        open_store("s3://bucket/")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket",
        "s3:///metadata",
        "s3://key:secret@bucket/metadata",
        "s3://bucket/a//b",
        f"gs://bucket/{'p' * 101}",
        "gs://bucket/metadata?region=eu",
        "az://container/metadata?secret=x",
    ],
)
def test_what_cannot_be_meant_is_refused(uri: str) -> None:
    with pytest.raises(InvalidStoreUri):
        open_store(uri)
