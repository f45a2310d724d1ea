"""One Spark session that marks twice: `python -m bench.mark_session FOLDER` prints, as JSON, what each mark took.

The project's own jobs, from the files of `bench.mark_inputs` to the parts of a plan, on two cores. CPU is that of this
process, the JVM and the Python workers together, from when the session stands.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from lakebed import handoff
from lakebed.base import RunId
from lakebed.gc import SessionOptions, local_session
from lakebed.gc.mark import Live, Places, mark_unreferenced
from lakebed.gc.read import live_objects, uncommitted_objects, write_live

from .http import family, peak_mib
from .mark_inputs import NOW_MS, Inputs, lake_in

CORES = 2
TASKS = 4 * CORES
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Took(msgspec.Struct, frozen=True, kw_only=True):
    cpu_s: float
    wall_s: float
    peak_mib: float


def family_cpu_s() -> float:
    """Of this process and all below it, with threads and processes that have ended."""
    ticks = 0
    for pid in family(os.getpid()):
        # Behind the name, which ends with the last bracket: user, system, and those of children that were waited for.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_A_SECOND


def main(folder: Path) -> list[Took]:
    inputs = msgspec.json.decode((folder / "inputs.json").read_bytes(), type=Inputs)
    ranges, lake = pq.read_table(folder / "ranges.parquet"), lake_in(folder)
    listed = handoff.Pieces(folder=inputs.listed_in, parts=inputs.listed)
    took = []
    with local_session(SessionOptions(cores=CORES), os.environ) as session:
        for number in range(2):
            into = handoff.input_folder(handoff.RunKind.UNCOMMITTED, RunId(f"bench{number}"), handoff.DOOMED.name)
            cpu, wall = family_cpu_s(), time.perf_counter()
            committed = live_objects(session.spark, lake, ranges, tasks=TASKS)
            uncommitted = uncommitted_objects(session.spark, lake, inputs.uncommitted, tasks=TASKS)
            live = Live(
                committed=write_live(committed, lake, folder=into.replace(handoff.DOOMED.name, "committed")),
                uncommitted=write_live(uncommitted, lake, folder=into.replace(handoff.DOOMED.name, "uncommitted")),
            )
            places = Places(doomed=into, kept=into.replace(handoff.DOOMED.name, "kept"))
            manifest, totals, _ = mark_unreferenced(
                session.spark, lake, candidates=[listed], live=live, into=places, tasks=TASKS, now_ms=NOW_MS
            )
            cpu_s, wall_s = family_cpu_s() - cpu, time.perf_counter() - wall
            assert manifest.rows == totals.all.objects == inputs.garbage, (manifest.rows, inputs.garbage)
            peak = sum(peak_mib(pid) for pid in family(os.getpid()))
            took.append(Took(cpu_s=cpu_s, wall_s=wall_s, peak_mib=peak))
    return took


if __name__ == "__main__":
    print(msgspec.json.encode(main(Path(sys.argv[1]))).decode())
