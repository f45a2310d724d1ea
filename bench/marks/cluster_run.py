"""The work of `cluster` in processes of its own: `python -m bench.marks.cluster_run WHAT GIVEN`, GIVEN a `Given` as
JSON.

    make    the repository, embedded, in a data folder that no server serves yet
    plan    one application of Spark on the cluster that GIVEN names; prints, as JSON, what each kind of plan took

Slices hold 10,000 objects each. Of a hundred objects 94 are committed, one is staged, and five are named by nothing.
Each range has objects of up to twenty slices. The first commit has all ranges; each later one lacks a little more, up
to half, which the head lacks. All but the head have expired. Lifecycle rules take about half of the ranges.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from bench.collecting.listing import s3_options
from bench.http import family, peak_mib
from lakebed.base import Entry, MetarangeId, slice_name, to_row
from lakebed.client import Client, Credentials
from lakebed.gc import Collector
from lakebed.gc.engines import Task
from lakebed.gc.engines.files import Lake
from lakebed.gc.engines.spark import frame
from lakebed.gc.live import CollectionService, PolicyBook
from lakebed.gc.mark.sets.bucketed import SHARES
from lakebed.gc.messages import Mode, PlanRequest, RunKind
from lakebed.gc.rules import DAY_MS, days_rules
from lakebed.objectstore import ObjectStore, ObjectStoreOptions
from lakebed.ranges import RangeInfo, encode_metarange, encode_range, metarange_key, range_key
from lakebed.server import ServerOptions, opened, prepare_folder
from lakebed.versions import EXCLUSIVE, Commit, SliceRecord, SliceState, encode_cell, encode_record, keys

from .mark_inputs import FIRST_SLICE, entries_of
from .mark_session import family_cpu_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY: Final = "bench"
URI: Final = "s3://lake/lake"
PER_SLICE: Final = 10_000
SLICES_OF_A_RANGE: Final = 20
OBJECTS_A_COMMIT: Final = 100_000
WRITTEN_DAYS: Final = 70
FIRST_COMMIT_DAYS: Final = 60
RULES: Final = days_rules(7)
POLL_S: Final = 0.1
WARMING: Final = 8
"""Small tasks for each core before anything is timed."""

_sequences = np.arange(PER_SLICE)
GARBAGE: Final = _sequences[_sequences % 20 == 7]
STAGED: Final = _sequences[_sequences % 100 == 50]
COMMITTED: Final = np.setdiff1d(_sequences, np.concatenate((GARBAGE, STAGED)))


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """`settings` are those of Spark, `package` the zip for its workers. For `make` both are empty, and so is `key`."""

    data: str
    s3_endpoint: str
    objects: int
    kinds: tuple[RunKind, ...] = ()
    endpoint: str = ""
    key: tuple[str, str] = ("", "")
    settings: dict[str, str] = {}
    package: str = ""

    @property
    def objectstore(self) -> ObjectStoreOptions:
        return s3_options(self.s3_endpoint)

    @property
    def slices(self) -> int:
        return self.objects // PER_SLICE


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    kind: RunKind
    wall_s: float
    driver_cpu_s: float
    objects: int


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """`driver_mib` is the peak of the driver, its Python and its JVM together."""

    plans: list[Planned]
    driver_mib: float


# The repository


async def make(given: Given) -> None:
    data = Path(given.data)
    prepare_folder(data)
    now_ms = time.time_ns() // 1_000_000
    options = ServerOptions(data_dir=data, blockstore="s3", objectstore=given.objectstore)
    async with opened(options) as state:
        repository = await state.catalog.create(REPOSITORY, storage_namespace=URI, default_branch="main")
        versions = repository.versions
        numbers = range(FIRST_SLICE, FIRST_SLICE + given.slices)
        record = encode_record(SliceRecord(state=SliceState.CLOSED, owner="bench", opened_ms=now_ms - DAY_MS))
        slices = [(keys.SLICE + slice_name(number).encode(), record) for number in numbers]
        await versions.store.set_many(versions.partition, slices)
        [(_, main)] = await versions.context.branches.every()
        for number in numbers:
            cells = [_staged(number, sequence, now_ms) for sequence in STAGED.tolist()]
            await versions.store.set_many(keys.token_partition(versions.uid, main.staging_token), cells)
        ranges = [await _put_range(versions.objectstore, number, given, now_ms) for number in range(given.slices)]
        commits = await _commits(versions.objectstore, ranges, given, now_ms)
        items = [(keys.COMMIT + commit.id.encode(), encode_record(commit)) for commit in commits]
        await versions.store.set_many(versions.partition, items)
        head = msgspec.structs.replace(main, commit_id=commits[-1].id)
        await versions.store.set(versions.partition, keys.BRANCH + b"main", encode_record(head))
        await CollectionService(versions).rules.write(RULES)
        await PolicyBook(versions).write(msgspec.json.encode(policy(given)))


def policy(given: Given) -> dict[str, object]:
    """Ranges have four digits: a prefix up to the first of those that differ takes a tenth of them."""
    zeros = "0" * (4 - len(str(given.slices - 1)))
    return {f"old-{digit}": {"prefix": f"lake/table-{zeros}{digit}", "days": 30} for digit in range(10 // 2)}


def _staged(number: int, sequence: int, now_ms: int) -> tuple[bytes, bytes]:
    key = f"staged/{number - FIRST_SLICE:06d}/{sequence:05d}".encode()
    address = f"data/{slice_name(number)}/{sequence:08d}"
    entry = Entry(address=address, size_bytes=1, checksum="ab" * 16, modified_ms=now_ms - WRITTEN_DAYS * DAY_MS)
    return key, encode_cell(EXCLUSIVE, to_row(key, entry))


async def _put_range(store: ObjectStore, number: int, given: Given, now_ms: int) -> RangeInfo:
    """Ranges of a group of slices: each has every so-many-th object of each of them."""
    first = number - number % SLICES_OF_A_RANGE
    group = np.arange(first, min(first + SLICES_OF_A_RANGE, given.slices))
    of_each = COMMITTED[number - first :: len(group)]
    slices, sequences = np.repeat(group + FIRST_SLICE, len(of_each)), np.tile(of_each, len(group))
    rows = entries_of(number, slices, sequences, None)
    place = rows.schema.get_field_index("modified_ms")
    written = pa.array(np.full(len(slices), now_ms - WRITTEN_DAYS * DAY_MS))
    info, data = encode_range(rows.set_column(place, rows.schema.field(place), written))
    await store.put(range_key(info.id), data)
    return info


async def _commits(store: ObjectStore, ranges: list[RangeInfo], given: Given, now_ms: int) -> list[Commit]:
    """From the first to the head."""
    going = [number for number in range(len(ranges)) if number % 2]
    count = max(2, given.objects // OBJECTS_A_COMMIT)
    commits: list[Commit] = []
    for number in range(count):
        gone = {*going[: len(going) * number // (count - 1)]}
        id_, data = encode_metarange([info for at, info in enumerate(ranges) if at not in gone])
        await store.put(metarange_key(id_), data)
        commit = Commit(
            generation=number + 2,
            message="bench",
            committer="bench",
            created_ms=now_ms - FIRST_COMMIT_DAYS * DAY_MS + number * DAY_MS * 10 // count,
            metarange_id=MetarangeId(id_),
            parents=(commits[-1].id,) if commits else (),
            metadata={},
            made_for="main",
            nonce=f"{number:020d}",
            published=True,
        )
        commits.append(commit)
    return commits


# The application


def plan(given: Given) -> Ran:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bench")
    for name, value in given.settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    plans = []
    try:
        spark.sparkContext.addPyFile(given.package)
        credentials = Credentials(access_key_id=given.key[0], secret_access_key=given.key[1])
        with Client(given.endpoint, credentials) as client:
            collector = Collector(
                client=client,
                repository=REPOSITORY,
                objectstore=given.objectstore,
                session=lambda: spark,
                progress=lambda line: print(f"{time.monotonic():.1f} {line}", file=sys.stderr),
            )
            wait_for_executors(spark, given)
            for kind in given.kinds:
                began_s, cpu_s = time.perf_counter(), family_cpu_s()
                mode = Mode.CLEAN if kind is RunKind.UNCOMMITTED else Mode.AUTOMATIC
                [made] = collector.plan(PlanRequest(kinds=(kind,), mode=mode))
                plans.append(
                    Planned(
                        kind=kind,
                        wall_s=time.perf_counter() - began_s,
                        driver_cpu_s=family_cpu_s() - cpu_s,
                        objects=made.totals.all.objects,
                    )
                )
        driver_mib = sum(peak_mib(pid) for pid in family(os.getpid()))
    finally:
        spark.stop()
    return Ran(plans=plans, driver_mib=driver_mib)


def wait_for_executors(spark: SparkSession, given: Given) -> None:
    """Wait until each core of the cluster has an executor whose Python worker loaded all that tasks use, and opened the
    object store. Starting them is not timed.
    """
    cores = int(given.settings["spark.cores.max"])

    async def touch(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        import lakebed.gc.machine.flow  # noqa: F401 - a worker loads it with the first task that needs it

        await task.store.level("_lakefs/retention/")
        yield share

    while spark.sparkContext.defaultParallelism < cores:
        time.sleep(POLL_S)
    rows = SHARES.rows({"first": [*range(WARMING * cores)], "behind": [*range(WARMING * cores)]})
    frame(spark, Lake(uri=URI, options=given.objectstore), touch, rows, SHARES, tasks=rows.num_rows).count()


def main(what: str, given: Given) -> None:
    if what == "make":
        asyncio.run(make(given))
    else:
        print(msgspec.json.encode(plan(given)).decode())


if __name__ == "__main__":
    main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Given))
