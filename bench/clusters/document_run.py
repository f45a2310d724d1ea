"""The driver of `document`: `python -m bench.clusters.document_run GIVEN`, GIVEN a `Given` as JSON, does its phases in
turn, each once, in one application of Spark, or in this process where there are no settings of Spark.

Each step of a phase is a line of log.jsonl: seconds on the wall, CPU seconds and the peak of memory of each group of
processes. A phase that is done is a line, too, with the run that it made. Every count is compared with what the lake
was made of, and what the S3 server still names with what has to be left, name by name.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from bench.collecting.listing import bare_client, names_of, read_obstore
from bench.collecting.sweep import delete_bare
from bench.http import family, peak_mib, spent_s
from bench.s3 import BUCKET
from lakebed.client import Client, Credentials
from lakebed.gc import Collector
from lakebed.gc.engines import Effort, Task
from lakebed.gc.engines.files import Lake
from lakebed.gc.engines.spark import open_engine
from lakebed.gc.mark.sets.bucketed import SHARES
from lakebed.gc.messages import ApplyRequest, EngineName, ErasureOrder, Mode, Plan, PlanRequest, RunKind
from lakebed.gc.rules import Selection
from lakebed.runtime import LiveTasks

from . import document_lake as lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S: Final = 0.1
WARMING: Final = 8
"""Small tasks for each core before anything is timed."""
STEPS: Final = {
    "listing": "list",
    "reading": "read what is not committed, commits",
    "marking": "read ranges, mark",
    "deleting": "delete",
}
"""What a collector tells of its progress, by its first word: the steps of a run of uncommitted data."""
WITH_STEPS: Final = (" uncommitted", " optimised")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Of a group of processes `cpu_s` and `peak_mib` are sums."""

    phase: str
    step: str
    at: str
    wall_s: float
    cpu_s: dict[str, float]
    peak_mib: dict[str, float]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    phase: str
    done: dict[str, Any]


class Log:
    """The lines of log.jsonl. A line that a stop cut off is none."""

    def __init__(self, folder: str) -> None:
        self._file = Path(folder) / "log.jsonl"

    def add(self, line: Step | Done) -> None:
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def lines(self) -> Iterator[Step | Done]:
        for text in self._file.read_bytes().splitlines() if self._file.exists() else []:
            with suppress(msgspec.DecodeError):
                is_done = b'"done":' in text
                yield msgspec.json.decode(text, type=Done) if is_done else msgspec.json.decode(text, type=Step)

    def done(self) -> dict[str, dict[str, Any]]:
        return {line.phase: line.done for line in self.lines() if isinstance(line, Done)}


class Meter:
    """Steps of one phase. Each lasts until the next begins."""

    def __init__(self, log: Log, phase: str, pids: dict[str, list[int]]) -> None:
        self._log, self._phase, self._pids = log, phase, pids
        self._step = ""

    def progress(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self._phase}: {line}", file=sys.stderr, flush=True)
        step = STEPS.get(line.partition(" ")[0])
        if step is not None and self._phase.endswith(WITH_STEPS):
            self.begin(step)

    def begin(self, step: str) -> None:
        self.end()
        for pid in [pid for pids in self._families().values() for pid in pids]:
            with suppress(OSError):  # it ended
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        self._step, self._at = step, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._cpu_s, self._wall_s = self._spent_s(), time.perf_counter()

    def end(self) -> None:
        if not self._step:
            return
        spent = self._spent_s()
        self._log.add(
            Step(
                phase=self._phase,
                step=self._step,
                at=self._at,
                wall_s=round(time.perf_counter() - self._wall_s, 3),
                # What an executor spent is lost where no one waited for its end.
                cpu_s={group: round(max(0, spent[group] - before), 2) for group, before in self._cpu_s.items()},
                peak_mib={group: round(sum(map(peak_mib, pids))) for group, pids in self._families().items()},
            )
        )
        self._step = ""

    def _families(self) -> dict[str, list[int]]:
        own = os.getpid()
        groups = {"driver": [own], "its JVM": family(own)[1:]}
        return groups | {group: [one for pid in pids for one in family(pid)] for group, pids in self._pids.items()}

    def _spent_s(self) -> dict[str, float]:
        spent = {group: sum(map(spent_s, pids)) for group, pids in self._families().items()}
        return spent | {"driver": time.process_time()}


class Wrong(Exception):
    """A count is not what the lake was made of."""


def same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Wrong(f"{what}: {found!r}, and not {expected!r}")


# What has to be left


def without(flags: lake.Flags, numbers: lake.Integers) -> None:
    flags.reshape(-1)[numbers] = 0


def left(size: lake.Size, phase: str) -> lake.Flags:
    """The names that are there after this phase, and all before it."""
    flags = lake.is_there(size)
    _, branches = size.a_hundredth
    names = [*PHASES]
    done = names[: names.index(phase) + 1]
    if "apply uncommitted" in done:
        without(flags, lake.numbers_of(lake.GARBAGE, 0, size.objects * len(lake.GARBAGE) // 20))
    if "change" in done:
        flags[size.slices :] = 1
    if "apply optimised" in done:
        flags[size.slices :] = 0
        for branch in range(branches):
            without(flags, lake.numbers_of(lake.STAGED, *lake.staged(size, branch)))
    if "apply committed" in done:
        for first, behind in lake.removed(size):
            without(flags, lake.numbers_of(lake.COMMITTED, first, behind))
    if "apply erasure" in done:
        for commit in range(size.commits):
            without(flags, lake.numbers_of(lake.COMMITTED, *lake.daily(size, 1, commit)))
    return flags


def goes(size: lake.Size) -> dict[str, int]:
    """How many objects each plan has to take. The policy takes what the first ten commits of `main` brought; an erasure
    what the committed run left of a branch."""
    later, branches = size.a_hundredth
    return {
        "uncommitted": size.objects * len(lake.GARBAGE) // 20,
        "optimised": later * size.per_slice + lake.staged(size, branches - 1)[1],
        "committed": sum(behind - first for first, behind in lake.removed(size)),
        "lifecycle": lake.daily(size, 0, min(10, size.commits) - 1)[1] - size.daily,
        "erasure": size.commits * size.adds - (size.commits - 1) * size.removes,
    }


def check_names(given: lake.Given, phase: str) -> None:
    """
    Raises:
        Wrong: an object is gone that has to be there, or is there and should be gone.
    """
    found, expected = np.load(given.names(lake.REPOSITORY)), left(given.size, phase)
    lost, kept = int(np.sum(found < expected)), int(np.sum(found > expected))
    if lost or kept:
        raise Wrong(f"after {phase} {lost:,} objects are gone that have to be there, and {kept:,} are there still")


# The phases


class Run:
    def __init__(self, given: lake.Given, client: Client, spark: SparkSession | None) -> None:
        self.given, self.size, self.log = given, given.size, Log(given.folder)
        self._client, self._spark = client, spark
        self._meter = Meter(self.log, "", given.pids)

    def act(self, phase: str) -> None:
        self._meter = Meter(self.log, phase, self.given.pids)
        self._meter.begin("start" if phase.endswith(WITH_STEPS) else "all")
        facts = PHASES[phase](self)
        self._meter.end()
        if phase.startswith("apply"):
            check_names(self.given, phase)
        self.log.add(Done(phase=phase, done=facts))

    def collector(self, repository: str = lake.REPOSITORY, **how: Any) -> Collector:
        return Collector(
            client=self._client,
            repository=repository,
            objectstore=self.given.objectstore,
            engine=EngineName.LOCAL if self._spark is None else EngineName.SPARK,
            session=self._session,
            progress=self._meter.progress,
            **how,
        )

    def _session(self) -> SparkSession:
        assert self._spark is not None
        return self._spark

    def floor(self) -> dict[str, Any]:
        """Let bare clients list all and delete the garbage. It is there again behind it."""
        client, numbers = bare_client(self.given.objectstore), lake.numbers_of(lake.GARBAGE, 0, self.size.objects // 20)
        slices = names_of(self.size.slices)
        names = [(slices[number // self.size.per_slice], number % self.size.per_slice) for number in numbers.tolist()]
        keys = [f"{lake.REPOSITORY}/data/{slice_}/{sequence:08d}" for slice_, sequence in names]

        async def act() -> int:
            listed = [found async for _, found in LiveTasks().ahead(slices, partial(read_obstore, client, None))]
            await delete_bare(client, keys)
            return sum(listed)

        same("objects listed by a bare client", asyncio.run(act()), self.size.objects)
        there = np.load(self.given.names(lake.REPOSITORY), mmap_mode="r+").reshape(-1)
        same("objects that bare clients left", int(there[numbers].sum()), 0)
        there[numbers] = 1
        return {"objects": len(keys)}

    def plan(self, what: str, kind: RunKind, mode: Mode = Mode.AUTOMATIC) -> dict[str, Any]:
        [plan] = self.collector().plan(PlanRequest(kinds=(kind,), mode=mode))
        if what == "uncommitted":
            assert plan.listing is not None
            same("objects listed", plan.listing.objects, self.size.objects)
        return self._planned(what, plan)

    def plan_erasure(self) -> dict[str, Any]:
        """All that one branch ever committed."""
        order = ErasureOrder(selection=Selection(globs=("lake/daily/0001/",)), why="bench")
        return self._planned("erasure", self.collector().plan_erasure(order))

    def _planned(self, what: str, plan: Plan) -> dict[str, Any]:
        same(f"objects of the plan, {what}", plan.totals.all.objects, goes(self.size)[what])
        listed = 0 if plan.listing is None else plan.listing.objects
        return {"run": plan.run_id, "objects": plan.totals.all.objects, "listed": listed}

    def apply(self, what: str, collector: Collector | None = None) -> dict[str, Any]:
        planned = self.log.done()[f"plan {what}"]
        request = ApplyRequest(run_id=planned["run"], readers_grace="0")
        report = (collector or self.collector()).apply(request)
        same("objects deleted", (report.objects_deleted, report.objects_failed), (planned["objects"], 0))
        return {"run": report.run_id, "objects": report.objects_deleted}

    def change(self) -> dict[str, Any]:
        """What a day brings: staged data that is given up, commits, and uploads that nothing names."""
        _, branches = self.size.a_hundredth
        base = f"/api/v1/repositories/{lake.REPOSITORY}/branches"
        for branch in range(branches):
            self._client.call("PUT", f"{base}/{lake.name_of(branch)}", json={"type": "reset"})
        for branch in range(branches, 2 * branches):
            self._client.call("POST", f"{base}/{lake.name_of(branch)}/commits", json={"message": "more"})
        asyncio.run(lake.fill_later(self.given))
        return {"reset": branches, "committed": branches}

    def certify(self) -> dict[str, Any]:
        certificate = self.collector().certify(self.log.done()["plan erasure"]["run"])
        same("objects of the certificate", len(certificate.objects), goes(self.size)["erasure"])
        same("objects that remain", [line for line in certificate.stands if line.what == "object"], [])
        return {"objects": len(certificate.objects)}

    def plan_deleted(self) -> dict[str, Any]:
        slices, _ = self.size.a_hundredth
        [plan] = self.collector(lake.DELETED, deleted="only").plan(PlanRequest(kinds=(RunKind.DELETED,)))
        assert plan.listing is not None
        same("objects listed", plan.listing.objects, slices * self.size.per_slice)
        return {"run": plan.run_id, "objects": plan.totals.all.objects, "listed": plan.listing.objects}

    def apply_deleted(self) -> dict[str, Any]:
        facts = self.apply("deleted", self.collector(lake.DELETED, deleted="only"))
        same("objects left of a deleted repository", int(np.load(self.given.names(lake.DELETED)).sum()), 0)
        ranges = Path(self.given.folder) / BUCKET / lake.DELETED / "_lakefs" / "ranges"
        same("ranges left of it", [*ranges.glob("*")], [])
        return facts


PHASES: Final[dict[str, Callable[[Run], dict[str, Any]]]] = {
    "floor": Run.floor,
    "plan uncommitted": lambda run: run.plan("uncommitted", RunKind.UNCOMMITTED, Mode.CLEAN),
    "apply uncommitted": lambda run: run.apply("uncommitted"),
    "change": Run.change,
    "plan optimised": lambda run: run.plan("optimised", RunKind.UNCOMMITTED, Mode.OPTIMISED),
    "apply optimised": lambda run: run.apply("optimised"),
    "plan committed": lambda run: run.plan("committed", RunKind.COMMITTED),
    "apply committed": lambda run: run.apply("committed"),
    "plan lifecycle": lambda run: run.plan("lifecycle", RunKind.LIFECYCLE),
    "plan erasure": Run.plan_erasure,
    "apply erasure": lambda run: run.apply("erasure"),
    "certify erasure": Run.certify,
    "plan deleted": Run.plan_deleted,
    "apply deleted": Run.apply_deleted,
}
"""In turn."""


# The session


@contextmanager
def session(given: lake.Given) -> Iterator[SparkSession | None]:
    if not given.settings:
        yield None
        return
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bench")
    for name, value in given.settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.addPyFile(given.package)
        wait_for_executors(spark, given)
        yield spark
    finally:
        spark.stop()


def wait_for_executors(spark: SparkSession, given: lake.Given) -> None:
    """Wait until each core of the cluster has an executor whose Python worker loaded all that tasks use, and opened the
    object store, and whose JVM ran a step. Starting them is not timed.
    """
    cores = int(given.settings["spark.cores.max"])

    async def touch(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        import lakebed.gc.machine.flow  # noqa: F401 - a worker loads it with the first task that needs it

        await task.store.level("_lakefs/retention/")
        yield share

    while spark.sparkContext.defaultParallelism < cores:
        time.sleep(POLL_S)
    rows = SHARES.rows({"first": [*range(WARMING * cores)], "behind": [*range(WARMING * cores)]})
    opened = Lake(uri=f"s3://{BUCKET}/{lake.REPOSITORY}", options=given.objectstore)
    engine = open_engine(EngineName.SPARK, opened, opened.open(), session=lambda: spark, tasks=rows.num_rows)
    asyncio.run(engine.run(touch, rows, SHARES, effort=Effort(requests=math.inf)))


def main(given: lake.Given) -> None:
    credentials = Credentials(access_key_id=given.key[0], secret_access_key=given.key[1])
    with Client(given.endpoint, credentials) as client, session(given) as spark:
        run = Run(given, client, spark)
        for phase in given.phases:
            run.act(phase)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=lake.Given))
