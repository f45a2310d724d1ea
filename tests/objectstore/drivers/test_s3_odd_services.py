"""What the S3 driver says where a service does not do what S3 does: nothing of it may read as success, or as an end."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

import pytest

from lakebed.objectstore import (
    InvalidObjectKey,
    Level,
    ObjectExists,
    ObjectStoreUnavailable,
    open_deleter,
    open_objectstore,
)
from lakebed.objectstore.drivers.remote import BREAKS_MAX
from lakebed.testing.contracts.bodies import large_body
from lakebed.testing.contracts.objectstore import keys_of
from tests.objectstore.s3_servers import BROKEN, keys_in, serve_broken_bodies, serve_failures

REFUSAL = "<Error><Code>AccessDenied</Code><Message>not you</Message></Error>"


def contents(keys: Sequence[str], *, size_bytes: int = 1) -> str:
    date = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    return "".join(f"<Contents><Key>{key}</Key><Size>{size_bytes}</Size>{date}</Contents>" for key in keys)


def page(inside: str, *, token: str = "", truncated: bool = False) -> tuple[int, str]:
    token = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    head = f"<IsTruncated>{str(truncated or bool(token)).lower()}</IsTruncated>"
    return 200, f"<ListBucketResult>{head}{token}{inside}</ListBucketResult>"


def asked(path: str, name: str) -> str:
    return parse_qs(urlsplit(path).query).get(name, [""])[0]


# --- conditions


class Forgetful:
    """Stores nothing, and says that it stored; but the second time at a key, if it `keeps_puts`, that it is taken."""

    def __init__(self, *, keeps_puts: bool) -> None:
        self._keeps_puts = keeps_puts
        self._taken: set[str] = set()
        self.paths: list[str] = []

    def __call__(self, method: str, path: str, body: bytes) -> tuple[int, str] | None:
        self.paths.append(path)
        parts = parse_qs(urlsplit(path).query, keep_blank_values=True)
        if "uploads" in parts:
            return 200, "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
        if method == "POST":
            return 200, '<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>'
        if "partNumber" in parts:
            return 200, '<CopyPartResult><ETag>"1"</ETag></CopyPartResult>'
        if self._keeps_puts and path in self._taken:
            return 412, "<Error><Code>PreconditionFailed</Code></Error>"
        self._taken.add(path)
        return 200, ""


async def test_a_service_that_reads_past_the_condition_of_a_put_gets_no_conditional_put() -> None:
    server = Forgetful(keeps_puts=False)
    with serve_failures(server) as options:
        objectstore = open_objectstore("s3://bucket/ns", options)
        for body in (b"mine", large_body()):
            with pytest.raises(ObjectStoreUnavailable, match="If-None-Match"):
                await objectstore.put("claim", body, if_absent=True)
        await objectstore.put("unconditional", b"is another matter")
    assert not [path for path in server.paths if "claim" in path]


async def test_a_service_that_reads_past_the_condition_of_an_upload_gets_no_large_conditional_put() -> None:
    server = Forgetful(keeps_puts=True)
    with serve_failures(server) as options:
        objectstore = open_objectstore("s3://bucket/ns", options)
        with pytest.raises(ObjectStoreUnavailable, match="CompleteMultipartUpload"):
            await objectstore.put("claim", large_body(), if_absent=True)
        assert not [path for path in server.paths if "claim" in path]
        await objectstore.put("claim", b"small", if_absent=True)
        with pytest.raises(ObjectExists):
            await objectstore.put("claim", b"small", if_absent=True)


async def test_a_service_is_tried_once_in_a_process() -> None:
    server = Forgetful(keeps_puts=True)
    with serve_failures(server) as options:
        for key in ("a", "b", "c"):
            await open_objectstore("s3://bucket/ns", options).put(key, b"", if_absent=True)
    paths = [path.removeprefix("/bucket/ns/") for path in server.paths]
    assert paths == [".lakebed-tmp/if-none-match", ".lakebed-tmp/if-none-match", "a", "b", "c"]


@pytest.mark.parametrize(("found", "expected"), [(200, ObjectExists), (404, ObjectStoreUnavailable)])
async def test_a_conflict_is_existence_only_where_something_exists(found: int, expected: type[Exception]) -> None:
    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        return (found, "") if method == "HEAD" else (409, "<Error><Code>ConditionalRequestConflict</Code></Error>")

    with serve_failures(answer) as options:
        objectstore = open_objectstore("s3://bucket/ns", options)
        with pytest.raises(expected):
            await objectstore.put("x", b"", if_absent=True)
        with pytest.raises(ObjectStoreUnavailable):
            await objectstore.put("x", b"")


# --- listings


@pytest.mark.parametrize("count", [1000, 1500, 2000, 2001])
async def test_a_listing_without_tokens_is_gone_on_with(count: int) -> None:
    """A service that forgets to say that there is more; where to start, it knows."""
    keys = [f"ns/{n:05d}" for n in range(count)]

    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        rest = [key for key in keys if key > asked(path, "start-after")]
        return page(contents(rest[:1000]), truncated=len(rest) > 1000)

    with serve_failures(answer) as options:
        assert await keys_of(open_objectstore("s3://bucket/ns", options)) == [key[3:] for key in keys]


@pytest.mark.parametrize("size_bytes", [0, 1])
async def test_a_service_that_knows_only_the_older_listing_is_refused(size_bytes: int) -> None:
    """It knows neither tokens nor where to start, and cuts a thousand keys off."""
    first = contents([f"ns/{n:05d}" for n in range(1000)], size_bytes=size_bytes)
    with serve_failures(lambda *_: page(first, truncated=True)) as options:
        objectstore = open_objectstore("s3://bucket/ns", options)
        with pytest.raises(ObjectStoreUnavailable, match="order"):
            await keys_of(objectstore)
        with pytest.raises(ObjectStoreUnavailable):
            await objectstore.level()


@pytest.mark.parametrize("size_bytes", [0, 1])
async def test_a_page_that_comes_again_and_again_is_refused(size_bytes: int) -> None:
    first = contents([f"ns/{n:05d}" for n in range(1000)], size_bytes=size_bytes)
    answer = page(first, token="more")
    with serve_failures(lambda *_: answer) as options, pytest.raises(ObjectStoreUnavailable, match="order"):
        await keys_of(open_objectstore("s3://bucket/ns", options))


@pytest.mark.parametrize("breaks", [1, BREAKS_MAX, BREAKS_MAX + 1])
async def test_a_listing_that_breaks_off_goes_on_behind_its_last_page(breaks: int) -> None:
    keys = [f"ns/{n:05d}" for n in range(2001)]
    begun: list[str] = []

    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        after = asked(path, "continuation-token") or asked(path, "start-after")
        begun.append(after)
        rest = [key for key in keys if key > after]
        status, text = page(contents(rest[:1000]), token=rest[999] if len(rest) > 1000 else "")
        return status, BROKEN + text if begun.count(keys[999]) in range(1, breaks + 1) and after == keys[999] else text

    with serve_failures(answer) as options:
        listed = keys_of(open_objectstore("s3://bucket/ns", options))
        if breaks > BREAKS_MAX:
            with pytest.raises(ObjectStoreUnavailable, match="response body"):
                await listed
        else:
            assert await listed == [key[3:] for key in keys]
    assert begun.count("") == 1  # the first page was not read again


async def test_a_level_that_breaks_off_is_listed_again() -> None:
    begun: list[str] = []

    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        begun.append(path)
        status, text = page(contents(["ns/a", "ns/b"]))
        return status, BROKEN + text if len(begun) < 3 else text

    with serve_failures(answer) as options:
        assert (await open_objectstore("s3://bucket/ns", options).level()).keys == ["a", "b"]


async def test_a_level_that_is_cut_is_refused() -> None:
    folders = [f"ns/{n:05d}/" for n in range(1001)]

    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        if asked(path, "delimiter"):
            cut = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders[:1000])
            return page(cut, truncated=True)
        return page(contents([folder + "x" for folder in folders if folder > asked(path, "start-after")]))

    with serve_failures(answer) as options:
        objectstore = open_objectstore("s3://bucket/ns", options)
        with pytest.raises(ObjectStoreUnavailable, match="only a part"):
            await objectstore.level()
        folders.pop()
        assert len((await objectstore.level()).folders) == 1000


async def test_what_lies_outside_the_namespace_is_not_shown() -> None:
    prefixes = "<CommonPrefixes><Prefix>other/c/</Prefix></CommonPrefixes>"
    with serve_failures(lambda *_: page(contents(["a/a", "ns/a", "other/b"]) + prefixes)) as options:
        objectstore = open_objectstore("s3://bucket/ns", options)
        assert await keys_of(objectstore) == ["a"]
        assert await objectstore.level() == Level(keys=["a"], folders=[])


@pytest.mark.parametrize("key", ["ns/data//y", "ns/b/../b", "ns/c/./z", "ns//b"])
async def test_a_key_beside_which_obstore_lists_nothing_is_shown_as_it_is(key: str) -> None:
    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        names = sorted(["ns/a", key, "ns/e/f"])
        if asked(path, "delimiter"):
            folders = {name[: name.index("/", 3) + 1] for name in names if "/" in name[3:]}
            shown = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
            return page(contents(["ns/a"]) + shown)
        return page(contents([name for name in names if name > asked(path, "start-after")]))

    with serve_failures(answer) as options:
        objectstore = open_objectstore("s3://bucket/ns", options)
        assert await keys_of(objectstore) == sorted(["a", key[3:], "e/f"])
        level = await objectstore.level()
        assert level.keys == ["a"]
        assert "e/" in level.folders
        with pytest.raises(InvalidObjectKey):
            await objectstore.get(key[3:])


async def test_a_service_that_goes_away_in_the_middle_of_a_listing_does_not_end_it() -> None:
    def answer(method: str, path: str, body: bytes) -> tuple[int, str] | None:
        return None if asked(path, "continuation-token") else page(contents(["ns/a", "ns/b"]), token="more")

    with serve_failures(answer) as options, pytest.raises(ObjectStoreUnavailable):
        await keys_of(open_objectstore("s3://bucket/ns", options))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_service_that_is_busy_is_asked_again(status: int) -> None:
    """`options_for` gives one second chance; without any, or where it stays busy, the error says what it answered."""
    requests: list[str] = []

    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        requests.append(method)
        if len(requests) % 2 or asked(path, "prefix") == "ns/busy/":
            return status, "<Error><Code>SlowDown</Code><Message>Please reduce your request rate</Message></Error>"
        if method == "POST":
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys_in(body))
            return 200, f"<DeleteResult>{deleted}</DeleteResult>"
        return page(contents(["ns/a"]))

    with serve_failures(answer) as options:
        objectstore = open_objectstore("s3://bucket/ns", options)
        assert await keys_of(objectstore) == ["a"]
        assert not await open_deleter(objectstore.uri, options).delete(["a", "b"])
        await objectstore.put("x", b"")
        assert (await objectstore.stat("x")).key == "x"
        assert requests == ["GET", "GET", "POST", "POST", "PUT", "PUT", "HEAD", "HEAD"]
        with pytest.raises(ObjectStoreUnavailable, match=str(status)):
            await keys_of(objectstore, "busy/")


# --- copies and deletes


@pytest.mark.parametrize("code", ["AccessDenied", "NoSuchKey", "InternalError", "SlowDown"])
async def test_a_copy_that_fails_with_the_status_of_success_is_a_failure(code: str) -> None:
    """S3 documents that it may."""

    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        if method == "HEAD":
            return (200, "the source") if path.endswith("/x") else (404, "")
        return 200, f"<Error><Code>{code}</Code><Message>no</Message></Error>"

    with serve_failures(answer) as options, pytest.raises(ObjectStoreUnavailable):
        await open_objectstore("s3://bucket/ns", options).copy("x", "y")


async def test_a_copy_of_another_size_is_a_failure() -> None:
    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        return 200, "the source" if path.endswith("/x") else "less"

    with serve_failures(answer) as options, pytest.raises(ObjectStoreUnavailable, match="4 of 10"):
        await open_objectstore("s3://bucket/ns", options).copy("x", "y")


@pytest.mark.parametrize(
    "answer",
    [
        f"<DeleteResult>{REFUSAL.replace('<Error>', '<Error><Key>another</Key>')}</DeleteResult>",
        f"<DeleteResult>{REFUSAL.replace('<Error>', '<Error><Key></Key>')}</DeleteResult>",
        f"<DeleteResult>{REFUSAL}</DeleteResult>",
        "<DeleteResult/>",
        REFUSAL,
        "<html>Please log in</html>",
        "",
    ],
)
async def test_a_bulk_delete_that_was_not_understood_deleted_nothing(answer: str) -> None:
    keys = ["a", "b c", "ü/&<>"]
    with serve_failures(lambda *_: (200, answer)) as options:
        failures = await open_deleter("s3://bucket/ns", options).delete(keys)
    assert [failure.key for failure in failures] == keys
    assert all(failure.reason for failure in failures)


async def test_keys_of_a_bulk_delete_are_written_as_xml_has_them() -> None:
    found: list[str] = []

    def answer(method: str, path: str, body: bytes) -> tuple[int, str]:
        found.extend(keys_in(body))
        return 200, f"<DeleteResult>{''.join(f'<Deleted><Key>{key}</Key></Deleted>' for key in found)}</DeleteResult>"

    with serve_failures(answer) as options:
        assert not await open_deleter("s3://bucket/ns", options).delete(["a&b<c>d", "a b+c%20", "ü/😀"])
    assert found == ["ns/a&amp;b&lt;c&gt;d", "ns/a b+c%20", "ns/ü/😀"]


async def test_a_body_that_breaks_off_is_gone_on_with() -> None:
    data = bytes(range(256)) * 12_000
    with serve_broken_bodies(data, 1) as (options, requests):
        assert await open_objectstore("s3://bucket/ns", options).get("x") == data
        assert requests == ["all", "bytes=1536000-3071999"]
    with serve_broken_bodies(data, 1) as (options, requests):
        assert await open_objectstore("s3://bucket/ns", options).get("x", start=10, end=20) == data[10:20]
        assert requests == ["bytes=10-19", "bytes=15-19"]
    with serve_broken_bodies(data, 1) as (options, _):
        chunks = [chunk async for chunk in open_objectstore("s3://bucket/ns", options).stream("x")]
        assert b"".join(chunks) == data


async def test_a_body_that_always_breaks_off_is_unavailable() -> None:
    """After as many attempts as the options allow."""
    with serve_broken_bodies(b"data" * 100, 1000) as (options, requests):
        with pytest.raises(ObjectStoreUnavailable):
            await open_objectstore("s3://bucket/ns", options).get("x")
        assert len(requests) == 1 + options.retries_max
