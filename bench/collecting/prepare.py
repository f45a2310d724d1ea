"""Writing down uncommitted objects for a collector, page by page as it asks for them; embedded, everything durable.

Each page is one Parquet file of about 20 MB, and ends with a token from which the next goes on. One object in a
thousand is foreign. The cells are staged by a process of its own, so that neither its time nor its memory counts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Bench, Figure, Work, in_process, timed
from lakebed.base import FOREIGN_SLICE, RepositoryUid, Row, slice_number
from lakebed.gc.live import CollectionService
from lakebed.gc.messages import ReadUncommitted, RunKind, StartRun
from lakebed.kv import open_store
from lakebed.objectstore import ObjectStoreOptions, open_objectstore
from lakebed.runtime import live_ports
from lakebed.versions import EXCLUSIVE, TreeCache, Trees, Versions, encode_cell, keys

OBJECTS = {"small": 20_000, "full": 5_000_000}
BRANCHES = {"small": 20, "full": 1_000}
CPU_S, PEAK_MIB = 30.0, 500.0
SLICE = slice_number(opened_at_ms=1_790_000_000_000, random_bits=1)


@contextmanager
def opened(folder: Path, *, cache_bytes: int = 64 << 20) -> Iterator[tuple[asyncio.Runner, Versions]]:
    """The repository, and the loop that its store lives in."""
    store = open_store(f"sqlite://{folder}/kv.db")
    objectstore = open_objectstore("local://bench/x", ObjectStoreOptions(local_root=folder))
    ports = live_ports()
    trees = Trees(objectstore, TreeCache(cache_bytes), ports)
    versions = Versions(uid=RepositoryUid("bench"), store=store, objectstore=objectstore, trees=trees, ports=ports)
    with asyncio.Runner() as runner:
        yield runner, versions
        runner.run(store.close())
        runner.run(objectstore.close())


async def stage(versions: Versions, objects: int, branches: int) -> None:
    await versions.commits.initialise("main")
    for number in range(1, branches):
        await versions.refs.create_branch(f"branch-{number:05d}", "main")
    each = objects // branches
    for number, (_, record) in enumerate([*await versions.context.branches.every()]):
        cells = [cell(number * each + at) for at in range(each)]
        await versions.store.set_many(keys.token_partition(versions.uid, record.staging_token), cells)


def cell(number: int) -> tuple[bytes, bytes]:
    key = f"events/day={number // 400:05d}/part-{number % 400:05d}-{number * 2654435761 % 2**32:010d}.parquet"
    slice_, sequence, address = SLICE + number // 10_000, number % 10_000, ""
    if number % 1_000 == 999:
        slice_, sequence, address = FOREIGN_SLICE, 0, f"s3://elsewhere/{key}"
    modified_ms = 1_790_000_000_000 + number
    row: Row = (number, slice_, sequence, address, 1_000_000, f"{number:032x}", modified_ms, "text/csv", b"")
    return key.encode(), encode_cell(EXCLUSIVE, row)


async def prepare(service: CollectionService) -> tuple[int, list[int]]:
    """The rows written, and the sizes of the files in order."""
    run = await service.start(StartRun(kind=RunKind.UNCOMMITTED))
    token: str | None = None
    while True:
        page = await service.read_uncommitted(run.run_id, ReadUncommitted(continuation_token=token))
        token = page.continuation_token
        if page.manifest is not None:
            await service.abandon(run.run_id)
            return page.manifest.rows, [part.size_bytes for part in page.manifest.parts]


@contextmanager
def ours(folder: Path, objects: int) -> Iterator[Work]:
    with opened(folder) as (runner, versions):

        def run() -> None:
            rows, sizes = runner.run(prepare(CollectionService(versions)))
            assert rows == objects, (rows, objects)
            assert all(19_000_000 < size < 22_000_000 for size in sizes[:-1]), sizes

        yield Work(run=run)


def take(folder: Path, objects: int, branches: int, repeat: int) -> list[Figure]:
    took = [timed(partial(ours, folder, objects)) for _ in range(repeat)]
    what = f"prepare: {objects:,} objects on {branches:,} branches"
    return [Figure.taken(what, took, limit=CPU_S, peak_limit_mib=PEAK_MIB)]


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    objects, branches = OBJECTS[size], BRANCHES[size]
    with tempfile.TemporaryDirectory() as folder:
        in_process("collecting.prepare", folder, objects, branches)
        yield partial(take, Path(folder), objects, branches)


BENCH = Bench(name="prepare", parts=parts)


if __name__ == "__main__":
    with opened(Path(sys.argv[1])) as (runner, versions):
        runner.run(stage(versions, int(sys.argv[2]), int(sys.argv[3])))
