"""The listing of `_lakefs/` in a plan of metadata, dealt to tasks: seconds, memory of the driver and of a task, and how
even the shares are. 1 M and 9 M keys, two tasks and sixteen; two run at once.

`python -m bench special [KEYS…]`. Each task is a process of its own (`python -m bench.special KEYS TASKS TASK`), which
derives the work as the driver does and runs its share alone. Nobody holds the keys: the store of each process makes up
pages as they are asked for, and drops the files that tasks write. So what a page costs an object store is not here.

Of nine keys seven are ranges, one is a metarange and one a sublist. Their names are as even as digests.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from lakebed.gc.engines import Effort, LocalEngine, Task, Work
from lakebed.gc.engines.tables import Table
from lakebed.gc.mark.inputs.special import SPECIAL_PREFIX, TREE_FOLDERS, list_special
from lakebed.objectstore import MemoryObjectStore, ObjectStat
from lakebed.objectstore.store import Body, Stored
from lakebed.runtime import live_ports

from .harness import Bench, Figure, own_peak_mib

KEYS: Final = {"small": (27_000,), "full": (1_000_000, 9_000_000)}
TASKS: Final = {"small": (2,), "full": (2, 16)}
AT_ONCE: Final = 2
NINTHS: Final = dict(zip(TREE_FOLDERS, (1, 7, 1), strict=True))
INTO: Final = f"{SPECIAL_PREFIX}retention/gc/metadata/bench/special/"
PAGE: Final = 1_000
UNEVEN_MAX: Final = 1.2
"""What the fullest share may have of a mean one."""
PEAK_MIB: Final = 500.0
_BITS: Final = 60


class ListedTrees(MemoryObjectStore):
    """Files of trees that are only listed. What is put is dropped."""

    def __init__(self, keys: int) -> None:
        super().__init__("mem://special")
        self._counts = {folder: keys * ninths // 9 for folder, ninths in NINTHS.items()}

    @property
    def count(self) -> int:
        return sum(self._counts.values())

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        keys = self._keys(prefix, start_after)
        while page := [ObjectStat(key=key, size_bytes=4_096, modified_ms=1) for key in islice(keys, PAGE)]:
            yield page

    def _keys(self, prefix: str, after: str) -> Iterator[str]:
        for folder, count in self._counts.items():
            if folder.startswith(prefix):
                name = partial(_key, folder, (1 << _BITS) // count)
                yield from map(name, range(bisect_right(range(count), after, key=name), count))

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        stored = await super().put(key, body, size_bytes=size_bytes, if_absent=if_absent)
        del self.objects[key]
        return stored


def _key(folder: str, step: int, number: int) -> str:
    """Somewhere in the number's step, as a digest is: two neighbours may lie close or far."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 % (1 << 64)
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    return f"{folder}{number * step + mixed % step:015x}{mixed * mixed % (1 << 196):049x}.parquet"


class OneShare:
    """In a task's process: runs one share of the driver's work, and keeps what it found."""

    def __init__(self, store: ListedTrees, shares: int, number: int) -> None:
        self._store = store
        self._shares, self._number = shares, number
        self.ran = Ran()

    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:  # noqa: ARG002 - the port's
        share = rows.take(pa.array(range(self._number, rows.num_rows, self._shares)))
        began = time.process_time()
        found = [table async for table in work(Task(store=self._store, ports=live_ports()), share)]
        table = pa.concat_tables([out.schema.empty_table(), *found]).select(out.schema.names)
        self.ran = Ran(table.to_pylist(), time.process_time() - began, own_peak_mib())
        return table

    run_deleting = LocalEngine.run_deleting


class Ran(msgspec.Struct, frozen=True):
    """`rows` are those of PARTS."""

    rows: list[dict[str, Any]] = []
    cpu_s: float = 0.0
    peak_mib: float = 0.0

    @property
    def keys(self) -> int:
        return sum(row["rows"] for row in self.rows)


class Processes:
    """In the driver: runs each share in a process of its own, AT_ONCE at a time."""

    def __init__(self, keys: int, shares: int) -> None:
        self._keys, self._shares = keys, shares
        self.ran: list[Ran] = []

    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:  # noqa: ARG002 - the port's
        assert rows.num_rows >= self._shares, rows.num_rows
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Ran:
            command = ["-m", "bench.special", str(self._keys), str(self._shares), str(number)]
            async with turns:
                process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
                printed, _ = await process.communicate()
            assert process.returncode == 0, command
            return msgspec.msgpack.decode(printed, type=Ran)

        self.ran = await asyncio.gather(*map(one, range(self._shares)))
        return pa.Table.from_pylist([row for ran in self.ran for row in ran.rows], schema=out.schema)

    run_deleting = LocalEngine.run_deleting


class Took(NamedTuple):
    """`uneven` is what the fullest share has of a mean one."""

    wall_s: float
    cpu_s: float
    driver_cpu_s: float
    uneven: float
    task_mib: float


async def listed(keys: int, tasks: int) -> Took:
    store, engine = ListedTrees(keys), Processes(keys, tasks)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = await list_special(engine, store, folder=INTO)
    wall_s, driver_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    assert (found.files_count, found.unknown_files.count) == (store.count, 0), found.files_count
    shares = [ran.keys for ran in engine.ran]
    cpu_s = driver_cpu_s + sum(ran.cpu_s for ran in engine.ran)
    return Took(wall_s, cpu_s, driver_cpu_s, max(shares) * tasks / sum(shares), max(ran.peak_mib for ran in engine.ran))


async def run_share(keys: int, tasks: int, task: int) -> Ran:
    store = ListedTrees(keys)
    engine = OneShare(store, tasks, task)
    await list_special(engine, store, folder=INTO)
    return engine.ran


def figures(keys: int, tasks: int, repeat: int) -> list[Figure]:
    took = [asyncio.run(listed(keys, tasks)) for _ in range(repeat)]
    figure = partial(_figure, f"special {keys:,} keys, {tasks} tasks", took)
    return [
        figure("on the wall", [one.wall_s for one in took], "s"),
        figure("CPU of the tasks", [one.cpu_s - one.driver_cpu_s for one in took], "s"),
        figure("CPU of the driver", [one.driver_cpu_s for one in took], "s", peak_limit_mib=PEAK_MIB),
        figure("memory of a task", [one.task_mib for one in took], "MiB", limit=PEAK_MIB),
        figure("fullest share", [one.uneven for one in took], "×", limit=UNEVEN_MAX),
    ]


def _figure(
    of: str,
    took: Sequence[Took],
    what: str,
    values: Sequence[float],
    unit: str,
    *,
    limit: float | None = None,
    peak_limit_mib: float | None = None,
) -> Figure:
    return Figure(
        what=f"{of}: {what}",
        value=statistics.median(values),
        value_min=min(values),
        value_max=max(values),
        unit=unit,
        limit=limit,
        cpu_s=statistics.median(one.cpu_s for one in took),
        wall_s=statistics.median(one.wall_s for one in took),
        peak_mib=own_peak_mib(),
        peak_limit_mib=peak_limit_mib,
    )


def parts(counts: Sequence[int], size: str) -> Iterator[Callable[[int], list[Figure]]]:
    for keys in counts:
        for tasks in TASKS[size]:
            yield partial(figures, keys, tasks)


BENCH = Bench(
    name="special",
    parts=lambda size: parts(KEYS[size], size),
    narrowed=lambda given: Bench(name="special", parts=partial(parts, [int(one) for one in given])),
)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.msgpack.encode(asyncio.run(run_share(*map(int, sys.argv[1:4])))))
