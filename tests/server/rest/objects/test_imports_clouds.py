"""Importing real containers of Azure and buckets of Cloud Storage: keys that no folder can hold stop nothing there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest

from lakebed.objectstore import ObjectStoreOptions, open_objectstore
from lakebed.server import AppState, ServerOptions, opened
from lakebed.testing.contracts.objectstore import keys_of
from tests.objectstore.cloud_servers import (
    ACCOUNT,
    BUCKETS,
    azure_options,
    azurite,
    gcs_double,
    gcs_options,
    make_container,
    put_blob,
    token_without_deletes,
)
from tests.server.rest.objects.test_imports import ended, paths_of

ODD = ("in//a", "in/b//c", "in/e\tf")
PLAIN = ("in/a b+c%20d", "in/sub/x", "in/z", "in/é")


class Cloud(NamedTuple):
    bucket: str
    options: ObjectStoreOptions
    put: Callable[[str, bytes], None]


@pytest.fixture(scope="module", params=["az", "az-token", "gs"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    with ExitStack() as stack:
        if request.param == "gs":
            port = stack.enter_context(gcs_double()).port

            def put(key: str, data: bytes) -> None:
                url = f"http://127.0.0.1:{port}/{BUCKETS[0]}/{quote(key)}"
                assert httpx.put(url, content=data, trust_env=False).status_code == 200

            yield Cloud(f"gs://{BUCKETS[0]}", gcs_options(port), put)
            return
        port = stack.enter_context(azurite()).port
        container, options = make_container(port, "lakes"), azure_options(port)
        if request.param == "az-token":
            options = replace(options, azure_key=None, azure_sas_token=token_without_deletes(container))
        yield Cloud(
            f"https://{ACCOUNT}.blob.core.windows.net/{container}",
            options,
            lambda key, data: put_blob(port, container, key, data),
        )


@pytest.fixture
async def state(tmp_path: Path, cloud: Cloud) -> AsyncIterator[AppState]:
    given = ServerOptions(
        data_dir=tmp_path,
        blockstore="gs" if cloud.bucket.startswith("gs") else "az",
        store_uri="mem://",
        objectstore=cloud.options,
    )
    async with opened(given) as state:
        yield state


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> str:
    name: str = request.node.originalname
    return name


@pytest.fixture
def namespace(cloud: Cloud, folder: str) -> str:
    return f"{cloud.bucket}/{folder}-lake"


@pytest.fixture
def import_(client: httpx.AsyncClient, repo: str, cloud: Cloud, folder: str) -> Callable[..., Any]:
    async def import_(prefix: str, destination: str = "") -> dict[str, Any]:
        path = {"type": "common_prefix", "path": f"{cloud.bucket}/{folder}/{prefix}", "destination": destination}
        answer = await client.post(f"{repo}/branches/main/import", json={"paths": [path], "commit": {"message": ""}})
        assert answer.status_code == 202, answer.text
        return await ended(client, repo, answer.json()["id"])

    return import_


@pytest.fixture
def put(cloud: Cloud, folder: str) -> Callable[..., None]:
    """Put objects as another program does: each has its own key as its bytes, but markers, which are empty."""

    def put(*keys: str) -> None:
        for key in keys:
            cloud.put(f"{folder}/{key}", b"" if key.endswith("/") else key.encode())

    return put


async def test_keys_that_cannot_be_imported_are_named_and_the_rest_is_imported(
    client: httpx.AsyncClient,
    repo: str,
    import_: Callable[..., Any],
    put: Callable[..., None],
    cloud: Cloud,
    folder: str,
) -> None:
    put(*PLAIN, *ODD)

    status = await import_("in/", "to")

    assert status["completed"], status
    source = open_objectstore(f"{cloud.bucket}/{folder}", cloud.options).uri
    assert status["left_out"] == [f"{source}/{key}" for key in sorted(ODD)]
    assert (status["left_out_objects"], status["ingested_objects"]) == (3, 4)
    assert await paths_of(client, repo) == ["to/" + key.removeprefix("in/") for key in PLAIN]
    for key in PLAIN:
        path = "to/" + key.removeprefix("in/")
        assert (await client.get(f"{repo}/refs/main/objects", params={"path": path})).content == key.encode()


async def test_markers_of_folders_make_no_entries(
    client: httpx.AsyncClient, repo: str, import_: Callable[..., Any], put: Callable[..., None]
) -> None:
    put("in/", "in/sub/", "in/sub/data.csv", "in/sub", "in/sub-x")

    assert (await import_("in/"))["completed"]
    assert await paths_of(client, repo) == ["sub", "sub-x", "sub/data.csv"]


async def test_an_odd_key_hides_no_other_from_listings(cloud: Cloud, put: Callable[..., None], folder: str) -> None:
    put("in/a", "in//b", "in/c", "in/d/e")
    store = open_objectstore(f"{cloud.bucket}/{folder}", cloud.options)

    assert [key for key in await keys_of(store) if "//" not in key] == ["in/a", "in/c", "in/d/e"]
    assert await keys_of(store, start_after="in/a") == ["in/c", "in/d/e"]
    level = await store.level("in/")
    assert ("in/a" in level.keys, "in/d/" in level.folders) == (True, True)
