"""Collections on a standalone cluster whose workers have our package from `lakebed gc package` alone.

Where processes die, requests to the object store wait in a proxy until they have: no test hopes to meet a moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from lakebed.objectstore import ObjectStoreOptions
from lakebed.testing.contracts.network import FaultyNetwork, faulty_network
from tests.objectstore.s3_servers import client_of, make_bucket, serve_s3, serve_versitygw

from .served import REPOSITORY, Served, serving
from .standalone import LOG4J, POLL_S, SPARK, Cluster, end_executors, line_of, standalone
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
LISTED = b"/slices-"
"""In the request that writes what a task listed."""
START_S = 600
LEDGER = "_lakefs/retention/gc/ledger/"


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


@pytest.mark.slow
@pytest.mark.skipif(
    "LAKEBED_TEST_ARCHIVE" not in os.environ,
    reason="it needs packages of a registry: LAKEBED_TEST_ARCHIVE names an environment that venv-pack packed",
)
def test_a_cluster_whose_python_comes_as_an_archive_plans_and_applies(
    cluster: Cluster, served: Served, package: Path, tmp_path: Path
) -> None:
    """The recipe of docs/guide/clusters.md. Workers unpack the environment, and there is no other at this path."""
    expired, garbage = expire(served)
    kept = served.files() - {expired, garbage}
    (program := tmp_path / "program.py").write_text(PROGRAM)
    shipped = ("--archives", f"{Path(os.environ['LAKEBED_TEST_ARCHIVE']).absolute()}#env")
    python = ("--conf", "spark.pyspark.python=./env/bin/python")

    done = submit(
        *(cluster, served, package, *shipped, *python, program),
        *("run", URI, "--uncommitted", "--clean", "--committed"),
    )

    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-1000:]
    assert served.files() == kept
    assert served.client.objects.read(REPOSITORY, "main", "b/1") == b"kept"


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A repository's bucket, behind a proxy that can hold requests back."""

    served: Served
    network: FaultyNetwork
    client: Any
    name: str

    def keys(self, prefix: str) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return {found["Key"] for page in pages for found in page.get("Contents", [])}

    def garbage_in_slices(self, slices: int) -> tuple[set[str], set[str]]:
        """Overwrite an object in each of so many slices; returns the addresses of garbage, and of what stays."""
        garbage, kept = set(), set()
        for number in range(slices):
            garbage.add(self.served.write(f"a/{number}", b"never committed"))
            kept.add(self.served.write(f"a/{number}", b"staged"))
            # To start a run closes the slice.
            self.served.lakebed("gc", "plan", URI, "--uncommitted", "--clean", "--engine", "local")
        assert len({address.split("/")[1] for address in garbage}) == slices
        return garbage, kept

    def ledger(self) -> list[tuple[str, str]]:
        """Each row's address and what became of it."""
        return sorted((row["address"], row["state"]) for row in self.served.lakebed("gc", "ledger", URI))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with serve_s3() as options, behind_a_proxy(options, tmp_path) as found:
        yield found


@contextlib.contextmanager
def behind_a_proxy(options: ObjectStoreOptions, tmp_path: Path) -> Iterator[Bucket]:
    """A fresh bucket of this server, with a repository."""
    assert options.s3_endpoint is not None
    port = urlsplit(options.s3_endpoint).port
    assert port is not None
    name = make_bucket(options)
    with faulty_network(port) as network:
        # What waits in the proxy waits for as long as a loaded machine takes to start an executor.
        behind = replace(options, s3_endpoint=f"http://127.0.0.1:{network.port}", timeout_s=START_S)
        with serving(tmp_path, uri=f"s3://{name}", store=behind) as served:
            yield Bucket(served=served, network=network, client=client_of(options), name=name)


@pytest.mark.slow
def test_a_plan_goes_on_when_an_executor_dies_and_its_apply_when_the_driver_does(
    cluster: Cluster, bucket: Bucket, package: Path, tmp_path: Path
) -> None:
    """One test, for each application takes half a minute."""
    garbage, kept = bucket.garbage_in_slices(8)  # Spark may deal a task several: of eight come two parts or more
    (local,) = bucket.served.lakebed("gc", "plan", URI, "--uncommitted", "--clean", "--engine", "local")
    (program := tmp_path / "program.py").write_text(PROGRAM)

    hold = bucket.network.hold(LISTED)
    with submitted(cluster, bucket.served, package, program, "plan", URI, "--uncommitted", "--clean") as application:
        # Two requests of one task each: both executors are at work.
        assert hold.wait_for(2, or_until=application.has_ended), application.finished()
        (victim,) = cluster.workers[0].executors().values()
        os.kill(victim, signal.SIGKILL)
        while victim in cluster.workers[0].executors().values():
            time.sleep(POLL_S)
        hold.release()
        plan = answer(application.finished())

    assert plan["totals"]["all"]["objects"] == len(garbage)
    assert shown(bucket.served, plan["run_id"]) == shown(bucket.served, local["run_id"])

    apply = ("apply", URI, plan["run_id"], "--readers-grace", "0s")
    hold = bucket.network.hold(b"?delete", after=1)
    with submitted(cluster, bucket.served, package, program, *apply) as application:
        assert hold.wait_for(1, or_until=application.has_ended), application.finished()
        while not bucket.keys(LEDGER):
            assert not application.has_ended(), application.finished()
            time.sleep(POLL_S)
        application.kill()
    assert kept < bucket.keys("data/"), "it died in the middle"
    hold.release()
    report = answer(submit(cluster, bucket.served, package, program, *apply))

    assert (report["state"], report["objects_deleted"], report["objects_failed"]) == ("ended", len(garbage), 0)
    assert bucket.keys("data/") == kept
    assert bucket.ledger() == sorted((address, "deleted") for address in garbage)


@pytest.mark.slow
def test_on_versitygw_a_plan_and_an_apply_outlive_a_killed_server_and_an_apply_a_killed_executor(
    cluster: Cluster, package: Path, tmp_path: Path
) -> None:
    with serve_versitygw() as options, behind_a_proxy(options, tmp_path) as bucket:
        garbage, kept = bucket.garbage_in_slices(8)
        (program := tmp_path / "program.py").write_text(PROGRAM)

        hold = bucket.network.hold(LISTED)
        with submitted(cluster, bucket.served, package, program, "plan", URI, "--uncommitted", "--clean") as planning:
            assert hold.wait_for(2, or_until=planning.has_ended), planning.finished()
            bucket.served.restart()
            hold.release()
            plan = answer(planning.finished())
        assert plan["totals"]["all"]["objects"] == len(garbage)

        hold = bucket.network.hold(b"?delete", after=1)
        apply = ("apply", URI, plan["run_id"], "--readers-grace", "0s")
        with submitted(cluster, bucket.served, package, program, *apply) as applying:
            assert hold.wait_for(1, or_until=applying.has_ended), applying.finished()
            while not bucket.keys(LEDGER):
                assert not applying.has_ended(), applying.finished()
                time.sleep(POLL_S)
            bucket.served.restart()
            # One of them has the request that waits. Its task is dealt again, and deletes its part.
            end_executors(cluster.workers)
            hold.release()
            report = answer(applying.finished())

        assert (report["state"], report["objects_deleted"], report["objects_failed"]) == ("ended", len(garbage), 0)
        assert bucket.keys("data/") == kept
        assert bucket.ledger() == sorted((address, "deleted") for address in garbage)


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("LAKEBED_TEST_CONNECT") != "kills",
    reason="it takes some minutes: LAKEBED_TEST_CONNECT=kills runs this one",
)
def test_by_spark_connect_a_plan_and_an_apply_outlive_every_process_that_is_killed(
    cluster: Cluster, bucket: Bucket, package: Path, tmp_path: Path
) -> None:
    """An executor, the server of Spark Connect, its client and our server, each in the middle."""
    garbage, kept = bucket.garbage_in_slices(8)
    (local,) = bucket.served.lakebed("gc", "plan", URI, "--uncommitted", "--clean", "--engine", "local")
    (program := tmp_path / "program.py").write_text(PROGRAM)

    with connect_server(cluster, package, tmp_path) as connect:
        hold = bucket.network.hold(LISTED)
        planning = connect.client(bucket.served, program, "plan", URI, "--uncommitted", "--clean")
        with planning as application:
            assert hold.wait_for(2, or_until=application.has_ended), application.finished()
            (victim,) = cluster.workers[0].executors().values()
            os.kill(victim, signal.SIGKILL)
            bucket.served.restart()
            while victim in cluster.workers[0].executors().values():
                time.sleep(POLL_S)
            hold.release()
            plan = answer(application.finished())
        assert plan["totals"]["all"]["objects"] == len(garbage)
        assert shown(bucket.served, plan["run_id"]) == shown(bucket.served, local["run_id"])

        apply = ("apply", URI, plan["run_id"], "--readers-grace", "0s")
        hold = bucket.network.hold(b"?delete", after=1)
        with connect.client(bucket.served, program, *apply) as application:
            assert hold.wait_for(1, or_until=application.has_ended), application.finished()
            while not bucket.keys(LEDGER):
                assert not application.has_ended(), application.finished()
                time.sleep(POLL_S)
            connect.application.kill()
            application.kill()
        assert kept < bucket.keys("data/"), "they died in the middle"
        while any(worker.executors() for worker in cluster.workers):
            time.sleep(POLL_S)
        hold.release()

    with connect_server(cluster, package, tmp_path) as connect:
        hold = bucket.network.hold(b"?delete")
        with connect.client(bucket.served, program, *apply) as application:
            assert hold.wait_for(1, or_until=application.has_ended), application.finished()
            application.kill()
        hold.release()
        with connect.client(bucket.served, program, *apply) as application:
            report = answer(application.finished())

    assert (report["state"], report["objects_deleted"], report["objects_failed"]) == ("ended", len(garbage), 0)
    assert bucket.keys("data/") == kept
    assert bucket.ledger() == sorted((address, "deleted") for address in garbage)


@dataclass(frozen=True, kw_only=True)
class Application:
    process: subprocess.Popen[str]
    out: IO[str]
    err: IO[str]

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """End the driver, its Python and its JVM, as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def finished(self) -> subprocess.CompletedProcess[str]:
        self.process.wait()
        self.out.seek(0)
        self.err.seek(0)
        return subprocess.CompletedProcess("", self.process.returncode, self.out.read(), self.err.read())


@contextlib.contextmanager
def submitted(cluster: Cluster, served: Served, package: Path | None, *command: str | Path) -> Iterator[Application]:
    with started(words(cluster, package, *command), environment(cluster, served)) as application:
        yield application


@contextlib.contextmanager
def started(command: list[str], environ: dict[str, str]) -> Iterator[Application]:
    """An application, ended with the block, in a group of processes of its own."""
    # A file takes all that is written while no one reads; a pipe does not.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=err, text=True, start_new_session=True)
        try:
            yield Application(process=process, out=out, err=err)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True, kw_only=True)
class Connect:
    """A server of Spark Connect, which is the application that the cluster sees."""

    application: Application
    url: str

    @contextlib.contextmanager
    def client(self, served: Served, program: Path, *command: str) -> Iterator[Application]:
        environ = {**os.environ, **served.environ}
        with started([sys.executable, str(program), *command, "--remote", self.url], environ) as application:
            yield application


@contextlib.contextmanager
def connect_server(cluster: Cluster, package: Path, folder: Path) -> Iterator[Connect]:
    """Workers have the package as if it were installed."""
    (log4j := folder / "connect.properties").write_text(LOG4J)
    settings = {
        **cluster.settings(),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}",
        "spark.executorEnv.PYTHONPATH": str(package),
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    # There it looks for the Python of its workers.
    environ = {**cluster.environ, "PYSPARK_PYTHON": str(cluster.python)}
    with started([str(SPARK / "bin" / "spark-submit"), "--class", main, *conf], environ) as application:
        log = Path(f"/proc/self/fd/{application.err.fileno()}")
        line = r"Spark Connect server started at: \S*?:(\d+)"
        yield Connect(application=application, url=f"sc://127.0.0.1:{line_of(application.process, log, line)}")


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    """The one record that the program wrote."""
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-1000:]
    (record,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return record


def submit(
    cluster: Cluster, served: Served, package: Path | None, *command: str | Path
) -> subprocess.CompletedProcess[str]:
    with submitted(cluster, served, package, *command) as application:
        return application.finished()


def words(cluster: Cluster, package: Path | None, *command: str | Path) -> list[str]:
    conf = [word for name, value in cluster.settings().items() for word in ("--conf", f"{name}={value}")]
    files = [] if package is None else ["--py-files", str(package)]
    return [str(SPARK / "bin" / "spark-submit"), *conf, *files, *map(str, command)]


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
