"""Headers of uploads: a value that states what holds anyway is taken, and another one is refused by its name."""

from __future__ import annotations

import base64

import httpx
import pytest

SSE = "x-amz-server-side-encryption"
COPIED = {"x-amz-copy-source": "/lake.main/a"}
WRITES = {
    "put": ("PUT", "/lake.main/b", {}),
    "copy": ("PUT", "/lake.main/b", COPIED),
    "parts": ("POST", "/lake.main/b?uploads", {}),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("header", "value"),
    [
        (SSE, "AES256"),
        (f"{SSE}-bucket-key-enabled", "false"),
        (f"{SSE}-bucket-key-enabled", "true"),
        ("x-amz-tagging", ""),
        ("x-amz-tagging-directive", "COPY"),
        ("x-amz-tagging-directive", "REPLACE"),
        ("x-amz-acl", "private"),
        ("x-amz-acl", "bucket-owner-read"),
        ("x-amz-acl", "bucket-owner-full-control"),
        ("x-amz-storage-class", "STANDARD"),
    ],
)
async def test_a_header_that_states_a_default_is_taken(
    s3: httpx.AsyncClient, write: str, header: str, value: str
) -> None:
    method, path, headers = WRITES[write]

    answer = await s3.request(method, path, headers=headers | {header: value}, content=b"")

    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("header", "value", "code"),
    [
        (SSE, "aws:kms", "NotImplemented"),
        (SSE, "aws:kms:dsse", "NotImplemented"),
        (f"{SSE}-aws-kms-key-id", "k", "NotImplemented"),
        (f"{SSE}-context", "e30=", "NotImplemented"),
        (f"{SSE}-customer-algorithm", "AES256", "NotImplemented"),
        ("x-amz-tagging", "k=v", "NotImplemented"),
        ("x-amz-grant-read", 'id="x"', "NotImplemented"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "NotImplemented"),
        ("x-amz-website-redirect-location", "/x", "NotImplemented"),
        ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
        ("x-amz-storage-class", "STANDARD_IA", "NotImplemented"),
        ("x-amz-storage-class", "GLACIER", "NotImplemented"),
        ("x-amz-storage-class", "NONE_SUCH", "InvalidStorageClass"),
        ("x-amz-tagging-directive", "KEEP", "InvalidArgument"),
    ],
)
async def test_a_header_that_asks_for_more_is_refused_by_its_name(
    s3: httpx.AsyncClient, write: str, header: str, value: str, code: str
) -> None:
    method, path, headers = WRITES[write]

    answer = await s3.request(method, path, headers=headers | {header: value}, content=b"")

    assert answer.status_code in {400, 501}
    assert f"<Code>{code}</Code>" in answer.text
    if code in {"NotImplemented", "AccessControlListNotSupported"}:
        assert header in answer.text
    assert (await s3.get("/lake.main/b")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/lake.main/a"),
        ("HEAD", "/lake.main/a"),
        ("GET", "/lake.main/a?tagging"),
        ("PUT", "/lake.main/a?uploadId=x&partNumber=1"),
        ("POST", "/lake.main/a?uploadId=x"),
    ],
)
async def test_no_object_is_encrypted_by_a_key_of_the_client(s3: httpx.AsyncClient, method: str, path: str) -> None:
    for header in ("algorithm", "key", "key-md5"):
        answer = await s3.request(method, path, headers={f"{SSE}-customer-{header}": "AES256"})
        assert answer.status_code == 501


@pytest.mark.parametrize("write", WRITES)
async def test_metadata_over_the_limit_is_refused_by_the_code_of_s3(s3: httpx.AsyncClient, write: str) -> None:
    method, path, headers = WRITES[write]
    for value in ("v" * 2048, f"=?UTF-8?B?{base64.b64encode(('ü' * 1024).encode()).decode()}?="):
        large = {"x-amz-metadata-directive": "REPLACE", "x-amz-meta-k": value}
        answer = await s3.request(method, path, headers=headers | large, content=b"")
        assert (answer.status_code, "<Code>MetadataTooLarge</Code>" in answer.text) == (400, True), answer.text
