"""Presigned URLs: the `lakefs` package puts to and gets from the object store itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from pathlib import Path
from typing import Any

import boto3
import httpx
import lakefs
import lakefs_sdk
import pytest
from botocore.client import Config
from botocore.exceptions import ClientError
from lakefs.client import Client

import lakebed
from lakebed.base import AlreadyExists, Corrupt, NotFound, Unavailable
from lakebed.client import Retries
from lakebed.client.connection import Connection
from lakebed.objectstore import ObjectStoreOptions, environment_of
from tests.objectstore.s3_servers import make_bucket

from .serving import serving

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


@pytest.fixture(scope="module")
def s3_client(options: ObjectStoreOptions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with client_of_server(tmp_path_factory.mktemp("lakebed-s3"), options) as client:
        yield client


@contextmanager
def client_of_server(folder: Path, options: ObjectStoreOptions, **settings: str) -> Iterator[Any]:
    with serving(folder, **environment_of(options), LAKEBED_BLOCKSTORE="s3", **settings) as server:
        yield Client(host=server.url, username=server.access_key_id, password=server.secret_access_key)


def test_objects_go_straight_to_the_store_and_back(s3_client: Any, options: ObjectStoreOptions) -> None:
    assert s3_client.storage_config.pre_sign_support
    namespace = f"s3://{make_bucket(options)}/one"
    repository = lakefs.Repository("lake", client=s3_client).create(storage_namespace=namespace)
    main = repository.branch("main")
    target = main.object("a/b c")

    target.upload(b"hello", metadata={"k": "v"}, pre_sign=True)

    assert target.stat().physical_address.startswith(f"{namespace}/data/")
    assert (target.stat().size_bytes, target.stat().metadata) == (5, {"k": "v"})
    with target.reader("rb", pre_sign=True) as reader:
        assert reader.read() == b"hello"
    with target.reader("rb", pre_sign=False) as reader:
        assert reader.read(3) == b"hel"
    main.commit("m")
    signed = next(iter(main.objects(presign=True))).physical_address
    assert httpx.get(signed).content == b"hello"
    assert signed.startswith(str(options.s3_endpoint))
    assert httpx.get(signed).headers["content-disposition"] == 'attachment; filename="b c"'
    signed_stat = target.stat(pre_sign=True).physical_address
    assert httpx.get(signed_stat).content == b"hello"


def test_a_client_of_s3_that_follows_redirects_is_sent_to_the_store(
    s3_client: Any, options: ObjectStoreOptions
) -> None:
    config = Config(user_agent_extra="s3RedirectionSupport", s3={"addressing_style": "path"})
    at, url = s3_client.config, s3_client.config.host.removesuffix("/api/v1")
    keys = {"aws_access_key_id": at.username, "aws_secret_access_key": at.password}
    plain, sent = (
        boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=one, **keys) for one in (None, config)
    )
    lakefs.Repository("sent", client=s3_client).create(storage_namespace=f"s3://{make_bucket(options)}/sent")
    plain.put_object(Bucket="sent", Key="main/a b", Body=b"hello")
    with pytest.raises(ClientError) as redirected:
        sent.get_object(Bucket="sent", Key="main/a b", Range="bytes=1-2")
    answer = redirected.value.response["ResponseMetadata"]

    location = answer["HTTPHeaders"]["location"]
    assert (answer["HTTPStatusCode"], location.startswith(str(options.s3_endpoint))) == (307, True)
    assert httpx.get(location, headers={"range": "bytes=1-2"}).content == b"el"
    assert sent.head_object(Bucket="sent", Key="main/a b")["ContentLength"] == 5
    assert plain.get_object(Bucket="sent", Key="main/a b")["Body"].read() == b"hello"
    plain.close()
    sent.close()


def test_what_is_committed_stays_while_its_signed_url_can_still_be_put_to(
    s3_client: Any, options: ObjectStoreOptions
) -> None:
    """The expiry that the client sends does not count: the server knows that it signed a URL."""
    namespace = f"s3://{make_bucket(options)}/x"
    repository = lakefs.Repository("kept", client=s3_client).create(storage_namespace=namespace)
    staging, main = s3_client.sdk_client.staging_api, repository.branch("main")
    location = staging.get_physical_address("kept", "main", "a", presign=True)
    url = str(location.presigned_url)
    httpx.put(url, content=b"first").raise_for_status()
    link = lakefs_sdk.StagingMetadata(
        staging=lakefs_sdk.StagingLocation(physical_address=location.physical_address),
        checksum=md5(b"first", usedforsecurity=False).hexdigest(),
        size_bytes=5,
    )

    linked = staging.link_physical_address("kept", "main", "a", link)
    head = main.commit("m").get_commit().id
    httpx.put(url, content=b"other").raise_for_status()

    assert linked.physical_address != location.physical_address
    assert repository.ref(head).object("a").reader("rb", pre_sign=False).read() == b"first"
    assert repository.ref(head).object("a").reader("rb", pre_sign=True).read() == b"first"


def test_a_server_told_to_sign_nothing_takes_and_gives_the_bytes_itself(
    options: ObjectStoreOptions, tmp_path: Path
) -> None:
    with client_of_server(tmp_path, options, LAKEBED_PRESIGN="0") as client:
        assert not client.storage_config.pre_sign_support
        namespace = f"s3://{make_bucket(options)}/one"
        repository = lakefs.Repository("lake", client=client).create(storage_namespace=namespace)
        target = repository.branch("main").object("a")

        target.upload(b"hello")

        assert target.reader("rb").read() == b"hello"
        assert target.stat(pre_sign=True).physical_address.startswith(namespace)
        location = client.sdk_client.staging_api.get_physical_address("lake", "main", "b", presign=True)
        assert location.presigned_url is None


def test_a_listing_signs_only_what_its_caller_may_read(s3_client: Any, options: ObjectStoreOptions) -> None:
    namespace = f"s3://{make_bucket(options)}/one"
    main = lakefs.Repository("rows", client=s3_client).create(storage_namespace=namespace).branch("main")
    for path in ("open/a", "secret/a"):
        main.object(path).upload(b"hello")
    host = s3_client.config.host.removesuffix("/api/v1")
    auth = (s3_client.config.username, s3_client.config.password)
    readable = "arn:lakefs:fs:::repository/rows/object/open/*"
    statement = [
        {"effect": "allow", "action": ["fs:ListObjects"], "resource": "*"},
        {"effect": "allow", "action": ["fs:ReadObject"], "resource": readable},
    ]
    with httpx.Client(base_url=host + "/api/v1", auth=auth) as admin:
        admin.post("/auth/users", json={"id": "ann"}).raise_for_status()
        admin.post("/auth/policies", json={"id": "ann", "statement": statement}).raise_for_status()
        admin.put("/auth/users/ann/policies/ann").raise_for_status()
        pair = admin.post("/auth/users/ann/credentials").json()

    page = httpx.get(
        host + "/api/v1/repositories/rows/refs/main/objects/ls",
        params={"presign": "true"},
        auth=(pair["access_key_id"], pair["secret_access_key"]),
    ).json()

    shown = {row["path"]: row["physical_address"].partition(":")[0] for row in page["results"]}
    assert shown == {"open/a": "http", "secret/a": "s3"}


def test_a_repository_in_a_missing_bucket_is_refused_for_good(s3_client: Any, options: ObjectStoreOptions) -> None:
    """No retry helps, and where the store stands is not the client's business."""
    answer = httpx.post(
        s3_client.config.host.removesuffix("/api/v1") + "/api/v1/repositories",
        json={"name": "nowhere", "storage_namespace": "s3://no-such-bucket-here/one"},
        auth=(s3_client.config.username, s3_client.config.password),
    )

    assert answer.status_code == 400
    assert answer.json()["message"].startswith("failed to create repository: failed to access storage")
    assert str(options.s3_endpoint) not in answer.text
    assert "<" not in answer.text


@pytest.fixture
def multipart(s3_client: Any, options: ObjectStoreOptions) -> Any:
    """Uploads in parts, on the branch `main` of a new repository."""
    name = f"parts-{os.urandom(4).hex()}"
    lakefs.Repository(name, client=s3_client).create(storage_namespace=f"s3://{make_bucket(options)}/x")
    return Parts(s3_client, name)


class Parts:
    def __init__(self, client: Any, name: str) -> None:
        self.api = client.sdk_client.experimental_api
        self.branch = lakefs.Repository(name, client=client).branch("main")
        self.name = name

    def begin(self, path: str, parts: int) -> Any:
        return self.api.create_presign_multipart_upload(self.name, "main", path=path, parts=parts)

    def complete(self, path: str, begun: Any, etags: list[str], **more: Any) -> Any:
        parts = [lakefs_sdk.UploadPart(part_number=number, etag=etag) for number, etag in enumerate(etags, start=1)]
        body = lakefs_sdk.CompletePresignMultipartUpload(physical_address=begun.physical_address, parts=parts, **more)
        return self.api.complete_presign_multipart_upload(
            self.name, "main", begun.upload_id, path=path, complete_presign_multipart_upload=body
        )

    def put(self, url: str, data: bytes) -> str:
        answer = httpx.put(url, content=data)
        assert answer.status_code == 200, answer.text
        return answer.headers["etag"]


def test_a_client_puts_parts_into_the_store_and_has_one_object(multipart: Parts, s3_client: Any) -> None:
    assert s3_client.sdk_client.config_api.get_config().storage_config.pre_sign_multipart_upload
    begun = multipart.begin("a/big", 2)
    assert len(begun.presigned_urls) == 2
    etags = [multipart.put(url, data) for url, data in zip(begun.presigned_urls, (b"hello ", b"world"), strict=True)]

    done = multipart.complete("a/big", begun, etags, content_type="text/plain", user_metadata={"k": "v"})
    again = multipart.complete("a/big", begun, etags)

    assert (done.size_bytes, done.content_type, done.metadata.get("k")) == (11, "text/plain", "v")
    assert done.checksum.endswith("-2")
    assert multipart.branch.object("a/big").reader("rb").read() == b"hello world"
    assert again.physical_address == done.physical_address


def test_a_part_may_be_signed_later_or_be_a_copy_of_an_object(multipart: Parts) -> None:
    multipart.branch.object("source").upload(b"0123456789")
    begun = multipart.begin("made", 0)
    signed = multipart.api.upload_part(
        multipart.name,
        "main",
        begun.upload_id,
        path="made",
        part_number=1,
        upload_part_from=lakefs_sdk.UploadPartFrom(physical_address=begun.physical_address),
    )
    first = multipart.put(signed.presigned_url, b"x")
    source = lakefs_sdk.CopyPartSource(repository=multipart.name, ref="main", path="source", range="bytes=2-4")
    copied = multipart.api.upload_part_copy_with_http_info(
        multipart.name,
        "main",
        begun.upload_id,
        path="made",
        part_number=2,
        upload_part_copy_from=lakefs_sdk.UploadPartCopyFrom(
            physical_address=begun.physical_address, copy_source=source
        ),
    )

    multipart.complete("made", begun, [first, copied.headers["etag"]])

    assert multipart.branch.object("made").reader("rb").read() == b"x234"


def test_an_only_part_is_the_object(multipart: Parts) -> None:
    begun = multipart.begin("one", 1)
    etag = multipart.put(begun.presigned_urls[0], b"all of it")

    assert multipart.complete("one", begun, [etag]).size_bytes == 9

    assert multipart.branch.object("one").reader("rb").read() == b"all of it"


def test_parts_that_are_missing_or_changed_make_no_object(multipart: Parts) -> None:
    begun = multipart.begin("a", 2)
    etag = multipart.put(begun.presigned_urls[0], b"one")
    with pytest.raises(lakefs_sdk.exceptions.BadRequestException, match="not uploaded"):
        multipart.complete("a", begun, [etag, etag])
    multipart.put(begun.presigned_urls[1], b"two")
    with pytest.raises(lakefs_sdk.exceptions.BadRequestException, match="not those of its ETag"):
        multipart.complete("a", begun, [etag, etag])
    with pytest.raises(lakefs_sdk.exceptions.BadRequestException, match="never begun"):
        multipart.complete("a", begun, [etag, etag, etag])

    assert not multipart.branch.object("a").exists()


def test_an_only_part_with_an_etag_that_is_not_its_own_makes_no_object(multipart: Parts) -> None:
    begun = multipart.begin("one", 1)
    etag = multipart.put(begun.presigned_urls[0], b"all of it")

    with pytest.raises(lakefs_sdk.exceptions.BadRequestException, match="not those of its ETag"):
        multipart.complete("one", begun, ["0" * 32])

    assert not multipart.branch.object("one").exists()
    assert multipart.complete("one", begun, [etag]).size_bytes == 9


def test_what_was_aborted_and_what_is_of_another_path_cannot_be_completed(multipart: Parts) -> None:
    begun = multipart.begin("a", 1)
    etag = multipart.put(begun.presigned_urls[0], b"one")
    with pytest.raises(lakefs_sdk.exceptions.NotFoundException):
        multipart.complete("b", begun, [etag])
    other = lakefs_sdk.AbortPresignMultipartUpload(physical_address=begun.physical_address + "x")
    with pytest.raises(lakefs_sdk.exceptions.BadRequestException, match="physical_address is not the one"):
        multipart.api.abort_presign_multipart_upload(
            multipart.name, "main", begun.upload_id, path="a", abort_presign_multipart_upload=other
        )
    body = lakefs_sdk.AbortPresignMultipartUpload(physical_address=begun.physical_address)
    multipart.api.abort_presign_multipart_upload(
        multipart.name, "main", begun.upload_id, path="a", abort_presign_multipart_upload=body
    )

    with pytest.raises(lakefs_sdk.exceptions.NotFoundException):
        multipart.complete("a", begun, [etag])


def test_our_own_client_moves_bytes_past_the_server(
    s3_client: Any, options: ObjectStoreOptions, tmp_path: Path
) -> None:
    config = s3_client.config
    with lakebed.connect(
        config.host.removesuffix("/api/v1"), access_key_id=config.username, secret_access_key=config.password
    ) as lake:
        main = lake.create_repository("ours", f"s3://{make_bucket(options)}/one").branch("main")
        (tmp_path / "sent").write_bytes(b"hello" * 1000)

        made = main.upload(tmp_path / "sent", "a/b c", metadata={"k": "v"}, content_type="text/x", presigned=True)
        size = main.download("a/b c", tmp_path / "got", presigned=True)

        assert (made.checksum, made.size_bytes) == (md5(b"hello" * 1000).hexdigest(), 5000)
        assert (main.stat("a/b c").metadata, main.stat("a/b c").content_type) == ({"k": "v"}, "text/x")
        assert (size, (tmp_path / "got").read_bytes()) == (5000, b"hello" * 1000)
        with pytest.raises(AlreadyExists):
            main.upload(tmp_path / "sent", "a/b c", presigned=True, if_absent=True)
        with pytest.raises(NotFound):
            main.download("nothing", tmp_path / "no", presigned=True)
        assert not (tmp_path / "no").exists()


def test_bytes_that_were_replaced_in_the_store_are_noticed(
    s3_client: Any, options: ObjectStoreOptions, tmp_path: Path
) -> None:
    config = s3_client.config
    with lakebed.connect(
        config.host.removesuffix("/api/v1"), access_key_id=config.username, secret_access_key=config.password
    ) as lake:
        main = lake.create_repository("replaced", f"s3://{make_bucket(options)}/one").branch("main")
        location = s3_client.sdk_client.staging_api.get_physical_address("replaced", "main", "a", presign=True)
        httpx.put(location.presigned_url, content=b"other").raise_for_status()
        body = lakefs_sdk.StagingMetadata(staging=location, checksum=md5(b"hello").hexdigest(), size_bytes=5)
        s3_client.sdk_client.staging_api.link_physical_address("replaced", "main", "a", body)

        with pytest.raises(Corrupt):
            main.download("a", tmp_path / "got", presigned=True)
        assert not (tmp_path / "got").exists()


def test_an_object_store_that_is_not_there_is_named() -> None:
    connection = Connection("http://127.0.0.1:9", retries=Retries(attempts=1))
    with (
        pytest.raises(Unavailable, match=r"cannot reach 127\.0\.0\.1:1:"),
        connection.open_signed("GET", "http://127.0.0.1:1/x?signature=secret", about="a"),
    ):
        pass
    connection.close()


def test_a_server_that_signs_nothing_says_so(tmp_path: Path) -> None:
    with lakebed.open_local(tmp_path / "lake", environment={}) as lake:
        main = lake.create_repository("own").branch("main")
        main.write("a", b"x")
        (tmp_path / "sent").write_bytes(b"x")

        with pytest.raises(Unavailable, match="signs no URLs"):
            main.upload(tmp_path / "sent", "b", presigned=True)
        with pytest.raises(Unavailable, match="signs no URLs"):
            main.download("a", tmp_path / "got", presigned=True)
