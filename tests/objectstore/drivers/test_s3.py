"""The S3 driver keeps the contract against moto's server, or any other; and what it says when a server fails."""

from __future__ import annotations

import asyncio
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode, urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from lakebed.base import CONTENT_TYPE_DEFAULT
from lakebed.objectstore import (
    Deleter,
    InvalidObjectKey,
    ObjectExists,
    ObjectOutcomeUnknown,
    ObjectStore,
    ObjectStoreOptions,
    ObjectStoreUnavailable,
    content_type_of,
    open_deleter,
    open_objectstore,
)
from lakebed.objectstore.drivers import remote_answers
from lakebed.objectstore.drivers.s3 import signed_download
from lakebed.testing.contracts import ObjectStoreContract
from lakebed.testing.contracts.bodies import LARGE_BYTES, large_body, md5_of
from lakebed.testing.contracts.network import faulty_network
from lakebed.testing.contracts.objectstore import keys_of, list_all, put_many
from tests.objectstore.s3_servers import (
    client_of,
    keys_in,
    make_bucket,
    options_for,
    serve_failures,
    serve_moto,
    serve_s3,
)
from tests.objectstore.writer import command, memory_growth


@pytest.fixture(scope="module")
def options() -> Iterator[ObjectStoreOptions]:
    with serve_s3() as options:
        yield options


@pytest.fixture
def bucket(options: ObjectStoreOptions) -> str:
    return make_bucket(options)


@pytest.fixture
def objectstore(options: ObjectStoreOptions, bucket: str) -> ObjectStore:
    return open_objectstore(f"s3://{bucket}/a/repo", options)


class TestS3Blocks(ObjectStoreContract):
    many = 1100

    @pytest.fixture
    def objectstore(self, options: ObjectStoreOptions, bucket: str) -> ObjectStore:
        return open_objectstore(f"s3://{bucket}/some/prefix", options)

    @pytest.fixture
    def deleter(self, options: ObjectStoreOptions, bucket: str) -> Deleter:
        return open_deleter(f"s3://{bucket}/some/prefix", options)


async def test_a_namespace_may_be_a_whole_bucket(options: ObjectStoreOptions, bucket: str) -> None:
    objectstore = open_objectstore(f"s3://{bucket}", options)
    await put_many(objectstore, ["x/y", "xy", "z"])
    assert await keys_of(objectstore, "x") == ["x/y", "xy"]
    assert not await open_deleter(f"s3://{bucket}", options).delete(["z"])
    assert await keys_of(objectstore) == ["x/y", "xy"]


async def test_a_listing_in_columns_is_the_listing_in_dictionaries(
    options: ObjectStoreOptions, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objectstore = open_objectstore(f"s3://{bucket}", options)
    await put_many(objectstore, ["x/y", "x/é", "z"])
    listed = await list_all(objectstore)
    assert remote_answers.IN_COLUMNS
    for module in ("remote", "remote_answers"):
        monkeypatch.setattr(f"lakebed.objectstore.drivers.{module}.IN_COLUMNS", False)
    assert await list_all(objectstore) == listed
    assert [stat.size_bytes for stat in listed] == [(await objectstore.stat(stat.key)).size_bytes for stat in listed]


async def test_a_namespace_sees_nothing_of_its_neighbours(options: ObjectStoreOptions, bucket: str) -> None:
    inner = open_objectstore(f"s3://{bucket}/a", options)
    await put_many(open_objectstore(f"s3://{bucket}", options), ["a-b", "a0", "b"])
    await inner.put("x", b"")
    assert await keys_of(inner) == ["x"]


async def test_an_object_named_like_the_namespace_is_none_of_its_objects(
    options: ObjectStoreOptions, bucket: str
) -> None:
    outer, inner = open_objectstore(f"s3://{bucket}", options), open_objectstore(f"s3://{bucket}/a", options)
    await inner.put("x", b"")
    try:
        await outer.put("a", b"")
    except ObjectStoreUnavailable:
        pytest.skip("this server keeps no object beside a folder of its name")
    if await keys_of(outer) != ["a", "a/x"]:
        pytest.skip("this server hides what lies in a folder behind an object of its name")
    assert await keys_of(inner) == ["x"]


async def test_keys_are_stored_under_their_own_bytes(
    objectstore: ObjectStore, options: ObjectStoreOptions, bucket: str
) -> None:
    for key in ("a%2Bb", "a b+c", "ünï/😀", "x?y#z", '{~}[^]`|<>"*\\'):
        await objectstore.put(key, b"")
        assert client_of(options).head_object(Bucket=bucket, Key="a/repo/" + key)["ContentLength"] == 0


async def test_a_key_too_long_with_its_namespace_is_refused(options: ObjectStoreOptions, bucket: str) -> None:
    objectstore = open_objectstore(f"s3://{bucket}/{'p' * 100}", options)
    key = "/".join(["k" * 230] * 4)
    await objectstore.put(key[: 1024 - 101], b"")
    with pytest.raises(InvalidObjectKey):
        await objectstore.put(key[: 1024 - 101] + "k", b"")


def unfinished_uploads(options: ObjectStoreOptions, bucket: str) -> int:
    return len(client_of(options).list_multipart_uploads(Bucket=bucket).get("Uploads", []))


def all_keys(options: ObjectStoreOptions, bucket: str) -> list[str]:
    """But for the one at which the driver tries conditions."""
    found = [found["Key"] for found in client_of(options).list_objects_v2(Bucket=bucket).get("Contents", [])]
    return [key for key in found if not key.endswith("/.lakebed-tmp/if-none-match")]


@pytest.mark.parametrize("if_absent", [False, True])
async def test_failed_and_cancelled_uploads_are_aborted(
    objectstore: ObjectStore, options: ObjectStoreOptions, bucket: str, if_absent: bool
) -> None:
    waiting = asyncio.Event()

    async def body(*, fails: bool) -> AsyncIterator[bytes]:
        async for piece in large_body():
            yield piece
        if fails:
            raise LookupError
        waiting.set()
        await asyncio.Event().wait()

    with pytest.raises(LookupError):
        await objectstore.put("x", body(fails=True), if_absent=if_absent)
    put = asyncio.ensure_future(objectstore.put("x", body(fails=False), if_absent=if_absent))
    await waiting.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    await objectstore.put("there", b"")
    with pytest.raises(ObjectExists):
        await objectstore.put("there", large_body(), if_absent=True)
    assert unfinished_uploads(options, bucket) == 0
    assert all_keys(options, bucket) == ["a/repo/there"]


async def test_a_conditional_upload_leaves_no_temporary_object(
    objectstore: ObjectStore, options: ObjectStoreOptions, bucket: str
) -> None:
    await objectstore.put("x", large_body(), if_absent=True)
    assert all_keys(options, bucket) == ["a/repo/x"]


async def test_temporary_objects_of_killed_processes_are_not_listed(
    objectstore: ObjectStore, options: ObjectStoreOptions, bucket: str
) -> None:
    await objectstore.put("x", b"")
    client_of(options).put_object(Bucket=bucket, Key="a/repo/.lakebed-tmp/left", Body=b"")
    assert await keys_of(objectstore) == ["x"]


async def test_folder_markers_of_bucket_browsers_do_not_end_a_listing(
    objectstore: ObjectStore, options: ObjectStoreOptions, bucket: str
) -> None:
    for key in ("a/repo/", "a/repo/data/", "a/repo/data-x", "a/repo/data/x"):
        client_of(options).put_object(Bucket=bucket, Key=key, Body=b"")
    assert [key for key in await keys_of(objectstore) if key != "data"] == ["data-x", "data/x"]
    assert await keys_of(objectstore, "data/") == ["data/x"]


@pytest.mark.parametrize("key", ["a/repo/b//c", "a/repo/../x"])
async def test_a_key_that_no_store_can_name_is_listed_beside_the_others(
    objectstore: ObjectStore, options: ObjectStoreOptions, bucket: str, key: str
) -> None:
    await objectstore.put("x", b"")
    try:
        client_of(options).put_object(Bucket=bucket, Key=key, Body=b"")
    except ClientError:
        pytest.skip("this server has no such keys either")
    if key not in all_keys(options, bucket):
        pytest.skip("this server gives such keys another name")
    assert set(await keys_of(objectstore)) >= {"x", key.removeprefix("a/repo/")}


async def test_signed_urls_read_and_write_without_credentials(objectstore: ObjectStore) -> None:
    def fetch(method: str, url: str | None, data: bytes | None = None) -> bytes:
        assert url is not None
        assert url.startswith("http://127.0.0.1:")
        request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "x/y"})
        with urllib.request.urlopen(request, timeout=600) as response:
            body: bytes = response.read()
        return body

    put = await objectstore.presign_put("a b/%2F+ü", expires_s=60)
    await asyncio.to_thread(fetch, "PUT", put, b"by anybody")
    assert await objectstore.get("a b/%2F+ü") == b"by anybody"
    assert await content_type_of(objectstore, "a b/%2F+ü") == "x/y"
    await objectstore.put("by-us", b"x")
    assert await content_type_of(objectstore, "by-us") in {"", CONTENT_TYPE_DEFAULT}
    get = await objectstore.presign_get("a b/%2F+ü", expires_s=60)
    assert await asyncio.to_thread(fetch, "GET", get) == b"by anybody"
    named = await objectstore.presign_get("a b/%2F+ü", expires_s=60, file_name="a.csv")
    assert await asyncio.to_thread(fetch, "GET", named) == b"by anybody"


@pytest.mark.parametrize(
    ("file_name", "header"),
    [
        ("a b.csv", 'attachment; filename="a b.csv"'),
        ('"ü\\.csv', "attachment; filename=\"___.csv\"; filename*=UTF-8''%22%C3%BC%5C.csv"),
    ],
)
def test_a_signed_download_names_its_file_and_is_signed_as_amazons_own_client_signs(
    file_name: str, header: str
) -> None:
    keys = {"aws_access_key_id": "AK", "aws_secret_access_key": "s/e+c", "aws_session_token": "t=k/"}
    client = boto3.client("s3", region_name="eu-west-1", config=Config(signature_version="s3v4"), **keys)
    wanted = {"Bucket": "bucket", "Key": "a b/ü+%2F", "ResponseContentDisposition": header}
    theirs = client.generate_presigned_url("get_object", Params=wanted, ExpiresIn=60)
    parts = urlsplit(theirs)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name != "response-content-disposition"]

    ours = signed_download(parts._replace(query=urlencode(kept)).geturl(), file_name, secret="s/e+c")

    assert dict(parse_qsl(urlsplit(ours).query)) == dict(parse_qsl(parts.query))


@pytest.mark.parametrize("size_bytes", [LARGE_BYTES - 1, LARGE_BYTES])
async def test_what_is_too_large_for_a_copy_is_copied_through_this_process(
    objectstore: ObjectStore, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr("lakebed.objectstore.drivers.remote.COPY_BYTES_MAX", LARGE_BYTES - 1)
    await objectstore.put("a/x", large_body(size_bytes))
    await objectstore.put("b/y", b"is replaced")
    await objectstore.copy("a/x", "b/y")
    assert await md5_of(objectstore.stream("b/y")) == await md5_of(large_body(size_bytes))
    assert await keys_of(objectstore) == ["a/x", "b/y"]


async def test_a_missing_bucket_is_unavailable(options: ObjectStoreOptions) -> None:
    objectstore = open_objectstore("s3://lakebed-no-such-bucket/x", options)
    with pytest.raises(ObjectStoreUnavailable, match="NoSuchBucket"):
        await objectstore.get("x")
    with pytest.raises(ObjectStoreUnavailable, match="NoSuchBucket"):
        await objectstore.put("x", b"")
    with pytest.raises(ObjectStoreUnavailable):
        await list_all(objectstore)
    assert [failure.key for failure in await open_deleter(objectstore.uri, options).delete(["x"])] == ["x"]


@pytest.mark.slow
def test_a_large_body_is_never_in_memory_whole(options: ObjectStoreOptions, bucket: str) -> None:
    """The bodies are far larger than the parts in flight, and their bytes pass through another process."""
    assert memory_growth(f"s3://{bucket}", options) < 100 << 20


# --- servers that fail

TRIED = "/.lakebed-tmp/if-none-match"
"""Where the driver tries whether a service keeps conditions."""


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    options = options_for("http://127.0.0.1:9")
    objectstore = open_objectstore("s3://bucket", options)
    with pytest.raises(ObjectStoreUnavailable):
        await objectstore.get("x")
    with pytest.raises(ObjectStoreUnavailable):
        await objectstore.put("x", b"")
    with pytest.raises(ObjectStoreUnavailable):
        await objectstore.put("x", large_body())
    with pytest.raises(ObjectStoreUnavailable):
        await objectstore.copy("x", "y")
    with pytest.raises(ObjectStoreUnavailable):
        await list_all(objectstore)
    keys = [f"{n:04d}" for n in range(1500)]
    assert [failure.key for failure in await open_deleter("s3://bucket", options).delete(keys)] == keys


def test_a_process_that_ends_with_an_answer_ends_in_order() -> None:
    """Several, since it was chance."""
    asking = command("ask", "s3://bucket", options_for("http://127.0.0.1:9"))
    processes = [subprocess.Popen(asking) for _ in range(5)]
    assert [process.wait() for process in processes] == [0] * 5


async def test_a_refusal_is_unavailable() -> None:
    refusal = "<Error><Code>AccessDenied</Code><Message>not you</Message></Error>"
    with serve_failures(lambda *_: (403, refusal)) as options:
        objectstore = open_objectstore("s3://bucket", options)
        with pytest.raises(ObjectStoreUnavailable, match="refused"):
            await objectstore.get("x")
        with pytest.raises(ObjectStoreUnavailable, match="refused"):
            await objectstore.put("x", b"", if_absent=True)
        with pytest.raises(ObjectStoreUnavailable, match="refused"):
            await objectstore.put("x", large_body())


async def test_a_conditional_put_without_an_answer_may_have_happened() -> None:
    with serve_failures(lambda _, path, __: (412, "") if path.endswith(TRIED) else None) as options:
        objectstore = open_objectstore("s3://bucket", options)
        with pytest.raises(ObjectOutcomeUnknown):
            await objectstore.put("x", b"", if_absent=True)
        with pytest.raises(ObjectStoreUnavailable):
            await objectstore.put("x", b"")


async def test_each_key_that_a_bulk_delete_could_not_delete_is_returned() -> None:
    requests: list[int] = []

    def answer(method: str, path: str, body: bytes) -> tuple[int, str] | None:
        keys = keys_in(body)
        requests.append(len(keys))
        outcomes = (
            f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>locked</Message></Error>"
            if "locked" in key
            else f"<Deleted><Key>{key}</Key></Deleted>"
            for key in keys
        )
        return 200, f"<DeleteResult>{''.join(outcomes)}</DeleteResult>"

    keys = [f"x/{n:04d}" for n in range(2400)]
    keys[1100] += "-locked"
    keys[1900] += "-locked"
    with serve_failures(answer) as options:
        failures = await open_deleter("s3://bucket/ns", options).delete(keys)
    assert [failure.key for failure in failures] == [keys[1100], keys[1900]]
    assert all("AccessDenied" in failure.reason for failure in failures)
    assert sorted(requests) == [1] * 1000 + [400, 1000, 1000]


async def test_a_listing_out_of_order_is_refused() -> None:
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in ("b", "a")
    )
    page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
    with serve_failures(lambda *_: (200, page)) as options, pytest.raises(ObjectStoreUnavailable, match="order"):
        await list_all(open_objectstore("s3://bucket", options))


async def test_large_objects_travel_whole(objectstore: ObjectStore) -> None:
    size_bytes = 3 * LARGE_BYTES
    await objectstore.put("x", large_body(size_bytes, piece_bytes=40_000_000), size_bytes=size_bytes)
    assert await md5_of(objectstore.stream("x")) == await md5_of(large_body(size_bytes, piece_bytes=40_000_000))


async def test_a_conditional_upload_that_is_cancelled_late_leaves_no_temporary_object() -> None:
    """Once all is sent, nothing stops the upload any more: the temporary object comes after the cancellation."""
    with serve_moto() as options, faulty_network(port_of(options)) as network:
        bucket = make_bucket(options)
        behind = replace(options, s3_endpoint=f"http://127.0.0.1:{network.port}")
        objectstore = open_objectstore(f"s3://{bucket}/a/repo", behind)
        await objectstore.put("there", large_body(), if_absent=True)  # the first one tries conditions, in parts too
        completion = network.hold(b"<CompleteMultipartUpload")
        put = asyncio.ensure_future(objectstore.put("x", large_body(), if_absent=True))
        assert await asyncio.to_thread(completion.wait_for, 1, or_until=put.done)
        put.cancel()
        await asyncio.sleep(0)  # the put is told
        completion.release()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert all_keys(options, bucket) == ["a/repo/there"]


def port_of(options: ObjectStoreOptions) -> int:
    port = urlsplit(options.s3_endpoint).port
    assert isinstance(port, int)
    return port
