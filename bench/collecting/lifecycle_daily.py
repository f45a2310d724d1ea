"""The next day's lifecycle run over the lake of `lifecycle`, one in a hundred commits later, each with a new range: up
to its plan, with what it saves. CPU seconds; the floor is the first run.

The lake is a hundred days old (lifecycle_run.py), so each object is due on one day of a hundred.

Sketch: hours and trees read and written 0.2 s, 300 trees 0.1, two of five row groups of 300 ranges 0.2, 0.2 M objects
that go, 0.7 µs each: 0.15.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.harness import Bench, Figure

from .lifecycle import days, figure, parts


def take(folder: Path, ranges: int, repeat: int) -> list[Figure]:
    pairs = [(second, first) for first, second in (days(folder, "ours") for _ in range(repeat))]
    return [figure(f"lifecycle-daily: {ranges:,} ranges", pairs, limit=0.05, memory_mib=None)]


BENCH = Bench(name="lifecycle-daily", parts=partial(parts, take=take))
