"""Presigned URLs: the `lakefs` package puts to and gets from the object store itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import lakefs
import pytest
from lakefs.client import Client

from lakebed.objectstore import ObjectStoreOptions, environment_of
from tests.objectstore.s3_servers import make_bucket, serve_s3

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend

_SERVE = """
import os, sys
from pathlib import Path
from lakebed.server import options_of, serve
serve(options_of(Path(sys.argv[1]), os.environ), port=0, on_ready=lambda url: print(url, flush=True))
"""


@pytest.fixture(scope="module")
def options() -> Iterator[ObjectStoreOptions]:
    with serve_s3() as options:
        yield options


@pytest.fixture(scope="module")
def s3_client(options: ObjectStoreOptions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with client_of_server(tmp_path_factory.mktemp("lakebed-s3"), options) as client:
        yield client


@contextmanager
def client_of_server(folder: Path, options: ObjectStoreOptions, **settings: str) -> Iterator[Any]:
    environment = {**os.environ, **environment_of(options), "LAKEBED_BLOCKSTORE": "s3", **settings}
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        pair = httpx.post(url + "/api/v1/setup_lakefs", json={"username": "esti"}).json()
        yield Client(host=url, username=pair["access_key_id"], password=pair["secret_access_key"])
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(30) == 0


def test_objects_go_straight_to_the_store_and_back(s3_client: Any, options: ObjectStoreOptions) -> None:
    assert s3_client.storage_config.pre_sign_support
    namespace = f"s3://{make_bucket(options)}/one"
    repository = lakefs.Repository("lake", client=s3_client).create(storage_namespace=namespace)
    main = repository.branch("main")
    target = main.object("a/b c")

    target.upload(b"hello", metadata={"k": "v"}, pre_sign=True)

    assert target.stat().physical_address.startswith(f"{namespace}/data/")
    assert (target.stat().size_bytes, target.stat().metadata) == (5, {"k": "v"})
    with target.reader("rb", pre_sign=True) as reader:
        assert reader.read() == b"hello"
    with target.reader("rb", pre_sign=False) as reader:
        assert reader.read(3) == b"hel"
    main.commit("m")
    signed = next(iter(main.objects(presign=True))).physical_address
    assert httpx.get(signed).content == b"hello"
    assert signed.startswith(str(options.s3_endpoint))
    assert httpx.get(signed).headers["content-disposition"] == 'attachment; filename="b c"'
    signed_stat = target.stat(pre_sign=True).physical_address
    assert httpx.get(signed_stat).content == b"hello"


def test_a_server_told_to_sign_nothing_takes_and_gives_the_bytes_itself(
    options: ObjectStoreOptions, tmp_path: Path
) -> None:
    with client_of_server(tmp_path, options, LAKEBED_PRESIGN="0") as client:
        assert not client.storage_config.pre_sign_support
        namespace = f"s3://{make_bucket(options)}/one"
        repository = lakefs.Repository("lake", client=client).create(storage_namespace=namespace)
        target = repository.branch("main").object("a")

        target.upload(b"hello")

        assert target.reader("rb").read() == b"hello"
        assert target.stat(pre_sign=True).physical_address.startswith(namespace)
        location = client.sdk_client.staging_api.get_physical_address("lake", "main", "b", presign=True)
        assert location.presigned_url is None


def test_a_listing_signs_only_what_its_caller_may_read(s3_client: Any, options: ObjectStoreOptions) -> None:
    namespace = f"s3://{make_bucket(options)}/one"
    main = lakefs.Repository("rows", client=s3_client).create(storage_namespace=namespace).branch("main")
    for path in ("open/a", "secret/a"):
        main.object(path).upload(b"hello")
    host = s3_client.config.host.removesuffix("/api/v1")
    admin = httpx.Client(base_url=host + "/api/v1", auth=(s3_client.config.username, s3_client.config.password))
    readable = "arn:lakefs:fs:::repository/rows/object/open/*"
    statement = [
        {"effect": "allow", "action": ["fs:ListObjects"], "resource": "*"},
        {"effect": "allow", "action": ["fs:ReadObject"], "resource": readable},
    ]
    admin.post("/auth/users", json={"id": "ann"}).raise_for_status()
    admin.post("/auth/policies", json={"id": "ann", "statement": statement}).raise_for_status()
    admin.put("/auth/users/ann/policies/ann").raise_for_status()
    pair = admin.post("/auth/users/ann/credentials").json()

    page = httpx.get(
        host + "/api/v1/repositories/rows/refs/main/objects/ls",
        params={"presign": "true"},
        auth=(pair["access_key_id"], pair["secret_access_key"]),
    ).json()

    shown = {row["path"]: row["physical_address"].partition(":")[0] for row in page["results"]}
    assert shown == {"open/a": "http", "secret/a": "s3"}


def test_a_repository_in_a_missing_bucket_is_refused_for_good(s3_client: Any, options: ObjectStoreOptions) -> None:
    """No retry helps, and where the store stands is not the client's business."""
    answer = httpx.post(
        s3_client.config.host.removesuffix("/api/v1") + "/api/v1/repositories",
        json={"name": "nowhere", "storage_namespace": "s3://no-such-bucket-here/one"},
        auth=(s3_client.config.username, s3_client.config.password),
    )

    assert answer.status_code == 400
    assert answer.json()["message"].startswith("failed to create repository: failed to access storage")
    assert str(options.s3_endpoint) not in answer.text
    assert "<" not in answer.text
