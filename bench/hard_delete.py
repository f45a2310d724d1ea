"""Deleting at once: what it costs an overwrite storm, how much of the garbage goes, and what a move costs.

In this process, over SQLite and a folder, without HTTP, which would hide the cost: 16 writers overwrite 100 paths, with
hard delete off and on, in turn; on, the worker's deletes and its ledger are in the figure. Then moves of staged objects
beside as many shallow copies.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from lakebed.base import Entry
from lakebed.server import AppState, ServerOptions, opened, prepare_folder
from lakebed.versions import Versions

from .harness import Bench, Figure

WRITERS, PATHS = 16, 100
WRITES = {"small": 400, "full": 8_000}
MOVES = {"small": 50, "full": 10_000}
TURNS = {"small": 1, "full": 3}
STEP_S = 0.25


def parts(size: str) -> Iterator[Figure]:
    off = on = gone = copies = moves = float("inf")
    for _ in range(TURNS[size]):
        off = min(off, asyncio.run(_storm(WRITES[size], is_on=False))[0])
        cpu_s, share = asyncio.run(_storm(WRITES[size], is_on=True))
        on, gone = min(on, cpu_s), min(gone, share)
        copied_s, moved_s = asyncio.run(_moves(MOVES[size]))
        copies, moves = min(copies, copied_s), min(moves, moved_s)
    what = f"hard-delete overwrite, {WRITES[size]} writes by {WRITERS}: CPU, on by off"
    yield _figure(what, on / off, 1.3 if size == "full" else None)
    # What stays is what did not go: a limit is the most that a figure may be.
    yield _figure("hard-delete garbage: % of what was overwritten that stays", 100 * (1 - gone), 0.1)
    what = f"hard-delete move, {MOVES[size]} staged objects: CPU, by shallow copies"
    yield _figure(what, moves / copies, 1.5 if size == "full" else None)


def _figure(what: str, value: float, limit: float | None) -> Figure:
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figure(what=what, value=value, unit="", limit=limit, cpu_s=0.0, wall_s=0.0, peak_mib=peak_mib)


@asynccontextmanager
async def _repository() -> AsyncIterator[tuple[AppState, Versions]]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        prepare_folder(data)
        async with opened(ServerOptions(data_dir=data)) as state:
            repository = await state.catalog.create("lake", storage_namespace="local://bench/x", default_branch="main")
            yield state, repository.versions


async def _storm(writes: int, *, is_on: bool) -> tuple[float, float]:
    """Return the CPU seconds, and which share of the garbage is gone."""
    async with _repository() as (state, versions):
        await versions.hard_delete.change(by="bench", is_on=is_on, grace_s=0)
        state.hard_deleting.linger_ms = 0
        began_s = time.process_time()
        worker = asyncio.create_task(_work(state)) if is_on else None
        await _each(writes, lambda number: _put(versions, f"{number % PATHS}"))
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            await state.hard_deleting.step(float("inf"))
        cpu_s = time.process_time() - began_s
        left = len([stat async for page in versions.objectstore.list("data/") for stat in page])
        return cpu_s, (writes - left) / (writes - PATHS)


async def _work(state: AppState) -> None:
    while True:
        await asyncio.sleep(STEP_S)
        await state.hard_deleting.step(float("inf"))


async def _moves(count: int) -> tuple[float, float]:
    async with _repository() as (_, versions):
        await _each(2 * count, lambda number: _put(versions, f"from/{number}"))

        async def copy(number: int) -> None:
            await versions.copies.copy("main", _key("from", number), "main", _key("copy", number), shallow=True)

        async def move(number: int) -> None:
            await versions.moves.move("main", _key("from", count + number), "main", _key("to", number))

        spent: list[float] = []
        for deed in (copy, move):
            began_s = time.process_time()
            await _each(count, deed)
            spent.append(time.process_time() - began_s)
        return spent[0], spent[1]


def _key(folder: str, number: int) -> bytes:
    return f"{folder}/{number}".encode()


async def _each(count: int, deed: Callable[[int], Awaitable[object]]) -> None:
    async def strand(first: int) -> None:
        for number in range(first, count, WRITERS):
            await deed(number)

    await asyncio.gather(*map(strand, range(WRITERS)))


async def _put(versions: Versions, path: str) -> None:
    async def store_body(address: str) -> Entry:
        stored = await versions.objectstore.put(address, b"bytes")
        return Entry(address=address, size_bytes=stored.size_bytes, checksum=address, modified_ms=0)

    await versions.staging.upload("main", path.encode(), store_body)


BENCH = Bench(name="hard-delete", parts=parts)
