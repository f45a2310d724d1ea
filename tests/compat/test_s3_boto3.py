"""The S3 gateway as boto3 sees it: an unchanged client, against the server's own port."""

from __future__ import annotations

import io
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import lakefs
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from lakefs.client import Client

from .serving import Server

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


def client_of(server: Server, **settings: Any) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 1}, **settings),
    )


@pytest.fixture
def s3(server: Server) -> Iterator[Any]:
    client = client_of(server)
    yield client
    client.close()


@pytest.fixture
def lake(repository: lakefs.Repository) -> str:
    """A repository's name, which is a bucket."""
    return str(repository.id)


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(ClientError) as caught:
        yield
    assert caught.value.response["Error"]["Code"] == code, caught.value


def test_what_is_written_through_s3_is_what_the_branch_has(s3: Any, lake: str, repository: lakefs.Repository) -> None:
    put = s3.put_object(
        Bucket=lake, Key="main/a/b c+ü.txt", Body=b"hello", ContentType="text/plain", Metadata={"k": "v"}
    )

    main = repository.branch("main")
    stat = main.object("a/b c+ü.txt").stat()
    assert (stat.size_bytes, stat.content_type, f'"{stat.checksum}"') == (5, "text/plain", put["ETag"])
    assert stat.metadata["k"] == "v"
    main.commit("through S3")
    for bucket, key in ((lake, "main/a/b c+ü.txt"), (f"{lake}.main", "a/b c+ü.txt")):
        got = s3.get_object(Bucket=bucket, Key=key)
        assert got["Body"].read() == b"hello"
        assert (got["ContentType"], got["Metadata"], got["ETag"]) == ("text/plain", {"k": "v"}, put["ETag"])
        assert s3.head_object(Bucket=bucket, Key=key)["ContentLength"] == 5


def test_every_ref_can_be_read_and_only_branches_written(s3: Any, lake: str, repository: lakefs.Repository) -> None:
    s3.put_object(Bucket=lake, Key="main/a", Body=b"old")
    commit = repository.branch("main").commit("old").get_commit().id
    repository.tag("v1").create("main")
    s3.put_object(Bucket=lake, Key="main/a", Body=b"new")

    for ref in (commit, commit[:10], "v1", "main@"):
        assert s3.get_object(Bucket=lake, Key=f"{ref}/a")["Body"].read() == b"old"
    assert s3.get_object(Bucket=f"{lake}.v1", Key="a")["Body"].read() == b"old"
    assert s3.get_object(Bucket=lake, Key="main/a")["Body"].read() == b"new"
    with refused("MethodNotAllowed"):
        s3.put_object(Bucket=f"{lake}.v1", Key="a", Body=b"x")
    for ref in ("v1", commit):
        with refused("MethodNotAllowed"):
            s3.put_object(Bucket=lake, Key=f"{ref}/a", Body=b"x")
        with refused("MethodNotAllowed"):
            s3.delete_object(Bucket=lake, Key=f"{ref}/a")
        with refused("MethodNotAllowed"):
            s3.create_multipart_upload(Bucket=lake, Key=f"{ref}/a")
    with refused("NoSuchBucket"):
        s3.put_object(Bucket=lake, Key="no-branch/a", Body=b"x")


def test_a_missing_key_bucket_and_branch_are_named_as_s3_names_them(s3: Any, lake: str) -> None:
    with refused("NoSuchKey"):
        s3.get_object(Bucket=lake, Key="main/nothing")
    with refused("NoSuchKey"):
        s3.get_object(Bucket=lake, Key="no-branch/a")
    with refused("NoSuchBucket"):
        s3.get_object(Bucket=f"{lake}.no-branch", Key="a")
    with refused("NoSuchBucket"):
        s3.list_objects_v2(Bucket="no-such-repository")
    with refused("404"):
        s3.head_bucket(Bucket="no-such-repository")
    with refused("404"):
        s3.head_object(Bucket=lake, Key="main/nothing")


def test_ranges_conditions_and_overrides_of_a_read(s3: Any, lake: str) -> None:
    etag = s3.put_object(Bucket=lake, Key="main/a", Body=b"0123456789", CacheControl="no-cache")["ETag"]
    read = {"Bucket": lake, "Key": "main/a"}

    ranged = s3.get_object(**read, Range="bytes=2-4")
    assert (ranged["Body"].read(), ranged["ContentRange"]) == (b"234", "bytes 2-4/10")
    assert s3.get_object(**read, Range="bytes=-3")["Body"].read() == b"789"
    assert s3.get_object(**read, Range="bytes=7-99")["Body"].read() == b"789"
    assert s3.get_object(**read, IfMatch=etag)["CacheControl"] == "no-cache"
    changed = s3.get_object(**read, ResponseContentType="text/x", ResponseContentDisposition="attachment")
    assert (changed["ContentType"], changed["ContentDisposition"]) == ("text/x", "attachment")
    with refused("InvalidRange"):
        s3.get_object(**read, Range="bytes=10-")
    with refused("304"):
        s3.get_object(**read, IfNoneMatch=etag)
    with refused("PreconditionFailed"):
        s3.get_object(**read, IfMatch='"other"')


def test_a_conditional_write_happens_only_if_its_condition_holds(s3: Any, lake: str) -> None:
    etag = s3.put_object(Bucket=lake, Key="main/a", Body=b"1", IfNoneMatch="*")["ETag"]

    with refused("PreconditionFailed"):
        s3.put_object(Bucket=lake, Key="main/a", Body=b"2", IfNoneMatch="*")
    with refused("PreconditionFailed"):
        s3.put_object(Bucket=lake, Key="main/a", Body=b"2", IfMatch='"other"')
    with refused("NoSuchKey"):
        s3.put_object(Bucket=lake, Key="main/b", Body=b"2", IfMatch=etag)
    s3.put_object(Bucket=lake, Key="main/a", Body=b"3", IfMatch=etag)

    assert s3.get_object(Bucket=lake, Key="main/a")["Body"].read() == b"3"


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256", "SHA512"])
def test_a_checksum_is_held_against_the_body_and_given_back(s3: Any, lake: str, algorithm: str) -> None:
    put = s3.put_object(Bucket=lake, Key="main/a", Body=b"hello", ChecksumAlgorithm=algorithm)

    found = s3.head_object(Bucket=lake, Key="main/a", ChecksumMode="ENABLED")
    assert found[f"Checksum{algorithm}"] == put[f"Checksum{algorithm}"]
    attributes = s3.get_object_attributes(
        Bucket=lake, Key="main/a", ObjectAttributes=["ETag", "Checksum", "ObjectSize"]
    )
    assert attributes["Checksum"][f"Checksum{algorithm}"] == put[f"Checksum{algorithm}"]
    assert attributes["ObjectSize"] == 5
    with refused("BadDigest"):
        s3.put_object(Bucket=lake, Key="main/a", Body=b"other", **{f"Checksum{algorithm}": put[f"Checksum{algorithm}"]})
    assert s3.get_object(Bucket=lake, Key="main/a")["Body"].read() == b"hello"


def test_a_stream_is_sent_in_chunks_with_its_checksum_behind_it(server: Server, lake: str) -> None:
    """Over plain HTTP boto3 signs each chunk; told not to, it sends them unsigned. Both in the frame aws-chunked."""
    data = bytes(range(256)) * 20_000
    for signed in (True, False):
        client = client_of(server, s3={"payload_signing_enabled": signed}, signature_version="s3v4")
        client.put_object(Bucket=lake, Key="main/a", Body=io.BytesIO(data), ChecksumAlgorithm="CRC32C")
        assert client.get_object(Bucket=lake, Key="main/a")["Body"].read() == data
        client.close()


def keys(answer: Any) -> list[str]:
    return [item["Key"] for item in answer.get("Contents", [])]


def prefixes(answer: Any) -> list[str]:
    return [item["Prefix"] for item in answer.get("CommonPrefixes", [])]


def test_listings_come_in_pages_with_prefixes_and_delimiters(s3: Any, lake: str) -> None:
    for key in ("a/1", "a/2", "b", "c/1", "d é&<"):
        s3.put_object(Bucket=lake, Key=f"main/{key}", Body=b"x")
    bucket = f"{lake}.main"

    whole = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert (keys(whole), prefixes(whole), whole["KeyCount"]) == (["b", "d é&<"], ["a/", "c/"], 4)
    assert keys(s3.list_objects(Bucket=bucket, Prefix="a/")) == ["a/1", "a/2"]
    assert keys(s3.list_objects_v2(Bucket=bucket, StartAfter="b")) == ["c/1", "d é&<"]
    for name in ("list_objects", "list_objects_v2"):
        pages = s3.get_paginator(name).paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
        assert [key for page in pages for key in keys(page)] == ["a/1", "a/2", "b", "c/1", "d é&<"]
        grouped = s3.get_paginator(name).paginate(Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 1})
        assert [name for page in grouped for name in keys(page) + prefixes(page)] == ["a/", "b", "c/", "d é&<"]


def test_a_listing_shows_markers_owners_and_encoded_keys_where_they_are_asked_for(s3: Any, lake: str) -> None:
    bucket = f"{lake}.main"
    for key in ("a", "b c+ü", "d"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")

    first = s3.list_objects(Bucket=bucket, Marker="a", MaxKeys=1)
    assert (keys(first), first["Marker"], first["IsTruncated"]) == (["b c+ü"], "a", True)
    assert [item["Owner"]["ID"] for item in first["Contents"]] == ["lakebed"]
    assert [item.get("Owner") for item in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [None] * 3
    owned = s3.list_objects_v2(Bucket=bucket, FetchOwner=True)
    assert [item["Owner"]["ID"] for item in owned["Contents"]] == ["lakebed"] * 3
    assert keys(s3.list_objects_v2(Bucket=bucket, EncodingType="url")) == ["a", "b%20c%2B%C3%BC", "d"]
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_the_bucket_of_a_repository_has_its_branches_as_folders(
    s3: Any, lake: str, repository: lakefs.Repository
) -> None:
    repository.branch("main-2").create("main")
    for key in ("main/a", "main-2/b", "main-2/c"):
        s3.put_object(Bucket=lake, Key=key, Body=b"x")

    assert prefixes(s3.list_objects_v2(Bucket=lake, Delimiter="/")) == ["main-2/", "main/"]
    assert prefixes(s3.list_objects_v2(Bucket=lake, Delimiter="/", Prefix="main-")) == ["main-2/"]
    assert keys(s3.list_objects_v2(Bucket=lake, Delimiter="/", Prefix="main/")) == ["main/a"]
    assert keys(s3.list_objects_v2(Bucket=lake, Prefix="no-branch/")) == []
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=lake, PaginationConfig={"PageSize": 2})
    assert [key for page in pages for key in keys(page)] == ["main-2/b", "main-2/c", "main/a"]


def test_copies_keep_or_replace_metadata_on_one_branch_and_between_repositories(
    s3: Any, lake: str, client: Client
) -> None:
    s3.put_object(Bucket=lake, Key="main/a", Body=b"hello", ContentType="text/plain", Metadata={"k": "v"})
    other = lakefs.Repository(f"{lake}-other", client=client).create(storage_namespace=f"local://compat/{lake}-other")

    s3.copy_object(Bucket=lake, Key="main/b", CopySource=f"{lake}/main/a")
    s3.copy_object(Bucket=f"{other.id}.main", Key="c", CopySource={"Bucket": f"{lake}.main", "Key": "a"})
    s3.copy_object(
        Bucket=lake, Key="main/a", CopySource=f"{lake}/main/a", MetadataDirective="REPLACE", Metadata={"k": "w"}
    )

    for bucket, key, metadata in ((lake, "main/b", "v"), (other.id, "main/c", "v"), (lake, "main/a", "w")):
        got = s3.get_object(Bucket=bucket, Key=key)
        assert (got["Body"].read(), got["Metadata"]) == (b"hello", {"k": metadata})
    with refused("InvalidRequest"):
        s3.copy_object(Bucket=lake, Key="main/a", CopySource=f"{lake}/main/a")
    with refused("NoSuchKey"):
        s3.copy_object(Bucket=lake, Key="main/d", CopySource=f"{lake}/main/nothing")
    with refused("PreconditionFailed"):
        s3.copy_object(Bucket=lake, Key="main/d", CopySource=f"{lake}/main/a", CopySourceIfMatch='"other"')


def test_a_copy_and_a_delete_move_no_bytes_and_keep_them_with_hard_delete_on(
    s3: Any, lake: str, repository: lakefs.Repository, server: Server
) -> None:
    """Rclone, s3fs and Hadoop rename so: look, copy, look, delete."""
    setting = f"{server.url}/api/v1/repositories/{lake}/hard_delete"
    key = (server.access_key_id, server.secret_access_key)
    assert httpx.put(setting, json={"is_on": True, "grace_s": 0}, auth=key).status_code == 200
    main, side = repository.branch("main"), repository.branch("side").create("main")
    s3.put_object(Bucket=lake, Key="main/staged", Body=b"1")
    s3.put_object(Bucket=lake, Key="main/committed", Body=b"2")
    main.commit("both")
    s3.put_object(Bucket=lake, Key="main/staged", Body=b"3")

    for source, target in [
        ("main/staged", "main/a"),
        ("main/a", "main/b"),
        ("main/committed", "main/c"),
        ("main/c", "side/d"),
    ]:
        address = repository.ref(source.split("/")[0]).object(source.split("/")[1]).stat().physical_address
        s3.head_object(Bucket=lake, Key=source)
        s3.copy_object(Bucket=lake, Key=target, CopySource=f"{lake}/{source}")
        assert s3.head_object(Bucket=lake, Key=target)["ContentLength"] == 1
        s3.delete_object(Bucket=lake, Key=source)
        moved = repository.ref(target.split("/")[0]).object(target.split("/")[1]).stat()
        assert moved.physical_address == address

    s3.put_object(Bucket=lake, Key="main/gone", Body=b"4")
    s3.delete_object(Bucket=lake, Key="main/gone")
    while httpx.get(f"{setting}/why?path=gone", auth=key).json()["results"] == []:
        time.sleep(0.1)  # the process writes down what was let go once a second
    status = httpx.get(setting, auth=key).json()
    assert status["by"] == {"delete": 1}  # of `gone`, and of no source
    assert s3.get_object(Bucket=lake, Key="main/b")["Body"].read() == b"3"
    assert s3.get_object(Bucket=lake, Key="side/d")["Body"].read() == b"2"
    assert side.object("d").reader().read() == b"2"


def test_a_copy_has_a_date_of_its_own(s3: Any, lake: str) -> None:
    """A policy counts the age of a copy from there, as in S3."""
    s3.put_object(Bucket=lake, Key="main/a", Body=b"1")
    first = s3.head_object(Bucket=lake, Key="main/a")["LastModified"]
    while datetime.now(UTC).replace(microsecond=0) <= first:
        time.sleep(0.1)

    copied = s3.copy_object(Bucket=lake, Key="main/b", CopySource=f"{lake}/main/a")["CopyObjectResult"]["LastModified"]

    assert first < copied.replace(microsecond=0)
    assert s3.head_object(Bucket=lake, Key="main/b")["LastModified"] == copied.replace(microsecond=0)


def test_objects_are_deleted_one_by_one_and_many_at_once(s3: Any, lake: str) -> None:
    for key in ("a", "b", "c", "d"):
        s3.put_object(Bucket=lake, Key=f"main/{key}", Body=b"x")

    s3.delete_object(Bucket=lake, Key="main/a")
    s3.delete_object(Bucket=lake, Key="main/a")
    batch = {"Objects": [{"Key": "main/b"}, {"Key": "main/c"}, {"Key": "main/nothing"}, {"Key": "no-branch/x"}]}
    deleted = s3.delete_objects(Bucket=lake, Delete=batch)

    assert [item["Key"] for item in deleted["Deleted"]] == ["main/b", "main/c", "main/nothing"]
    assert [(item["Key"], item["Code"]) for item in deleted["Errors"]] == [("no-branch/x", "NoSuchBucket")]
    assert keys(s3.list_objects_v2(Bucket=lake)) == ["main/d"]


def test_a_bucket_is_made_as_a_branch_and_never_deleted(s3: Any, lake: str, repository: lakefs.Repository) -> None:
    s3.create_bucket(Bucket=f"{lake}.dev")

    assert "dev" in [branch.id for branch in repository.branches()]
    assert lake in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    listed = s3.list_buckets(Prefix=f"{lake}.")["Buckets"]
    assert [bucket["Name"] for bucket in listed] == [f"{lake}.dev", f"{lake}.main"]
    with refused("BucketAlreadyOwnedByYou"):
        s3.create_bucket(Bucket=f"{lake}.dev")
    s3.put_object(Bucket=f"{lake}.dev", Key="a", Body=b"x")
    with refused("BucketNotEmpty"):
        s3.delete_bucket(Bucket=f"{lake}.dev")
    s3.delete_object(Bucket=f"{lake}.dev", Key="a")
    for bucket in (f"{lake}.dev", lake):
        with refused("NotImplemented"):
            s3.delete_bucket(Bucket=bucket)
        s3.head_bucket(Bucket=bucket)


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_a_presigned_url_works_without_credentials_until_it_is_changed(server: Server, lake: str, version: str) -> None:
    client = client_of(server, signature_version=version)
    target = {"Bucket": lake, "Key": "main/a b+c"}
    put = client.generate_presigned_url("put_object", target)
    got = client.generate_presigned_url("get_object", {**target, "ResponseContentType": "text/x"})

    assert httpx.put(put, content=b"hello").status_code == 200
    answer = httpx.get(got)
    assert (answer.content, answer.headers["content-type"]) == (b"hello", "text/x")
    for changed in (got.replace("text%2Fx", "text%2Fy"), got.replace("/main/", "/other/")):
        assert httpx.get(changed).status_code == 403
    assert httpx.delete(got).status_code == 403
    client.close()


def test_a_body_is_asked_for_only_once_the_signature_is_good(s3: Any, lake: str) -> None:
    put = s3.generate_presigned_url("put_object", {"Bucket": lake, "Key": "main/a"})
    good = urlsplit(put)
    head = f"HTTP/1.1\r\nhost: {good.netloc}\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n"
    for key, expected in (("main/a", b"HTTP/1.1 100"), ("main/b", b"HTTP/1.1 403")):
        with (
            socket.create_connection((good.hostname or "", good.port or 0), timeout=600) as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(f"PUT /{lake}/{key}?{good.query} {head}".encode())
            assert answer.readline().startswith(expected)
            if key == "main/a":
                assert answer.readline() == b"\r\n"
                connection.sendall(b"hello")
                assert answer.readline().startswith(b"HTTP/1.1 200")

    assert s3.get_object(Bucket=lake, Key="main/a")["Body"].read() == b"hello"
    assert keys(s3.list_objects_v2(Bucket=lake)) == ["main/a"]


def test_what_the_gateway_does_not_have_is_refused_by_name_and_changes_nothing(s3: Any, lake: str) -> None:
    s3.put_object(Bucket=lake, Key="main/a", Body=b"hello")

    for call, arguments, named in (
        (s3.put_object_tagging, {"Tagging": {"TagSet": [{"Key": "k", "Value": "v"}]}}, "PutObjectTagging"),
        (s3.put_object_acl, {"ACL": "public-read"}, "PutObjectAcl"),
        (s3.put_object_legal_hold, {"LegalHold": {"Status": "ON"}}, "PutObjectLegalHold"),
        (s3.restore_object, {}, "RestoreObject"),
    ):
        with pytest.raises(ClientError, match=f"NotImplemented.*{named} is not implemented"):
            call(Bucket=lake, Key="main/a", **arguments)
    with pytest.raises(ClientError, match="the header x-amz-tagging is not implemented"):
        s3.put_object(Bucket=lake, Key="main/a", Body=b"other", Tagging="k=v")
    with refused("NotImplemented"):
        s3.put_bucket_policy(Bucket=lake, Policy="{}")

    assert s3.get_object(Bucket=lake, Key="main/a")["Body"].read() == b"hello"


def test_wrong_keys_are_refused(server: Server, lake: str) -> None:
    for wrong, code in (
        (Server(server.url, server.access_key_id, "x" * 40), "SignatureDoesNotMatch"),
        (Server(server.url, "AKIAJAAAAAAAAAAAAAAQ", "x" * 40), "InvalidAccessKeyId"),
    ):
        client = client_of(wrong)
        with refused(code):
            client.list_objects_v2(Bucket=lake)
        client.close()


def test_a_large_body_streams_both_ways(s3: Any, lake: str) -> None:
    data = bytes(range(256)) * (20 << 12)

    s3.put_object(Bucket=lake, Key="main/large", Body=data)

    url = s3.generate_presigned_url("get_object", {"Bucket": lake, "Key": "main/large"})
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == data


PART = b"0123456789abcdef" * (5 << 16)


def upload_in_parts(s3: Any, bucket: str, key: str, *parts: bytes, **created: Any) -> tuple[str, list[dict[str, Any]]]:
    algorithm = created.get("ChecksumAlgorithm")
    sent = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    upload = s3.create_multipart_upload(Bucket=bucket, Key=key, **created)["UploadId"]
    done = []
    for number, part in enumerate(parts, 1):
        answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=part, **sent)
        done.append({"PartNumber": number, "ETag": answer["ETag"]})
        if algorithm:
            done[-1][f"Checksum{algorithm}"] = answer[f"Checksum{algorithm}"]
    return upload, done


def finish(s3: Any, bucket: str, key: str, upload: str, parts: list[dict[str, Any]], **more: Any) -> Any:
    return s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **more
    )


def test_an_upload_in_parts_is_one_object(s3: Any, lake: str, repository: lakefs.Repository) -> None:
    upload, parts = upload_in_parts(s3, lake, "main/a", PART, b"end", ContentType="text/x", Metadata={"k": "v"})
    listed = s3.list_parts(Bucket=lake, Key="main/a", UploadId=upload)
    assert [(part["PartNumber"], part["Size"]) for part in listed["Parts"]] == [(1, len(PART)), (2, 3)]
    begun = s3.list_multipart_uploads(Bucket=lake, Prefix="main/")["Uploads"]
    assert [(each["Key"], each["UploadId"]) for each in begun] == [("main/a", upload)]
    with refused("NoSuchKey"):
        s3.get_object(Bucket=lake, Key="main/a")

    done = finish(s3, lake, "main/a", upload, parts)

    assert done["ETag"].endswith('-2"')
    got = s3.get_object(Bucket=lake, Key="main/a")
    assert got["Body"].read() == PART + b"end"
    assert (got["ETag"], got["ContentType"], got["Metadata"]) == (done["ETag"], "text/x", {"k": "v"})
    second = s3.get_object(Bucket=lake, Key="main/a", PartNumber=2)
    assert (second["Body"].read(), second["PartsCount"]) == (b"end", 2)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=lake)
    assert repository.branch("main").object("a").stat().size_bytes == len(PART) + 3


def test_boto3s_own_transfers_go_in_parts(s3: Any, lake: str) -> None:
    data = PART * 3 + b"rest"
    config = boto3.s3.transfer.TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)

    s3.upload_fileobj(io.BytesIO(data), lake, "main/up", Config=config)
    s3.copy({"Bucket": lake, "Key": "main/up"}, lake, "main/copied", Config=config)
    got = io.BytesIO()
    s3.download_fileobj(lake, "main/copied", got, Config=config)

    assert got.getvalue() == data


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC64NVME", "SHA256"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_checksum_of_parts_is_held_and_given_back(s3: Any, lake: str, algorithm: str, count: int) -> None:
    bodies = [PART, b"end"][-count:]
    upload, parts = upload_in_parts(s3, lake, "main/a", *bodies, ChecksumAlgorithm=algorithm)

    done = finish(s3, lake, "main/a", upload, parts)

    kind = "FULL_OBJECT" if algorithm == "CRC64NVME" else "COMPOSITE"
    found = s3.head_object(Bucket=lake, Key="main/a", ChecksumMode="ENABLED")
    assert (found["ChecksumType"], done["ChecksumType"]) == (kind, kind)
    assert found[f"Checksum{algorithm}"] == done[f"Checksum{algorithm}"]
    if kind == "FULL_OBJECT":
        whole = s3.put_object(Bucket=lake, Key="main/b", Body=b"".join(bodies), ChecksumAlgorithm=algorithm)
        assert whole[f"Checksum{algorithm}"] == done[f"Checksum{algorithm}"]


def test_a_completion_that_does_not_fit_changes_nothing(s3: Any, lake: str) -> None:
    upload, parts = upload_in_parts(s3, lake, "main/a", b"small", PART, b"end")
    one, two, three = parts

    for chosen, code in (
        ([one, two], "EntityTooSmall"),
        ([three, two], "InvalidPartOrder"),
        ([two, two, three], "InvalidPartOrder"),
        ([{**two, "ETag": one["ETag"]}, two, three], "InvalidPartOrder"),
        ([two, {**three, "ETag": one["ETag"]}], "InvalidPart"),
        ([two, {**three, "PartNumber": 4}], "InvalidPart"),
        ([], "MalformedXML"),
    ):
        with refused(code):
            finish(s3, lake, "main/a", upload, chosen)
    with refused("NoSuchUpload"):
        finish(s3, lake, "main/b", upload, [two, three])
    s3.put_object(Bucket=lake, Key="main/a", Body=b"there")
    with refused("PreconditionFailed"):
        finish(s3, lake, "main/a", upload, [two, three], IfNoneMatch="*")

    finish(s3, lake, "main/a", upload, [two, three])
    assert s3.head_object(Bucket=lake, Key="main/a")["ContentLength"] == len(PART) + 3


def test_a_completion_that_is_sent_again_is_answered_again(s3: Any, lake: str) -> None:
    """A client does so whose answer was lost. It must not fail, nor bring the object back over a later one."""
    upload, parts = upload_in_parts(s3, lake, "main/a", PART, b"end")
    done = finish(s3, lake, "main/a", upload, parts)
    s3.put_object(Bucket=lake, Key="main/a", Body=b"later")

    assert finish(s3, lake, "main/a", upload, parts)["ETag"] == done["ETag"]
    assert s3.get_object(Bucket=lake, Key="main/a")["Body"].read() == b"later"
    with refused("NoSuchUpload"):
        finish(s3, lake, "main/a", upload, parts[:1])
    with refused("NoSuchUpload"):
        s3.upload_part(Bucket=lake, Key="main/a", UploadId=upload, PartNumber=3, Body=b"x")


def test_an_upload_that_was_aborted_is_unknown(s3: Any, lake: str) -> None:
    upload, parts = upload_in_parts(s3, lake, "main/a", b"x")
    target = {"Bucket": lake, "Key": "main/a", "UploadId": upload}

    s3.abort_multipart_upload(**target)

    for call in (s3.abort_multipart_upload, s3.list_parts):
        with refused("NoSuchUpload"):
            call(**target)
    with refused("NoSuchUpload"):
        finish(s3, lake, "main/a", upload, parts)
    with refused("NoSuchUpload"):
        s3.upload_part(**target, PartNumber=1, Body=b"x")


def test_a_part_may_be_a_range_of_another_object(s3: Any, lake: str) -> None:
    s3.put_object(Bucket=lake, Key="main/source", Body=PART + b"0123456789")
    target = {"Bucket": lake, "Key": "main/a"}
    upload = s3.create_multipart_upload(**target)["UploadId"]
    parts = []
    for number, span in enumerate((f"bytes=0-{len(PART) - 1}", f"bytes={len(PART) + 2}-{len(PART) + 4}"), 1):
        copied = s3.upload_part_copy(
            **target, UploadId=upload, PartNumber=number, CopySource=f"{lake}/main/source", CopySourceRange=span
        )
        parts.append({"PartNumber": number, "ETag": copied["CopyPartResult"]["ETag"]})

    finish(s3, lake, "main/a", upload, parts)

    assert s3.get_object(**target)["Body"].read() == PART + b"234"
