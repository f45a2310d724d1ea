"""Collections on a standalone cluster whose workers have our package from `lakebed gc package` alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .served import REPOSITORY, Served
from .standalone import SPARK, Cluster, standalone
from .test_clusters import expire

URI = f"lakefs://{REPOSITORY}"
EACH_STEP_A_JOB = """
import sys
from lakebed.gc.engines import spark
spark.JOB_S = -1.0  # so that the little there is goes to the workers
"""
PROGRAM = f"""{EACH_STEP_A_JOB}
import os
from lakebed.gc.__main__ import main
sys.exit(main(sys.argv[1:], os.environ))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("package") / "lakebed.zip"
    subprocess.run([sys.executable, "-m", "lakebed", "gc", "package", str(file)], check=True, capture_output=True)
    return file


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster"), workers=2) as found:
        yield found


@pytest.mark.slow
def test_a_cluster_that_has_the_package_as_a_zip_plans_and_applies_what_the_local_engine_would(
    cluster: Cluster, served: Served, package: Path, tmp_path: Path
) -> None:
    expired, garbage = expire(served)
    kept = served.files() - {expired, garbage}
    local = {
        kind: shown(served, found["run_id"])
        for kind in ("uncommitted", "committed")
        for found in served.lakebed("gc", "plan", URI, f"--{kind}", "--engine", "local")
    }
    (program := tmp_path / "program.py").write_text(PROGRAM)

    done = submit(cluster, served, package, program, "run", URI, "--uncommitted", "--clean", "--committed")

    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-1000:]
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {report["kind"]: shown(served, report["run_id"]) for report in reports if "kind" in report} == local
    assert served.files() == kept
    assert served.client.objects.read(REPOSITORY, "main", "b/1") == b"kept"


@pytest.mark.slow
def test_a_cluster_without_the_package_says_which_command_makes_it(
    cluster: Cluster, served: Served, tmp_path: Path
) -> None:
    expire(served)
    (program := tmp_path / "program.py").write_text(PROGRAM)

    done = submit(cluster, served, None, program, "plan", URI, "--committed")

    assert done.returncode == 1
    assert "`lakebed gc package`" in done.stdout + done.stderr


def submit(
    cluster: Cluster, served: Served, package: Path | None, *command: str | Path
) -> subprocess.CompletedProcess[str]:
    conf = [word for name, value in cluster.settings().items() for word in ("--conf", f"{name}={value}")]
    files = [] if package is None else ["--py-files", str(package)]
    words = [str(SPARK / "bin" / "spark-submit"), *conf, *files, *map(str, command)]
    return subprocess.run(words, env=environment(cluster, served), capture_output=True, text=True, check=False)


def environment(cluster: Cluster, served: Served) -> dict[str, str]:
    """What the driver has: our package, the server's address, and the cluster's Java."""
    return {
        **cluster.environ,
        **served.environ,
        "JAVA_HOME": cluster.environ["JAVA_HOME"],
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def shown(served: Served, run_id: str) -> tuple[Any, list[dict[str, Any]]]:
    """What a plan takes: the sums, and each object."""
    objects = served.lakebed("gc", "show", URI, run_id, "--objects")
    return served.lakebed("gc", "show", URI, run_id)["totals"], sorted(objects, key=lambda one: str(one["address"]))
