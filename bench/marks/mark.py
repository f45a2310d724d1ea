"""The mark of a collection of uncommitted data: 20 M objects stored, 50 M committed rows in 5,000 ranges, 5 M
uncommitted, exactly 1 M to find and to write out; Spark, local[2]. What the inputs are, bench/marks/mark_inputs.py
says. Not timed: generating them (the listing as the files that listing tasks write), and the start of the session.

Twice over, each through a whole planner, with reasons: with addresses that are numbers (a clean run), and with foreign
ones, which have to be compared as strings (a run of an old layout, in which they are candidates).

Each run is a session of its own with a first mark in it, which warms up JVM and workers, and a second. Memory is the
sum of the peaks of driver, JVM and workers. Floor: DuckDB's anti-join over the same addresses as strings in Parquet
(bench/marks/mark_floor.py), the better of two in one process.

Sketch: the listing decodes in 1 s, 5,000 footers in 1.5, the uncommitted rows in 0.5, and-not and totals 1; the rest is
Spark, which takes 8 s more in its first job than in its second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from bench.harness import Bench, Figure

from .mark_inputs import GARBAGE
from .mark_session import Took

SLICES = {"small": 40, "full": 2_000}


@dataclass(frozen=True, slots=True)
class Kind:
    """What addresses are, and the limits of the first and the second mark of a session."""

    name: str
    limits: dict[str, float | None]
    memory_mib: int


KINDS = (
    Kind("numbered", {"mark first": 1.5, "mark second": 0.6}, 3 * 1024),
    Kind("foreign", {"mark foreign first": None, "mark foreign second": 3.0}, 6 * 1024),
)


def run(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def take(folder: Path, slices: int, kind: Kind, repeat: int) -> list[Figure]:
    sessions, floors = [], []
    for _ in range(repeat):
        floors.append(min(json.loads(run("marks.mark_floor", folder, slices * len(GARBAGE)))))
        sessions.append(msgspec.json.decode(run("marks.mark_session", folder, kind.name), type=list[Took]))
    return [
        figure(what, [session[at] for session in sessions], floors, limit, kind.memory_mib)
        for at, (what, limit) in enumerate(kind.limits.items())
    ]


def figure(what: str, took: list[Took], floors: list[float], limit: float | None, memory_mib: int) -> Figure:
    return Figure.of(
        what,
        [mine.cpu_s for mine in took],
        floors,
        wall_s=[mine.wall_s for mine in took],
        limit=limit,
        peak_mib=max(mine.peak_mib for mine in took),
        peak_limit_mib=memory_mib,
    )


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    for kind in KINDS if size == "full" else KINDS[:1]:
        with tempfile.TemporaryDirectory() as folder:
            run("marks.mark_inputs", folder, SLICES[size], kind.name)
            yield partial(take, Path(folder), SLICES[size], kind)


BENCH = Bench(name="mark", parts=parts)
