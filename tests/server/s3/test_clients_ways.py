"""Ways of clients that S3 knows: how they spell keys and headers, what they ask for by mistake, and old signatures."""

from __future__ import annotations

import re
from collections.abc import Generator
from urllib.parse import quote

import httpx
import pytest
from botocore.auth import HmacV1Auth, HmacV1QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

PART = b"p" * (5 << 20)


async def in_parts(s3: httpx.AsyncClient, path: str, *parts: bytes, **headers: str) -> str:
    """Upload an object in parts, and return the id of the upload."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    begun = await s3.post(f"{path}?uploads", headers=headers)
    upload = re.search(r"<UploadId>(.*?)<", begun.text)
    assert upload is not None, begun.text
    done = ""
    for number, part in enumerate(parts, 1):
        put = await s3.put(f"{path}?partNumber={number}&uploadId={upload[1]}", content=part)
        assert put.status_code == 200, put.text
        done += f"<Part><PartNumber>{number}</PartNumber><ETag>{put.headers['etag']}</ETag></Part>"
    body = f"<CompleteMultipartUpload>{done}</CompleteMultipartUpload>"
    completed = await s3.post(f"{path}?uploadId={upload[1]}", content=body.encode())
    assert completed.status_code == 200, completed.text
    return upload[1]


async def test_a_plus_in_a_copy_source_is_a_space_and_an_encoded_one_a_plus(s3: httpx.AsyncClient) -> None:
    for key in ("x y", "x+y"):
        (await s3.put(f"/lake.main/{quote(key, safe='')}", content=key.encode())).raise_for_status()

    for source, content in (("x+y", b"x y"), ("x%20y", b"x y"), ("x%2By", b"x+y")):
        (await s3.put("/lake.main/c", headers={"x-amz-copy-source": f"/lake.main/{source}"})).raise_for_status()
        assert (await s3.get("/lake.main/c")).content == content


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("deflate, gzip", "deflate, gzip"),
        ("aws-chunked", None),
        ("aws-chunked, gzip", "gzip"),
        ("gzip,aws-chunked", "gzip"),
        ("deflate, aws-chunked, gzip", "deflate, gzip"),
    ],
)
async def test_a_list_of_encodings_is_given_back_as_it_came(s3: httpx.AsyncClient, sent: str, kept: str | None) -> None:
    (await s3.put("/lake.main/b", headers={"content-encoding": sent}, content=b"x")).raise_for_status()

    assert (await s3.head("/lake.main/b")).headers.get("content-encoding") == kept


# Parts


@pytest.mark.parametrize(
    ("algorithm", "kind"), [("CRC32", "COMPOSITE"), ("CRC32", "FULL_OBJECT"), ("SHA256", "COMPOSITE")]
)
async def test_the_checksums_of_parts_are_kept(s3: httpx.AsyncClient, algorithm: str, kind: str) -> None:
    name = algorithm.lower()
    headers = {"x_amz_checksum_algorithm": algorithm, "x_amz_checksum_type": kind}
    await in_parts(s3, "/lake.main/big", PART, b"end", **headers)
    plain = await s3.put("/lake.main/plain", headers={"x-amz-sdk-checksum-algorithm": algorithm}, content=b"end")
    assert plain.status_code == 400  # An algorithm needs its checksum.

    parts = []
    for number, content in ((1, PART), (2, b"end")):
        got = await s3.get(f"/lake.main/big?partNumber={number}", headers={"x-amz-checksum-mode": "ENABLED"})
        assert (got.content, got.headers["x-amz-checksum-type"]) == (content, kind)
        parts.append(got.headers[f"x-amz-checksum-{name}"])
        (
            await s3.put("/lake.main/same", headers={f"x-amz-checksum-{name}": parts[-1]}, content=content)
        ).raise_for_status()
    asked = {"x-amz-object-attributes": "ObjectParts", "x-amz-max-parts": "1"}
    first = (await s3.get("/lake.main/big?attributes", headers=asked)).text
    rest = (await s3.get("/lake.main/big?attributes", headers=asked | {"x-amz-part-number-marker": "1"})).text

    tag = f"Checksum{algorithm}"
    assert f"<Part><PartNumber>1</PartNumber><Size>{len(PART)}</Size><{tag}>{parts[0]}</{tag}></Part>" in first
    assert "<NextPartNumberMarker>1</NextPartNumberMarker>" in first
    assert "<IsTruncated>true</IsTruncated>" in first
    assert f"<Part><PartNumber>2</PartNumber><Size>3</Size><{tag}>{parts[1]}</{tag}></Part>" in rest
    assert "<IsTruncated>false</IsTruncated>" in rest
    assert "<PartsCount>2</PartsCount>" in rest


async def test_a_copy_with_other_metadata_keeps_what_is_known_of_the_parts(s3: httpx.AsyncClient) -> None:
    await in_parts(s3, "/lake.main/big", PART, b"end", x_amz_checksum_algorithm="CRC32")

    headers = {"x-amz-copy-source": "/lake.main/big", "x-amz-metadata-directive": "REPLACE", "x-amz-meta-k": "v"}
    (await s3.put("/lake.main/copy", headers=headers)).raise_for_status()

    got = await s3.get("/lake.main/copy?partNumber=2", headers={"x-amz-checksum-mode": "ENABLED"})
    assert (got.content, got.headers["x-amz-meta-k"]) == (b"end", "v")
    assert "x-amz-checksum-crc32" in got.headers


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("PUT", "partNumber=0"),
        ("PUT", "partNumber=10001"),
        ("PUT", "partNumber=x"),
        ("PUT", "partNumber=000000001" + "0" * 4_400),
        ("GET", "max-parts=-1"),
    ],
)
async def test_an_argument_is_looked_at_before_the_upload(s3: httpx.AsyncClient, method: str, query: str) -> None:
    answer = await s3.request(method, f"/lake.main/a?{query}&uploadId=none")

    assert (answer.status_code, "<Code>InvalidArgument</Code>" in answer.text) == (400, True), answer.text


# Mistakes


async def test_the_refusal_of_a_new_bucket_says_how_repositories_are_made(s3: httpx.AsyncClient) -> None:
    for bucket in ("new-lake", "new-lake.main"):
        answer = await s3.put(f"/{bucket}")

        assert (answer.status_code, "<Code>NoSuchBucket</Code>" in answer.text) == (404, True)
        assert "lakebed repo create" in answer.text


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/", "/api/v1/lake.main?list-type=2", "/api/v1/lake/main/a"])
async def test_an_endpoint_with_the_path_of_the_api_is_named(s3: httpx.AsyncClient, path: str) -> None:
    answer = await s3.get(path)

    assert (answer.status_code, "server's URL without /api/v1" in answer.text) == (404, True), answer.text


@pytest.mark.parametrize("path", ["/lake.main", "/lake.main/"])
async def test_a_form_of_a_browser_is_refused_by_name(stranger: httpx.AsyncClient, path: str) -> None:
    answer = await stranger.post(
        f"http://localhost{path}", data={"key": "x", "policy": "e30="}, files={"file": ("x", b"x")}
    )

    assert (answer.status_code, "PostObject is not implemented" in answer.text) == (501, True)


@pytest.mark.parametrize("path", ["/", "/lake.main", "/lake.main/"])
async def test_listening_for_events_is_refused_by_name(s3: httpx.AsyncClient, path: str) -> None:
    answer = await s3.get(f"{path}?events=s3%3AObjectCreated%3A%2A&events=s3%3AObjectRemoved%3A%2A&ping=10")

    assert answer.status_code == 501
    assert f"Listen{'Bucket' * (path != '/')}Notification is not implemented" in answer.text


async def test_the_token_of_other_credentials_is_refused_with_its_variable(s3: httpx.AsyncClient) -> None:
    answer = await s3.get("/lake.main/a", headers={"x-amz-security-token": "of-another"})

    assert (answer.status_code, "<Code>InvalidToken</Code>" in answer.text) == (400, True)
    assert "Unset AWS_SESSION_TOKEN" in answer.text


# Signatures of version 2


class HeaderV2(httpx.Auth):
    """botocore's own signature of version 2 in the Authorization header."""

    def __init__(self, pair: tuple[str, str]) -> None:
        self._signer = HmacV1Auth(Credentials(*pair))

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        names = ("content-type", "content-md5", "date")
        kept = {name: value for name, value in request.headers.items() if name in names or name.startswith("x-amz-")}
        signed = AWSRequest(request.method, str(request.url), headers=kept)
        self._signer.add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        yield request


async def test_a_header_of_version_2_signs_reads_writes_listings_and_uploads_in_parts(
    unsigned: httpx.AsyncClient, pair: tuple[str, str]
) -> None:
    auth = HeaderV2(pair)
    put = await unsigned.put(
        "http://localhost/lake.main/v2 ü.txt", content=b"two", headers={"x-amz-meta-a": "b"}, auth=auth
    )
    assert put.status_code == 200, put.text
    read = await unsigned.get("http://localhost/lake.main/v2 ü.txt?response-content-type=text/x", auth=auth)
    assert (read.content, read.headers["x-amz-meta-a"], read.headers["content-type"]) == (b"two", "b", "text/x")
    assert "v2 ü.txt" in (await unsigned.get("http://localhost/lake.main?list-type=2&prefix=v2", auth=auth)).text
    assert "<UploadId>" in (await unsigned.post("http://localhost/lake.main/p?uploads", auth=auth)).text

    other = (await unsigned.get("http://localhost/lake.main/a", auth=HeaderV2((pair[0], "another")))).text
    assert "SignatureDoesNotMatch" in other
    late = await unsigned.get(
        "http://localhost/lake.main/a", auth=auth, headers={"x-amz-date": "Mon, 02 Jan 2006 15:04:05 GMT"}
    )
    assert (late.status_code, "RequestTimeTooSkewed" in late.text) == (403, True)
    for wrong in ("AWS ", "AWS key", "AWS :x"):
        refused = await unsigned.get("http://localhost/lake.main/a", headers={"authorization": wrong})
        assert (refused.status_code, "InvalidArgument" in refused.text) == (400, True), wrong
    undated = await unsigned.get("http://localhost/lake.main/a", headers={"authorization": f"AWS {pair[0]}:x"})
    assert (undated.status_code, "valid Date" in undated.text) == (403, True)


def signed_v2(pair: tuple[str, str], path: str, expires_s: int = 3600) -> str:
    request = AWSRequest("GET", f"http://localhost{path}", headers={})
    HmacV1QueryAuth(Credentials(*pair), expires=expires_s).add_auth(request)
    return str(request.url)


@pytest.fixture
def unsigned(stranger: httpx.AsyncClient, pair: tuple[str, str]) -> httpx.AsyncClient:
    """A client without keys, where there is a pair."""
    return stranger


async def test_a_url_of_version_2_takes_no_parameter_that_it_does_not_sign(
    unsigned: httpx.AsyncClient, pair: tuple[str, str]
) -> None:
    url = signed_v2(pair, "/lake.main/a")
    assert (await unsigned.get(url)).content == b"hello"
    listing = signed_v2(pair, "/lake.main")
    assert (await unsigned.get(listing)).status_code == 200

    for more in ("prefix=x", "list-type=2&prefix=x", "max-keys=1", "attributes", "encryption"):
        answer = await unsigned.get(f"{listing}&{more}")
        assert (answer.status_code, "does not cover the parameter" in answer.text) == (403, True), answer.text
    assert (await unsigned.get(f"{url}&x-id=GetObject")).status_code == 200


async def test_a_url_of_version_2_ends_within_a_week(unsigned: httpx.AsyncClient, pair: tuple[str, str]) -> None:
    week = 7 * 24 * 3600

    assert (await unsigned.get(signed_v2(pair, "/lake.main/a", week - 60))).status_code == 200
    late = await unsigned.get(signed_v2(pair, "/lake.main/a", week + 3600))

    assert (late.status_code, "less than a week" in late.text) == (403, True)


async def test_a_bucket_that_is_not_there_is_named(s3: httpx.AsyncClient) -> None:
    missing = [(await s3.put(f"/{path}", content=b"x")).text for path in ("none/main/a", "lake/none/a", "lake.none/a")]
    read = (await s3.get("/lake.none/a")).text

    assert "<Message>The specified bucket does not exist: there is no repository none.</Message>" in missing[0]
    assert all("there is no branch none.</Message>" in text for text in missing[1:])
    assert "there is no ref none.</Message>" in read


async def test_a_version_that_is_asked_for_is_refused_and_never_the_newest(s3: httpx.AsyncClient) -> None:
    source = {"x-amz-copy-source": "/lake.main/a?versionId=v1"}
    answers = [
        await s3.get("/lake.main/a?versionId=v1"),
        await s3.delete("/lake.main/a?versionId=v1"),
        await s3.put("/lake.main/b", headers=source),
    ]

    assert [answer.status_code for answer in answers] == [400] * 3
    assert (await s3.get("/lake.main/a?versionId=null")).content == b"hello"


async def test_a_batch_names_each_key_of_a_branch_that_is_not_there(s3: httpx.AsyncClient) -> None:
    keys = ("none/a", "none/b", "main/a")
    body = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)

    answer = await s3.post("/lake?delete", content=f"<Delete>{body}</Delete>".encode())

    assert re.findall("<Error><Key>(.*?)</Key>", answer.text) == ["none/a", "none/b"]
    assert re.findall("<Deleted><Key>(.*?)</Key>", answer.text) == ["main/a"]


async def test_a_listing_of_all_branches_goes_on_inside_the_one_that_its_marker_names(s3: httpx.AsyncClient) -> None:
    for key in ("a", "b"):
        (await s3.put(f"/lake/gone/{key}", content=b"x")).raise_for_status()

    for after, keys in (("gone", ["gone/a", "gone/b", "main/a"]), ("gone/a", ["gone/b", "main/a"]), ("h", ["main/a"])):
        listed = await s3.get(f"/lake?list-type=2&start-after={quote(after, safe='')}")
        assert re.findall("<Key>(.*?)</Key>", listed.text) == keys


async def test_a_listing_of_all_branches_has_no_hidden_one_and_its_name_opens_it(
    s3: httpx.AsyncClient, lake: httpx.AsyncClient
) -> None:
    """Who copies a bucket would copy the files of tables, too, for each branch that has them and once more."""
    hidden = {"name": "work", "source": "main", "hidden": True}
    (await lake.post("/repositories/lake/branches", json=hidden)).raise_for_status()
    (await s3.put("/lake/work/a", content=b"x")).raise_for_status()

    for query in ("list-type=2", "", "versions", "list-type=2&delimiter=%2F", "list-type=2&prefix=w&delimiter=%2F"):
        listed = await s3.get(f"/lake?{query}")
        assert (listed.status_code, "work/" in listed.text) == (200, False), query
    assert "<Key>work/a</Key>" in (await s3.get("/lake?list-type=2&prefix=work%2F")).text


async def test_an_object_without_a_type_is_bytes_and_no_page_of_this_server(s3: httpx.AsyncClient) -> None:
    """A page that runs in the browser would have the cookie of its user."""
    (await s3.put("/lake.main/b", content=b"<script>", headers={"content-type": ""})).raise_for_status()

    got = await s3.get("/lake.main/b")

    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-security-policy"].split(";")[0] == "sandbox"
    assert got.headers["x-content-type-options"] == "nosniff"
