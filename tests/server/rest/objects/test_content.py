"""The bytes of objects: whole or not at all, in pieces, under conditions, whatever their path."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from lakebed.objectstore import open_deleter
from lakebed.server import App
from lakebed.versions import SweptRecord, encode_record, keys

MEGABYTE = 1 << 20
OLD = "Mon, 01 Jan 2001 00:00:00 GMT"


async def upload(client: httpx.AsyncClient, repo: str, path: str, **how: Any) -> httpx.Response:
    return await client.post(f"{repo}/branches/main/objects?path={quote(path, safe='')}", **how)


async def download(client: httpx.AsyncClient, repo: str, path: str, **how: Any) -> httpx.Response:
    return await client.get(f"{repo}/refs/main/objects?path={quote(path, safe='')}", **how)


@pytest.mark.parametrize("path", ["a", "/a", "a//b", "a/", "%2B", "a+b c", "%3A", "ü/ß?&=#", "../../x", "x" * 1024])
async def test_a_path_arrives_as_it_was_sent(client: httpx.AsyncClient, repo: str, path: str) -> None:
    answer = await upload(client, repo, path, content=b"here")

    assert answer.status_code == 201
    assert answer.json()["path"] == path
    assert (await download(client, repo, path)).content == b"here"
    listing = await client.get(repo + "/refs/main/objects/ls")
    assert [stats["path"] for stats in listing.json()["results"]] == [path]


@pytest.mark.parametrize("query", ["", "?path=", "?path=" + "x" * 1025, "?path=%ff", "?path=%ED%A0%80"])
async def test_a_path_that_cannot_be_is_refused(client: httpx.AsyncClient, repo: str, query: str) -> None:
    answer = await client.post(repo + "/branches/main/objects" + query, content=b"x")

    assert answer.status_code == 400
    assert answer.json()["message"]


@pytest.mark.parametrize("size", [0, 1, MEGABYTE, MEGABYTE + 1, 5 * MEGABYTE])
async def test_bodies_of_any_size_come_back(client: httpx.AsyncClient, repo: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)

    assert (await upload(client, repo, "plain", content=body)).json()["size_bytes"] == size
    assert (await upload(client, repo, "form", files={"content": ("f", body)})).json()["size_bytes"] == size

    assert (await download(client, repo, "plain")).content == body
    assert (await download(client, repo, "form")).content == body


async def test_a_body_of_unknown_length_is_streamed(client: httpx.AsyncClient, repo: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100_000

    answer = await upload(client, repo, "a", content=chunks())

    assert answer.json()["size_bytes"] == 2_000_000


async def test_content_type_and_metadata_are_kept(client: httpx.AsyncClient, repo: str) -> None:
    headers = {"content-type": "text/csv", "x-lakefs-meta-Owner": "Zoë".encode()}

    stats = (await upload(client, repo, "a", content=b"1,2", headers=headers)).json()

    assert (stats["content_type"], stats["metadata"]) == ("text/csv", {"owner": "Zoë"})
    assert (await download(client, repo, "a")).headers["content-type"] == "text/csv"


async def test_a_form_field_says_its_own_type_and_other_fields_are_ignored(
    client: httpx.AsyncClient, repo: str
) -> None:
    files = {"content": ("f.csv", b"1,2", "text/csv")}

    stats = (await upload(client, repo, "a", data={"before": "x" * 1000}, files=files)).json()

    assert (stats["content_type"], stats["size_bytes"]) == ("text/csv", 3)


PART = b"--B\r\nContent-Disposition: form-data; name=other\r\n\r\n\r\n"
FIELD = b"--B\r\nContent-Disposition: form-data; name=content\r\n\r\nx\r\n--B--\r\n"


async def test_a_form_of_many_parts_is_read(client: httpx.AsyncClient, repo: str) -> None:
    headers = {"content-type": "multipart/form-data; boundary=B"}

    assert (await upload(client, repo, "a", content=PART * 99 + FIELD, headers=headers)).status_code == 201


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=B", b"no boundary here"),
        ("multipart/form-data; boundary=B", b"--B\r\nContent-Disposition: form-data; name=other\r\n\r\nx\r\n--B--\r\n"),
        ("multipart/form-data; boundary=B", b"--B\r\nContent-Disposition: form-data; name=content\r\n\r\nx"),
        ("multipart/form-data; boundary=B", b""),
        ("multipart/form-data; boundary=B", PART * 101 + FIELD),
        ("multipart/form-data; boundary=B", b"--B\r\n" + b"x: y\r\n" * 17 + FIELD.removeprefix(b"--B\r\n")),
        ("multipart/form-data; boundary=B", b"--B\r\nx: " + b"y" * 20_000 + b"\r\n" + FIELD.removeprefix(b"--B\r\n")),
    ],
)
async def test_a_malformed_form_stores_nothing(
    client: httpx.AsyncClient, repo: str, content_type: str, body: bytes
) -> None:
    answer = await upload(client, repo, "a", content=body, headers={"content-type": content_type})

    assert answer.status_code == 400
    assert (await download(client, repo, "a")).status_code == 404


@pytest.mark.parametrize("size", [10, 3 * MEGABYTE])
async def test_a_client_that_goes_away_in_the_middle_stores_nothing(
    app: App, client: httpx.AsyncClient, repo: str, size: int
) -> None:
    """Driven by hand: a client library would not send fewer bytes than it declared."""
    request = client.build_request("POST", repo + "/branches/main/objects?path=a", content=b"x" * size)
    await client.auth.async_auth_flow(request).__anext__()  # type: ignore[union-attr]  # the fixture has one
    messages = iter(
        [{"type": "http.request", "body": b"x" * (size - 1), "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
    }
    await app(scope, receive, send)

    assert sent == []
    assert (await download(client, repo, "a")).status_code == 404
    assert (await client.get(repo + "/refs/main/objects/ls")).json()["results"] == []


class TestConditions:
    async def test_if_none_match_star_uploads_only_where_nothing_is(self, client: httpx.AsyncClient, repo: str) -> None:
        condition = {"if-none-match": "*"}

        assert (await upload(client, repo, "a", content=b"1", headers=condition)).status_code == 201
        assert (await upload(client, repo, "a", content=b"2", headers=condition)).status_code == 412
        assert (await upload(client, repo, "b", content=b"2", headers={"if-none-match": "x"})).status_code == 400

        assert (await download(client, repo, "a")).content == b"1"

    async def test_if_match_uploads_only_over_what_it_names(self, client: httpx.AsyncClient, repo: str) -> None:
        etag = (await upload(client, repo, "a", content=b"1")).json()["checksum"]

        assert (await upload(client, repo, "a", content=b"2", headers={"if-match": '"other"'})).status_code == 412
        assert (await upload(client, repo, "b", content=b"2", headers={"if-match": etag})).status_code == 412
        assert (await upload(client, repo, "b", content=b"2", headers={"if-match": "*"})).status_code == 412
        assert (await upload(client, repo, "a", content=b"2", headers={"if-match": f'W/"{etag}"'})).status_code == 412
        for header in (f'"{etag}"', "*", f'"other", "{etag}"', etag):
            assert (await upload(client, repo, "a", content=b"1", headers={"if-match": header})).status_code == 201

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    async def test_what_the_client_has_is_not_sent_again(
        self, client: httpx.AsyncClient, repo: str, method: str
    ) -> None:
        etag = (await upload(client, repo, "a", content=b"1")).json()["checksum"]
        url = repo + "/refs/main/objects?path=a"
        dated = (await client.head(url)).headers["last-modified"]
        same = [{"if-none-match": tags} for tags in (f'"{etag}"', f'W/"{etag}"', f'"x", "{etag}"', "*")]

        for headers in (*same, {"if-modified-since": dated}):
            answer = await client.request(method, url, headers=headers)
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["etag"] == f'"{etag}"'
        for headers in ({"if-none-match": '"other"', "if-modified-since": dated}, {"if-modified-since": OLD}):
            assert (await client.request(method, url, headers=headers)).status_code == 200

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    async def test_only_the_object_that_a_read_names_is_sent(
        self, client: httpx.AsyncClient, repo: str, method: str
    ) -> None:
        etag = (await upload(client, repo, "a", content=b"1")).json()["checksum"]
        url = repo + "/refs/main/objects?path=a"

        for headers in ({"if-match": '"other"'}, {"if-match": f'W/"{etag}"'}, {"if-unmodified-since": OLD}):
            assert (await client.request(method, url, headers=headers)).status_code == 412
        for headers in ({"if-match": f'"other", "{etag}"'}, {"if-match": "*", "if-unmodified-since": OLD}):
            assert (await client.request(method, url, headers=headers)).status_code == 200

    async def test_a_delete_takes_only_the_object_that_it_names(self, client: httpx.AsyncClient, repo: str) -> None:
        etag = (await upload(client, repo, "a", content=b"1")).json()["checksum"]
        url = repo + "/branches/main/objects?path=a"

        assert (await client.delete(url, headers={"if-match": '"other"'})).status_code == 412
        assert (await download(client, repo, "a")).content == b"1"
        assert (await client.delete(url, headers={"if-match": etag})).status_code == 204
        assert (await download(client, repo, "a")).status_code == 404
        assert (await client.delete(url, headers={"if-match": etag})).status_code == 204  # The answer was lost.

    async def test_metadata_are_set_only_of_the_object_that_the_request_names(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        etag = (await upload(client, repo, "a", content=b"1")).json()["checksum"]
        url, body = repo + "/branches/main/objects/stat/user_metadata?path=a", {"set": {"k": "v"}}

        assert (await client.put(url, json=body, headers={"if-match": '"other"'})).status_code == 412
        assert (await client.put(url, json=body, headers={"if-match": etag})).status_code == 204

    async def test_a_copy_replaces_only_what_it_names(self, client: httpx.AsyncClient, repo: str) -> None:
        etag = (await upload(client, repo, "a", content=b"1")).json()["checksum"]
        url, body = repo + "/branches/main/objects/copy?dest_path=b", {"src_path": "a"}
        for headers, status in (
            ({"if-match": "*"}, 412),
            ({"if-none-match": "*"}, 201),
            ({"if-none-match": "*"}, 412),
            ({"if-match": '"other"'}, 412),
            ({"if-match": f'"{etag}"'}, 201),
        ):
            assert (await client.post(url, json=body, headers=headers)).status_code == status

    @pytest.mark.parametrize(
        ("method", "path", "header"),
        [
            ("POST", "/objects/delete", "if-match"),
            ("PUT", "/objects?path=a", "if-none-match"),
            ("DELETE", "/objects?path=a", "if-none-match"),
            ("DELETE", "/objects?path=a", "if-unmodified-since"),
            ("POST", "/objects?path=a", "if-unmodified-since"),
            ("POST", "/commits", "if-match"),
        ],
    )
    async def test_a_condition_that_a_write_does_not_heed_is_refused_by_name(
        self, client: httpx.AsyncClient, repo: str, method: str, path: str, header: str
    ) -> None:
        value = OLD if "since" in header else "*"

        answer = await client.request(method, f"{repo}/branches/main{path}", headers={header: value})

        assert (answer.status_code, header in answer.json()["message"].lower()) == (501, True)


class TestDigests:
    @pytest.mark.parametrize("size", [1, MEGABYTE + 1])
    async def test_a_body_that_is_not_that_of_its_digest_is_not_stored(
        self, client: httpx.AsyncClient, repo: str, size: int
    ) -> None:
        body = b"x" * size
        md5 = b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()

        for wrong in ("AAAAAAAAAAAAAAAAAAAAAA==", "no digest"):
            answer = await upload(client, repo, "a", content=body, headers={"content-md5": wrong})
            assert (answer.status_code, "Content-MD5" in answer.json()["message"]) == (400, True)
        assert (await download(client, repo, "a")).status_code == 404
        assert (await upload(client, repo, "a", content=body, headers={"content-md5": md5})).status_code == 201

    async def test_a_digest_of_a_form_is_refused(self, client: httpx.AsyncClient, repo: str) -> None:
        headers = {"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}

        assert (await upload(client, repo, "a", files={"content": ("f", b"1")}, headers=headers)).status_code == 400


class TestRanges:
    @pytest.mark.parametrize(
        ("header", "expected", "content_range"),
        [
            ("bytes=0-0", b"0", "bytes 0-0/10"),
            ("bytes=3-", b"3456789", "bytes 3-9/10"),
            ("bytes=-2", b"89", "bytes 8-9/10"),
            ("bytes=-20", b"0123456789", "bytes 0-9/10"),
            ("bytes=5-100", b"56789", "bytes 5-9/10"),
        ],
    )
    async def test_a_part_is_served(
        self, client: httpx.AsyncClient, repo: str, header: str, expected: bytes, content_range: str
    ) -> None:
        await upload(client, repo, "a", content=b"0123456789")

        got = await download(client, repo, "a", headers={"range": header})
        head = await client.head(repo + "/refs/main/objects?path=a", headers={"range": header})

        assert (got.status_code, got.content) == (206, expected)
        assert got.headers["content-range"] == head.headers["content-range"] == content_range
        assert (head.status_code, head.headers["content-length"]) == (206, str(len(expected)))

    @pytest.mark.parametrize("header", ["bytes=10-", "bytes=20-30", "bytes=-0"])
    async def test_a_part_that_is_not_there_is_416_with_the_size(
        self, client: httpx.AsyncClient, repo: str, header: str
    ) -> None:
        await upload(client, repo, "a", content=b"0123456789")

        for method in ("GET", "HEAD"):
            answer = await client.request(method, repo + "/refs/main/objects?path=a", headers={"range": header})
            assert answer.status_code == 416
            assert answer.headers["content-range"] == "bytes */10"

    async def test_a_range_counts_only_while_the_object_is_that_of_if_range(
        self, client: httpx.AsyncClient, repo: str
    ) -> None:
        await upload(client, repo, "a", content=b"AAAAAAAA")
        old = await download(client, repo, "a")
        dated = old.headers["last-modified"]
        for validator in (old.headers["etag"], dated):
            half = await download(client, repo, "a", headers={"range": "bytes=4-", "if-range": validator})
            assert (half.status_code, half.content) == (206, b"AAAA")
        await upload(client, repo, "a", content=b"BBBBBBBB")

        others = (
            old.headers["etag"],
            "W/" + (await download(client, repo, "a")).headers["etag"],
            "Mon, 01 Jan 2001 00:00:00 GMT",
            "no date",
        )
        for validator in others:
            headers = {"range": "bytes=4-", "if-range": validator}
            whole = await download(client, repo, "a", headers=headers)
            assert (whole.status_code, whole.content) == (200, b"BBBBBBBB")
            assert "content-range" not in whole.headers
            head = await client.head(repo + "/refs/main/objects?path=a", headers=headers)
            assert (head.status_code, head.headers["content-length"]) == (200, "8")

    async def test_nothing_of_an_empty_object_can_be_asked_for(self, client: httpx.AsyncClient, repo: str) -> None:
        await upload(client, repo, "a", content=b"")

        assert (await download(client, repo, "a", headers={"range": "bytes=0-9"})).status_code == 416
        assert (await download(client, repo, "a")).status_code == 200

    @pytest.mark.parametrize(
        "header", ["items=0-1", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-2", "bytes=0-1,3-4", "bytes=-1,0-"]
    )
    async def test_a_range_that_is_none_or_several_is_ignored(
        self, client: httpx.AsyncClient, repo: str, header: str
    ) -> None:
        await upload(client, repo, "a", content=b"0123456789")

        answer = await download(client, repo, "a", headers={"range": header})

        assert (answer.status_code, answer.content) == (200, b"0123456789")

    async def test_a_large_part_is_streamed(self, client: httpx.AsyncClient, repo: str) -> None:
        body = b"".join(i.to_bytes(4, "big") for i in range(MEGABYTE))
        await upload(client, repo, "a", content=body)

        answer = await download(client, repo, "a", headers={"range": "bytes=1000-3000000"})

        assert answer.content == body[1000:3000001]


async def test_an_object_whose_data_is_gone_is_gone(client: httpx.AsyncClient, repo: str, app: App) -> None:
    stats = (await upload(client, repo, "a", content=b"1")).json()
    repository = await app._state.catalog.get("lake")
    key = stats["physical_address"].removeprefix(repository.address_prefix)
    await open_deleter(repository.objectstore.uri).delete([key])

    answer = await download(client, repo, "a")

    assert answer.status_code == 410


async def test_a_commit_that_a_run_gave_up_is_not_read_through_while_its_objects_are_there(
    client: httpx.AsyncClient, repo: str, app: App
) -> None:
    """Else a path resolves up to the delete, and its reader has no grace."""
    await upload(client, repo, "a", content=b"1")
    commit = (await client.post(repo + "/branches/main/commits", json={"message": "m"})).json()["id"]
    await upload(client, repo, "a", content=b"2")
    await client.post(repo + "/branches/main/commits", json={"message": "m"})
    versions = (await app._state.catalog.get("lake")).versions
    swept = encode_record(SweptRecord(run="06gvsk16dis1i19se31f"))
    await versions.store.set(versions.partition, keys.SWEPT + commit.encode(), swept)

    told = f"the contents of commit {commit[:12]} were taken by collection run 06gvsk16dis1i19se31f"
    for what in ("objects?path=a", "objects?path=b", "objects/stat?path=a", "objects/ls", "diff/main"):
        for ref in (commit, commit[:12], "main~1"):
            answer = await client.get(f"{repo}/refs/{ref}/{what}")
            assert (answer.status_code, answer.json()) == (410, {"message": told}), (what, ref)
    assert (await client.head(f"{repo}/refs/{commit}/objects?path=a")).status_code == 410
    copied = {"src_path": "a", "src_ref": commit}
    assert (await client.post(f"{repo}/branches/main/objects/copy?dest_path=b", json=copied)).status_code == 410
    assert (await client.post(f"{repo}/branches", json={"name": "b", "source": commit})).status_code == 409
    assert commit in [one["id"] for one in (await client.get(f"{repo}/refs/main/commits")).json()["results"]]
    assert (await download(client, repo, "a")).content == b"2"
