"""The whole product on each database: a story of clients, a storm of kills, and a copy of its store.

All are here so that each database starts once for them: some take longer to start than their story takes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import lakefs
import pytest
from lakefs.client import Client
from lakefs.exceptions import BadRequestException, ConflictException

from bench.http import started
from lakebed.kv import sqlite_uri, store_partitions
from lakebed.lake import open_local
from lakebed.server import ServerOptions
from tests.cli.conftest import Shell
from tests.kv.servers import DATABASES, database
from tests.kv.test_copying import PARTITIONS, fill
from tests.outside.test_kill_storm import check_storm

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


@pytest.fixture(scope="module", params=DATABASES)
def uri_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    with database(request.param) as uri_of:
        yield uri_of


WRITERS = 6
EACH = 2
"""Commits of one writer."""
STORM_ROUNDS = 2
"""One is killed at a write and one at a commit. Tests of the drivers lose many more answers."""


class Installation:
    """Servers over one data folder and one database, and the command line."""

    def __init__(self, folder: Path, uri: str, **settings: str) -> None:
        self.folder = folder
        self.uri = uri
        self.settings = settings
        self.shell = Shell(environment={"LAKEBED_CONFIG": str(folder / "config.toml"), **settings})

    @contextmanager
    def server(self) -> Iterator[str]:
        """Yield the URL of a server of one process."""
        options = ["--data", str(self.folder / "data"), "--kv", self.uri, "--port", "0"]
        environment = {**os.environ, **self.shell.environment}
        with started(
            ["-m", "lakebed", "serve", *options], marker=" at http://127.0.0.1:", environment=environment
        ) as peer:
            yield f"http://127.0.0.1:{peer.port}"

    def set_up(self, url: str) -> dict[str, str]:
        made: dict[str, str] = self.shell.ok("setup", "--user", "esti", "--endpoint", url, "-o", "json").json
        return made


def client_of(made: dict[str, str], url: str) -> Client:
    return Client(host=url, username=made["access_key_id"], password=made["secret_access_key"])


def commit_each(made: dict[str, str], url: str, writer: int) -> list[str]:
    client = client_of(made, url)
    main = lakefs.Repository("lake", client=client).branch("main")
    ids = []
    for number in range(EACH):
        main.object(f"writer {writer}/{number}").upload(data=f"{writer}.{number}")
        # No changes, or overtaken where the database is slow: another committer took ours along.
        with suppress(BadRequestException, ConflictException):
            ids.append(main.commit(f"{writer}.{number}").id)
    client.sdk_client._api.rest_client.pool_manager.clear()
    return ids


def test_a_story_of_many_clients_two_processes_and_a_collection(uri_of: Callable[[str], str], tmp_path: Path) -> None:
    installation = Installation(tmp_path, uri_of("story"))
    with installation.server() as url:
        made = installation.set_up(url)
        with installation.server() as other:
            lake = lakefs.Repository("lake", client=client_of(made, url)).create(storage_namespace="local://lake")
            main = lake.branch("main")
            for body in ("overwritten", "kept"):
                main.object("a").upload(data=body)
            main.commit("a")
            with ThreadPoolExecutor(WRITERS) as committers:
                urls = [(url, other)[writer % 2] for writer in range(WRITERS)]
                committed = committers.map(lambda writer: commit_each(made, urls[writer], writer), range(WRITERS))
                ids = [id_ for of_writer in committed for id_ in of_writer]
            log = [commit.id for commit in main.log()]
            dev = lake.branch("dev").create("main")
            dev.object("only on dev").upload(data="dev")
            dev.object("a").delete()
            dev.commit("dev")
            changes = {(change.type, change.path) for change in main.diff(dev)}
            dev.merge_into(main)
            lake.tag("v1").create("main")
        # The other server has ended, and closed its slice. This one closes its own when the run asks.
        installation.shell.ok(
            *("gc", "run", "lakefs://lake", "--endpoint", url, "--uncommitted", "--engine", "local", "--yes"),
            *("--data", str(tmp_path / "data")),
        )
        found = {stat.path: main.object(stat.path).reader("r").read() for stat in main.objects()}
        before = lake.ref("v1~1").object("a").reader("r").read()

    assert len(set(ids)) == len(ids) >= EACH
    assert set(ids) <= set(log)
    assert changes == {("added", "only on dev"), ("removed", "a")}
    expected = {
        f"writer {writer}/{number}": f"{writer}.{number}" for writer in range(WRITERS) for number in range(EACH)
    }
    assert found == {**expected, "only on dev": "dev"}
    assert before == "kept"
    bodies = [file.read_bytes() for file in (tmp_path / "data" / "objects").rglob("*") if file.is_file()]
    assert b"overwritten" not in bodies
    assert b"kept" in bodies


@pytest.mark.slow
def test_kills_in_a_storm_lose_nothing(uri_of: Callable[[str], str], tmp_path: Path) -> None:
    check_storm(ServerOptions(data_dir=tmp_path / "data", store_uri=uri_of("stormy")), STORM_ROUNDS)


def test_a_store_is_copied_to_the_database_and_comes_back_equal(uri_of: Callable[[str], str], tmp_path: Path) -> None:
    source, target, back = sqlite_uri(tmp_path / "source.db"), uri_of("copied"), sqlite_uri(tmp_path / "back.db")
    asyncio.run(fill(source))
    shell = Shell(environment={"LAKEBED_CONFIG": str(tmp_path / "config.toml")})

    there = shell.ok("kv", "copy", source, target, "-o", "json").json
    and_back = shell.ok("kv", "copy", target, back, "-o", "json").json

    assert [(copy["partitions"], copy["keys_before"]) for copy in (there, and_back)] == [(len(PARTITIONS), 0)] * 2
    assert [store_partitions(uri) for uri in (target, back)] == [sorted(PARTITIONS)] * 2
    again = shell.ok("kv", "copy", source, back, "-o", "json").json
    assert again["keys_before"] == again["keys"] == there["keys"]


@pytest.mark.parametrize("uri_of", ["postgres"], indirect=True)
def test_a_backup_of_a_lake_on_postgresql_comes_back_on_another_schema(
    uri_of: Callable[[str], str], tmp_path: Path
) -> None:
    installation = Installation(tmp_path, uri_of("before"))
    data, backup, restored, after = (
        *(str(tmp_path / name) for name in ("data", "backup", "restored")),
        uri_of("after"),
    )
    with installation.server() as url:
        made = installation.set_up(url)
        main = (
            lakefs.Repository("lake", client=client_of(made, url))
            .create(storage_namespace="local://lake")
            .branch("main")
        )
        main.object("a").upload(data="kept")
        main.commit("a")
        installation.shell.ok("backup", "create", "--data", data, "--to", backup, "--kv", installation.uri)

    installation.shell.ok("backup", "restore", backup, "--data", restored)
    installation.shell.ok("kv", "copy", f"sqlite://{restored}/metadata.db", after)

    (Path(restored) / "metadata.db").unlink()
    with open_local(restored, environment={"LAKEBED_STORE_URI": after}) as again:
        assert again.repository("lake").branch("main").read("a") == b"kept"
        assert [user.id for user in again.client.users.list()] == ["esti"]
