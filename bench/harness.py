"""How a figure is taken: ours and its floor in turn, in one process, several times; the median ratio is reported.

Machines are shared and noisy, so a ratio of two things that ran within the same second says more than either time, and
CPU time more than wall time. Each benchmark says what its floor is: the least that anybody would have to do.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

SECONDS: Final = {"s": 1.0, "ms": 0.001}


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """`value` and `floor` are medians in `unit`, `ratio` that of the ratios pair by pair, at most `limit`.

    Where there is no floor, `limit` is one of the value, whose spread is `value_min` and `value_max`; where there is no
    limit either, the figure is for orientation. `least` is what the value must reach. `peak_mib` is at most
    `peak_limit_mib`.
    """

    what: str
    value: float
    value_min: float | None = None
    value_max: float | None = None
    unit: str
    floor: float | None = None
    ratio: float | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    limit: float | None = None
    least: float | None = None
    cpu_s: float
    wall_s: float
    peak_mib: float
    peak_limit_mib: float | None = None

    @classmethod
    def of(
        cls,
        what: str,
        values: Sequence[float],
        floors: Sequence[float] = (),
        *,
        unit: str = "s",
        wall_s: Sequence[float] = (0.0,),
        **given: Any,
    ) -> Figure:
        """Make a figure of runs, and of their floors pair by pair. `given` are fields, as they are.

        Seconds and milliseconds are CPU time. The peak is that of this process.
        """
        value = statistics.median(values)
        fields: dict[str, Any] = {"unit": unit, "cpu_s": value * SECONDS.get(unit, 0.0), "peak_mib": own_peak_mib()}
        fields["wall_s"] = statistics.median(wall_s)
        if floors:
            ratios = [mine / floor for mine, floor in zip(values, floors, strict=True)]
            fields |= {"floor": statistics.median(floors), "ratio": statistics.median(ratios)}
            fields |= {"ratio_min": min(ratios), "ratio_max": max(ratios)}
        else:
            fields |= {"value_min": min(values), "value_max": max(values)}
        return cls(what=what, value=value, **fields | given)

    @classmethod
    def taken(cls, what: str, took: Sequence[Any], floors: Sequence[Any] = (), **given: Any) -> Figure:
        """Make a figure of runs that have the fields of `Took`."""
        values, beside = ([each.cpu_s for each in side] for side in (took, floors))
        given = {"peak_mib": max(each.peak_mib for each in took), **given}
        return cls.of(what, values, beside, wall_s=[each.wall_s for each in took], **given)

    def is_over(self) -> bool:
        """Return whether it misses a limit."""
        if self.peak_limit_mib is not None and self.peak_mib > self.peak_limit_mib:
            return True
        if self.least is not None and self.value < self.least:
            return True
        return self.limit is not None and (self.value if self.ratio is None else self.ratio) > self.limit


class Result(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: str
    machine: str
    taken_at: str
    repeat: int
    figures: list[Figure]


def own_peak_mib() -> float:
    """From the address space of this program: getrusage begins with the peak of the process that started it."""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 0.0 if found is None else int(found[1]) / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is timed, and whose CPU and memory count: this process's, or those of a server that it talks to."""

    run: Callable[[], object]
    cpu_s: Callable[[], float] = time.process_time
    peak_mib: Callable[[], float] = own_peak_mib


Side: TypeAlias = Callable[[], AbstractContextManager[Work]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One thing to compare: `ours` and `floor` each prepare, and then yield what is to be timed, once.

    Without a floor the limit is in CPU seconds.
    """

    what: str
    limit: float | None
    ours: Side
    floor: Side | None = None
    peak_limit_mib: float | None = None


Part: TypeAlias = Pair | Figure | Callable[[int], list[Figure]]
"""What to measure; or a figure taken already; or what takes figures, given how many runs it should make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """`parts` yields what a size consists of, and may clean up after the last. `narrowed` makes it of named parts."""

    name: str
    parts: Callable[..., Iterator[Part]]
    narrowed: Callable[[Sequence[str]], Bench] | None = None
    against: Callable[[str, Sequence[str]], Bench] | None = None
    """Make it a comparison with other sources, of named parts or all."""
    in_folder: bool = False
    """Whether `parts` also gets a folder, in which a job that was stopped goes on."""


@dataclass(frozen=True, slots=True)
class Took:
    cpu_s: float
    wall_s: float
    peak_mib: float


def run(bench: Bench, *, size: str, repeat: int) -> Result:
    # Each side collects garbage before its clock starts. In a test worker of a whole session that takes a second, and
    # `bodies` has a thousand sides: what is there already is not looked through again.
    gc.collect()
    gc.freeze()
    try:
        return Result(
            name=bench.name,
            size=size,
            machine=machine(),
            taken_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            repeat=repeat,
            figures=[figure for part in bench.parts(size) for figure in figures(part, repeat)],
        )
    finally:
        gc.unfreeze()


def figures(part: Part, repeat: int) -> list[Figure]:
    match part:
        case Figure():
            return [part]
        case Pair():
            return [compared(part, repeat)]
        case take:
            return take(repeat)


def compared(pair: Pair, repeat: int) -> Figure:
    """One run of each is thrown away: imports, caches and page faults are not what is compared."""
    ours: list[Took] = []
    floors: list[Took] = []
    for _ in range(repeat + 1):
        ours.append(timed(pair.ours))
        if pair.floor is not None:
            floors.append(timed(pair.floor))
    return Figure.taken(pair.what, ours[1:], floors[1:], limit=pair.limit, peak_limit_mib=pair.peak_limit_mib)


def timed(side: Side) -> Took:
    """CPU of the whole process: a driver's threads count too."""
    with side() as work:
        gc.collect()
        cpu, wall = work.cpu_s(), time.perf_counter()
        work.run()
        return Took(work.cpu_s() - cpu, time.perf_counter() - wall, work.peak_mib())


def in_process(module: str, *arguments: object) -> bytes:
    """Run a module of `bench` in a process of its own, whose time and memory are not ours, and return its output."""
    command = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()}, {platform.machine()}, Python {platform.python_version()}"
