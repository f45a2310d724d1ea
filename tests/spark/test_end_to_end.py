"""A real server in a process of its own, real HTTP, the real client, the command line: the whole of it once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.base import NotFound
from lakebed.gc.__main__ import main
from lakebed.gc.messages import RunKind, RunState
from lakebed.objectstore import ObjectStoreOptions
from lakebed.wire import GarbageCollectionRules

from .collecting import Collecting
from .served import REPOSITORY, Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.gc import LocalSession


@pytest.fixture
def spark(session: LocalSession) -> SparkSession:
    """These tests are about DataFrames."""
    return session.spark


def test_what_is_kept_reads_and_what_is_garbage_is_gone(spark: SparkSession, served: Served) -> None:
    expired = {served.write("a/1", b"first"), served.write("a/2", b"second")}
    kept = {served.write("b/1", b"kept")}
    served.commit(30)
    served.client.objects.delete(REPOSITORY, "main", "a/1")
    kept.add(served.write("a/2", b"overwritten"))
    served.commit(20)
    kept.add(served.write("c/1", b"new"))
    served.commit(0)
    garbage = {served.write("d/1", b"never committed")}
    kept.add(served.write("d/1", b"staged"))
    served.client.repositories.set_retention_rules(
        REPOSITORY, GarbageCollectionRules(default_retention_days=7, branches=[])
    )
    collector = Collecting(
        client=served.client, repository=REPOSITORY, objectstore=ObjectStoreOptions(local_root=served.objects)
    )

    plans = {kind: collector.plan(spark, kind) for kind in (RunKind.UNCOMMITTED, RunKind.COMMITTED)}
    during = served.write("e/1", b"uploaded between plan and apply")
    taken = {kind: addresses(collector, spark, plan.run_id) for kind, plan in plans.items()}
    before = served.files()
    reports = [collector.apply(spark, plan.run_id) for plan in plans.values()]

    assert taken == {RunKind.COMMITTED: expired, RunKind.UNCOMMITTED: garbage}
    assert before == expired | garbage | kept | {during}
    assert served.files() == kept | {during}
    assert [report.state for report in reports] == [RunState.ENDED, RunState.ENDED]
    for path, data in (("b/1", b"kept"), ("a/2", b"overwritten"), ("c/1", b"new"), ("d/1", b"staged")):
        assert served.client.objects.read(REPOSITORY, "main", path) == data
    assert served.client.objects.read(REPOSITORY, "main", "e/1") == b"uploaded between plan and apply"
    with pytest.raises(NotFound):
        served.client.objects.stat(REPOSITORY, "main", "a/1")
    assert main(["show", f"lakefs://{REPOSITORY}", reports[0].run_id], served.environ) == 0


def test_the_commands_work_where_the_machine_has_no_java(served: Served, tmp_path: Path) -> None:
    """Rules; a run in a process of its own that finds no Java by JAVA_HOME or PATH, and leaves nothing behind; and what
    is known of it afterwards.
    """
    without_java = {"PATH": str(tools_without_java(tmp_path)), "JAVA_HOME": "", "TMPDIR": str(tmp_path / "tmp")}
    for folder in ("tmp", "here"):
        (tmp_path / folder).mkdir()
    uri = f"lakefs://{REPOSITORY}"
    garbage = served.write("a/1", b"never committed")
    staged = served.write("a/1", b"staged")

    served.lakebed("gc", "rules", "set-default", uri, "4d")
    served.lakebed("gc", "rules", "set", f"{uri}/main", "2w")
    rules = served.lakebed("gc", "rules", "get", uri)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lakebed.cli",
            "gc",
            "run",
            uri,
            "--uncommitted",
            "--readers-grace",
            "0",
            "--yes",
            "-o",
            "json",
        ],
        env=served.environ | without_java,
        cwd=tmp_path / "here",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    listed = served.lakebed("gc", "list", uri)
    plan = served.lakebed("gc", "show", uri, report["run_id"])
    status = served.lakebed("gc", "status", uri, report["run_id"])
    again = served.lakebed("gc", "apply", uri, report["run_id"])
    served.lakebed("gc", "rules", "unset", f"{uri}/main")
    left = served.lakebed("gc", "rules", "get", uri)

    assert rules["rules"]["branches"] == [{"pattern": "main", "period": "2w"}]
    assert (left["rules"]["default"], left["rules"]["branches"], left["version"]) == ("4d", [], 3)
    assert (report["objects_deleted"], report["objects_failed"]) == (1, 0)
    assert "WARN" not in done.stderr.upper()
    assert [*(tmp_path / "here").iterdir()] == []
    assert [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith(("lakebed", "spark"))] == []
    assert garbage not in served.files()
    assert staged in served.files()
    assert [(run["run_id"], run["state"]) for run in listed] == [(report["run_id"], "ended")]
    assert plan["totals"]["all"] == {"objects": 1, "size_bytes": 15}
    assert status["state"] == "ended"
    assert again == report, "told again, without a question and without Spark"


def tools_without_java(folder: Path) -> Path:
    """A folder for PATH with what Spark's launcher script calls, and no Java."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "basename", "env", "cat", "ps", "uname", "readlink"):
        found = shutil.which(tool)
        if found:
            (tools / tool).symlink_to(found)
    return tools


def addresses(collector: Collecting, spark: SparkSession, run_id: str) -> set[str]:
    return set(collector.garbage(spark, run_id).select("address").toArrow()["address"].to_pylist())


def test_an_apply_whose_processes_are_all_killed_is_gone_on_with(spark: SparkSession, served: Served) -> None:
    """Driver, JVM and workers die at once, the moment that deleting begins."""
    garbage = {served.write(f"a/{number}", b"never committed") for number in range(40)}
    for number in range(40):
        served.client.objects.delete(REPOSITORY, "main", f"a/{number}")
    kept = served.write("b/1", b"staged")
    collector = Collecting(
        client=served.client, repository=REPOSITORY, objectstore=ObjectStoreOptions(local_root=served.objects)
    )
    plan = collector.plan(spark, RunKind.UNCOMMITTED)

    process = subprocess.Popen(
        [sys.executable, "-m", "lakebed.gc", "apply", f"lakefs://{REPOSITORY}", plan.run_id],
        env=served.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    with process.stderr as lines:
        try:
            assert any("deleting" in line for line in lines)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    report = collector.apply(spark, plan.run_id)

    assert (report.objects_deleted, report.objects_failed, report.state) == (40, 0, RunState.ENDED)
    assert served.files() == {kept}
    assert not served.files() & garbage
