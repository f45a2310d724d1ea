"""The sweep of a plan in S3, and each deletion recorded: read a part, check it, delete it in batches, write its ledger.

The floor has its keys in memory already. Not timed: filling the server (bench/s3.py, a process of its own for each run,
50 ms a bulk delete) and writing the plan.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
from obstore.store import S3Store

from bench.harness import Bench, Figure, Work, timed
from bench.s3 import BUCKET, NOW_MS
from lakebed.base import RunId, slice_number
from lakebed.gc import messages
from lakebed.gc.engines import ROWS_PER_PART, Task
from lakebed.gc.engines.engine import no_others
from lakebed.gc.engines.files import Lake
from lakebed.gc.kinds.committed.plan import Committed
from lakebed.gc.machine.sweep import sweep_part
from lakebed.gc.mark.holding import Held
from lakebed.gc.runs.context import Fence
from lakebed.gc.runs.recording import Gone, Ledger
from lakebed.objectstore import open_deleter
from lakebed.runtime import live_ports

from .listing import PREFIX, bare_client, names_of, s3_server

SIZES = {"small": (4, 500), "full": (200, 500)}
CLIENTS = 16
BATCH = 1000
TASKS = 2
DELETE_MS = 50
LIMIT = 1.25


def plan_of(names: list[str], objects: int) -> pa.Table:
    """GARBAGE: all there is."""
    slices = np.repeat(slice_number(opened_at_ms=NOW_MS, random_bits=0) + np.arange(len(names)), objects)
    sequences = np.tile(np.arange(objects), len(names))
    rows = len(slices)
    columns: dict[str, Any] = {
        "address": keys_of(names, objects),
        "slice": slices,
        "sequence": sequences.astype(np.int32),
        "size_bytes": np.ones(rows, np.int64),
        "last_seen_at": np.full(rows, NOW_MS),
    }
    same = {"reason": "unreferenced", "rule": "", "path": ""}
    columns |= {name: pa.repeat(text, rows) for name, text in same.items()}
    columns |= no_others(rows)
    schema = messages.arrow_schema(messages.GARBAGE)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def keys_of(names: list[str], objects: int) -> list[str]:
    return [f"data/{name}/{sequence:08d}" for name in names for sequence in range(objects)]


async def write_plan(lake: Lake, rows: pa.Table) -> messages.Manifest:
    """In parts as plans have them."""
    store, parts = lake.open(), []
    folder = messages.input_folder(messages.RunKind.UNCOMMITTED, RunId("bench"), "garbage")
    for number, start in enumerate(range(0, rows.num_rows, ROWS_PER_PART)):
        part_rows = rows.slice(start, ROWS_PER_PART)
        data = messages.encode_part(messages.GARBAGE, part_rows)
        parts.append(messages.part_of(messages.part_name(number), data, rows=part_rows.num_rows))
        await store.put(folder + parts[-1].name, data)
    await store.close()
    return messages.manifest_of(messages.GARBAGE, folder, parts)


async def sweep(lake: Lake, plan: messages.Manifest) -> None:
    store, ledger = lake.open(), Ledger(run_id="bench", date="2026-11-21")
    deleter = open_deleter(lake.uri, lake.options)
    task, rule = Task(store=store, ports=live_ports()), Committed().rule
    one = partial(sweep_part, rule=rule, fence=Fence(key=messages.next_claim([])), held=Held(), gone=Gone())

    async def share(number: int) -> int:
        """The work of one task: its parts, one after the other."""
        swept = [await one(task, deleter, plan, part, ledger) for part in plan.parts[number::TASKS]]
        return sum(each.objects_deleted for each in swept)

    deleted = await asyncio.gather(*map(share, range(TASKS)))
    await store.close()
    assert sum(deleted) == plan.rows, deleted


async def delete_bare(client: S3Store, keys: list[str]) -> None:
    batches = iter([keys[start : start + BATCH] for start in range(0, len(keys), BATCH)])

    async def one() -> None:
        for batch in batches:
            await obstore.delete_async(client, batch)

    await asyncio.gather(*(one() for _ in range(CLIENTS)))


def take(size: str, repeat: int) -> list[Figure]:
    slices, objects = SIZES[size]
    names = names_of(slices)
    rows, keys = plan_of(names, objects), [f"{PREFIX}/{key}" for key in keys_of(names, objects)]

    @contextmanager
    def ours() -> Iterator[Work]:
        with s3_server(slices, objects, delete_ms=DELETE_MS) as options:
            lake = Lake(uri=f"s3://{BUCKET}/{PREFIX}", options=options)
            plan = asyncio.run(write_plan(lake, rows))
            yield Work(run=lambda: asyncio.run(sweep(lake, plan)))

    @contextmanager
    def floor() -> Iterator[Work]:
        with s3_server(slices, objects, delete_ms=DELETE_MS) as options:
            client = bare_client(options)
            yield Work(run=lambda: asyncio.run(delete_bare(client, keys)))

    # One run of each is thrown away, as everywhere.
    took, floors = zip(*[(timed(ours), timed(floor)) for _ in range(repeat + 1)][1:], strict=True)
    walls, floor_walls = ([each.wall_s for each in side] for side in (took, floors))
    cpu_s, what = statistics.median(each.cpu_s for each in took), f"sweep, {len(keys)} deletions, seconds on the wall"
    return [Figure.of(what, walls, floor_walls, wall_s=walls, limit=LIMIT, cpu_s=cpu_s)]


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    yield partial(take, size)


BENCH = Bench(name="sweep", parts=parts)
