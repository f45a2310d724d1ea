"""Compare each driver with its database's own client library, called directly; and time it, on loopback.

`kv DRIVER OPERATION CALLERS`: CPU of this process for get, set, set_if of new keys and a scan of 1,000, by 1, 16 and 64
callers at once. The floor does the same with the client library alone (`kv_bare.py`), over the same rows. The servers
are those of the tests: Cassandra and DynamoDB keep their files in memory here, the emulators of Bigtable and Spanner
and the server of MongoDB's protocol keep none: figures compare clients, not databases. Databases of which only a double
of ours is there are left out.

The other figures are times on the wall for what a server asks of a store, and our own CPU for one operation.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakebed.kv import Store, open_store
from lakebed.kv.opening import sqlite_uri
from tests.kv.servers import DATABASES, DOUBLES, database

from .harness import Bench, Figure, Pair, Part, Work, compared, own_peak_mib
from .kv_bare import Bare, bare

TIMES = {"small": 20, "full": 200}
BATCH = {"small": 100, "full": 1000}
SMALL = ("sqlite", "redis")
"""A small size runs with the tests, over databases that start at once."""
TASKS = 16
VALUE = bytes(200)
P = b"partition"
OPERATIONS = ("get", "set", "set_if", "scan")
CALLERS = {"small": (2,), "full": (1, 16, 64)}
EACH = {"small": 8, "full": 320}
"""Calls of one run. A scan counts for 20."""
LIMIT = 1.5
CPU_LIMIT_MS = 5.0

Operation = Callable[[int], Awaitable[object]]


def parts(size: str) -> Iterator[Part]:
    for name in SMALL if size == "small" else ("sqlite", *DATABASES):
        if name in DOUBLES:
            continue
        try:
            with opened(name) as uri:
                yield from measured(name, uri, TIMES[size], BATCH[size])
                yield from beside(name, uri, size)
        except pytest.skip.Exception as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)


def narrowed(of: Sequence[str]) -> Bench:
    """Make the bench of one driver, perhaps of one operation, perhaps of one number of callers.

    Raises:
        ValueError: there is no such driver or operation.
    """
    name, operation, callers = (*of, "", "")[:3] if len(of) <= 3 else ("", "", "")
    if name not in DATABASES or (operation or "get") not in OPERATIONS or (callers and not callers.isdecimal()):
        raise ValueError(f"DRIVER [OPERATION [CALLERS]]: {', '.join(DATABASES)}; {', '.join(OPERATIONS)}; a number")

    def parts(size: str) -> Iterator[Part]:
        with opened(name) as uri:
            yield from beside(name, uri, size, operation, int(callers or 0))

    return Bench(name="kv", parts=parts)


def beside(name: str, uri: str, size: str, operation: str = "", callers: int = 0) -> Iterator[Part]:
    """Compare the driver with its client library, in one event loop: connections belong to theirs."""
    with asyncio.Runner() as runner:
        for count in [callers] if callers else CALLERS[size]:
            # First ours, which makes the table: a library may ask for it as it connects.
            store = open_store(f"{uri}{'&' if '?' in uri else '?'}{connections_of(name, count)}".rstrip("?&"))
            floor = runner.run(bare(uri, count))
            if floor is None:
                runner.run(store.close())
                return
            rows = [(b"key %06d" % number, VALUE) for number in range(BATCH["full"])]
            runner.run(store.set_many(P, rows))
            try:
                for each in [operation] if operation else OPERATIONS:
                    pair = pair_of(f"kv {name} {each} {count}", runner, store, floor, each, count, EACH[size])
                    yield lambda repeat, pair=pair: [compared(pair, repeat)]  # type: ignore[misc]  # as in list.py
            finally:
                runner.run(floor.close())
                runner.run(store.close())


def connections_of(name: str, callers: int) -> str:
    """Give the driver as many connections as there are callers, where it has a pool: so has its library."""
    pooled = ("postgres", "redis", "mysql", "mongodb", "dynamodb", "etcd", "hbase")
    return f"connections={max(callers, 4)}" if name in pooled else ""


_numbers = itertools.count()


def pair_of(
    what: str, runner: asyncio.Runner, store: Store, floor: Bare, operation: str, callers: int, each: int
) -> Pair:
    new = (b"new %09d" % number for number in _numbers)
    old = itertools.cycle([b"key %06d" % number for number in range(BATCH["full"])])
    rows = BATCH["full"]
    ours: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: store.get(P, next(old)),
        "set": lambda: store.set(P, next(old), VALUE),
        "set_if": lambda: store.set_if(P, next(new), VALUE, None),
        "scan": lambda: store.scan(P, b"", rows),
    }
    theirs: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: floor.get(next(old)),
        "set": lambda: floor.set(next(old), VALUE),
        "set_if": lambda: floor.create(next(new), VALUE),
        "scan": lambda: floor.scan(rows + 1),
    }
    count = max(each // 20, callers) if operation == "scan" else each

    async def load(one: Callable[[], Awaitable[object]]) -> None:
        ahead = iter(range(count))

        async def caller() -> None:
            for _ in ahead:
                await one()

        await asyncio.gather(*(caller() for _ in range(callers)))

    @contextmanager
    def side(one: Callable[[], Awaitable[object]]) -> Iterator[Work]:
        yield Work(run=lambda: runner.run(load(one)))

    return Pair(what=what, limit=LIMIT, ours=lambda: side(ours[operation]), floor=lambda: side(theirs[operation]))


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


BENCH = Bench(name="kv", parts=parts, narrowed=narrowed)
