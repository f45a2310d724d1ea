"""A real server in a process of its own, and the unchanged clients of the contract against it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import lakefs
import pytest
from lakefs.client import Client

_names = itertools.count()
_SERVE = """
import sys
from pathlib import Path
from lakebed.server import options_of, serve
serve(options_of(Path(sys.argv[1]), {}), port=0, on_ready=lambda url: print(url, flush=True))
"""


@dataclass(frozen=True)
class Server:
    url: str
    access_key_id: str
    secret_access_key: str
    folder: Path = Path()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("lakebed")
    process = subprocess.Popen([sys.executable, "-c", _SERVE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        pair = httpx.post(url + "/api/v1/setup_lakefs", json={"username": "esti"}).json()
        yield Server(url, pair["access_key_id"], pair["secret_access_key"], folder)
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(30) == 0


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(host=server.url, username=server.access_key_id, password=server.secret_access_key)
    yield client
    client.sdk_client._api.rest_client.pool_manager.clear()


@pytest.fixture
def repository(client: Client, tmp_path: Path) -> lakefs.Repository:
    name = f"compat-{next(_names)}"
    return lakefs.Repository(name, client=client).create(storage_namespace=f"local://compat/{name}")
