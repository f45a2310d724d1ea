"""Deleting at once: what it costs an overwrite storm, how much of the garbage goes, and what a move costs.

In this process, over SQLite and a folder, without HTTP, which would hide the cost: 16 writers overwrite 100 paths, with
hard delete off and on, in turn; on, the worker's deletes and its ledger are in the figure. Then moves of staged objects
beside as many shallow copies.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from lakebed.base import Entry
from lakebed.server import AppState, ServerOptions, opened, prepare_folder
from lakebed.versions import Versions

from .harness import Bench, Figure, Pair, Part, Side, Work, timed

WRITERS, PATHS = 16, 100
WRITES = {"small": 400, "full": 8_000}
MOVES = {"small": 50, "full": 10_000}
STEP_S = 0.25


def parts(size: str) -> Iterator[Part]:
    writes, moves = WRITES[size], MOVES[size]
    yield Pair(
        what=f"hard-delete overwrite, {writes} writes by {WRITERS}: CPU, on by off",
        limit=1.3,
        ours=_storm(writes, is_on=True),
        floor=_storm(writes, is_on=False),
    )
    yield from _left(writes)
    yield Pair(
        what=f"hard-delete move, {moves} staged objects: CPU, by shallow copies",
        limit=1.5,
        ours=_all_of(moves, _move),
        floor=_all_of(moves, _copy),
    )


def _left(writes: int) -> Iterator[Figure]:
    """A limit is the most that a figure may be: so what did not go counts."""
    shares: list[float] = []
    took = timed(_storm(writes, is_on=True, left=shares))
    for what, share, limit in zip(
        (
            "pace: % of it that waits as the storm ends",
            "garbage: % of what was overwritten that stays",
        ),
        shares,
        (None, 0.1),
        strict=True,
    ):
        yield Figure(
            what=f"hard-delete {what}",
            value=100 * share,
            unit="%",
            limit=limit,
            cpu_s=took.cpu_s,
            wall_s=took.wall_s,
            peak_mib=took.peak_mib,
        )


@asynccontextmanager
async def _repository() -> AsyncIterator[tuple[AppState, Versions]]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        prepare_folder(data)
        async with opened(ServerOptions(data_dir=data)) as state:
            repository = await state.catalog.create("lake", storage_namespace="local://bench/x", default_branch="main")
            yield state, repository.versions


@contextmanager
def _ready(prepare: Callable[[Versions], Awaitable[None]]) -> Iterator[tuple[asyncio.Runner, AppState, Versions]]:
    """A repository that is prepared, and the loop that it lives on."""
    with asyncio.Runner() as runner:
        opening = _repository()
        state, versions = runner.run(opening.__aenter__())
        try:
            runner.run(_awaited(prepare(versions)))
            yield runner, state, versions
        finally:
            runner.run(_awaited(opening.__aexit__(None, None, None)))


async def _awaited(awaitable: Awaitable[object]) -> None:
    await awaitable


def _storm(writes: int, *, is_on: bool, left: list[float] | None = None) -> Side:
    """Overwrite the paths. `left` gets the share of the garbage that is there at the end of the storm, and later."""

    async def prepare(versions: Versions) -> None:
        await versions.hard_delete.change(by="bench", is_on=is_on, grace_s=0)

    async def storm(state: AppState, versions: Versions) -> None:
        state.hard_deleting.linger_ms = 0
        worker = asyncio.create_task(_work(state)) if is_on else None
        await _each(writes, lambda number: _put(versions, f"{number % PATHS}"))
        if left is not None:
            left.append(await share_left(versions))
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            await state.hard_deleting.step(float("inf"))
        if left is not None:
            left.append(await share_left(versions))

    async def share_left(versions: Versions) -> float:
        objects = len([stat async for page in versions.objectstore.list("data/") for stat in page])
        return (objects - PATHS) / (writes - PATHS)

    @contextmanager
    def side() -> Iterator[Work]:
        with _ready(prepare) as (runner, state, versions):
            yield Work(run=lambda: runner.run(storm(state, versions)))

    return side


async def _work(state: AppState) -> None:
    while True:
        await asyncio.sleep(STEP_S)
        await state.hard_deleting.step(float("inf"))


def _all_of(count: int, deed: Callable[[Versions, int], Awaitable[object]]) -> Side:
    async def prepare(versions: Versions) -> None:
        await _each(count, lambda number: _put(versions, f"from/{number}"))

    @contextmanager
    def side() -> Iterator[Work]:
        with _ready(prepare) as (runner, _, versions):
            yield Work(run=lambda: runner.run(_each(count, lambda number: deed(versions, number))))

    return side


def _copy(versions: Versions, number: int) -> Awaitable[object]:
    return versions.copies.copy("main", _key("from", number), "main", _key("to", number), shallow=True)


def _move(versions: Versions, number: int) -> Awaitable[object]:
    return versions.moves.move("main", _key("from", number), "main", _key("to", number))


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
