"""Do the work of the document's performance section (docs/design/0001-uncommitted-gc.md) as one job. `small` runs
without Spark. Makes the lake (document_lake.py), and then a phase after the other (document_run.py).

Not timed: the start of servers, session and executors. There is one run of each phase.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.harness import Bench, Figure
from bench.http import TICK_S, Peer, lakebed_server, started
from lakebed.gc import NEEDED, write_package
from lakebed.objectstore import environment_of
from tests.spark.standalone import standalone

from .document_lake import SIZES, Given, make_names
from .document_run import PHASES, Done, Log, Step

WORKERS: Final = 2
LIMIT_S: Final = 3 * 3_600.0
"""The document's bottom line: a clean run of uncommitted data, planned and applied."""
OPTIMISED_MAX: Final = 0.1
"""An optimised run takes at most this much of a clean one, after a day that changed a hundredth."""
RATIO_MAX: Final = {"twentieth": 2.0, "twentieth-spark": 3.0}
"""A clean run takes at most this much of the CPU of bare clients that list as much and delete as much."""
PROMISED: Final = {
    "plan uncommitted: list": "1 min",
    "plan uncommitted: read what is not committed, commits": "1.5 min",
    "plan uncommitted: read ranges, mark": "15 min",
    "apply uncommitted: delete": "at most 150 min",
}
"""What the document says of a step."""
RUNS: Final = ("uncommitted", "optimised", "committed", "lifecycle", "erasure", "deleted")
MAKE: Final = "make"
ON_A_CLUSTER: Final = ("twentieth-spark", "tenth", "full")


def parts(size: str, *, folder: Path | None = None) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = (folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        log = Log(str(folder))
        job(size, folder, log)
        steps = {f"{line.phase}: {line.step}": line for line in log.lines() if isinstance(line, Step)}
        print(table(steps, log.done()), file=sys.stderr)
        of = {run: [step for step in steps.values() if step.phase.partition(" ")[2] == run] for run in RUNS}
        for run, its in of.items():
            yield figure(f"document: {run}", wall_s(its), "s", its, LIMIT_S if run == "uncommitted" else None)
        clean, floor = of["uncommitted"], max(steps["floor: all"].cpu_s["driver"], TICK_S)
        ratio = (cpu_s(clean) - sum(step.cpu_s["S3"] for step in clean)) / floor
        yield figure("document: uncommitted, CPU without S3 / bare clients", ratio, "×", clean, RATIO_MAX.get(size))
        share = cpu_s(of["optimised"]) / cpu_s(clean)
        yield figure("document: optimised, CPU / clean", share, "×", of["optimised"], OPTIMISED_MAX)


def figure(what: str, value: float, unit: str, steps: Sequence[Step], limit: float | None) -> Figure:
    """The memory is that of the driver."""
    peak = max(step.peak_mib["driver"] + step.peak_mib["its JVM"] for step in steps)
    spent: dict[str, Any] = {"cpu_s": cpu_s(steps), "wall_s": [wall_s(steps)], "peak_mib": peak}
    return Figure.of(what, [value], unit=unit, limit=limit, **spent)


def wall_s(steps: Sequence[Step]) -> float:
    return sum(step.wall_s for step in steps)


def cpu_s(steps: Sequence[Step]) -> float:
    return sum(sum(step.cpu_s.values()) for step in steps)


def table(steps: Mapping[str, Step], done: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each step, as Markdown. Of a step that was stopped and begun again the last counts."""
    groups = [*dict.fromkeys(group for step in steps.values() for group in step.cpu_s)]
    lines = [f"| step | objects | wall s | {' | '.join(f'{group}: CPU s; MiB' for group in groups)} | the document |"]
    lines.append("| --- " * (len(groups) + 4) + "|")
    for name, step in steps.items():
        took = [f"{step.cpu_s[each]:.1f}; {step.peak_mib[each]:,.0f}" if each in step.cpu_s else "" for each in groups]
        objects = done.get(step.phase, {}).get("objects", "")
        lines.append(f"| {name} | {objects} | {step.wall_s:,.1f} | {' | '.join(took)} | {PROMISED.get(name, '')} |")
    return "\n".join(lines)


def job(size: str, folder: Path, log: Log) -> None:
    done = log.done()
    left = tuple(phase for phase in PHASES if phase not in done)
    if not left:
        return
    given = Given(folder=str(folder), size=SIZES[size], phases=left)
    with ExitStack() as ending:
        if MAKE not in done:
            for name in ("data", "lake", "names"):
                shutil.rmtree(folder / name, ignore_errors=True)
            make_names(given)
        store = ending.enter_context(started(["-m", "bench.s3", str(folder), "0", "0", "0"], marker="s3 at port "))
        given = msgspec.structs.replace(given, s3_endpoint=f"http://127.0.0.1:{store.port}")
        if MAKE not in done:
            make(given, log)
        server = ending.enter_context(serving(given, folder))
        pids = {"server": [server.pid], "S3": [store.pid]}
        given = msgspec.structs.replace(given, endpoint=f"http://127.0.0.1:{server.port}", key=server.key, pids=pids)
        variables = {**os.environ}
        if size in ON_A_CLUSTER:
            given, more = on_a_cluster(given, ending)
            variables |= more
        run("bench.clusters.document_run", given, variables)


def on_a_cluster(given: Given, ending: ExitStack) -> tuple[Given, dict[str, str]]:
    """Start one, and return what its driver gets, as words and as variables."""
    place = Path(ending.enter_context(tempfile.TemporaryDirectory()))
    cluster = ending.enter_context(standalone(place, workers=WORKERS, packages=(*NEEDED, "arro3-core")))
    workers = [worker.process.pid for worker in cluster.workers]
    settings = {**cluster.settings(), "spark.cores.max": str(WORKERS)}
    package = write_package(place / "lakebed.zip").file
    # Without spark-submit the session reads which Python workers have from here alone.
    variables = {**cluster.environ, "PYSPARK_PYTHON": str(cluster.python)}
    pids = {"workers": workers, **given.pids}
    return msgspec.structs.replace(given, pids=pids, settings=settings, package=package), variables


@contextmanager
def serving(given: Given, folder: Path) -> Iterator[Peer]:
    """A server over the folder, which may have been served before."""
    file = folder / "key.json"
    key = msgspec.json.decode(file.read_bytes(), type=tuple[str, str]) if file.exists() else None
    environment = {**os.environ, "LAKEBED_BLOCKSTORE": "s3", **environment_of(given.objectstore)}
    with lakebed_server(folder / "data", environment=environment, key=key) as peer:
        file.write_bytes(msgspec.json.encode(peer.key))
        yield peer


def make(given: Given, log: Log) -> None:
    began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run("bench.clusters.document_lake", given, {**os.environ})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    log.add(
        Step(
            phase=MAKE,
            step="all",
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            wall_s=time.time() - began,
            cpu_s={"driver": spent_s},
            peak_mib={"driver": after.ru_maxrss / 1024},
        )
    )
    log.add(Done(phase=MAKE, done={"objects": given.size.objects}))


def run(module: str, given: Given, variables: dict[str, str]) -> None:
    command = [sys.executable, "-m", module, msgspec.json.encode(given).decode()]
    subprocess.run(command, check=True, env=variables)


BENCH = Bench(name="document", parts=parts, in_folder=True)
