"""A first lifecycle run: 50 M committed rows in 5,000 ranges, 30,000 commits, 1,000 branches, 20 rules; up to its plan,
on the local engine, with what it saves for the next day. CPU seconds and memory. Floor: DuckDB over the same files, the
better of two. The lake and both sides are in bench/collecting/lifecycle_run.py.

Sketch: 30,000 trees, the ids of 1,400 ranges each, 0.2 ms: 6 s; 50 M rows, six columns 0.25 µs, rules and hours 0.15,
written, read and joined 0.1: 25 s; what goes, read again: 5.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from bench.harness import Bench, Figure
from bench.marks.mark import run

from .lifecycle_run import Day

RANGES = {"small": 60, "tenth": 500, "full": 5_000}
COMMITS = {"small": 200, "tenth": 3_000, "full": 30_000}
BRANCHES = {"small": 10, "tenth": 100, "full": 1_000}
MEMORY_MIB = 4 * 1024


def days(folder: Path, what: str) -> list[Day]:
    return msgspec.json.decode(run("collecting.lifecycle_run", what, folder), type=list[Day])


def take(folder: Path, ranges: int, repeat: int) -> list[Figure]:
    pairs = [
        (days(folder, "ours")[0], min(days(folder, "floor"), key=lambda day: day.plan_cpu_s)) for _ in range(repeat)
    ]
    assert all(mine.objects == theirs.objects for mine, theirs in pairs), "both find the same"
    return [figure(f"lifecycle: {ranges:,} ranges", pairs, limit=1.5, memory_mib=MEMORY_MIB)]


def figure(what: str, pairs: list[tuple[Day, Day]], *, limit: float, memory_mib: float | None) -> Figure:
    return Figure.of(
        what,
        [mine.plan_cpu_s for mine, _ in pairs],
        [floor.plan_cpu_s for _, floor in pairs],
        wall_s=[mine.wall_s for mine, _ in pairs],
        limit=limit,
        peak_mib=max(mine.peak_mib for mine, _ in pairs),
        peak_limit_mib=memory_mib,
    )


def parts(size: str, take: Callable[[Path, int, int], list[Figure]] = take) -> Iterator[Callable[[int], list[Figure]]]:
    with tempfile.TemporaryDirectory() as folder:
        run("collecting.lifecycle_run", "make", folder, RANGES[size], COMMITS[size], BRANCHES[size])
        yield partial(take, Path(folder), RANGES[size])


BENCH = Bench(name="lifecycle", parts=parts)
