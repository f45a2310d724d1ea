"""A first lifecycle run, and the next day's over the same lake. The lake and both sides are in lifecycle_run.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from bench.harness import Bench, Figure, in_process

from .lifecycle_run import Day

RANGES = {"small": 60, "tenth": 500, "full": 5_000}
COMMITS = {"small": 200, "tenth": 3_000, "full": 30_000}
BRANCHES = {"small": 10, "tenth": 100, "full": 1_000}
MEMORY_MIB = 4 * 1024


def days(folder: Path, what: str) -> list[Day]:
    return msgspec.json.decode(in_process("collecting.lifecycle_run", what, folder), type=list[Day])


def take(folder: Path, ranges: int, repeat: int) -> list[Figure]:
    took = [days(folder, "ours") for _ in range(repeat)]
    floors = [min(days(folder, "floor"), key=lambda day: day.cpu_s) for _ in range(repeat)]
    first, second = [[each[day] for each in took] for day in range(2)]
    assert {day.objects for day in first} == {day.objects for day in floors}, "both find the same"
    return [
        Figure.taken(f"lifecycle: {ranges:,} ranges", first, floors, limit=1.5, peak_limit_mib=MEMORY_MIB),
        Figure.taken(f"lifecycle: {ranges:,} ranges, the next day", second, first, limit=0.05),
    ]


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    with tempfile.TemporaryDirectory() as folder:
        in_process("collecting.lifecycle_run", "make", folder, RANGES[size], COMMITS[size], BRANCHES[size])
        yield partial(take, Path(folder), RANGES[size])


BENCH = Bench(name="lifecycle", parts=parts)
