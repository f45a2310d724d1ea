"""The whole product on Azure and Cloud Storage, metadata and all: the `lakefs` package, and a collection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lakefs
import pytest

from lakebed.objectstore import ObjectStoreOptions, environment_of, open_objectstore
from tests.objectstore.cloud_servers import (
    ACCOUNT,
    BUCKETS,
    KEY,
    azure_options,
    azurite,
    gcs_double,
    gcs_options,
    make_container,
)

from .test_databases import Installation, client_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


@contextmanager
def cloud(scheme: str) -> Iterator[tuple[str, str, ObjectStoreOptions]]:
    """Yield the URI of a store for metadata, a namespace as the client spells it, and the options of its store.

    There is no database at all: the metadata lies in the object store, too.
    """
    if scheme == "az":
        with azurite() as server, pytest.MonkeyPatch.context() as patch:
            container, metadata = make_container(server.port, "lakes"), make_container(server.port, "metadata")
            patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
            patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
            yield (
                f"az://{metadata}/story?endpoint=http://127.0.0.1:{server.port}/{ACCOUNT}&wait_s=60",
                f"https://{ACCOUNT}.blob.core.windows.net/{container}/lake",
                azure_options(server.port),
            )
    else:
        with gcs_double() as server:
            kv = f"gs://{BUCKETS[1]}/metadata?endpoint=http://127.0.0.1:{server.port}"
            yield kv, f"gs://{BUCKETS[0]}/lake", gcs_options(server.port)


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_a_story_of_a_client_and_a_collection(scheme: str, tmp_path: Path) -> None:
    with cloud(scheme) as (kv, namespace, options):
        installation = Installation(tmp_path, kv)
        installation.environment |= {"LAKEBED_BLOCKSTORE": scheme, **environment_of(options)}
        with installation.server(workers=1) as url:
            made = json.loads(installation.lakebed("setup", "--user", "esti", "--endpoint", url, "--output", "json"))
            lake = lakefs.Repository("lake", client=client_of(made, url)).create(storage_namespace=namespace)
            main = lake.branch("main")
            for body in ("overwritten", "kept"):
                main.object("a").upload(data=body)
            main.commit("a")
            dev = lake.branch("dev").create("main")
            dev.object("b").upload(data="dev")
            dev.commit("dev")
            dev.merge_into(main)

        with installation.server(workers=1) as url:
            installation.lakebed(
                *("gc", "run", "lakefs://lake", "--endpoint", url, "--uncommitted", "--engine", "local", "--yes"),
                *("--readers-grace", "0s"),
            )
            main = lakefs.Repository("lake", client=client_of(made, url)).branch("main")
            found = {stat.path: main.object(stat.path).reader("r").read() for stat in main.objects()}

        assert found == {"a": "kept", "b": "dev"}
        assert asyncio.run(bodies_in(namespace, options)) == {b"kept", b"dev"}


async def bodies_in(namespace: str, options: ObjectStoreOptions) -> set[bytes]:
    store = open_objectstore(namespace, options)
    return {await store.get(stat.key) async for page in store.list("data/") for stat in page}
