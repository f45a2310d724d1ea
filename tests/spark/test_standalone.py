"""Collections on a standalone cluster whose workers have our package from `lakebed gc package` alone.

Where processes die, requests to the object store wait in a proxy until they have: no test hopes to meet a moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from lakebed.gc import Collector
from lakebed.gc.messages import EngineName, ErasureOrder, PlanRequest, RunKind
from lakebed.gc.rules import MetadataRule, Selection
from lakebed.objectstore import ObjectStoreOptions, options_from_environment
from lakebed.testing.contracts.network import FaultyNetwork, Hold, faulty_network
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
DELETE = b"?delete"
START_S = 600
ANN = "users/ann/"
DUE = {"rules": {"ann": {"prefix": ANN, "period": "10d"}}}
LEDGER = "_lakefs/retention/gc/ledger/"
asked_for = pytest.mark.skipif(
    "LAKEBED_TEST_CLUSTER" not in os.environ,
    reason="on a busy machine it takes ten minutes: LAKEBED_TEST_CLUSTER=standalone runs these",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster"), workers=2) as found:
        yield found


@pytest.mark.slow
def test_a_cluster_that_has_the_package_as_a_zip_plans_and_applies_what_the_local_engine_would(
    cluster: Cluster, package: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, days_ago=40) as served:
        due = served.write(f"{ANN}1", b"due")
        expired, garbage = expire(served)
        served.restart()
        set_policy(served)
        kept = served.files() - {expired, garbage, due}
        kinds = ("uncommitted", "committed", "metadata", "lifecycle")
        local = {
            kind: shown(served, found["run_id"])
            for kind in kinds
            for found in served.lakebed(*PLANNED_BY.get(kind, ("gc", "plan", URI, f"--{kind}")), "--engine", "local")
        }
        assert [local[kind][0]["all"]["objects"] for kind in kinds] == [1, 1, 0, 1]
        (program := tmp_path / "program.py").write_text(PROGRAM)

        done = submit(cluster, served, package, program, "run", URI, "--clean", *(f"--{kind}" for kind in kinds))

        assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-1000:]
        reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert {report["kind"]: shown(served, report["run_id"]) for report in reports if "kind" in report} == local
        assert served.files() == kept
        assert served.client.objects.read(REPOSITORY, "main", "b/1") == b"kept"


PLANNED_BY = {"lifecycle": ("lifecycle", "plan", URI)}


def set_policy(served: Served) -> None:
    """What was written below ANN is due after ten days."""
    (policy := served.objects.parent / "policy.json").write_text(json.dumps(DUE))
    served.lakebed("lifecycle", "policy", "set", URI, str(policy))


@pytest.mark.slow
@asked_for
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

    def stored(self) -> set[str]:
        """Objects and files of ranges."""
        return self.keys("data/") | self.keys("_lakefs/ranges/")

    def ledger(self) -> list[tuple[str, str]]:
        """Each row's address and what became of it."""
        rows = self.served.lakebed("gc", "ledger", URI, "--limit", "10000")
        return sorted((row["address"], row["state"]) for row in rows)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with serve_s3() as options, behind_a_proxy(options, tmp_path) as found:
        yield found


@contextlib.contextmanager
def behind_a_proxy(options: ObjectStoreOptions, tmp_path: Path, *, days_ago: int = 0) -> Iterator[Bucket]:
    """A fresh bucket of this server, with a repository. `days_ago` is as `serving` has it."""
    assert options.s3_endpoint is not None
    port = urlsplit(options.s3_endpoint).port
    assert port is not None
    name = make_bucket(options)
    with faulty_network(port) as network:
        # What waits in the proxy waits for as long as a loaded machine takes to start an executor.
        behind = replace(options, s3_endpoint=f"http://127.0.0.1:{network.port}", timeout_s=START_S)
        with serving(tmp_path, uri=f"s3://{name}", store=behind, days_ago=days_ago) as served:
            yield Bucket(served=served, network=network, client=client_of(options), name=name)


@pytest.mark.slow
@asked_for
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
        plan = struck(application, hold, 2, cluster.kill_an_executor)

    assert plan["totals"]["all"]["objects"] == len(garbage)
    assert shown(bucket.served, plan["run_id"]) == shown(bucket.served, local["run_id"])

    apply = ("apply", URI, plan["run_id"], "--readers-grace", "0s")
    hold = bucket.network.hold(DELETE, after=1)
    with submitted(cluster, bucket.served, package, program, *apply) as application:
        assert hold.wait_for(1, or_until=application.has_ended), application.finished()
        wait_for_ledger(application, bucket)
        application.kill()
    assert kept < bucket.keys("data/"), "it died in the middle"
    hold.release()
    report = answer(submit(cluster, bucket.served, package, program, *apply))

    assert (report["state"], report["objects_deleted"], report["objects_failed"]) == ("ended", len(garbage), 0)
    assert bucket.keys("data/") == kept
    assert bucket.ledger() == sorted((address, "deleted") for address in garbage)


@pytest.mark.slow
@asked_for
def test_on_versitygw_a_plan_and_an_apply_outlive_a_killed_server_and_an_apply_a_killed_executor(
    cluster: Cluster, package: Path, tmp_path: Path
) -> None:
    with serve_versitygw() as options, behind_a_proxy(options, tmp_path) as bucket:
        garbage, kept = bucket.garbage_in_slices(8)
        (program := tmp_path / "program.py").write_text(PROGRAM)

        hold = bucket.network.hold(LISTED)
        with submitted(cluster, bucket.served, package, program, "plan", URI, "--uncommitted", "--clean") as planning:
            plan = struck(planning, hold, 2, bucket.served.restart)
        assert plan["totals"]["all"]["objects"] == len(garbage)

        hold = bucket.network.hold(DELETE, after=1)
        apply = ("apply", URI, plan["run_id"], "--readers-grace", "0s")
        with submitted(cluster, bucket.served, package, program, *apply) as applying:
            assert hold.wait_for(1, or_until=applying.has_ended), applying.finished()
            wait_for_ledger(applying, bucket)
            bucket.served.restart()
            # One of them has the request that waits. Its task is dealt again, and deletes its part.
            end_executors(cluster.workers)
            hold.release()
            report = answer(applying.finished())

        assert (report["state"], report["objects_deleted"], report["objects_failed"]) == ("ended", len(garbage), 0)
        assert bucket.keys("data/") == kept
        assert bucket.ledger() == sorted((address, "deleted") for address in garbage)


ANY_AGE = MetadataRule(file_age_ms_min=-(10**13))
ERASED = ErasureOrder(selection=Selection(globs=(ANN,)), why="as asked")
SLICES = 8
MIDDLE = {
    RunKind.UNCOMMITTED: LISTED,
    RunKind.COMMITTED: b"/bucketed-",
    RunKind.METADATA: b"/bucketed-",
    RunKind.LIFECYCLE: b"/trees-",
    RunKind.ERASURE: b"/bucketed-",
}
"""For each kind: in the request that writes what a task of its plan found."""
OF_EACH_KIND = f"""{EACH_STEP_A_JOB}
import os
from functools import partial
from lakebed.gc import __main__ as program
from lakebed.gc.mark.mark.sets import bucketed
from lakebed.gc.messages import ErasureOrder
from lakebed.gc.rules import MetadataRule, Selection
bucketed.HELD_LEAST = 1  # so that the little there is becomes several parts
class Erasing(program.Collector):
    def plan(self, request):  # without a kind: its words have none for erasures
        return super().plan(request) if request.kinds else [self.plan_erasure({ERASED!r})]
program.Collector = partial(Erasing, metadata={ANY_AGE!r})
sys.exit(program.main(sys.argv[1:], os.environ))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("LAKEBED_TEST_CLUSTER") != "kills",
    reason="it takes some minutes for each kind: LAKEBED_TEST_CLUSTER=kills runs these",
)
@pytest.mark.parametrize("kind", MIDDLE)
def test_each_kind_outlives_workers_drivers_and_servers_that_are_killed_in_the_middle(
    cluster: Cluster, package: Path, tmp_path: Path, kind: RunKind
) -> None:
    """Daemons of workers with their executors, and new ones in their place. On versitygw."""
    (program := tmp_path / "program.py").write_text(OF_EACH_KIND)
    with serve_versitygw() as options, behind_a_proxy(options, tmp_path, days_ago=40) as bucket:
        garbage = tell_past(bucket, kind)
        before = bucket.stored()
        local = shown(bucket.served, planned_here(bucket.served, kind))
        assert {row["address"] for row in local[1]} == garbage < before

        words = ("plan", URI, *([] if kind is RunKind.ERASURE else [f"--{kind}"]))
        hold = bucket.network.hold(MIDDLE[kind])
        with submitted(cluster, bucket.served, package, program, *words) as application:
            assert hold.wait_for(2, or_until=application.has_ended), application.finished()
            application.kill()
        hold.release()
        hold = bucket.network.hold(MIDDLE[kind])
        with submitted(cluster, bucket.served, package, program, *words) as application:
            # Both workers have a task, so the one that is lost leaves one to do again.
            plan = struck(application, hold, 2, lambda: cluster.replace_worker(0), bucket.served.restart)
        assert shown(bucket.served, plan["run_id"]) == local
        assert bucket.stored() == before

        apply = ("apply", URI, plan["run_id"], "--readers-grace", "0s")
        hold = bucket.network.hold(DELETE, after=1)
        with submitted(cluster, bucket.served, package, program, *apply) as application:
            assert hold.wait_for(1, or_until=application.has_ended), application.finished()
            # One of them has the request that waits.
            for number in range(len(cluster.workers)):
                cluster.replace_worker(number)
            bucket.served.restart()
            later = bucket.network.hold(DELETE)
            hold.release()
            assert later.wait_for(1, or_until=application.has_ended), application.finished()
            application.kill()
        assert before - garbage <= bucket.stored() < before
        later.release()
        report = answer(submit(cluster, bucket.served, package, program, *apply))

        assert (report["state"], report["objects_deleted"], report["objects_failed"]) == ("ended", len(garbage), 0)
        assert bucket.stored() == before - garbage
        assert bucket.ledger() == sorted((address, "deleted") for address in garbage)


def tell_past(bucket: Bucket, kind: RunKind) -> set[str]:
    """Eight commits of forty days ago, each with an object in a slice of its own, and what a run of this kind takes."""
    served, ann = bucket.served, set()
    if kind is RunKind.UNCOMMITTED:
        return bucket.garbage_in_slices(SLICES)[0]
    for number in range(SLICES):
        ann.add(served.write(f"{ANN}{number}", b"ann"))
        served.write(f"kept/{number}", b"kept")
        served.commit(30)
        served.lakebed("gc", "plan", URI, "--uncommitted", "--engine", "local")  # closes the slice
    match kind:
        case RunKind.COMMITTED:
            served.client.objects.delete_many(REPOSITORY, "main", [f"{ANN}{number}" for number in range(SLICES)])
            served.commit(20)
            served.lakebed("gc", "rules", "set-default", URI, "7d")
        case RunKind.LIFECYCLE:
            set_policy(served)
        case RunKind.METADATA:
            # More than one request deletes.
            names = {
                f"_lakefs/ranges/{hashlib.sha256(bytes([n % 256, n // 256])).hexdigest()}.parquet" for n in range(1200)
            }
            for name in names:
                bucket.client.put_object(Bucket=bucket.name, Key=name, Body=b"of a commit that failed")
            return names
    served.restart()
    return ann


def planned_here(served: Served, kind: RunKind) -> str:
    """The same plan by the engine of this process."""
    collector = Collector(
        client=served.client,
        repository=REPOSITORY,
        objectstore=options_from_environment(served.environ),
        engine=EngineName.LOCAL,
        metadata=ANY_AGE,
    )
    if kind is RunKind.ERASURE:
        return collector.plan_erasure(ERASED).run_id
    [plan] = collector.plan(PlanRequest(kinds=(kind,)))
    return plan.run_id


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
            plan = struck(application, hold, 2, cluster.kill_an_executor, bucket.served.restart)
        assert plan["totals"]["all"]["objects"] == len(garbage)
        assert shown(bucket.served, plan["run_id"]) == shown(bucket.served, local["run_id"])

        apply = ("apply", URI, plan["run_id"], "--readers-grace", "0s")
        hold = bucket.network.hold(DELETE, after=1)
        with connect.client(bucket.served, program, *apply) as application:
            assert hold.wait_for(1, or_until=application.has_ended), application.finished()
            wait_for_ledger(application, bucket)
            connect.application.kill()
            application.kill()
        assert kept < bucket.keys("data/"), "they died in the middle"
        while any(worker.executors() for worker in cluster.workers):
            time.sleep(POLL_S)
        hold.release()

    with connect_server(cluster, package, tmp_path) as connect:
        hold = bucket.network.hold(DELETE)
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


def struck(application: Application, hold: Hold, requests: int, *blows: Callable[[], None]) -> Any:
    """Once so many requests wait, strike, and let them go on. Return what the program answers all the same."""
    assert hold.wait_for(requests, or_until=application.has_ended), application.finished()
    for strike in blows:
        strike()
    hold.release()
    return answer(application.finished())


def wait_for_ledger(application: Application, bucket: Bucket) -> None:
    """Wait until an apply has recorded some of what it deleted."""
    while not bucket.keys(LEDGER):
        assert not application.has_ended(), application.finished()
        time.sleep(POLL_S)


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
