"""Uploads in parts: what a copied part holds, and which upload a request means."""

from __future__ import annotations

import re

import httpx
import pytest

from lakebed.server import App

from .signing import allow, asked_as, keys_of

SOURCE = {"x-amz-copy-source": "/lake.main/a"}


async def begun(s3: httpx.AsyncClient, path: str) -> str:
    found = re.search(r"<UploadId>(.*?)<", (await s3.post(f"{path}?uploads")).text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"x-amz-copy-source-if-match": '"other"'}, 412, "PreconditionFailed"),
        ({"x-amz-copy-source-range": "bytes=0-5"}, 400, "InvalidArgument"),
        ({"x-amz-copy-source-range": "bytes=0-4"}, 200, "CopyPartResult"),
    ],
)
async def test_a_copied_part_holds_the_conditions_and_the_end_of_its_source(
    s3: httpx.AsyncClient, headers: dict[str, str], status: int, code: str
) -> None:
    upload = await begun(s3, "/lake.main/b")

    answer = await s3.put(f"/lake.main/b?partNumber=1&uploadId={upload}", headers={**SOURCE, **headers})

    assert (answer.status_code, code in answer.text) == (status, True), answer.text


async def test_a_copied_part_needs_to_read_its_source(app: App, lake: httpx.AsyncClient) -> None:
    target = "arn:lakefs:fs:::repository/lake/object/b"

    with asked_as(app, await keys_of(lake, "ann", allow("fs:*Object", resource=target))) as client:
        upload = await begun(client, "/lake.main/b")
        answer = await client.put(f"/lake.main/b?partNumber=1&uploadId={upload}", headers=SOURCE)

    assert answer.status_code == 403


async def test_a_completion_that_is_sent_again_is_one_of_its_key_and_branch_alone(s3: httpx.AsyncClient) -> None:
    upload = await begun(s3, "/lake.main/b")
    part = (await s3.put(f"/lake.main/b?partNumber=1&uploadId={upload}", content=b"x")).headers["etag"]
    body = (
        f"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{part}</ETag></Part></CompleteMultipartUpload>"
    )
    paths = ("/lake.main/b", "/lake.main/b", "/lake.main/c", "/lake.gone/b")

    answers = [await s3.post(f"{path}?uploadId={upload}", content=body.encode()) for path in paths]

    assert [answer.status_code for answer in answers] == [200, 200, 404, 404]


async def test_a_listing_of_uploads_shows_those_of_refs_that_its_caller_may_list(
    app: App, lake: httpx.AsyncClient, s3: httpx.AsyncClient
) -> None:
    for branch in ("main", "gone"):
        await begun(s3, f"/lake.{branch}/b")
    deny: dict[str, object] = {
        "effect": "deny",
        "action": ["fs:ListObjects"],
        "resource": "*",
        "condition": {"StringEquals": {"ref": ["gone"]}},
    }

    with asked_as(app, await keys_of(lake, "bob", allow("fs:*"), deny)) as client:
        keys = re.findall(r"<Key>(.*?)</Key>", (await client.get("/lake?uploads")).text)

    assert keys == ["main/b"]
