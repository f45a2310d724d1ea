"""A real server in a process of its own, and the unchanged clients of the contract against it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakefs
import pytest
from click.testing import CliRunner
from lakefs.client import Client

from lakebed.cli import app
from lakebed.objectstore import ObjectStoreOptions
from tests.objectstore.s3_servers import serve_s3

from .serving import Server, serving

_names = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("lakebed")) as server:
        yield server


@pytest.fixture(scope="module")
def options() -> Iterator[ObjectStoreOptions]:
    """An S3 server in this process, and how to reach it."""
    with serve_s3() as options:
        yield options


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(host=server.url, username=server.access_key_id, password=server.secret_access_key)
    yield client
    client.sdk_client._api.rest_client.pool_manager.clear()


@pytest.fixture
def repository(client: Client, tmp_path: Path) -> lakefs.Repository:
    name = f"compat-{next(_names)}"
    return lakefs.Repository(name, client=client).create(storage_namespace=f"local://compat/{name}")


@pytest.fixture
def gone(server: Server, repository: lakefs.Repository) -> str:
    """A path on `main` whose object an erasure took. Reads answer 410, as they do of one that a lifecycle run took."""
    branch = repository.branch("main")
    branch.object("a/gone").upload("secret")
    branch.object("a/here").upload("here")
    branch.commit("both")

    def lakebed(*arguments: str) -> Any:
        here = ("--engine", "local", "--data", str(server.folder), "-o", "json")
        pair = {"LAKEBED_ACCESS_KEY_ID": server.access_key_id, "LAKEBED_SECRET_ACCESS_KEY": server.secret_access_key}
        result = CliRunner().invoke(app, [*arguments, *here], obj={"LAKEBED_ENDPOINT": server.url, **pair})
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    lake = f"lakefs://{repository.id}"
    [plan] = lakebed("erase", "plan", lake, "a/gone", "--why", "asked for")
    lakebed("erase", "apply", lake, plan["run_id"], "--everywhere", "--yes", "--readers-grace", "0")
    return "a/gone"
