"""Time each database for what a server asks of it, on loopback, with the tests' own servers.

One store in one process, small values: reads and conditional writes one after the other, 16 tasks that read or write
new keys at once, a batch of 1,000, and a scan of it. Most of the time is the database's, so times are on the wall; our
own is the last figure of each. Cassandra and DynamoDB keep their files in memory here, the emulators of Bigtable and
Spanner and the server of MongoDB's protocol keep none: these figures compare drivers, not databases. Databases of which
only a double of ours is there are left out.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakebed.kv import Store, open_store
from lakebed.kv.opening import sqlite_uri
from tests.kv.servers import DATABASES, DOUBLES, database

from .harness import Bench, Figure, own_peak_mib

TIMES = {"small": 20, "full": 200}
BATCH = {"small": 100, "full": 1000}
SMALL = ("sqlite", "redis")
"""A small size runs with the tests, over databases that start at once."""
TASKS = 16
VALUE = bytes(200)
P = b"partition"
CPU_LIMIT_MS = 5.0

Operation = Callable[[int], Awaitable[object]]


def parts(size: str) -> Iterator[Figure]:
    for name in SMALL if size == "small" else ("sqlite", *DATABASES):
        if name in DOUBLES:
            continue
        try:
            with opened(name) as uri:
                yield from measured(name, uri, TIMES[size], BATCH[size])
        except pytest.skip.Exception as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)


@contextmanager
def opened(name: str) -> Iterator[str]:
    """Start the database, and yield the URI of an empty store in it."""
    if name == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield sqlite_uri(Path(folder) / "kv.db")
    else:
        with database(name) as uri_of:
            yield uri_of("bench")


def measured(name: str, uri: str, times: int, batch: int) -> list[Figure]:
    """Take the figures of one database."""
    store = open_store(uri)

    async def work() -> list[tuple[str, float]]:
        try:
            return await timed(store, times, batch)
        finally:
            await store.close()

    began, cpu = time.perf_counter(), time.process_time()
    found = asyncio.run(work())
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    operations = 4 * times + 3
    found.append(("our CPU an operation", 1000 * cpu_s / operations))
    return [
        Figure(
            what=f"kv, {name}, {what}",
            value=value,
            unit="ms",
            limit=CPU_LIMIT_MS if "CPU" in what else None,
            cpu_s=cpu_s,
            wall_s=wall_s,
            peak_mib=own_peak_mib(),
        )
        for what, value in found
    ]


async def timed(store: Store, times: int, batch: int) -> list[tuple[str, float]]:
    """Time each kind of operation. Returns milliseconds for one."""
    items = [(b"key %06d" % number, VALUE) for number in range(batch)]
    await store.set(b"warm", b"key", VALUE)
    await store.scan(b"warm", b"", 1)

    async def one(operation: Operation, count: int, tasks: int) -> float:
        ahead = iter(range(count))

        async def task() -> None:
            for number in ahead:
                await operation(number)

        began = time.perf_counter()
        await asyncio.gather(*(task() for _ in range(tasks)))
        return 1000 * (time.perf_counter() - began) / count

    return [
        (f"set_many of {batch}", await one(lambda _: store.set_many(P, items), 1, 1)),
        (f"scan of {batch}", await one(lambda _: store.scan(P, b"", batch), 1, 1)),
        ("get", await one(lambda number: store.get(P, items[number % batch][0]), times, 1)),
        (f"get, {TASKS} at once", await one(lambda number: store.get(P, items[number % batch][0]), times, TASKS)),
        ("set_if", await one(lambda number: store.set_if(P, b"one %06d" % number, VALUE, None), times, 1)),
        (
            f"set_if, {TASKS} at once",
            await one(lambda number: store.set_if(P, b"many %06d" % number, VALUE, None), times, TASKS),
        ),
    ]


BENCH = Bench(name="kv", parts=parts)
