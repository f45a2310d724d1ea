"""`lakebed migrate` of namespaces in Azure and Cloud Storage: recorded answers that name another store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from lakebed.objectstore import environment_of
from tests.objectstore.cloud_servers import (
    ACCOUNT,
    BUCKETS,
    azure_options,
    azurite,
    gcs_double,
    gcs_options,
    make_container,
    put_blob,
)

from .conftest import Move
from .old_server import objects, serve_old


@pytest.fixture(params=["az", "gs"])
def cloud_move(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Move]:
    with ExitStack() as stack:
        old = stack.enter_context(serve_old("s3"))
        if request.param == "az":
            port = stack.enter_context(azurite()).port
            make_container(port, "oldb")
            # The old server names Azure by URLs.
            theirs, ours = f"https://{ACCOUNT}.blob.core.windows.net/oldb", "az://oldb"
            store = azure_options(port)
            for key, body in objects("s3"):
                put_blob(port, "oldb", key.removeprefix("oldb/"), body)
        else:
            port = stack.enter_context(gcs_double()).port
            theirs = ours = f"gs://{BUCKETS[0]}"
            store = gcs_options(port)
            for key, body in objects("s3"):
                url = f"http://127.0.0.1:{port}/{BUCKETS[0]}/{quote(key.removeprefix('oldb/'))}"
                assert httpx.put(url, content=body, trust_env=False).status_code == 200
        old.respell("s3://oldb", theirs)
        environment = {**environment_of(store), "LAKEBED_BLOCKSTORE": request.param}
        options = ["--namespaces", f"{ours}/here/{{repository}}"]
        yield Move(old, tmp_path / "new", environment, options, f"{ours}/")


def test_repositories_come_over_beside_the_old_ones(cloud_move: Move) -> None:
    dry = {one["repository"]: one["changes"] for one in cloud_move.ok("--dry-run")}
    found = {one["repository"]: one["entries"] for one in cloud_move.ok()}

    assert (dry["old"], found) == (24, {"empty": 0, "frozen": 0, "old": 55})
    with cloud_move.opened() as lake:
        main = lake.repository("old").branch("main")
        assert main.read("raw/d=0/f0.txt") == b"changed\n"
        assert main.stat("by-s3.txt").physical_address.startswith(f"{cloud_move.scheme}old/data/")


def test_a_new_namespace_below_the_old_one_is_refused(cloud_move: Move) -> None:
    cloud_move.options[1] = f"{cloud_move.scheme}old/{{repository}}"

    refused = cloud_move("old", "--dry-run")

    assert refused.code == 2
    assert "meets" in refused.err


def test_a_namespace_is_taken_over_in_place(cloud_move: Move) -> None:
    cloud_move.options = ["--in-place"]

    [found], [again] = cloud_move.ok("old"), cloud_move.ok("old")

    assert (found["commits"], found["entries"], again["commits"]) == (6, 55, 0)
    with cloud_move.opened() as lake:
        repository = lake.repository("old")
        assert repository.branch("main").read("raw/d=0/f0.txt") == b"changed\n"
        assert lake.client.repositories.get("old").storage_namespace.rstrip("/") == f"{cloud_move.scheme}old"
