"""Generated requests: wrong in their paths, queries, headers, signatures, frames and documents. None meets a bug.

What is generated follows from the seed alone. `LAKEBED_FUZZ` is how many requests are made.
"""

from __future__ import annotations

import os
import random
import resource
from collections import Counter
from collections.abc import Generator
from typing import Final

import httpx
import pytest

from lakebed.server import App
from tests.server.s3.signing import Signer

REQUESTS: Final = int(os.environ.get("LAKEBED_FUZZ", "10000"))
GROWTH_MIB_MAX: Final = 48
METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
PATHS: Final = (
    "/", "/lake", "/lake/", "/lake.main", "/lake.main/", "/lake/main", "/lake/main/", "/lake/main/a", "/lake.main/a",
    "/lake/dev/b", "/nosuch/x", "/lake.nosuch/x", "/lake.main~1/a", "/LAKE/x", "/lake..main/a", "/.main/a", "/lake./a",
    "//", "///a", "/lake/main//a", "/lake/main/../a", "/lake.main/%00", "/lake.main/%ff", "/%2f/%2f", "/lake%2fmain/a",
    "/lake.main/" + "x" * 1030, "/lake.main/é", "/lake.main/a%20b+c", "/lake.^/a", "/lake.main@/a", "/lake.a$/a",
)  # fmt: skip
PARAMETERS: Final = (
    "acl", "attributes", "continuation-token", "delete", "delimiter", "encoding-type", "fetch-owner", "key-marker",
    "legal-hold", "list-type", "location", "marker", "max-keys", "max-parts", "max-uploads", "max-buckets",
    "part-number-marker", "partNumber", "prefix", "response-content-type", "response-expires", "start-after", "tagging",
    "upload-id-marker", "uploadId", "uploads", "versionId", "versioning", "versions", "x-id", "nonsense",
)  # fmt: skip
VALUES: Final = (
    "", "0", "1", "2", "1000", "-1", "10001", "9" * 30, "2147483648", "a", "/", "main/", "url", "true", "null", "%00",
    "\u00e9", "\U0001f600", "bWFpbi9h", "=", "..", "text/plain", "a\nb", "x" * 2000, "\u0662", "000000001" + "0" * 4400,
)  # fmt: skip
HEADERS: Final = (
    "range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "content-md5", "content-type",
    "content-encoding", "expires", "x-amz-acl", "x-amz-checksum-algorithm", "x-amz-checksum-crc32",
    "x-amz-checksum-crc64nvme", "x-amz-checksum-mode", "x-amz-checksum-sha256", "x-amz-checksum-type",
    "x-amz-copy-source", "x-amz-copy-source-if-match", "x-amz-copy-source-range", "x-amz-decoded-content-length",
    "x-amz-meta-k", "x-amz-meta-::s3::parts", "x-amz-metadata-directive", "x-amz-mp-object-size",
    "x-amz-object-attributes", "x-amz-sdk-checksum-algorithm", "x-amz-storage-class", "x-amz-tagging", "x-amz-trailer",
    "x-amz-write-offset-bytes", "expect", "host", "date", "x-amz-date", "if-range",
)  # fmt: skip
HEADER_VALUES: Final = (
    "", "*", '"x"', "bytes=0-0", "bytes=-1", "bytes=5-", "bytes=" + "9" * 19 + "-", "bytes=1-0,2-3", "lines=1",
    "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 99 Jan 9999 99:99:99 GMT", "AAAAAA==",
    "CRC32", "crc32", "MD9", "FULL_OBJECT",
    "COMPOSITE", "ENABLED", "/lake/main/a", "lake.main/a?versionId=null", "lake", "%ff/%ff", "bytes=0-4", "REPLACE",
    "private", "public-read", "5", "-5", "9" * 30, "x-amz-checksum-crc32", "etag,checksum", "ETag,Checksum,ObjectParts",
    "text/plain; charset=utf-8", "aws-chunked,gzip", "STANDARD", "GLACIER", "a" * 3000, "a\tb", "9" * 5000,
    "Fri, 31 Dec 9999 23:59:59 -2300", "Mon, 01 Jan 0001 00:00:00 +2300", "99991231T235959Z",
)  # fmt: skip
WORDS: Final = (
    "UNSIGNED-PAYLOAD", "UNSIGNED-PAYLOAD", "UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "0" * 64, "nonsense",
)  # fmt: skip
BODIES: Final = (
    b"", b"data", b"\x00" * 3000, b"5\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n",
    b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"zz\r\n", b"1" * 5000, b"<", b"<Delete/>", b"\xff\xfe<",
    b"<Delete><Object><Key>a</Key></Object><Object><Key>nosuch/b</Key><VersionId>1</VersionId></Object></Delete>",
    b"<Delete>" + b"<Object><Key>x</Key></Object>" * 1001 + b"</Delete>", b"<!DOCTYPE a [<!ENTITY b 'c'>]><Delete/>",
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
    b"<CompleteMultipartUpload><Part><PartNumber>x</PartNumber></Part></CompleteMultipartUpload>",
    b"<CreateBucketConfiguration><LocationConstraint>x</LocationConstraint></CreateBucketConfiguration>",
    b"<a>" * 3000, "<Delete><Object><Key>é\ud7ff</Key></Object></Delete>".encode(),
)  # fmt: skip


class Changed(Signer):
    """Sign the request, and sometimes change a character of the result."""

    def __init__(self, pair: tuple[str, str], made: random.Random) -> None:
        super().__init__(*pair)
        self._made = made

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        for signed in super().auth_flow(request):
            name = self._made.choice(["authorization", "x-amz-date", "x-amz-content-sha256", ""] + [""] * 12)
            if name:
                value = signed.headers.get(name, "")
                place = self._made.randrange(len(value) + 1)
                signed.headers[name] = value[:place] + self._made.choice(["", "x", ",", "=", "/"]) + value[place + 1 :]
            yield signed


def generated(made: random.Random) -> httpx.Request:
    pairs = [(made.choice(PARAMETERS), made.choice(VALUES)) for _ in range(made.choice([0, 0, 1, 1, 2, 3]))]
    headers = {made.choice(HEADERS): made.choice(HEADER_VALUES) for _ in range(made.choice([0, 0, 1, 2, 3]))}
    headers.setdefault("x-amz-content-sha256", made.choice(WORDS))
    body = made.choice(BODIES)
    if "CHUNK" in headers["x-amz-content-sha256"] or "STREAMING" in headers["x-amz-content-sha256"]:
        headers.setdefault("x-amz-decoded-content-length", made.choice(["5", "0", str(len(body))]))
    return httpx.Request(
        made.choice(METHODS),
        httpx.URL("http://localhost" + made.choice(PATHS), params=pairs or None),
        headers={name.encode(): value.encode() for name, value in headers.items()},
        content=body,
    )


@pytest.mark.parametrize("seed", [1])
async def test_no_generated_request_is_answered_by_a_bug(
    app: App, client: httpx.AsyncClient, repo: str, seed: int
) -> None:
    pair = (await client.post("/auth/users/esti/credentials")).json()
    await client.post(f"{repo}/branches/main/objects?path=a", content=b"hello")
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    made = random.Random(seed)
    keys = pair["access_key_id"], pair["secret_access_key"]
    statuses: Counter[int] = Counter()
    before = 0.0
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, auth=Changed(keys, made)) as sender:
        for number in range(REQUESTS):
            if number == REQUESTS // 5:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            request = generated(made)
            answer = await sender.send(request)

            statuses[answer.status_code] += 1
            assert answer.status_code < 500 or answer.status_code == 501, (
                number,
                request,
                request.headers,
                answer.text,
            )

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before < GROWTH_MIB_MAX
    assert {200, 400, 403, 404, 501} <= set(statuses), statuses
