"""The performance section of the document (docs/design/0001-uncommitted-gc.md) as one job: 20 M objects, 30,000 commits,
1,000 branches, 5 M objects uncommitted, 1 M to delete, in an S3 server that keeps names alone (bench/s3.py), on a
standalone cluster of Spark with two workers. `tenth` is a tenth of each; `small` runs without Spark.

    python -m bench document --dir FOLDER [--size tenth]

makes the lake (document_lake.py), plans and applies a clean run of uncommitted data, lets a day pass, and goes on with an
optimised run, committed data, a plan of the lifecycle policy, an erasure and a deleted repository (document_run.py).
Each count is compared with what the lake was made of, and after each apply every name that is left.

A job that was stopped goes on when it is started again with the same folder: a phase that is done is not done again,
and an apply goes on where it stopped. log.jsonl of the folder keeps what each step took. The start of the servers, of
the session and of its executors is not timed. One run of each, whatever `--repeat` says.

Sketch for `full`, 216 CPU seconds and what a cluster adds: see the end of bench/README.md.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from bench.harness import Bench, Figure
from bench.http import lakebed_server, started
from lakebed.gc import write_package
from lakebed.objectstore import environment_of
from tests.spark.standalone import standalone

from .document_lake import SIZES, Given, make_names
from .document_run import PHASES, Done, Log, Step

WORKERS: Final = 2
LIMIT_S: Final = 3 * 3_600.0
"""The document's bottom line, for a clean run of uncommitted data."""
MADE: Final = "make"
PROMISED: Final = {
    ("plan uncommitted", "list"): "a minute",
    ("plan uncommitted", "read what is not committed, commits"): "1.5 minutes",
    ("plan uncommitted", "read ranges, mark"): "15 minutes",
    ("apply uncommitted", "delete"): "2.5 hours",
}
"""What the document says of a step."""


def parts(size: str, folder: Path | None = None) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        log = Log(str(folder))
        job(size, folder.absolute(), log)
        steps = [line for line in log.lines() if isinstance(line, Step)]
        print(table(steps, log.done()), file=sys.stderr)
        for phases, limit in (
            (("plan uncommitted", "apply uncommitted"), LIMIT_S),
            (("plan optimised", "apply optimised"), None),
            (("plan committed", "apply committed"), None),
            (("plan lifecycle",), None),
            (("plan erasure", "apply erasure", "certify erasure"), None),
            (("plan deleted", "apply deleted"), None),
        ):
            yield figure(phases, [step for step in steps if step.phase in phases], limit)


def figure(phases: Sequence[str], steps: Sequence[Step], limit: float | None) -> Figure:
    wall_s = sum(step.wall_s for step in steps)
    return Figure(
        what=f"document: {', '.join(phases)}, on the wall",
        value=wall_s,
        unit="s",
        limit=limit,
        cpu_s=sum(sum(step.cpu_s.values()) for step in steps),
        wall_s=wall_s,
        peak_mib=max(step.peak_mib["driver"] + step.peak_mib["its JVM"] for step in steps),
    )


def job(size: str, folder: Path, log: Log) -> None:
    done = log.done()
    left = tuple(phase for phase in PHASES if phase not in done)
    if not left:
        return
    with ExitStack() as ending:
        if MADE not in done:
            for made in ("data", "lake", "names", "log.jsonl"):
                shutil.rmtree(folder / made, ignore_errors=True)
            make_names(Given(folder=str(folder), size=SIZES[size], s3_endpoint=""))
        store = ending.enter_context(started(["-m", "bench.s3", "0", "0", "0", str(folder)], marker="s3 at port "))
        given = Given(folder=str(folder), size=SIZES[size], s3_endpoint=f"http://127.0.0.1:{store.port}", phases=left)
        if MADE not in done:
            make(given, log)
        key_file = folder / "key.json"
        key = msgspec.json.decode(key_file.read_bytes(), type=tuple[str, str]) if key_file.exists() else None
        environment = {**os.environ, "LAKEBED_BLOCKSTORE": "s3"}
        environment |= environment_of(given.objectstore)
        server = ending.enter_context(lakebed_server(folder / "data", environment=environment, key=key))
        key_file.write_bytes(msgspec.json.encode(server.key))
        given = msgspec.structs.replace(
            given,
            endpoint=f"http://127.0.0.1:{server.port}",
            key=server.key,
            pids={"server": [server.process.pid], "S3": [store.process.pid]},
        )
        variables = {**os.environ}
        if size != "small":
            place = Path(ending.enter_context(tempfile.TemporaryDirectory()))
            cluster = ending.enter_context(standalone(place, workers=WORKERS))
            workers = [worker.process.pid for worker in cluster.workers]
            given = msgspec.structs.replace(
                given,
                pids={"workers": workers, **given.pids},
                settings={**cluster.settings(), "spark.cores.max": str(WORKERS)},
                package=write_package(place / "lakebed.zip").file,
            )
            # Without spark-submit the session reads which Python workers have from here alone.
            variables |= {**cluster.environ, "PYSPARK_PYTHON": str(cluster.python)}
        run("bench.marks.document_run", given, variables)


def run(module: str, given: Given, variables: dict[str, str]) -> None:
    command = [sys.executable, "-m", module, msgspec.json.encode(given).decode()]
    subprocess.run(command, check=True, env=variables)


def make(given: Given, log: Log) -> None:
    began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run("bench.marks.document_lake", given, {**os.environ})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    log.add(
        Step(
            phase=MADE,
            step=MADE,
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            wall_s=time.time() - began,
            cpu_s={"driver": spent_s},
            peak_mib={"driver": after.ru_maxrss / 1024, "its JVM": 0},
        )
    )
    log.add(Done(phase=MADE, done=msgspec.to_builtins(given.size)))


def table(steps: Sequence[Step], done: dict[str, dict[str, object]]) -> str:
    """A row for each step, as Markdown; of one that was stopped and begun again the last."""
    groups = [*dict.fromkeys(group for step in steps for group in step.cpu_s)]
    lines = [f"| phase: step | wall s | {' | '.join(f'{group}: CPU s, MiB' for group in groups)} | the document |"]
    lines.append("| --- " * (len(groups) + 3) + "|")
    by_step = {(step.phase, step.step): step for step in steps}
    whole: dict[str, float] = defaultdict(float)
    for (phase, name), step in by_step.items():
        each = [f"{step.cpu_s[group]:.1f}, {step.peak_mib[group]:,.0f}" if group in step.cpu_s else "" for group in groups]
        promised = PROMISED.get((phase, name), "")
        lines.append(f"| {phase}: {name} | {step.wall_s:,.1f} | {' | '.join(each)} | {promised} |")
        whole[phase.rpartition(" ")[2]] += step.wall_s
    lines.append(f"clean run of uncommitted data: {whole['uncommitted']:,.0f} s, of the document's {LIMIT_S:,.0f} s")
    lines += [f"{phase}: {', '.join(f'{name} {fact}' for name, fact in facts.items())}" for phase, facts in done.items()]
    return "\n".join(lines)


BENCH = Bench(name="document", parts=parts, in_folder=True)
