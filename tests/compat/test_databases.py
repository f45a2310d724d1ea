"""The whole product on each database: the `lakefs` package, committers in two processes, and a collection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import BadRequestException, ConflictException

from bench.http import started
from tests.kv.servers import DATABASES, database

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


@pytest.fixture(scope="module", params=DATABASES)
def uri_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    with database(request.param) as uri_of:
        yield uri_of


class Installation:
    """Servers over one data folder and one database, and the command line."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder = folder
        self.uri = uri
        self.environment = {**os.environ, "LAKEBED_CONFIG": str(folder / "config.toml")}

    @contextmanager
    def server(self, *, workers: int) -> Iterator[str]:
        """Yield the URL of a server."""
        options = ["--data", str(self.folder / "data"), "--kv", self.uri, "--port", "0", "--workers", str(workers)]
        with started(
            ["-m", "lakebed", "serve", *options], marker=" at http://127.0.0.1:", environment=self.environment
        ) as peer:
            yield f"http://127.0.0.1:{peer.port}"

    def lakebed(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "lakebed", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def client_of(made: dict[str, str], url: str) -> Client:
    return Client(host=url, username=made["access_key_id"], password=made["secret_access_key"])


def commit_three_times(made: dict[str, str], url: str, writer: int) -> list[str]:
    client = client_of(made, url)
    main = lakefs.Repository("lake", client=client).branch("main")
    ids = []
    for number in range(3):
        main.object(f"writer {writer}/{number}").upload(data=f"{writer}.{number}")
        # No changes, or overtaken where the database is slow: another committer took ours along.
        with suppress(BadRequestException, ConflictException):
            ids.append(main.commit(f"{writer}.{number}").id)
    client.sdk_client._api.rest_client.pool_manager.clear()
    return ids


def test_a_story_of_many_clients_two_processes_and_a_collection(uri_of: Callable[[str], str], tmp_path: Path) -> None:
    installation = Installation(tmp_path, uri_of("story"))
    with installation.server(workers=2) as url:
        made = json.loads(installation.lakebed("setup", "--user", "esti", "--endpoint", url, "--output", "json"))
        client = client_of(made, url)
        lake = lakefs.Repository("lake", client=client).create(storage_namespace="local://lake")
        main = lake.branch("main")
        for body in ("overwritten", "kept"):
            main.object("a").upload(data=body)
        main.commit("a")
        with ThreadPoolExecutor(8) as committers:
            ids = [
                id_
                for found in committers.map(lambda writer: commit_three_times(made, url, writer), range(8))
                for id_ in found
            ]
        log = [commit.id for commit in main.log()]
        dev = lake.branch("dev").create("main")
        dev.object("only on dev").upload(data="dev")
        dev.object("a").delete()
        dev.commit("dev")
        changes = {(change.type, change.path) for change in main.diff(dev)}
        dev.merge_into(main)
        lake.tag("v1").create("main")

    assert len(set(ids)) == len(ids) >= 3
    assert set(ids) <= set(log)
    assert changes == {("added", "only on dev"), ("removed", "a")}

    with installation.server(workers=1) as url:
        installation.lakebed(
            *("gc", "run", "lakefs://lake", "--endpoint", url, "--uncommitted", "--engine", "local", "--yes"),
            *("--data", str(tmp_path / "data")),
        )
        client = client_of(made, url)
        lake = lakefs.Repository("lake", client=client)
        main = lake.branch("main")
        found = {stat.path: main.object(stat.path).reader("r").read() for stat in main.objects()}
        before = lake.ref("v1~1").object("a").reader("r").read()

    expected = {f"writer {writer}/{number}": f"{writer}.{number}" for writer in range(8) for number in range(3)}
    assert found == {**expected, "only on dev": "dev"}
    assert before == "kept"
    bodies = [file.read_bytes() for file in (tmp_path / "data" / "objects").rglob("*") if file.is_file()]
    assert b"overwritten" not in bodies
    assert b"kept" in bodies


def test_a_backup_of_a_lake_on_postgresql_comes_back_on_another_schema(tmp_path: Path) -> None:
    with database("postgres") as uri_of:
        installation = Installation(tmp_path, uri_of("before"))
        data, backup = str(tmp_path / "data"), str(tmp_path / "backup")
        with installation.server(workers=1) as url:
            made = json.loads(installation.lakebed("setup", "--user", "esti", "--endpoint", url, "--output", "json"))
            client = client_of(made, url)
            main = lakefs.Repository("lake", client=client).create(storage_namespace="local://lake").branch("main")
            main.object("a").upload(data="kept")
            main.commit("a")
            installation.lakebed("backup", "create", "--data", data, "--to", backup, "--kv", installation.uri)

        restored = Installation(tmp_path / "restored", uri_of("after"))
        installation.lakebed("backup", "restore", backup, "--data", str(restored.folder / "data"))
        installation.lakebed("kv", "copy", f"sqlite://{restored.folder}/data/metadata.db", restored.uri)
        with restored.server(workers=1) as url:
            again = lakefs.Repository("lake", client=client_of(made, url)).branch("main").object("a").reader("r").read()

    assert again == "kept"
