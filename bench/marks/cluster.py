"""Plans of each kind on a standalone cluster, with one worker and with two: seconds on the wall.

Ten million objects, a server of ours over SQLite, and an S3 server that serves from memory (s3.py). A folder of ten
million files takes hours to make, so the S3 server only lists the objects (`ListedSlices`): no plan reads one. Ranges,
metaranges and what a plan writes are real files there (cluster_run.py). Not timed: making the repository, the start of
the session and of its executors.

A worker has one core in Spark, and half a core of this machine's two (shares.py): driver, server and S3 server work
beside them. Memory is that of the driver, Python and JVM. One run of each, whatever `--repeat` says. `tenth` is a
million objects. `full` takes both, and says how the time grows from one to the other on two workers. There all take as
much of the two cores as they get: the smaller plan runs on the driver, which no share holds back.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.collecting.listing import s3_server
from bench.harness import Bench, Figure
from bench.http import lakebed_server
from bench.shares import limited
from lakebed.base import RunKind
from lakebed.gc import write_package
from lakebed.objectstore import environment_of
from tests.spark.standalone import standalone

from .cluster_run import PER_SLICE, Given, Planned, Ran

OBJECTS: Final = {"small": 40_000, "tenth": 1_000_000, "full": 10_000_000}
KINDS: Final = {
    "small": (RunKind.UNCOMMITTED, RunKind.COMMITTED),
    "tenth": (RunKind.UNCOMMITTED, RunKind.COMMITTED, RunKind.METADATA, RunKind.LIFECYCLE),
    "full": (RunKind.UNCOMMITTED, RunKind.COMMITTED, RunKind.METADATA, RunKind.LIFECYCLE),
}
LEAST: Final = 1.7
# The driver does what takes less by itself, for a job of Spark costs more: no worker adds to it.
SMALL_S: Final = 1.0
DRIVER_MIB: Final = 2048
GROWTH: Final = 10


class Workers(NamedTuple):
    """`share` is what each has of a core; None: all that it gets."""

    how_many: int
    share: float | None = None


ONE, TWO, FREE = Workers(1, 0.5), Workers(2, 0.5), Workers(2)
CLUSTERS: Final = {"small": (FREE,), "tenth": (ONE, TWO), "full": (ONE, TWO, FREE)}


def parts(size: str) -> Iterator[Figure]:
    ran = run(size, CLUSTERS[size])
    for kind in KINDS[size]:
        took = {workers: plan_of(one, kind) for workers, one in ran.items()}
        for workers, made in took.items():
            share = "" if workers.share is None else f" of {workers.share} cores"
            what = f"cluster {kind}, {made.objects:,} of {OBJECTS[size]:,} objects, workers: {workers.how_many}{share}"
            yield figure(what, made.wall_s, "s", ran[workers], made)
        if ONE in took:
            what = f"cluster {kind}, 1 → 2 workers"
            least = LEAST if took[ONE].wall_s >= SMALL_S else None
            yield figure(what, took[ONE].wall_s / took[TWO].wall_s, "×", ran[TWO], took[TWO], least=least)
    peak_mib = max(one.driver_mib for one in ran.values())
    yield Figure(
        what="cluster, memory of the driver",
        value=peak_mib,
        unit="MiB",
        limit=DRIVER_MIB,
        cpu_s=0,
        wall_s=sum(made.wall_s for one in ran.values() for made in one.plans),
        peak_mib=peak_mib,
    )
    if size == "full":
        before = run("tenth", (FREE,))[FREE]
        for kind in KINDS[size]:
            small, large = plan_of(before, kind), plan_of(ran[FREE], kind)
            what = f"cluster {kind}, {OBJECTS['tenth']:,} → {OBJECTS['full']:,} objects"
            yield figure(what, large.wall_s / small.wall_s, "×", ran[FREE], large, limit=GROWTH)


def plan_of(ran: Ran, kind: RunKind) -> Planned:
    [found] = [made for made in ran.plans if made.kind is kind]
    return found


def figure(
    what: str,
    value: float,
    unit: str,
    ran: Ran,
    made: Planned,
    *,
    least: float | None = None,
    limit: float | None = None,
) -> Figure:
    return Figure(
        what=what,
        value=value,
        unit=unit,
        least=least,
        limit=limit,
        cpu_s=made.driver_cpu_s,
        wall_s=made.wall_s,
        peak_mib=ran.driver_mib,
    )


def run(size: str, clusters: Sequence[Workers]) -> dict[Workers, Ran]:
    """Make the repository, and plan each kind on each of these clusters, a fresh one each."""
    objects = OBJECTS[size]
    with ExitStack() as ending:
        is_measured = size != "small"
        ending.enter_context(limited([os.getpid()] if is_measured else [], None))
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        store = ending.enter_context(s3_server(objects // PER_SLICE, PER_SLICE, only_listed=True))
        assert store.s3_endpoint is not None
        given = Given(data=str(folder / "data"), s3_endpoint=store.s3_endpoint, objects=objects, kinds=KINDS[size])
        application("make", given, {**os.environ})
        environment = {**os.environ, "LAKEBED_BLOCKSTORE": "s3", **environment_of(store)}
        server = ending.enter_context(lakebed_server(folder / "data", environment=environment))
        package = write_package(folder / "lakebed.zip").file
        ran = {}
        for number, workers in enumerate(clusters):
            (place := folder / f"cluster-{number}").mkdir()
            with standalone(place, workers=workers.how_many) as cluster:
                given = msgspec.structs.replace(
                    given,
                    endpoint=f"http://127.0.0.1:{server.port}",
                    key=server.key,
                    settings={**cluster.settings(), "spark.cores.max": str(workers.how_many)},
                    package=package,
                )
                with limited([one.process.pid for one in cluster.workers] if is_measured else [], workers.share):
                    # Without spark-submit the session reads which Python workers have from here alone.
                    variables = {**os.environ, **cluster.environ, "PYSPARK_PYTHON": str(cluster.python)}
                    ran[workers] = msgspec.json.decode(application("plan", given, variables), type=Ran)
        return ran


def application(what: str, given: Given, environment: dict[str, str]) -> bytes:
    command = [sys.executable, "-m", "bench.marks.cluster_run", what, msgspec.json.encode(given).decode()]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout


BENCH = Bench(name="cluster", parts=parts)
