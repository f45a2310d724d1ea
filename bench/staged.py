"""A commit of much that is staged, embedded, nothing cached: CPU, memory, and for how long it lets no other task run.

`python -m bench staged [OBJECTS…]`, by default a million. A stretch is the CPU time of one callback of the event loop:
while it lasts the server answers no other request.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lakebed.base import RepositoryUid, to_row
from lakebed.kv import Store, open_store, sqlite_uri
from lakebed.objectstore import ObjectStoreOptions, open_objectstore
from lakebed.runtime import live_ports
from lakebed.versions import EXCLUSIVE, Note, TreeCache, Trees, Versions, encode_cell, keys

from .commit import rows
from .harness import Bench, Figure, own_peak_mib

OBJECTS: Final = {"small": 20_000, "full": 1_000_000}
STRETCH_MS_MAX: Final = 50
STAGED_TOGETHER: Final = 20_000
_RUN: Final = "_run"
"""The method through which a loop calls each callback. It is private, and there is no other place to look from."""


@dataclass(slots=True)
class Stretches:
    """CPU time of each callback of the loops that run meanwhile, in ms, where it took more than one."""

    found_ms: list[float] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        run = vars(asyncio.Handle)[_RUN]

        def timed(handle: asyncio.Handle) -> None:
            began_s = time.thread_time()
            run(handle)
            took_ms = (time.thread_time() - began_s) * 1000
            if took_ms > 1:
                self.found_ms.append(took_ms)

        setattr(asyncio.Handle, _RUN, timed)
        try:
            yield
        finally:
            setattr(asyncio.Handle, _RUN, run)


@dataclass(frozen=True, slots=True)
class Took:
    cpu_s: float
    wall_s: float
    longest_ms: float


async def commit(store: Store, folder: Path, count: int) -> Took:
    ports = live_ports()
    objectstore = open_objectstore("local://bench/staged", ObjectStoreOptions(local_root=folder))
    trees = Trees(objectstore, TreeCache(64 << 20), ports)
    versions = Versions(uid=RepositoryUid("bench"), store=store, objectstore=objectstore, trees=trees, ports=ports)
    await versions.commits.initialise("main")
    [(_, record)] = await versions.context.branches.every()
    partition = keys.token_partition(versions.uid, record.staging_token)
    for first in range(0, count, STAGED_TOGETHER):
        entries = rows(min(STAGED_TOGETHER, count - first), first=first)
        cells = [(key, encode_cell(EXCLUSIVE, to_row(key, entry))) for key, entry in entries]
        await store.set_many(partition, cells)
    del entries, cells
    gc.freeze()
    stretches = Stretches()
    began, began_s = time.process_time(), time.monotonic()
    with stretches.watching():
        await asyncio.create_task(versions.commits.commit("main", Note(message="bench", committer="bench")))
    return Took(time.process_time() - began, time.monotonic() - began_s, longest_ms=max(stretches.found_ms, default=0))


async def measured(count: int) -> Took:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(sqlite_uri(Path(folder) / "kv.db"))
        try:
            return await commit(store, Path(folder), count)
        finally:
            await store.close()


def figures(count: int, repeat: int) -> list[Figure]:
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)  # as the server sets it
    try:
        took = [asyncio.run(measured(count)) for _ in range(repeat)]
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
    cpu_s, wall_s = (
        statistics.median(values) for values in zip(*((one.cpu_s, one.wall_s) for one in took), strict=True)
    )
    longest_ms = [one.longest_ms for one in took]
    what = f"staged {count:,}"
    peak_mib = own_peak_mib()
    return [
        Figure(
            what=what,
            value=cpu_s,
            value_min=min(one.cpu_s for one in took),
            value_max=max(one.cpu_s for one in took),
            unit="s",
            cpu_s=cpu_s,
            wall_s=wall_s,
            peak_mib=peak_mib,
            peak_limit_mib=500,
        ),
        Figure(
            what=f"{what}, longest stretch",
            value=statistics.median(longest_ms),
            value_min=min(longest_ms),
            value_max=max(longest_ms),
            unit="ms",
            limit=STRETCH_MS_MAX,
            cpu_s=cpu_s,
            wall_s=wall_s,
            peak_mib=peak_mib,
        ),
    ]


def parts(counts: Sequence[int]) -> Iterator[Callable[[int], list[Figure]]]:
    for count in counts:
        yield lambda repeat, count=count: figures(count, repeat)  # type: ignore[misc]  # as in list.py


BENCH = Bench(
    name="staged",
    parts=lambda size: parts([OBJECTS[size]]),
    narrowed=lambda given: Bench(name="staged", parts=lambda _: parts([int(one) for one in given])),
)
