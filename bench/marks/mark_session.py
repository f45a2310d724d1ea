"""One Spark session that marks twice: `python -m bench.marks.mark_session FOLDER numbered|foreign` prints, as JSON,
what each mark took.

Both are whole planners with reasons and totals, on two cores; the server's answers and the listing are read from the
files of `bench.marks.mark_inputs`. *Numbered*: that of a clean run of uncommitted data (`gc.kinds.uncommitted`), with
what it keeps for the next run. *Foreign*: that of old layouts (`gc.kinds.old_layout`), with keys in place of numbers.
CPU is that of this process, the JVM and the Python workers together, from when the session stands.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from bench.http import family, peak_mib, spent_s
from lakebed.base import RunId, slice_name
from lakebed.gc import SessionOptions, local_session, messages
from lakebed.gc.api.collector import silent
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.engines.spark import open_engine
from lakebed.gc.kinds.uncommitted.old_layout import OldLayout
from lakebed.gc.kinds.uncommitted.plan import Uncommitted
from lakebed.gc.machine import flow
from lakebed.gc.mark.sets.bucketed import Bucketed
from lakebed.gc.messages import (
    EngineName,
    Found,
    Manifest,
    Mode,
    Pieces,
    Plan,
    PlannedBy,
    PreparedCommits,
    Requests,
    RunKind,
    RunState,
    RunView,
    Service,
    StartedRun,
    UncommittedOptions,
)
from lakebed.gc.runs.context import RunContext, folder_in
from lakebed.objectstore import ObjectStore
from lakebed.runtime import live_ports

from .mark_inputs import FIRST_SLICE, NOW_MS, Inputs, lake_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
TASKS = SessionOptions(cores=CORES).tasks
RUNS = ("first", "second")


class Took(msgspec.Struct, frozen=True, kw_only=True):
    cpu_s: float
    wall_s: float
    peak_mib: float


class Recorded(Service):
    """A service that has read everything already, and whose answers are files."""

    def __init__(self, inputs: Inputs, run: StartedRun) -> None:
        super().__init__(cast("Requests", None))
        self._inputs, self._run = inputs, run

    async def start(self, kind: RunKind) -> StartedRun:  # noqa: ARG002 - there is one run
        return self._run

    async def planned(self, run_id: str, kind: RunKind, plan: str) -> PlannedBy:  # noqa: ARG002 - no one else applies it
        return PlannedBy(run_id=run_id, by="bench", is_own=True)

    async def uncommitted(self, run_id: str) -> Manifest:  # noqa: ARG002 - there is one run
        return self._inputs.uncommitted

    async def commits(self, run_id: str) -> PreparedCommits:
        refs = _nothing(messages.REFS, run_id)
        return PreparedCommits(run_id=run_id, commits=self._inputs.commits, refs=refs, rules=None, rules_version=0)

    async def runs(self) -> tuple[RunView, ...]:
        return ()

    async def marked(self, run_id: str, plan: Manifest) -> RunView:
        kind, state = RunKind.UNCOMMITTED, RunState.MARKED
        return RunView(run_id=run_id, kind=kind, state=state, started_ms=NOW_MS, plan=plan.digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered(Uncommitted):
    """A clean run that finds the listing done: its parts lie in the run's own folder."""

    inputs: Inputs

    async def listing(self, context: RunContext, run: StartedRun, slices: Sequence[int]) -> tuple[Pieces, Found]:  # noqa: ARG002 - all of them
        listed = self.inputs.listed
        return Pieces(folder=folder_in(run, "listed"), parts=listed.parts), Found(
            objects=sum(part.rows for part in listed.parts)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign(OldLayout):
    inputs: Inputs

    async def listing(self, context: RunContext, folder: str) -> tuple[Bucketed, Found]:  # noqa: ARG002 - done before
        return self.inputs.elsewhere, Found(objects=self.inputs.elsewhere.rows)


def _nothing(table: messages.Table, run_id: str) -> Manifest:
    return messages.manifest_of(table, messages.input_folder(RunKind.UNCOMMITTED, RunId(run_id), table.name), [])


def plan(spark: SparkSession, lake: Lake, inputs: Inputs, run_id: str, *, foreign: bool) -> tuple[int, int]:
    """The whole planner; rows and objects of its plan."""
    run = StartedRun(
        run_id=run_id,
        kind=RunKind.UNCOMMITTED,
        state=RunState.MARKING,
        namespace=lake.uri,
        folder=messages.run_folder(RunKind.UNCOMMITTED, RunId(run_id)),
        now_ms=NOW_MS,
        closed_slices=tuple(slice_name(FIRST_SLICE + number) for number in range(inputs.slices)),
        uploads=_nothing(messages.UNCOMMITTED, f"{run_id}-uploads"),
    )
    options = UncommittedOptions(mode=Mode.CLEAN)
    kind = (
        Foreign(age_ms=options.old_layout_age_ms, inputs=inputs)
        if foreign
        else Numbered(options=options, inputs=inputs)
    )

    async def make(store: ObjectStore) -> Plan:
        context = RunContext(
            repository="bench",
            service=Recorded(inputs, run),
            engine=open_engine(EngineName.SPARK, lake, store, session=lambda: spark, tasks=TASKS),
            store=store,
            ports=live_ports(),
            progress=silent,
        )
        return await flow.plan(context, kind)

    with Files(lake) as files:
        made = files.act(make)
    return made.garbage.rows, made.totals.all.objects


def link_listings(root: Path, inputs: Inputs, run_ids: Sequence[str]) -> None:
    """Let the listing of slices lie in each run's own folder."""
    for run_id in run_ids:
        into = root / messages.input_folder(RunKind.UNCOMMITTED, RunId(run_id), "listed")
        # What an earlier repetition left.
        shutil.rmtree(into.parent, ignore_errors=True)
        into.mkdir(parents=True)
        for part in inputs.listed.parts:
            (into / part.name).hardlink_to(root / inputs.listed.folder / part.name)


def family_cpu_s() -> float:
    """Of this process and all below it, with threads and processes that have ended."""
    return sum(map(spent_s, family(os.getpid())))


def main(folder: Path, *, foreign: bool) -> list[Took]:
    inputs = msgspec.json.decode((folder / "inputs.json").read_bytes(), type=Inputs)
    lake, took = lake_in(folder), []
    link_listings(folder / "bench" / "mark", inputs, RUNS)
    with local_session(SessionOptions(cores=CORES), os.environ) as session:
        for run_id in RUNS:
            cpu, wall = family_cpu_s(), time.perf_counter()
            rows, objects = plan(session.spark, lake, inputs, run_id, foreign=foreign)
            cpu_s, wall_s = family_cpu_s() - cpu, time.perf_counter() - wall
            assert rows == objects == inputs.garbage, (rows, objects, inputs.garbage)
            peak = sum(peak_mib(pid) for pid in family(os.getpid()))
            took.append(Took(cpu_s=cpu_s, wall_s=wall_s, peak_mib=peak))
    return took


if __name__ == "__main__":
    print(msgspec.json.encode(main(Path(sys.argv[1]), foreign=sys.argv[2] == "foreign")).decode())
