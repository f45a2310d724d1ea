"""Memory of Spark's driver while a plan lists a million ranges and two, and tasks read them all.

The metaranges are files on disk, and no range that they name is read. Above IN_ROWS_MAX ranges a driver has the names
of files that tasks write. Few metaranges are read in the driver's own process, as a step of little effort: so a
million, in 200, take more of it than two million do. Each size runs in a process of its own.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from bench.harness import Bench, Figure, in_process
from bench.http import family, peak_mib, spent_s
from lakebed.base import MetarangeId, RangeId
from lakebed.gc import SessionOptions, local_session
from lakebed.gc.engines import Effort, Task
from lakebed.gc.engines.engine import RANGE_IDS
from lakebed.gc.engines.files import Files, Lake
from lakebed.gc.engines.spark import open_engine
from lakebed.gc.mark.holding import metaranges_of
from lakebed.gc.mark.inputs.ranges import ranges_in, read_ranges
from lakebed.gc.messages import EngineName
from lakebed.objectstore import ObjectStore, ObjectStoreOptions
from lakebed.ranges import RangeInfo, encode_metarange, metarange_key

RANGES: Final = {"small": (10_000,), "full": (1_000_000, 2_000_000)}
IN_A_TREE: Final = 5_000
ENTRIES: Final = 7_000
DRIVER_MIB: Final = 2048
EVERYTHING: Final = Effort(requests=10**9)


CORES: Final = 2
TASKS: Final = SessionOptions(cores=CORES).tasks


class Took(msgspec.Struct, frozen=True, kw_only=True):
    """`start_mib` is the peak when the session stood."""

    ranges: int
    start_mib: float
    listed_mib: float
    read_mib: float
    cpu_s: float
    wall_s: float


async def make(trees: int, store: ObjectStore) -> list[MetarangeId]:
    made = []
    for tree in range(trees):
        id_, data = encode_metarange([_range(tree, number) for number in range(IN_A_TREE)])
        await store.put(metarange_key(id_), data)
        made.append(id_)
    return made


def _range(tree: int, number: int) -> RangeInfo:
    key = b"%06d/%06d/" % (tree, number)
    return RangeInfo(
        id=RangeId(sha256(key).hexdigest()),
        min_key=key + b"a",
        max_key=key + b"z",
        count=ENTRIES,
        size_bytes=ENTRIES << 10,
        file_bytes=ENTRIES * 33,
    )


def lake_in(folder: Path) -> Lake:
    return Lake(uri="local://bench/ranges", options=ObjectStoreOptions(local_root=folder, local_durable=False))


def family_cpu_s() -> float:
    """Of this process and all below it, with threads and processes that have ended."""
    return sum(map(spent_s, family(os.getpid())))


def driver_mib() -> float:
    """The sum of the peaks of this process and the JVM, without the Python workers below that."""
    jvms = [pid for pid in family(os.getpid()) if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
    return peak_mib(os.getpid()) + sum(map(peak_mib, jvms))


async def count(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
    ranges = await ranges_in(task, share)
    yield RANGE_IDS.rows({"range_id": [str(ranges.num_rows)]})


def measure(folder: Path) -> Took:
    lake, ids = lake_in(folder), msgspec.json.decode((folder / "ids.json").read_bytes(), type=list[MetarangeId])
    with local_session(SessionOptions(cores=CORES), os.environ) as session, Files(lake) as files:
        session.spark.range(10).count()
        start, cpu, wall = driver_mib(), family_cpu_s(), time.perf_counter()

        async def listed_and_read(store: ObjectStore) -> tuple[int, float]:
            engine = open_engine(EngineName.SPARK, lake, store, session=lambda: session.spark, tasks=TASKS)
            live = metaranges_of(dict.fromkeys(ids, True))
            found = await read_ranges(engine, live, folder="_lakefs/bench/ranges/")
            listed = driver_mib()
            counts = await engine.run(count, found.rows, RANGE_IDS, effort=EVERYTHING)
            assert sum(map(int, counts["range_id"].to_pylist())) == found.count
            return found.count, listed

        ranges, listed = files.act(listed_and_read)
        return Took(
            ranges=ranges,
            start_mib=start,
            listed_mib=listed,
            read_mib=driver_mib(),
            cpu_s=family_cpu_s() - cpu,
            wall_s=time.perf_counter() - wall,
        )


def take(folder: Path, ranges: int, repeat: int) -> list[Figure]:
    took = [msgspec.json.decode(in_process("clusters.ranges", folder), type=Took) for _ in range(repeat)]
    assert {each.ranges for each in took} == {ranges}, took
    peaks = (("the session stood", "start_mib", None), ("they were listed", "listed_mib", None))
    return [
        Figure.of(
            f"ranges, {ranges:,}, driver when {when}",
            [getattr(each, name) for each in took],
            wall_s=[each.wall_s for each in took],
            unit="MiB",
            limit=limit,
            cpu_s=statistics.median(each.cpu_s for each in took),
            peak_mib=max(each.read_mib for each in took),
        )
        for when, name, limit in (*peaks, ("tasks had read them", "read_mib", DRIVER_MIB))
    ]


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    for ranges in RANGES[size]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with Files(lake_in(folder)) as files:
                ids = files.act(partial(make, ranges // IN_A_TREE))
            (folder / "ids.json").write_bytes(msgspec.json.encode(ids))
            yield partial(take, folder, ranges)


BENCH = Bench(name="ranges", parts=parts)


if __name__ == "__main__":
    print(msgspec.json.encode(measure(Path(sys.argv[1]))).decode())
