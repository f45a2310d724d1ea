"""The document's repository (docs/design/0001-uncommitted-gc.md), a twentieth of it: a million objects on 200 branches,
3,000 commits, 250,000 objects uncommitted, 50,000 to find and delete; in a local folder and in an S3-compatible server.

It is built through the library (`Versions.upload`, `commit`), each body a byte, by the process that then plans and
applies a clean run of uncommitted data with Spark, local[2] (bench/marks/repository_run.py). CPU is that of driver with
the live side, JVM and workers, from when the session stands; of S3's server (bench/s3.py) none. Floor: one bare pass
over the same listing and a bulk deletion of as many objects, by the project's own driver, 16 requests at a time.

A million objects take minutes to build, so there is one run of each, whatever `--repeat` says. What the phases say of
the document's own size: bench/README.md.

Sketch: listing 6 s and what it finds 2; 3,000 commits and their ranges 3; 250,000 uncommitted 1; mark 1; delete 3; the
first jobs of a session 7.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from bench.collecting.listing import s3_server
from bench.harness import Bench, Figure
from lakebed.objectstore import ObjectStoreOptions

from .repository_run import Given, Ran

LIMIT = 3.0


def take(what: str, size: str, objectstore: ObjectStoreOptions, uri: str, repeat: int) -> list[Figure]:  # noqa: ARG001 - one run
    given = Given(
        size=size,
        uri=uri,
        local_root=None if objectstore.local_root is None else str(objectstore.local_root),
        s3_endpoint=objectstore.s3_endpoint,
    )
    command = [sys.executable, "-m", "bench.marks.repository_run", msgspec.json.encode(given).decode()]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return figures_of(what, msgspec.json.decode(output, type=Ran))


def figures_of(what: str, ran: Ran) -> list[Figure]:
    """Of one run: the whole of it, then its phases."""
    phases = [
        Figure(
            what=f"repository {what}: {phase.name}",
            value=phase.cpu_s,
            unit="s",
            cpu_s=phase.cpu_s,
            wall_s=phase.wall_s,
            peak_mib=ran.peak_mib,
        )
        for phase in ran.phases
    ]
    cpu_s, wall_s = sum(phase.cpu_s for phase in ran.timed), sum(phase.wall_s for phase in ran.timed)
    ratio = cpu_s / ran.floor_cpu_s
    whole = Figure(
        what=f"repository {what}: plan + apply, {ran.objects} objects",
        value=cpu_s,
        unit="s",
        floor=ran.floor_cpu_s,
        ratio=ratio,
        ratio_min=ratio,
        ratio_max=ratio,
        limit=LIMIT,
        cpu_s=cpu_s,
        wall_s=wall_s,
        peak_mib=ran.peak_mib,
    )
    return [whole, *phases]


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    if size == "full":  # a session takes ten seconds: the tests have but one, over S3
        with tempfile.TemporaryDirectory() as folder:
            objectstore = ObjectStoreOptions(local_root=Path(folder), local_durable=False)
            yield partial(take, "local", size, objectstore, "local://lake/repo")
    with s3_server(0, 0) as objectstore:
        yield partial(take, "S3", size, objectstore, "s3://lake/repo")


BENCH = Bench(name="repository", parts=parts)
