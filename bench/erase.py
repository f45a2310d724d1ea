"""The plan of an erasure: 1,000 paths, each in another range, among 30,000 commits and 50 M rows in 5,000 ranges.

By the local engine in this process; what the server would answer lies in files (`bench.mark_inputs` makes the rows). A
commit has 20 to 25 ranges, and its metarange is its own. Not timed: generating all that, by other processes.

Sketch: 30,000 metaranges at 0.1 ms 3 s; 1,000 ranges that meet, 10,000 rows each, read twice at 1.2 ms 2.5; of the
other 4,000 the end, 0.3 ms each, 1.2; marking 1; a look at each of 1,000 objects 0.2.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa

from lakebed.base import RunId, format_address, slice_name
from lakebed.gc import messages
from lakebed.gc.api.collector import silent
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.machine import flow
from lakebed.gc.messages import (
    ErasureOrder,
    Manifest,
    PlannedBy,
    PreparedCommits,
    Requests,
    RunKind,
    RunState,
    RunView,
    Service,
    StagedEntry,
    StartedRun,
)
from lakebed.gc.rules import Selection
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import Deleter, ObjectStore
from lakebed.ranges import RangeInfo, encode_metarange, encode_range, metarange_key, range_key
from lakebed.runtime import live_ports

from .harness import Bench, Single, Work
from .mark_inputs import FIRST_SLICE, NOW_MS, PER_RANGE, entries_of, lake_in

RANGES: Final = {"small": 50, "full": 5_000}
COMMITS: Final = {"small": 60, "full": 30_000}
PATHS: Final = {"small": 8, "full": 1_000}
RANGES_OF_A_COMMIT: Final = 20
RANGES_TOGETHER: Final = 100


class Recorded(Service):
    """A service that has read everything already, and answers by files. Nothing is staged, queued or deferred."""

    def __init__(self, commits: Manifest, run: StartedRun) -> None:
        super().__init__(cast("Requests", None))
        self._commits, self._run = commits, run

    async def start(self, kind: RunKind) -> StartedRun:  # noqa: ARG002 - there is one run
        return self._run

    async def planned(self, run_id: str, kind: RunKind, plan: str) -> PlannedBy:  # noqa: ARG002 - no one else applies it
        return PlannedBy(run_id=run_id, by="bench", is_own=True)

    async def staged(self, run_id: str, selection: Selection, **how: Any) -> tuple[StagedEntry, ...]:  # noqa: ARG002 - nothing is staged
        return ()

    async def staged_and_others(
        self,
        run_id: str,  # noqa: ARG002 - as above
        selection: Selection,  # noqa: ARG002 - as above
    ) -> tuple[tuple[StagedEntry, ...], Manifest | None]:
        return (), None

    async def commits_for_erasure(self, run_id: str) -> PreparedCommits:
        refs = messages.manifest_of(messages.REFS, messages.input_folder(RunKind.ERASURE, RunId(run_id), "refs"), [])
        return PreparedCommits(run_id=run_id, commits=self._commits, refs=refs, rules=None, rules_version=0)

    async def runs(self) -> tuple[RunView, ...]:
        return ()


@contextmanager
def ours(folder: Path, ranges: int, paths: int) -> Iterator[Work]:
    commits = msgspec.json.decode((folder / "commits.json").read_bytes(), type=Manifest)
    order = ErasureOrder(
        selection=Selection(
            paths=tuple(
                f"lake/table-{number * ranges // paths:04d}/part-{number:05d}.parquet" for number in range(paths)
            )
        ),
        why="bench",
    )
    objects = [(FIRST_SLICE + number * ranges // paths, number) for number in range(paths)]
    asyncio.run(_put(folder, [format_address(*place) for place in objects]))
    numbers = count()
    slices = tuple(slice_name(FIRST_SLICE + number) for number in range(ranges))

    async def plan() -> int:
        store = lake_in(folder).open()
        run_id = f"erase{next(numbers):03d}"
        run = StartedRun(
            run_id=run_id,
            kind=RunKind.ERASURE,
            state=RunState.PLANNING,
            namespace=store.uri,
            folder=messages.run_folder(RunKind.ERASURE, RunId(run_id)),
            now_ms=NOW_MS,
            closed_slices=slices,
        )
        made = await flow.plan(_context(store, Recorded(commits, run)), Erasure(order))
        await store.close()
        assert made.outlook is not None
        assert not made.outlook.unmatched
        return made.totals.all.objects

    def run() -> None:
        assert asyncio.run(plan()) == paths

    yield Work(run=run)


async def _put(folder: Path, addresses: Sequence[str]) -> None:
    """Put the objects that go: a plan asks for each. All others are entries without an object."""
    store = lake_in(folder).open()
    for address in addresses:
        await store.put(address, b"-")
    await store.close()


def _context(store: ObjectStore, service: Service) -> RunContext:
    def refuse() -> Deleter:
        raise AssertionError("a plan deletes nothing")

    ports = live_ports()
    engine = LocalEngine(store, ports, open_deleter=refuse)
    return RunContext(repository="bench", service=service, engine=engine, store=store, ports=ports, progress=silent)


def make(folder: Path, ranges: int, commits: int) -> None:
    batches = [(start, min(start + RANGES_TOGETHER, ranges)) for start in range(0, ranges, RANGES_TOGETHER)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_ranges, folder, *batch) for batch in batches]
        infos = [info for future in futures for info in future.result()]
    manifest = asyncio.run(_commits(folder, infos, commits))
    (folder / "commits.json").write_bytes(msgspec.json.encode(manifest))


def _ranges(folder: Path, first: int, behind: int) -> list[RangeInfo]:
    """Each with the objects of a slice of its own."""
    sequences = np.arange(PER_RANGE)

    async def write() -> list[RangeInfo]:
        store = lake_in(folder).open()
        made = []
        for number in range(first, behind):
            slices = np.full(PER_RANGE, FIRST_SLICE + number)
            info, data = encode_range(entries_of(number, slices, sequences, None))
            await store.put(range_key(info.id), data)
            made.append(info)
        await store.close()
        return made

    return asyncio.run(write())


async def _commits(folder: Path, infos: Sequence[RangeInfo], commits: int) -> Manifest:
    """A commit has 20 neighbours, and one more in each turn over all ranges: so no two have one metarange."""
    store = lake_in(folder).open()
    into = messages.input_folder(RunKind.ERASURE, RunId("bench"), messages.COMMITS.name)
    metaranges = []
    for number in range(commits):
        turn, start = divmod(number, len(infos))
        places = {(start + place) % len(infos) for place in range(RANGES_OF_A_COMMIT + turn)}
        id_, data = encode_metarange([infos[place] for place in sorted(places)])
        await store.put(metarange_key(id_), data)
        metaranges.append(id_)
    schema = messages.arrow_schema(messages.COMMITS)

    same: dict[str, object] = {
        "generation": 0,
        "creation_date": NOW_MS,
        "parents": [],
        "swept": False,
        "expiring": False,
    }
    columns: dict[str, list[object]] = {name: [value] * commits for name, value in same.items()}
    columns |= {"id": [f"{number:064x}" for number in range(commits)], "metarange_id": [*metaranges]}
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    data = messages.encode_part(messages.COMMITS, table)
    part = messages.part_of(messages.part_name(0), data, rows=commits)
    await store.put(into + part.name, data)
    await store.close()
    return messages.manifest_of(messages.COMMITS, into, [part])


def parts(size: str) -> Iterator[Single]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        numbers = [str(RANGES[size]), str(COMMITS[size])]
        subprocess.run([sys.executable, "-m", "bench.erase", name, *numbers], check=True)
        yield Single(
            what=f"erase: {PATHS[size]:,} paths, {COMMITS[size]:,} commits, {RANGES[size] * PER_RANGE:,} rows",
            limit=10.0,
            ours=partial(ours, folder, RANGES[size], PATHS[size]),
        )


BENCH = Bench(name="erase", parts=parts)


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
