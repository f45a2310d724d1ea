"""The entries for clusters, each once for real: spark-submit, and a Spark Connect server, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

import lakebed.gc

from .served import REPOSITORY, Served

PROGRAM = Path(lakebed.gc.__file__).parent / "__main__.py"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SETTINGS = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}


def ran(served: Served, *command: str) -> list[Any]:
    """The records that the program wrote. spark-submit sends what else it says to stdout too."""
    environ = {**served.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-1000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def expire(served: Served) -> tuple[str, str]:
    """An object that only an expired commit names, and one that nothing does."""
    expired = served.write("a/1", b"first")
    served.commit(30)
    served.client.objects.delete(REPOSITORY, "main", "a/1")
    served.write("b/1", b"kept")
    served.commit(20)
    garbage = served.write("c/1", b"never committed")
    served.write("c/1", b"staged")
    served.lakebed("gc", "rules", "set-default", f"lakefs://{REPOSITORY}", "7d")
    return expired, garbage


@pytest.mark.slow
def test_spark_submit_plans_with_the_sessions_of_a_cluster(served: Served) -> None:
    expire(served)
    conf = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]

    (plan,) = ran(
        served,
        str(SUBMIT),
        "--master",
        "local[2]",
        *conf,
        str(PROGRAM),
        "plan",
        f"lakefs://{REPOSITORY}",
        "--committed",
        "--tasks",
        "2",
    )

    assert (plan["kind"], plan["totals"]["all"]["objects"]) == ("committed", 1)


@pytest.mark.slow
def test_a_driver_on_yarn_starts_its_session_also_where_nothing_needs_one(served: Served) -> None:
    """YARN takes an application for failed that starts none. The server is not there: it starts before all else."""
    environ = {**served.environ, "SPARK_YARN_STAGING_DIR": "file:///", "LAKEBED_ENDPOINT": "http://127.0.0.1:9"}
    conf = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]

    command = [str(SUBMIT), "--master", "local[1]", *conf, str(PROGRAM), "list", f"lakefs://{REPOSITORY}"]
    environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    said = done.stdout + done.stderr
    assert done.returncode == 5, said
    assert "Submitted application: lakebed gc" in said
    assert "cannot reach" in said


@pytest.mark.slow
def test_spark_connect_plans_and_applies(served: Served) -> None:
    pytest.importorskip("grpc", reason="the extra `connect` is not installed")
    before = served.files()
    expired, garbage = expire(served)

    reports = ran(
        served,
        *(sys.executable, "-m", "lakebed.gc", "run", f"lakefs://{REPOSITORY}"),
        *("--uncommitted", "--committed", "--remote", "local[2]", "--tasks", "2"),
    )

    assert [(report["kind"], report["state"]) for report in reports if "kind" in report] == [
        ("uncommitted", "ended"),
        ("committed", "ended"),
    ]
    assert not served.files() & {expired, garbage}
    assert served.client.objects.read(REPOSITORY, "main", "b/1") == b"kept"
    assert before == set()
