"""The whole product on Azure, Cloud Storage and S3, metadata and all: the `lakefs` package, and a collection."""

from __future__ import annotations

import asyncio
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
from tests.objectstore.s3_servers import make_bucket, serve_moto

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
    elif scheme == "s3":
        with serve_moto() as options, pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            kv = f"s3://{make_bucket(options)}/story?endpoint={options.s3_endpoint}&wait_s=60"
            yield kv, f"s3://{make_bucket(options)}/lake", options
    else:
        with gcs_double() as server:
            kv = f"gs://{BUCKETS[1]}/metadata?endpoint=http://127.0.0.1:{server.port}"
            yield kv, f"gs://{BUCKETS[0]}/lake", gcs_options(server.port)


@pytest.mark.parametrize("scheme", ["az", "gs", "s3"])
def test_a_story_of_a_client_and_a_collection(scheme: str, tmp_path: Path) -> None:
    with cloud(scheme) as (kv, namespace, options):
        installation = Installation(tmp_path, kv, LAKEBED_BLOCKSTORE=scheme, **environment_of(options))
        with installation.server() as url:
            made = installation.set_up(url)
            lake = lakefs.Repository("lake", client=client_of(made, url)).create(storage_namespace=namespace)
            main = lake.branch("main")
            # Signed where the store signs (S3). Not the first: the record of a signed upload keeps its object from
            # collections until the server's upkeep removes it, a minute or so later.
            main.object("a").upload(data="overwritten", pre_sign=False)
            main.object("a").upload(data="kept")
            main.commit("a")
            dev = lake.branch("dev").create("main")
            dev.object("b").upload(data="dev")
            dev.commit("dev")
            dev.merge_into(main)
            installation.shell.ok(
                *("gc", "run", "lakefs://lake", "--endpoint", url, "--uncommitted", "--engine", "local", "--yes"),
                *("--readers-grace", "0s"),
            )
            found = {stat.path: main.object(stat.path).reader("r").read() for stat in main.objects()}

        assert found == {"a": "kept", "b": "dev"}
        assert asyncio.run(bodies_in(namespace, options)) == {b"kept", b"dev"}


async def bodies_in(namespace: str, options: ObjectStoreOptions) -> set[bytes]:
    store = open_objectstore(namespace, options)
    return {await store.get(stat.key) async for page in store.list("data/") for stat in page}
