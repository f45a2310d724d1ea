"""Collections on YARN, by the recipe of docs/guide/clusters.md: with the driver here, and with it on the cluster."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.objectstore.s3_servers import serve_moto

from .standalone import SPARK
from .test_clusters import PROGRAM as MAIN
from .test_clusters import expire
from .test_standalone import PROGRAM, URI, Bucket, behind_a_proxy, shown, started
from .yarn import Yarn, packed_environment, yarn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("LAKEBED_TEST_CLUSTER") != "yarn",
        reason="it takes some minutes, and loads Hadoop's YARN: LAKEBED_TEST_CLUSTER=yarn runs these",
    ),
]
SECRET = "b7e0d2c9a1f84655"
"""Of the S3 server, which takes any."""
KINDS = ("--uncommitted", "--clean", "--committed")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn(tmp_path_factory.mktemp("yarn")) as found:
        yield found


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with serve_moto() as options:
        secret = replace(options, s3_secret_access_key=SECRET)
        with behind_a_proxy(secret, tmp_path, days_ago=40) as found:
            yield found


@dataclass(frozen=True, kw_only=True)
class Done:
    """An application that ended. `said`: by spark-submit, and in the logs of its containers, by their place."""

    returncode: int
    said: dict[str, str]
    records: list[Any]


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_on_yarn_a_plan_and_an_apply_do_what_the_local_engine_would(
    node: Yarn, bucket: Bucket, package: Path, tmp_path: Path, mode: str
) -> None:
    served = bucket.served
    expired, garbage = expire(served)
    served.restart()
    before = bucket.keys("data/")
    planned = served.lakebed("gc", "plan", URI, *KINDS, "--engine", "local")
    local = {plan["kind"]: shown(served, plan["run_id"]) for plan in planned}
    assert [local[kind][0]["all"]["objects"] for kind in ("uncommitted", "committed")] == [1, 1]
    (program := tmp_path / "program.py").write_text(PROGRAM)

    # As users run it: so little is planned without executors.
    plan = submit(node, bucket, package, tmp_path, mode, MAIN, "plan", URI, *KINDS)

    assert plan.returncode == 0, plan
    assert {record["kind"]: shown(served, record["run_id"]) for record in plan.records} == local
    assert bucket.keys("data/") == before

    run = submit(node, bucket, package, tmp_path, mode, program, "run", URI, *KINDS, "--readers-grace", "0s")

    assert run.returncode == 0, run
    assert any("Finished task" in text for place, text in run.said.items() if "_000001/" not in place), "by an executor"
    reports = [record for record in run.records if "kind" in record]
    assert {report["kind"]: shown(served, report["run_id"]) for report in reports} == local
    assert bucket.keys("data/") == before - {expired, garbage}
    assert bucket.ledger() == sorted((address, "deleted") for address in (expired, garbage))
    assert served.client.objects.read("lake", "main", "b/1") == b"kept"


def test_on_yarn_a_plan_with_a_wrong_secret_fails_once_and_its_log_says_why(
    node: Yarn, bucket: Bucket, package: Path, tmp_path: Path
) -> None:
    command = ("cluster", MAIN, "plan", URI, *KINDS)
    done = submit(node, bucket, package, tmp_path, *command, LAKEBED_SECRET_ACCESS_KEY="0f8a3c57d2e94b61")

    assert done.returncode == 1, done
    assert "diagnostics: User application exited with status 1" in done.said["submit"]
    assert set(re.findall(r"container_\d+_\d+_(\d+)_", " ".join(done.said))) == {"01"}, "one attempt"
    (driver,) = [text for place, text in done.said.items() if place.endswith("_000001/stdout")]
    assert "the server does not accept access key" in driver


def submit(
    node: Yarn, bucket: Bucket, package: Path, folder: Path, mode: str, *command: str | Path, **instead: str
) -> Done:
    """Run an application to its end. On the cluster the driver has its variables from a file. No log has a secret."""
    served = bucket.served
    ours = {name: value for name, value in served.environ.items() if name.startswith(("LAKEBED_", "AWS_"))} | instead
    settings = node.settings() | {
        "spark.submit.deployMode": mode,
        "spark.pyspark.python": "./env/bin/python",
        "spark.yarn.maxAppAttempts": "1",
    }
    words = [str(SPARK / "bin" / "spark-submit"), "--py-files", str(package)]
    words += ["--archives", f"{packed_environment()}#env"]
    if mode == "client":
        settings["spark.pyspark.driver.python"] = sys.executable
    else:
        settings["spark.yarn.appMasterEnv.LAKEBED_ENVIRONMENT_FILE"] = "lakebed.env"
        (file := folder / "lakebed.env").touch(mode=0o600)
        file.write_text("".join(f"{name}={value}\n" for name, value in ours.items()))
        words += ["--files", str(file)]
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with started([*words, *map(str, command)], node.environ | (ours if mode == "client" else {})) as application:
        done = application.finished()

    name = re.search(r"Submitted application (\w+)", done.stderr)
    files = sorted((node.logs / name[1]).rglob("*")) if name else []  # in client mode not all need a session
    logs = {str(file.relative_to(node.logs)): file.read_text(errors="replace") for file in files if file.is_file()}
    said = {"submit": done.stdout + done.stderr} | logs
    secrets = {ours["LAKEBED_SECRET_ACCESS_KEY"], ours["LAKEBED_S3_SECRET_ACCESS_KEY"]}
    assert not [place for place, text in said.items() if any(secret in text for secret in secrets)]
    places = [place for place in logs if place.endswith("_000001/stdout")]
    written = done.stdout if mode == "client" else "".join(logs[place] for place in places)
    records = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    return Done(returncode=done.returncode, said=said, records=records)
