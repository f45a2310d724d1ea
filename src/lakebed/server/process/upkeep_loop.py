"""Clean the key-value store regularly, beside answering.

Each step is idempotent and safe to run in parallel, so every process runs all of them, at its own times. A step that
fails is logged and tried again the next time. No promise to users depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from lakebed.base import LakebedError, Unavailable, in_words
from lakebed.catalog import Repository
from lakebed.gc.live import CollectionService, Installation, OtherInstallation
from lakebed.hooks import Runs
from lakebed.quotas import Books, CountOvertaken, NoQuota, of_repository
from lakebed.sandboxes import Agents
from lakebed.server.state import AppState

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
AT_ONCE: Final = 4
"""Work on this many repositories beside each other, in each step: a bucket that hangs does so until its time limit."""

Step: TypeAlias = Callable[[AppState], Awaitable[None]]


async def clean_catalog(state: AppState) -> None:
    """Finish repository deletions that a crash interrupted."""
    await state.catalog.clean()


async def _in_each(state: AppState, work: Callable[[Repository], Awaitable[object]]) -> None:
    """Work on each repository, up to `AT_ONCE` beside each other.

    One that fails, as where its bucket is gone, keeps no other from its upkeep. One whose bucket hangs holds its place
    until the time limit of the store, and this step ends no earlier.

    Raises:
        LakebedError: at the end, of one that failed.
    """
    failed: LakebedError | None = None
    free = asyncio.Semaphore(AT_ONCE)

    async def work_on(repository: Repository) -> None:
        nonlocal failed
        try:
            await work(repository)
        except LakebedError as error:
            logger.warning("upkeep: repository %s: %s", repository.id, error)
            failed = error
        except Exception as error:  # a bug in one repository, as in `_take`
            if not threading.main_thread().is_alive():
                raise
            logger.exception("upkeep: repository %s failed", repository.id)
            failed = Unavailable(f"repository {repository.id}: {in_words(error)}")
        finally:
            free.release()

    async with asyncio.TaskGroup() as group:
        async for repository in state.catalog.each():
            await free.acquire()
            group.create_task(work_on(repository))
    if failed is not None:
        raise failed


async def clean_versions(state: AppState) -> None:
    """Clean up retired tokens, finished records, half-made refs, and abandoned multipart uploads."""

    async def clean(repository: Repository) -> None:
        await repository.versions.cleanup.clean()
        await repository.versions.parts.clean()

    await _in_each(state, clean)


async def clean_imports(state: AppState) -> None:
    """End imports whose server is gone, with their branches. Remove old task records."""

    async def clean(repository: Repository) -> None:
        await repository.imports.clean()
        await repository.tasks.clean()

    await _in_each(state, clean)


async def end_sandboxes(state: AppState) -> None:
    """End sandboxes that are due, that lost their branch, or whose making or end a crash interrupted."""
    await state.sandboxes.clean()
    await Agents(state.store, state.ports, state.sandboxes).clean()


async def settle_tables(state: AppState) -> None:
    """Commit the files of tables that engines wrote, and forget those that runs took."""
    await _in_each(state, lambda repository: repository.tables.settle())


async def clean_hook_runs(state: AppState) -> None:
    """Remove old runs of hooks, with their output."""
    await _in_each(state, lambda repository: Runs(repository.versions).clean())


async def clean_events(state: AppState) -> None:
    """Remove old events, also of repositories whose last subscription ended."""
    await _in_each(state, lambda repository: repository.versions.outbox.clean())


async def settle_quotas(state: AppState) -> None:
    """Give back what idle writers were granted."""
    await state.catalog.meter.settle()


async def count_quotas(state: AppState) -> None:
    """Count repositories again whose objects were deleted."""
    books = Books(state.catalog.meter)

    async def count(repository: Repository) -> None:
        uid = repository.versions.uid
        with suppress(CountOvertaken, NoQuota):
            if await books.is_due(of_repository(uid)):
                await books.count_stored(uid, repository.objectstore)

    await _in_each(state, count)


async def abandon_dead_runs(state: AppState) -> None:
    """Abandon runs that were left marking. While they seem active, finished records of uploads and copies are kept."""
    await _in_each(state, lambda repository: CollectionService(repository.versions).abandon_dead_runs())


async def close_slices_for_runs(state: AppState) -> None:
    """Close slices that runs wait for: a collection reads only closed slices, and any process may get its request."""
    await _in_each(state, lambda repository: CollectionService(repository.versions).close_slices_for_runs())


async def say_alive(state: AppState, *, at_start: bool = False) -> None:
    """Record that this installation is alive, so that a copy of its key-value store elsewhere does not collect
    here.
    """

    async def say(repository: Repository) -> None:
        try:
            await Installation(repository.versions).say_alive(at_start=at_start)
        except (OtherInstallation, Unavailable) as error:
            logger.warning("upkeep: repository %s: %s", repository.id, error)

    await _in_each(state, say)


STEPS: Final[tuple[Step, ...]] = (
    clean_catalog,
    clean_versions,
    clean_imports,
    settle_tables,
    clean_hook_runs,
    clean_events,
    settle_quotas,
    abandon_dead_runs,
    close_slices_for_runs,
    say_alive,
)
APART: Final[tuple[Step, ...]] = (end_sandboxes, count_quotas)
"""Steps that wait for hooks of users, which may hang, or that list whole stores: each takes its own time."""


async def run_upkeep(state: AppState, *, interval_s: float = INTERVAL_S) -> None:
    """Run all steps repeatedly until cancelled. Processes run them at different times."""
    await _take(partial(say_alive, at_start=True), state)
    async with asyncio.TaskGroup() as group:
        for steps in (STEPS, *((step,) for step in APART)):
            group.create_task(_repeat(steps, state, interval_s))


async def _repeat(steps: Sequence[Step], state: AppState, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s * random.uniform(0.5, 1.5))  # noqa: S311  # no secret, only spread
        for step in steps:
            await _take(step, state)


async def _take(step: Step, state: AppState) -> None:
    name = getattr(getattr(step, "func", step), "__name__", "step")
    try:
        await step(state)
        state.metrics.upkeep_done_s[name] = state.ports.clock.now_ms() // 1000
    except LakebedError as error:
        state.metrics.upkeep_failures[name] += 1
        logger.warning("upkeep: %s: %s", name, error)
    except Exception:  # a bug in one step must not end the others, nor the server
        if not threading.main_thread().is_alive():
            return  # The program ends while its lake is open: no more threads can start.
        state.metrics.upkeep_failures[name] += 1
        logger.exception("upkeep: %s failed", name)
