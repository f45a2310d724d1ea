"""Conditions of reads and writes: each one holds, or its request is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from lakebed.base import Entry
from lakebed.catalog.objects.objects import Objects

DATE = "Mon, 01 Jan 2001 00:00:00 GMT"


async def test_a_range_counts_only_while_the_object_is_that_of_if_range(
    lake: httpx.AsyncClient, s3: httpx.AsyncClient
) -> None:
    (await s3.put("/lake.main/f", content=b"AAAAAAAA")).raise_for_status()
    old = await s3.get("/lake.main/f")
    for validator in (old.headers["etag"], old.headers["etag"].strip('"'), old.headers["last-modified"]):
        half = await s3.get("/lake.main/f", headers={"range": "bytes=4-", "if-range": validator})
        assert (half.status_code, half.content) == (206, b"AAAA")
    (await s3.put("/lake.main/f", content=b"BBBBBBBB")).raise_for_status()
    tag = (await s3.get("/lake.main/f")).headers["etag"]

    for validator in (old.headers["etag"], f"W/{tag}", f'"{tag}"', f"{tag}, {tag}", tag[1:], DATE, "no date", '""', ""):
        for asked in ("bytes=4-", "bytes=99-"):
            whole = await s3.get("/lake.main/f", headers={"range": asked, "if-range": validator})
            assert (whole.status_code, whole.content) == (200, b"BBBBBBBB")
            assert "content-range" not in whole.headers
            head = await s3.head("/lake.main/f", headers={"range": asked, "if-range": validator})
            assert (head.status_code, head.headers["content-length"]) == (200, "8")


@pytest.mark.parametrize("header", ["if-modified-since", "if-unmodified-since", "if-match", "if-none-match"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/lake.main/a"),
        ("PUT", "/lake.main/a?uploadId=x&partNumber=1"),
        ("POST", "/lake.main/a?uploads"),
        ("POST", "/lake.main/a?uploadId=x"),
        ("DELETE", "/lake.main/a?uploadId=x"),
        ("DELETE", "/lake.main/a"),
        ("POST", "/lake.main?delete"),
        ("PUT", "/lake.new"),
        ("DELETE", "/lake.gone"),
    ],
)
async def test_a_write_holds_its_condition_or_is_refused(
    s3: httpx.AsyncClient, method: str, path: str, header: str
) -> None:
    value = DATE if "since" in header else '"other"'

    answer = await s3.request(method, path, headers={header: value}, content=b"theirs" if method != "DELETE" else None)

    held = header == "if-match" and path == "/lake.main/a"
    unknown = header == "if-match" and path == "/lake.main/a?uploadId=x" and method == "POST"
    assert answer.status_code == (412 if held else 404 if unknown else 501), answer.text
    if answer.status_code == 501:
        assert header in answer.text.lower()
    assert (await s3.get("/lake.main/a")).content == b"hello"


async def test_a_write_takes_no_etag_for_the_star_of_if_none_match(s3: httpx.AsyncClient) -> None:
    for value in ('"*"', "*, *", '"x"'):
        assert (await s3.put("/lake.main/new", headers={"if-none-match": value}, content=b"x")).status_code == 501


async def test_a_copy_holds_its_conditions_or_is_refused(s3: httpx.AsyncClient) -> None:
    source = {"x-amz-copy-source": "/lake.main/a"}
    for header, value, status in (
        ("if-unmodified-since", DATE, 501),
        ("if-modified-since", DATE, 501),
        ("if-match", '"x"', 412),
        ("if-none-match", "*", 412),
        ("x-amz-copy-source-if-unmodified-since", DATE, 412),
    ):
        answer = await s3.put("/lake.main/a", headers=source | {header: value, "x-amz-metadata-directive": "REPLACE"})
        assert answer.status_code == status, answer.text


async def test_an_empty_if_none_match_is_no_condition(s3: httpx.AsyncClient) -> None:
    assert (await s3.put("/lake.main/a", headers={"if-none-match": ""}, content=b"new")).status_code == 200
    assert (await s3.delete("/lake.main/a", headers={"if-none-match": ""})).status_code == 204


async def test_a_delete_takes_only_the_object_that_it_names(s3: httpx.AsyncClient) -> None:
    etag = (await s3.get("/lake.main/a")).headers["etag"]

    for header, status in (('"other"', 412), (f"W/{etag}", 412), ("", 412), (f'"other", {etag}', 204), (etag, 204)):
        assert (await s3.delete("/lake.main/a", headers={"if-match": header})).status_code == status

    assert (await s3.get("/lake.main/a")).status_code == 404
    assert (await s3.delete("/lake.main/a", headers={"if-match": "*"})).status_code == 204


async def test_a_copy_replaces_only_the_object_that_it_names(s3: httpx.AsyncClient) -> None:
    etag = (await s3.put("/lake.main/b", content=b"old")).headers["etag"]
    source = {"x-amz-copy-source": "/lake.main/a"}

    assert (await s3.put("/lake.main/b", headers={**source, "if-match": etag})).status_code == 200
    assert (await s3.put("/lake.main/b", headers={**source, "if-match": etag})).status_code == 412
    assert (await s3.get("/lake.main/b")).content == b"hello"


async def test_a_copy_holds_the_conditions_of_a_source_that_is_replaced_meanwhile(
    s3: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = (await s3.get("/lake.main/a")).headers["etag"]
    copy = Objects.copy

    async def overtaken(self: Objects, *args: Any, **how: Any) -> Entry:
        (await s3.put("/lake.main/a", content=b"other")).raise_for_status()
        return await copy(self, *args, **how)

    monkeypatch.setattr(Objects, "copy", overtaken)
    headers = {"x-amz-copy-source": "/lake.main/a", "x-amz-copy-source-if-match": etag}

    assert (await s3.put("/lake.main/b", headers=headers)).status_code == 412
    assert (await s3.get("/lake.main/b")).status_code == 404


async def test_a_copy_from_another_repository_replaces_only_what_it_names(
    lake: httpx.AsyncClient, s3: httpx.AsyncClient, namespace: str
) -> None:
    body = {"name": "other", "storage_namespace": f"{namespace}-other"}
    (await lake.post("/repositories", json=body)).raise_for_status()
    source = {"x-amz-copy-source": "/lake.main/a"}
    (await s3.put("/other.main/b", content=b"old")).raise_for_status()

    for header, value in (("if-none-match", "*"), ("if-match", '"other"')):
        assert (await s3.put("/other.main/b", headers={**source, header: value})).status_code == 412

    assert (await s3.get("/other.main/b")).content == b"old"
    assert (await s3.put("/other.main/c", headers={**source, "if-none-match": "*"})).status_code == 200


async def test_a_query_of_too_many_parameters_is_refused_before_it_is_decoded(s3: httpx.AsyncClient) -> None:
    answer = await s3.get("/lake.main?" + "&" * 1_000 + "a=%ff")

    assert (answer.status_code, "at most 1,000 parameters" in answer.text) == (400, True)


@pytest.mark.parametrize("header", ["items=0-1", "bytes=-", "bytes=5-2", "bytes=0-1,3-4"])
async def test_a_range_that_is_none_or_several_is_ignored(s3: httpx.AsyncClient, header: str) -> None:
    answer = await s3.get("/lake.main/a", headers={"range": header})

    assert (answer.status_code, answer.content) == (200, b"hello")
