"""One Spark session that marks twice: `python -m bench.mark_session FOLDER numbered|foreign` prints, as JSON, what each
mark took.

Both are whole planners with reasons and totals, on two cores; the server's answers and the listing are read from the
files of `bench.mark_inputs`. *Numbered*: that of a clean run of uncommitted data (`gc.planning_uncommitted`), with what
it keeps for the next run. *Foreign*: that of old layouts (`gc.planning_old_layout`), with keys in place of numbers. CPU
is that of this process, the JVM and the Python workers together, from when the session stands.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from lakebed.base import RunId, slice_name
from lakebed.gc import SessionOptions, local_session, planning_old_layout, planning_uncommitted, protocol
from lakebed.gc.api import silent
from lakebed.gc.files import Files
from lakebed.gc.keys import KeyFiles
from lakebed.gc.live_side import LiveSide
from lakebed.gc.parts import rows_of_parts
from lakebed.gc.protocol import (
    Manifest,
    Mode,
    PreparedCommits,
    RunKind,
    RunState,
    RunView,
    StartedRun,
    UncommittedOptions,
)
from lakebed.gc.read import Found
from lakebed.gc.runs import write_plan
from lakebed.gc.workshop import Workshop

from .http import family, peak_mib
from .mark_inputs import FIRST_SLICE, NOW_MS, Inputs, lake_in

CORES = 2
TASKS = SessionOptions(cores=CORES).tasks
RUNS = ("first", "second")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Took(msgspec.Struct, frozen=True, kw_only=True):
    cpu_s: float
    wall_s: float
    peak_mib: float


class Recorded(LiveSide):
    """A server that has read everything already, and whose answers are files."""

    def __init__(self, inputs: Inputs) -> None:
        self.repository = "bench"
        self._inputs = inputs

    def uncommitted(self, run_id: str) -> Manifest:  # noqa: ARG002 - there is one run
        return self._inputs.uncommitted

    def commits(self, run_id: str) -> PreparedCommits:
        refs = _nothing(protocol.REFS, run_id)
        return PreparedCommits(run_id=run_id, commits=self._inputs.commits, refs=refs, rules=None, rules_version=0)

    def runs(self) -> tuple[RunView, ...]:
        return ()

    def marked(self, run_id: str, plan: Manifest) -> RunView:
        kind, state = RunKind.UNCOMMITTED, RunState.MARKED
        return RunView(run_id=run_id, kind=kind, state=state, started_ms=NOW_MS, plan=plan.digest())


@dataclass(frozen=True, slots=True)
class Listing:
    """What a listing's job would return."""

    rows: pa.Table

    def toArrow(self) -> pa.Table:  # noqa: N802 - as a DataFrame has it
        return self.rows


def _nothing(table: protocol.Table, run_id: str) -> Manifest:
    return protocol.manifest_of(table, protocol.input_folder(RunKind.UNCOMMITTED, RunId(run_id), table.name), [])


def plan(shop: Workshop, inputs: Inputs, run_id: str, mode: Mode) -> tuple[int, int]:
    """The whole planner; rows and objects of its plan."""
    run = StartedRun(
        run_id=run_id,
        kind=RunKind.UNCOMMITTED,
        state=RunState.MARKING,
        namespace=shop.lake.uri,
        folder=protocol.run_folder(RunKind.UNCOMMITTED, RunId(run_id)),
        now_ms=NOW_MS,
        settled_slices=tuple(slice_name(FIRST_SLICE + number) for number in range(inputs.slices)),
        uploads=_nothing(protocol.UNCOMMITTED, f"{run_id}-uploads"),
    )
    with Files(shop.lake) as files:
        made = planning_uncommitted.plan_uncommitted(shop, run, files, UncommittedOptions(mode=mode))
        write_plan(files, made)
    return made.doomed.rows, made.totals.all.objects


def replace_listings(root: Path, inputs: Inputs, run_ids: Sequence[str]) -> None:
    """Let the planners' listings find what lies in the inputs, in slices as parts of each run's own folder."""
    for run_id in run_ids:
        into = root / protocol.input_folder(RunKind.UNCOMMITTED, RunId(run_id), "listed")
        into.mkdir(parents=True)
        for part in inputs.listed.parts:
            (into / part.name).hardlink_to(root / inputs.listed.folder / part.name)
    notes = [msgspec.json.encode(Found(objects=part.rows)) for part in inputs.listed.parts]
    listing = Listing(rows_of_parts(inputs.listed.parts, notes=notes))
    vars(planning_uncommitted)["list_slices"] = lambda *_, **__: listing

    async def list_elsewhere(*_: object) -> tuple[KeyFiles, Found]:
        return inputs.elsewhere, Found(objects=inputs.elsewhere.rows)

    vars(planning_old_layout)["list_elsewhere"] = list_elsewhere


def family_cpu_s() -> float:
    """Of this process and all below it, with threads and processes that have ended."""
    ticks = 0
    for pid in family(os.getpid()):
        # One that has ended since counts with its parent, which waited for it.
        with suppress(FileNotFoundError, ProcessLookupError):
            # Behind the name, which ends with the last bracket: user, system, and those of children waited for.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks * TICK_S


def main(folder: Path, *, foreign: bool) -> list[Took]:
    inputs = msgspec.json.decode((folder / "inputs.json").read_bytes(), type=Inputs)
    lake, mode, took = lake_in(folder), Mode.OLD_LAYOUT if foreign else Mode.CLEAN, []
    replace_listings(folder / "bench" / "mark", inputs, RUNS)
    with local_session(SessionOptions(cores=CORES), os.environ) as session:
        live_side = Recorded(inputs)
        shop = Workshop(session=lambda: session.spark, live_side=live_side, lake=lake, tasks=TASKS, progress=silent)
        for run_id in RUNS:
            cpu, wall = family_cpu_s(), time.perf_counter()
            rows, objects = plan(shop, inputs, run_id, mode)
            cpu_s, wall_s = family_cpu_s() - cpu, time.perf_counter() - wall
            assert rows == objects == inputs.garbage, (rows, objects, inputs.garbage)
            peak = sum(peak_mib(pid) for pid in family(os.getpid()))
            took.append(Took(cpu_s=cpu_s, wall_s=wall_s, peak_mib=peak))
    return took


if __name__ == "__main__":
    print(msgspec.json.encode(main(Path(sys.argv[1]), foreign=sys.argv[2] == "foreign")).decode())
