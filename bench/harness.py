"""How a figure is taken: ours and its floor in turn, in one process, several times; what is reported is the median
ratio.

Machines are shared and noisy, so a ratio of two things that ran within the same second says more than either time, and
CPU time more than wall time. Each benchmark says what its floor is: the least that anybody would have to do.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """`value` and `floor` are medians in `unit`, `ratio` that of the ratios pair by pair, at most `limit`."""

    what: str
    value: float
    unit: str
    floor: float
    ratio: float
    ratio_min: float
    ratio_max: float
    limit: float
    cpu_s: float
    wall_s: float
    peak_mib: float

    def is_over(self) -> bool:
        return self.ratio > self.limit


class Result(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: str
    machine: str
    taken_at: str
    repeat: int
    figures: list[Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One thing to compare: `ours` and `floor` each prepare, and then yield what is to be timed, once."""

    what: str
    limit: float
    ours: Callable[[], AbstractContextManager[Callable[[], object]]]
    floor: Callable[[], AbstractContextManager[Callable[[], object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """`pairs` yields them for a size, and may clean up after the last."""

    name: str
    pairs: Callable[[str], Iterator[Pair]]


@dataclass(frozen=True, slots=True)
class Took:
    cpu_s: float
    wall_s: float


def run(bench: Bench, *, size: str, repeat: int) -> Result:
    return Result(
        name=bench.name,
        size=size,
        machine=machine(),
        taken_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        repeat=repeat,
        figures=[figure(pair, repeat) for pair in bench.pairs(size)],
    )


def figure(pair: Pair, repeat: int) -> Figure:
    """One run of each is thrown away: imports, caches and page faults are not what is compared."""
    ours, floors = [], []
    for _ in range(repeat + 1):
        ours.append(timed(pair.ours))
        floors.append(timed(pair.floor))
    ours, floors = ours[1:], floors[1:]
    ratios = [mine.cpu_s / floor.cpu_s for mine, floor in zip(ours, floors, strict=True)]
    return Figure(
        what=pair.what,
        value=statistics.median(took.cpu_s for took in ours),
        unit="s",
        floor=statistics.median(took.cpu_s for took in floors),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        limit=pair.limit,
        cpu_s=statistics.median(took.cpu_s for took in ours),
        wall_s=statistics.median(took.wall_s for took in ours),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def timed(side: Callable[[], AbstractContextManager[Callable[[], object]]]) -> Took:
    """CPU of the whole process: a driver's threads count too."""
    with side() as work:
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        return Took(time.process_time() - cpu, time.perf_counter() - wall)


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()}, {platform.machine()}, Python {platform.python_version()}"
