"""Sandboxes made and ended: CPU for each, and that nothing is left. Embedded, everything durable, no HTTP.

All of a size are there at once, so that a look at all of them, for each one that is made or ended, would show. Users,
keys, records of sandboxes, sessions, branches and objects of the store are counted before and after. What stays of a
branch is its note and its log, as of each deleted branch. `python -m bench.embedded.sandboxes 100000` makes and ends so
many.

Sketch: a branch made and deleted 15 durable writes, its key pair and its record 10; a sealed secret 0.1 ms.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final

from bench.harness import Bench, Figure, own_peak_mib
from lakebed.auth import PARTITION, Ref, SandboxRecord
from lakebed.base import in_waves
from lakebed.kv import scan_prefix
from lakebed.server import AppState, ServerOptions, opened

COUNTS: Final = {"small": 20, "full": 10_000}
LIMIT_MS: Final = 10.0
"""Of CPU, to make a sandbox, and to end it."""
DAY_MS: Final = 86_400_000


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    def take(repeat: int) -> list[Figure]:
        taken = [asyncio.run(_round(COUNTS[size])) for _ in range(repeat)]
        return [_figure(what, [each[place] for each in taken]) for place, what in enumerate(("made", "ended"))]

    yield take


async def _round(count: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return CPU and wall milliseconds for each sandbox made, and for each ended."""
    with tempfile.TemporaryDirectory() as folder:
        async with opened(ServerOptions(data_dir=Path(folder), blockstore="local")) as state:
            lake = await state.catalog.create("lake", storage_namespace="local://lake", default_branch="main")
            before = await _records(state)

            async def make(_: int) -> SandboxRecord:
                record, _issued = await state.sandboxes.create(
                    lake,
                    state.sandboxes.fresh_id(),
                    source="main",
                    read=Ref.of_branch("main"),
                    lasts_ms=DAY_MS,
                    by="bench",
                )
                return record

            async def end(record: SandboxRecord) -> None:
                await state.sandboxes.end(lake, record.id, by="bench")

            started = _now()
            made = await in_waves(state.ports.tasks, range(count), make)
            between = _now()
            await in_waves(state.ports.tasks, made, end)
            ended = _now()
            left = await _records(state) - before
            assert not left, f"of {count} sandboxes there is left: {left}"
            return _each(started, between, count), _each(between, ended, count)


async def _records(state: AppState) -> Counter[str]:
    records = [key.split(b"/")[0].decode() async for key, _ in scan_prefix(state.store, PARTITION, b"")]
    lake = await state.catalog.get("lake")
    branches = await lake.versions.context.branches.every()
    objects = [one async for page in lake.objectstore.list("") for one in page]
    return Counter([*records, *("branch" for _ in branches), *("object" for _ in objects)])


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _each(start: tuple[float, float], end: tuple[float, float], count: int) -> tuple[float, float]:
    return (end[0] - start[0]) * 1000 / count, (end[1] - start[1]) * 1000 / count


def _figure(what: str, taken: list[tuple[float, float]]) -> Figure:
    cpu_ms = [cpu for cpu, _ in taken]
    return Figure(
        what=f"sandboxes: {what}",
        value=median(cpu_ms),
        value_min=min(cpu_ms),
        value_max=max(cpu_ms),
        unit="ms",
        limit=LIMIT_MS,
        cpu_s=median(cpu_ms) / 1000,
        wall_s=median(wall for _, wall in taken) / 1000,
        peak_mib=own_peak_mib(),
    )


BENCH = Bench(name="sandboxes", parts=parts)


if __name__ == "__main__":
    (made_cpu_ms, _), (ended_cpu_ms, _) = asyncio.run(_round(int(sys.argv[1])))
    print(
        f"{sys.argv[1]} sandboxes: {made_cpu_ms:.2f} ms of CPU to make one, {ended_cpu_ms:.2f} ms to end it, none left"
    )
