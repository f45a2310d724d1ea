"""Importing real buckets: folder markers, prefixes that are texts, keys that no folder can hold, ETags."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakebed.catalog import ImportState, Location
from lakebed.objectstore import ObjectStoreOptions
from lakebed.server import AppState, ServerOptions, opened
from lakebed.versions import Note
from tests.objectstore.s3_servers import client_of, make_bucket, serve_s3
from tests.server.rest.objects.test_imports import ended, paths_of


@pytest.fixture(scope="module")
def options() -> Iterator[ObjectStoreOptions]:
    with serve_s3() as options:
        yield options


@pytest.fixture
async def state(tmp_path: Path, options: ObjectStoreOptions) -> AsyncIterator[AppState]:
    given = ServerOptions(data_dir=tmp_path, blockstore="s3", store_uri="mem://", objectstore=options)
    async with opened(given) as state:
        yield state


@pytest.fixture
def namespace(options: ObjectStoreOptions) -> str:
    return f"s3://{make_bucket(options)}/lake"


@pytest.fixture
def bucket(options: ObjectStoreOptions) -> str:
    return make_bucket(options)


@pytest.fixture
def put(options: ObjectStoreOptions, bucket: str) -> Callable[..., None]:
    """Put objects as another program does: each has its own key as its bytes, but markers, which are empty."""
    s3 = client_of(options)

    def put(*keys: str) -> None:
        for key in keys:
            s3.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else key.encode())

    return put


@pytest.fixture
def import_(client: httpx.AsyncClient, repo: str, bucket: str) -> Callable[..., Any]:
    async def import_(prefix: str, destination: str = "", type_: str = "common_prefix") -> dict[str, Any]:
        path = {"type": type_, "path": f"s3://{bucket}/{prefix}", "destination": destination}
        answer = await client.post(f"{repo}/branches/main/import", json={"paths": [path], "commit": {"message": ""}})
        assert answer.status_code == 202, answer.text
        return await ended(client, repo, answer.json()["id"])

    return import_


async def read_all(client: httpx.AsyncClient, repo: str) -> dict[str, bytes]:
    """Read every object: an entry whose object cannot be read fails the test."""
    found = {}
    for path in await paths_of(client, repo):
        answer = await client.get(f"{repo}/refs/main/objects", params={"path": path})
        assert answer.status_code == 200, (path, answer.text)
        found[path] = answer.content
    return found


async def test_markers_of_folders_make_no_entries(
    client: httpx.AsyncClient, repo: str, import_: Callable[..., Any], put: Callable[..., None]
) -> None:
    put("in/", "in/sub/", "in/sub/data.csv", "in/sub", "in/sub/deep/", "in/sub/deep/x", "in/sub-x", "in/z/")

    status = await import_("in/")

    assert status["completed"], status
    assert "left_out" not in status
    assert await read_all(client, repo) == {
        "sub": b"in/sub",
        "sub-x": b"in/sub-x",
        "sub/data.csv": b"in/sub/data.csv",
        "sub/deep/x": b"in/sub/deep/x",
    }


async def test_a_marker_with_bytes_is_named_and_stops_nothing(
    client: httpx.AsyncClient,
    repo: str,
    import_: Callable[..., Any],
    put: Callable[..., None],
    options: ObjectStoreOptions,
    bucket: str,
) -> None:
    put("in/sub", "in/sub/data.csv", "in/a")
    client_of(options).put_object(Bucket=bucket, Key="in/sub/", Body=b"bytes")

    status = await import_("in/")

    assert (status["completed"], status["left_out"]) == (True, [f"s3://{bucket}/in/sub/"])
    assert [*await read_all(client, repo)] == ["a", "sub", "sub/data.csv"]


ODD = ["in//a", "in/b//c", "in/d//", "in/e\tf"]


async def test_keys_that_cannot_be_imported_are_named_and_the_rest_is_imported(
    client: httpx.AsyncClient, repo: str, import_: Callable[..., Any], put: Callable[..., None], bucket: str
) -> None:
    put("in/a b+c%20d", "in/é", "in/z", *ODD[:2], ODD[3])

    status = await import_("in/", "to")

    assert status["completed"], status
    assert status["left_out"] == [f"s3://{bucket}/{key}" for key in sorted([*ODD[:2], ODD[3]])]
    assert (status["left_out_objects"], status["ingested_objects"]) == (3, 3)
    assert await read_all(client, repo) == {
        "to/a b+c%20d": b"in/a b+c%20d",
        "to/z": b"in/z",
        "to/é": "in/é".encode(),
    }


async def test_a_source_of_nothing_but_such_keys_fails(import_: Callable[..., Any], put: Callable[..., None]) -> None:
    put("in//a")

    assert "no object below it can be imported" in (await import_("in/"))["error"]["message"]


@pytest.mark.parametrize(
    ("prefix", "destination", "paths"),
    [
        ("in/part-2", "b", ["b/part-2/x", "b/part-20"]),
        ("in/part-2/", "b", ["b/x"]),
        ("in/part-1/file0", "b/", ["b/file00", "b/file01"]),
        ("in/part-1/file00", "", ["file00"]),
        ("in", "", ["in/part-1/file00", "in/part-1/file01", "in/part-2/x", "in/part-20"]),
        ("", "all", ["all/in/part-1/file00", "all/in/part-1/file01", "all/in/part-2/x", "all/in/part-20"]),
    ],
)
async def test_a_prefix_is_a_text_and_paths_begin_behind_its_last_slash(
    client: httpx.AsyncClient,
    repo: str,
    import_: Callable[..., Any],
    put: Callable[..., None],
    prefix: str,
    destination: str,
    paths: list[str],
) -> None:
    put("in/part-1/file00", "in/part-1/file01", "in/part-2/x", "in/part-20")

    await import_(prefix, destination)

    assert [*await read_all(client, repo)] == paths


async def test_a_second_import_follows_the_source_and_keeps_what_is_the_branchs_own(
    client: httpx.AsyncClient,
    repo: str,
    import_: Callable[..., Any],
    put: Callable[..., None],
    options: ObjectStoreOptions,
    bucket: str,
) -> None:
    put("in/a", "in/b", "in/sub/c", "in/z", "other/o")
    await import_("in/", "to")
    await import_("other/", "to")
    for path in ("to/mine", "to/sub/mine", "beside"):
        await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=b"mine")
    await client.post(f"{repo}/branches/main/commits", json={"message": "mine"})
    for key in ("in/a", "in/sub/c", "in/z"):
        client_of(options).delete_object(Bucket=bucket, Key=key)
    put("in/n")

    status = await import_("in/", "to")

    assert status["commit"]["message"] == "Import objects"
    assert [*await read_all(client, repo)] == ["beside", "to/b", "to/mine", "to/n", "to/o", "to/sub/mine"]


async def test_a_source_that_became_empty_takes_nothing_away(
    client: httpx.AsyncClient,
    repo: str,
    import_: Callable[..., Any],
    put: Callable[..., None],
    options: ObjectStoreOptions,
    bucket: str,
) -> None:
    put("in/a")
    await import_("in/")
    client_of(options).delete_object(Bucket=bucket, Key="in/a")

    assert "no object lies below it" in (await import_("in/"))["error"]["message"]
    assert await paths_of(client, repo) == ["a"]


@pytest.mark.parametrize(("prefix", "type_"), [("in/", "common_prefix"), ("in/a", "object")])
async def test_an_etag_is_the_checksum(
    client: httpx.AsyncClient,
    repo: str,
    import_: Callable[..., Any],
    put: Callable[..., None],
    options: ObjectStoreOptions,
    bucket: str,
    prefix: str,
    type_: str,
) -> None:
    put("in/a")
    await import_(prefix, "" if type_ == "common_prefix" else "a", type_)

    etag = client_of(options).head_object(Bucket=bucket, Key="in/a")["ETag"]
    stat = (await client.get(f"{repo}/refs/main/objects/stat", params={"path": "a"})).json()
    assert f'"{stat["checksum"]}"' == etag


async def test_a_source_that_changes_during_an_import_spoils_nothing_and_the_next_import_follows_it(
    client: httpx.AsyncClient,
    repo: str,
    state: AppState,
    import_: Callable[..., Any],
    put: Callable[..., None],
    options: ObjectStoreOptions,
    bucket: str,
) -> None:
    """The changes come behind the first page of the listing, in what it has shown and in what it has not."""
    put(*[f"in/{number:04}" for number in range(1001)], "in//odd")
    s3, changed = client_of(options), list[str]()

    def change(_location: Location, _path: str, _address: str) -> None:
        if not changed:
            changed.append("once")
            for key in ("in/0500", "in/1000"):
                s3.delete_object(Bucket=bucket, Key=key)
            put("in/0500-new", "in/zzz")
            s3.put_object(Bucket=bucket, Key="in/0001", Body=b"of another size")

    imports = (await state.catalog.get("lake")).imports
    locations = [Location(source=f"s3://{bucket}/in/", destination="", is_folder=True)]
    begun = await imports.begin("main", locations)
    ended_ = await imports.run(begun, locations, Note(message="m", committer="ann"), refuse=change)

    assert (ended_.state, ended_.objects, ended_.left_out_objects) == (ImportState.COMPLETED, 1001, 1)

    async def read(path: str) -> int:
        return (await client.get(f"{repo}/refs/main/objects", params={"path": path})).status_code

    # Entries are those of the listing, and a read never answers with other bytes than they say.
    assert [await read(path) for path in ("0000", "0001", "0500", "0500-new", "1000", "zzz")] == [
        *(200, 409, 410, 404, 404, 200)
    ]

    assert (await import_("in/"))["completed"]
    assert [await read(path) for path in ("0000", "0001", "0500", "0500-new", "1000", "zzz")] == [
        *(200, 200, 404, 200, 404, 200)
    ]
