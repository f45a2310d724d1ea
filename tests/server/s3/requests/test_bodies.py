"""Bodies of uploads: the documented chunks, and everything that does not fit them."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable
from typing import Any

import pytest

from lakebed.server.s3.errors import S3Error
from lakebed.server.s3.options import S3Options
from lakebed.server.s3.requests.bodies import Payload, check_word
from lakebed.server.s3.requests.requests import S3Request
from lakebed.server.s3.requests.signatures import Signed

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CHUNKS = (
    (65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
    (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
    (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
)
SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = f"{SIGNED}-TRAILER"
UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def documented(chunks: Iterable[tuple[int, str]] = CHUNKS) -> bytes:
    """The body of AWS's example: 65 KiB of `a` in signed chunks."""
    return b"".join(b"%x;chunk-signature=%s\r\n" % (n, s.encode()) + b"a" * n + b"\r\n" for n, s in chunks)


TRAILER_SEED = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
TRAILER_CHUNKS = (
    (65536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"),
    (1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"),
    (0, "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"),
)
CRC32C = b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
TRAILER = b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n"


def payload(word: str, body: bytes, piece: int = 1 << 16, /, **headers: str) -> Payload:
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)] or [b""]

    async def receive() -> Any:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    shown = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "PUT", "raw_path": b"/b/k", "query_string": b"", "headers": shown}
    request = S3Request(scope, receive, S3Options())
    request.signed = Signed(
        access_key_id="a",
        scope="20130524/us-east-1/s3/aws4_request",
        time="20130524T000000Z",
        signed_headers=(b"host",),
        signature=TRAILER_SEED if word == SIGNED_TRAILER else SEED,
        payload=word,
    )
    request.key = request.signed.key(SECRET)
    return Payload(request)


async def read(found: Payload) -> bytes:
    return b"".join([chunk async for chunk in found.chunks()])


async def code_of(word: str, body: bytes, **headers: str) -> str:
    with pytest.raises(S3Error) as caught:
        await read(payload(word, body, **headers))
    return caught.value.code


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
async def test_the_documented_chunks_are_read_however_they_arrive(piece: int) -> None:
    found = payload(SIGNED, documented(), piece, x_amz_decoded_content_length="66560")

    assert await read(found) == b"a" * 66560


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda body: body.replace(b"aaaa\r\n400", b"aaab\r\n400"), "SignatureDoesNotMatch"),
        (lambda body: body.replace(b";chunk-signature=ad80", b";chunk-signature=ad81"), "SignatureDoesNotMatch"),
        (lambda body: body.replace(b";chunk-signature=ad80", b";signature=ad80"), "SignatureDoesNotMatch"),
        (lambda body: body[: body.index(b"\r\n0;")], "IncompleteBody"),
        (lambda body: body[:66_000], "IncompleteBody"),
        (lambda body: b"", "IncompleteBody"),
        (lambda body: b"f" * 10_000, "IncompleteBody"),
    ],
    ids=["bytes", "signature", "no signature", "no end", "cut", "empty", "no line"],
)
async def test_chunks_that_were_changed_are_refused(change: Any, code: str) -> None:
    assert await code_of(SIGNED, change(documented()), x_amz_decoded_content_length="66560") == code


async def test_a_body_of_another_length_than_declared_is_refused() -> None:
    assert await code_of(SIGNED, documented(), x_amz_decoded_content_length="66559") == "IncompleteBody"
    assert await code_of("UNSIGNED-PAYLOAD", b"hello", content_length="6") == "IncompleteBody"
    assert await code_of(hashlib.sha256(b"x").hexdigest(), b"y", content_length="1") == "XAmzContentSHA256Mismatch"


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def framed(data: bytes, trailer: str) -> bytes:
    return b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(data), data, trailer.encode())


async def test_a_checksum_behind_the_body_is_held_against_it() -> None:
    headers = {"x_amz_decoded_content_length": "5", "x_amz_trailer": "x-amz-checksum-crc32"}

    good = payload(UNSIGNED, framed(b"hello", f"x-amz-checksum-crc32:{crc32(b'hello')}"), **headers)

    assert await read(good) == b"hello"
    assert good.checksums == {"CRC32": crc32(b"hello")}
    for trailer, code in (
        (f"x-amz-checksum-crc32:{crc32(b'other')}", "BadDigest"),
        ("x-amz-checksum-crc32:nonsense", "InvalidRequest"),
        ("x-amz-checksum-sha1:abc", "MalformedTrailerError"),
        ("", "MalformedTrailerError"),
    ):
        assert await code_of(UNSIGNED, framed(b"hello", trailer), **headers) == code


async def test_a_signed_trailer_is_its_makers_or_is_refused() -> None:
    """The example of AWS. Who cuts the signature off might put another checksum there."""
    headers = {"x_amz_decoded_content_length": "66560", "x_amz_trailer": "x-amz-checksum-crc32c"}
    body = documented(TRAILER_CHUNKS)[: -len(b"\r\n")]

    assert await read(payload(SIGNED_TRAILER, body + CRC32C + TRAILER + b"\r\n", **headers)) == b"a" * 66560
    for trailer in (CRC32C, CRC32C + TRAILER.replace(b"d81f", b"d81e"), TRAILER):
        assert await code_of(SIGNED_TRAILER, body + trailer + b"\r\n", **headers) == "SignatureDoesNotMatch"


async def test_only_the_last_chunk_may_be_small() -> None:
    body = b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"

    assert await code_of(UNSIGNED, body, x_amz_decoded_content_length="2") == "InvalidChunkSizeError"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "MissingContentLength"),
        ({"content_length": "x"}, "InvalidArgument"),
        ({"content_length": "6000000000"}, "EntityTooLarge"),
        ({"content_length": "5", "content_md5": "x"}, "InvalidDigest"),
        ({"content_length": "5", "content_md5": base64.b64encode(b"0" * 16).decode()}, "BadDigest"),
        ({"content_length": "5", "x_amz_checksum_crc32": "x"}, "InvalidRequest"),
        ({"content_length": "5", "x_amz_checksum_crc99": "x"}, "InvalidRequest"),
        ({"content_length": "5", "x_amz_checksum_crc32": "NhCmhg==", "x_amz_checksum_crc32c": "x"}, "InvalidRequest"),
        ({"content_length": "5", "x_amz_sdk_checksum_algorithm": "CRC32"}, "InvalidRequest"),
        ({"content_length": "5", "x_amz_sdk_checksum_algorithm": "MD9"}, "InvalidRequest"),
    ],
)
async def test_a_body_with_impossible_headers_is_refused(headers: dict[str, str], code: str) -> None:
    assert await code_of("UNSIGNED-PAYLOAD", b"hello", **headers) == code


def test_a_word_about_the_body_that_is_not_known_is_refused() -> None:
    for word in (SIGNED, UNSIGNED, "UNSIGNED-PAYLOAD", hashlib.sha256(b"").hexdigest()):
        check_word(word)
    with pytest.raises(S3Error, match="STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD is not implemented"):
        check_word("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD")
    with pytest.raises(S3Error, match="must be"):
        check_word("nonsense")
