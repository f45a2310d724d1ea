"""Collections, holds, dumps and restores of a repository with a table that PyIceberg writes and reads."""

from __future__ import annotations

import itertools
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import lakefs
import pyarrow as pa
import pytest
from lakefs.client import Client
from pyiceberg.table import Table

from tests.cli.conftest import Shell

from .serving import Server, listening, serving
from .test_iceberg import catalog_of, rows
from .test_later import shell_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of the clients' own dependencies, which are not ours to mend


_names = itertools.count()


class Lake:
    """A repository with the table `sales.orders` on `main`: its first snapshot has 1, its second 1 and 2."""

    def __init__(self, server: Server, repository: lakefs.Repository) -> None:
        self.server, self.repository = server, repository
        self.uri = f"lakefs://{repository.id}"
        self.shell = shell_of(server)
        self.here = ("--engine", "local", "--data", str(server.folder), "-o", "json")
        main = catalog_of(server, repository, "main")
        main.create_namespace("sales")
        orders = main.create_table("sales.orders", schema=pa.schema([("a", pa.int64())]))
        for value in (1, 2):
            orders.append(rows(value))
        self.first, self.second = (one.snapshot_id for one in orders.snapshots())

    def table(self, ref: str = "main") -> Table:
        return catalog_of(self.server, self.repository, ref).load_table("sales.orders")

    def values(self, ref: str = "main", **more: Any) -> list[int]:
        return sorted(self.table(ref).scan(**more).to_arrow()["a"].to_pylist())

    def files(self, snapshot: int) -> list[str]:
        """Return the paths of the data files of a snapshot, on a branch."""
        tasks = self.table().scan(snapshot_id=snapshot).plan_files()
        return ["sales/orders.iceberg/" + task.file.file_path.split("/", 4)[4] for task in tasks]

    def lakebed(self, *arguments: str) -> Any:
        return self.shell.ok(*arguments, *self.here).json

    @property
    def auth(self) -> tuple[str, str]:
        return self.server.access_key_id, self.server.secret_access_key

    def api(self, method: str, path: str, **more: Any) -> httpx.Response:
        url = f"{self.server.url}/api/v1/repositories/{self.repository.id}{path}"
        return httpx.request(method, url, auth=self.auth, **more).raise_for_status()

    def settle(self) -> None:
        """Wait until upkeep has committed the files of tables and removed the records of their uploads."""
        since_s = int(time.time()) + 2
        while True:
            text = httpx.get(self.server.url + "/metrics", auth=self.auth).raise_for_status().text
            if any(
                int(found) >= since_s for found in re.findall(r'done_seconds{step="settle_tables"[^}]*} (\d+)', text)
            ):
                return
            time.sleep(0.1)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose upkeep never rests, and that prunes files of any age."""
    with serving(tmp_path_factory.mktemp("quick"), upkeep_s="0.4", LAKEBED_TABLES_DAYS="0") as server:
        yield server


@pytest.fixture
def lake(quick: Server) -> Iterator[Lake]:
    with lake_of(quick) as lake:
        yield lake


@contextmanager
def lake_of(server: Server) -> Iterator[Lake]:
    client = Client(host=server.url, username=server.access_key_id, password=server.secret_access_key)
    name = f"lake-{next(_names)}"
    yield Lake(server, lakefs.Repository(name, client=client).create(storage_namespace=f"local://{name}"))
    client.sdk_client._api.rest_client.pool_manager.clear()


def test_an_erasure_names_the_tables_and_snapshots_that_it_breaks_and_the_others_stay(lake: Lake) -> None:
    lake.repository.branch("dev").create("main")
    [newest] = set(lake.files(lake.second)) - set(lake.files(lake.first))
    [older] = lake.files(lake.first)
    lake.settle()

    [plan] = lake.lakebed("erase", "plan", lake.uri, newest, "--why", "asked for")

    [broken] = plan["tables"]
    assert (broken["table"], broken["refs"], broken["files"]) == ("sales.orders", ["dev", "main"], 1)
    assert (broken["snapshots"], broken["is_current"], broken["is_known"]) == ([lake.second], True, True)
    shown = lake.shell.ok("gc", "show", lake.uri, plan["run_id"], *lake.here[2:4]).out
    assert f"table sales.orders on dev, main: 1 snapshot ({lake.second}), the current one too, 1 file" in shown
    grace = ("--everywhere", "--yes", "--readers-grace", "0")
    lake.shell.ok("erase", "apply", lake.uri, plan["run_id"], *grace, *lake.here[:4])
    assert lake.values(snapshot_id=lake.first) == [1]
    with pytest.raises(OSError, match="does not exist"):  # Upkeep forgets the file of the branch `tables`.
        lake.values()
    assert f"run {plan['run_id']}" in lake.shell("object", "cat", f"{lake.uri}/main/{newest}").err
    assert plan["run_id"] in lake.shell("gc", "why", f"{lake.uri}/main/{newest}").out
    lake.shell.ok("hold", "add", lake.uri, "case-1", "--path", older, "--why", "a case")
    assert "case-1" in lake.shell("gc", "why", f"{lake.uri}/main/{older}").out
    [held] = lake.lakebed("erase", "plan", lake.uri, older, "--why", "asked for")
    assert (held["totals"]["all"]["objects"], held["tables"]) == (0, [])


def test_pruning_takes_what_a_repeated_commit_left_and_names_no_table(lake: Lake) -> None:
    stale = lake.table()
    lake.table().append(rows(3))
    stale.append(rows(9))  # The client writes its snapshot again, over the other one, and may not delete the first.
    lake.settle()

    [plan] = lake.lakebed("gc", "plan", lake.uri, "--pruning")

    assert (plan["totals"]["all"]["objects"] > 0, plan["tables"]) == (True, [])
    pruned = lake.api("GET", f"/gc/plans/{plan['run_id']}/objects").json()["objects"][0]["path"]
    now = ("--yes", "--readers-grace", "0")
    lake.lakebed("gc", "apply", lake.uri, plan["run_id"], *now, "--window", "1h")
    deferred = lake.shell("object", "cat", f"{lake.uri}/tables/{pruned}")
    assert (deferred.code, plan["run_id"] in deferred.err) == (3, True)
    lake.shell.ok("gc", "restore", lake.uri, plan["run_id"], "--undo", "--yes")
    assert lake.shell.ok("object", "cat", f"{lake.uri}/tables/{pruned}").out
    [plan] = lake.lakebed("gc", "plan", lake.uri, "--pruning")
    report = lake.lakebed("gc", "apply", lake.uri, plan["run_id"], *now)
    assert report["objects_deleted"] == plan["totals"]["all"]["objects"]
    lake.table().append(rows(4))
    assert (lake.values(), lake.values(snapshot_id=lake.first)) == ([1, 2, 3, 4, 9], [1])


def test_a_lifecycle_and_a_committed_run_are_undone_and_the_table_is_read_again(tmp_path: Path) -> None:
    # One server after the other: to the upkeep of one, the runs of the other's clock would be dead.
    with serving(tmp_path, upkeep_s="0.4") as server, lake_of(server) as lake:
        before = lake.api("GET", "/branches/main").json()["commit_id"]
        for content in ("old", "new"):
            lake.api("POST", "/branches/main/objects?path=plain", content=content)
            lake.api("POST", "/branches/main/commits", json={"message": content})
        lake.table().append(rows(3))
        paths = lake.files(lake.second)
        policy = {"rules": {"orders": {"prefix": "sales/orders.iceberg/data/", "period": "7d"}}}
        lake.api("PUT", "/lifecycle/policy", json={"policy": policy})
        lake.api("PUT", "/gc/rules/full", json={"default": "7d"})
        lake.settle()
    with listening(tmp_path, {}, days_ago=-30, upkeep_s="3600") as url:
        later = shell_of(replace(server, url=url))
        _runs_are_undone(lake, later, paths, before)
    with listening(tmp_path, {}, upkeep_s="3600") as url:
        lake.server = replace(server, url=url)
        assert (lake.values(), lake.values(before)) == ([1, 2, 3], [1, 2])
        assert lake.values(snapshot_id=lake.first) == [1]


def _runs_are_undone(lake: Lake, later: Shell, paths: list[str], before: str) -> None:
    deferred = ("--yes", "--window", "60d", "--readers-grace", "0", *lake.here)

    def codes() -> list[int]:
        return [later("object", "cat", f"{lake.uri}/main/{path}").code for path in paths]

    [due] = later.ok("lifecycle", "plan", lake.uri, *lake.here).json
    [broken] = due["tables"]
    assert due["totals"]["all"]["objects"] == 3
    assert (broken["table"], broken["is_current"], len(broken["snapshots"])) == ("sales.orders", True, 3)
    later.ok("lifecycle", "apply", lake.uri, due["run_id"], *deferred)
    assert codes() == [3, 3]
    later.ok("gc", "restore", lake.uri, due["run_id"], "--undo", "--yes")
    assert codes() == [0, 0]

    [plan] = later.ok("gc", "plan", lake.uri, "--committed", *lake.here).json
    # The branch `tables` names each file of the table, so only the plain object goes.
    assert (plan["totals"]["all"]["objects"], plan["tables"]) == (1, [])
    later.ok("gc", "apply", lake.uri, plan["run_id"], *deferred)
    assert later("table", "show", f"{lake.uri}/{before}", "sales.orders").code != 0
    assert codes() == [0, 0]
    later.ok("gc", "restore", lake.uri, plan["run_id"], "--undo", "--yes")
    assert later("table", "show", f"{lake.uri}/{before}", "sales.orders").code == 0


def test_a_restored_dump_is_read_and_appended_to_and_pruning_takes_nothing(lake: Lake) -> None:
    name, objects = lake.repository.id, lake.server.folder / "objects"
    dumped = lake.api("PUT", "/refs/dump").json()
    shutil.copytree(objects / name, objects / f"{name}-copy")
    lake.api("DELETE", "")
    body = {"name": name, "storage_namespace": f"local://{name}-copy"}
    url = f"{lake.server.url}/api/v1/repositories"
    httpx.post(url, params={"bare": True}, json=body, auth=lake.auth).raise_for_status()
    lake.api("PUT", "/refs/restore", json=dumped)
    lake.shell.ok("gc", "adopt", lake.uri, "--yes")

    assert lake.values() == [1, 2]
    lake.table().append(rows(3))
    assert (lake.values(), lake.values(snapshot_id=lake.first)) == ([1, 2, 3], [1])
    lake.settle()
    [plan] = lake.lakebed("gc", "plan", lake.uri, "--pruning")
    assert (plan["totals"]["all"]["objects"], plan["tables"]) == (0, [])
