"""A repository that is lost while an apply of it waits, and made again in its namespace from a dump.

The installation of now has a key-value store of its own and the namespace of before. It makes the repository bare,
restores the dump, and is adopted. The process that applies is of before: it knows nothing of that. Or it asks by name,
and reaches whichever has the name.

No process can stop the batch of deletes that is under way (docs/guide/dumps.md). So each batch notes whether
the repository had been made again before its fence was looked at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from explorer.actors import Actor, Ending, Violation
from lakebed.base import Conflict, Denied, NotFound
from lakebed.catalog import Catalog, DumpIds, Repository
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.kinds.erasure.plan import Erasure
from lakebed.gc.live import CollectionService, Installation
from lakebed.gc.live.records.settings import RuleBook
from lakebed.gc.machine import flow
from lakebed.gc.messages import APPLYING_PREFIX, ErasureOrder, RunKind, Service, UncommittedOptions
from lakebed.gc.rules import MetadataRule, Rules, Selection
from lakebed.gc.runs.context import RunContext, list_plans
from lakebed.objectstore import DeleteFailure, ObjectStat
from lakebed.versions import Versions, decode_cell, is_gone, keys
from sim.checkers.deleted import ONE
from sim.ports.ports import SimPorts, SimStore
from sim.ports.scene import Quick, Scene
from sim.scenes.collecting import OPTIONS, context_of
from sim.scenes.doing import note
from sim.scenes.repositories import NAME, Namespace, acting, catalog_of

from .deleted import DAY_MS, NamespaceDeleter, make

_NOW: Final = b"now:"
_NOTES: Final = b"(made again)"
"""A partition of the simulation's own: the ids of the dump, and whether the repository was made again."""
_IDS: Final = b"ids"
_MADE: Final = b"made"
_COPIED: Final = b"copied"
"""There if a client copies, in the repository of before and in that of now."""


class _Noting(Namespace):
    """Notes, before a fence is looked at, whether the repository had been made again."""

    __slots__ = ("_store", "was_made")

    def __init__(self, ports: SimPorts) -> None:
        super().__init__(ports, ONE)
        self._store = ports.store
        self.was_made = False

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        if prefix == APPLYING_PREFIX and start_after:
            self.was_made = await self._store.get(_NOTES, _MADE) is not None
        async for page in super().list(prefix, start_after=start_after):
            yield page


class _Deleter(NamespaceDeleter):
    """Deletes, unless that is a violation."""

    def __init__(self, store: _Noting) -> None:
        super().__init__(store.own)
        self._noting = store

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        if self._noting.was_made:
            raise Violation(f"a batch began after the repository was made again: {list(keys)}")
        return await super().delete(keys)


class _ByName:
    """The live side that has the name when it is asked."""

    def __init__(self, ports: SimPorts, before: CollectionService) -> None:
        self._ports = ports
        self._before = before

    def __getattr__(self, method: str) -> Any:
        async def ask(*arguments: Any) -> Any:
            service = self._before
            if await self._ports.store.get(_NOTES, _MADE) is not None:
                service = CollectionService((await _catalog_of_now(self._ports).get(NAME)).versions, OPTIONS)
            return await getattr(service, method)(*arguments)

        return ask


def _catalog_of_now(ports: SimPorts) -> Catalog:
    return catalog_of(ports, SimStore(whole_batches=True, own=ports.store.own, beneath=_NOW))


async def _prepare(ports: SimPorts) -> None:
    """Make a repository whose first commit expired, a dump of when that was its head, and a plan that takes it."""
    made = await _dumped(ports, "a")
    await made.versions.staging.delete("main", b"a")
    await made.versions.commits.commit("main", note("n"))
    await made.versions.slices.end()
    await RuleBook(made.versions).write(Rules(default="1d"))
    ports.clock.ms += 30 * DAY_MS
    plan = await flow.plan(await _context(ports), kind_to_plan(RunKind.COMMITTED, UncommittedOptions(), MetadataRule()))
    assert plan.totals.all.objects == 1, "the object of the first commit"


async def _dumped(ports: SimPorts, path: str) -> Repository:
    """Make a repository that has a commit with this path, and a dump of it, whose ids are noted."""
    made = await make(ports, committed={path: b"1"})
    ids = await made.dumps.dump()
    await ports.store.set(_NOTES, _IDS, msgspec.json.encode([ids.commits, ids.tags, ids.branches]))
    return made


async def _prepare_ordered(ports: SimPorts) -> None:
    """Make a repository that has `b` in its head, a dump of it, a copy of that staged at `a`, and an erasure of `a`
    that takes the object though `b` shares it.
    """
    made = await _dumped(ports, "b")
    await _copy(made.versions)
    await ports.store.set(_NOTES, _COPIED, b"")
    await made.versions.slices.end()
    order = ErasureOrder(selection=Selection(paths=("a",)), why="simulated", takes_shared=True)
    plan = await flow.plan(await _context(ports), Erasure(order))
    assert plan.totals.all.objects == 1, "the object of both"


async def _copy(versions: Versions) -> None:
    await versions.copies.copy("main", b"b", "main", b"a", shallow=True)


async def _context(ports: SimPorts) -> RunContext:
    store = _Noting(ports)
    service = CollectionService((await catalog_of(ports).get(NAME)).versions, OPTIONS)
    engine = LocalEngine(store, ports.ports, open_deleter=lambda: _Deleter(store))
    return context_of(service, store, ports.ports, engine, repository=NAME)


async def _apply(ports: SimPorts, *, by_name: bool) -> None:
    ports.clock.ms += 30 * DAY_MS
    context = await _context(ports)
    if by_name:
        before = context.service.requests
        assert isinstance(before, CollectionService)
        asking: Any = _ByName(ports, before)
        context = replace(context, service=Service(asking))
    with suppress(NotFound, Conflict, Denied):
        for run_id in await list_plans(context.store):
            await flow.apply(context, run_id, grace_s=1)


async def _distrust(versions: Versions) -> None:
    await Installation(versions).distrust(default_branch="main")


async def _make_again(ports: SimPorts) -> None:
    ports.clock.ms += 30 * DAY_MS
    held = await ports.store.get(_NOTES, _IDS)
    assert held is not None, "prepared"
    commits, tags, branches = msgspec.json.decode(held.value, type=list[str])
    made = await _catalog_of_now(ports).create(NAME, storage_namespace=ONE, bare=_distrust)
    await ports.store.set(_NOTES, _MADE, b"")
    await made.dumps.restore(DumpIds(commits=commits, tags=tags, branches=branches))
    await CollectionService(made.versions, OPTIONS).adopting()
    if await ports.store.get(_NOTES, _COPIED) is not None:
        await _copy(made.versions)


def nothing_of_before_is_carried_out(ending: Ending) -> None:
    """Check that the repository of now has no record of a run. It began none."""
    for partition, cells in ending.disk.cells.items():
        if partition.startswith(_NOW) and (runs := [key for key in cells if key.startswith(keys.RUN)]):
            raise Violation(f"the repository of now has {runs}, of the one before")


def what_is_staged_now_stays(ending: Ending) -> None:
    """Check that the repository of now lost no staged entry to an erasure that was ordered in the one before."""
    tokens = [cells for partition, cells in ending.disk.cells.items() if partition.startswith(_NOW)]
    staged = [decode_cell(cells[b"a"]) for cells in tokens if b"a" in cells]
    if ending.acknowledged("restore") and all(is_gone(flags) for flags, _ in staged):
        raise Violation("an erasure of the repository before deleted what is staged in the one of now")


def made_again_scenes() -> Iterator[Scene]:
    checks = (nothing_of_before_is_carried_out,)
    for who, prepare in (
        ("apply that waits", _prepare),
        ("apply that asks by name", _prepare),
        ("apply of an erasure that asks by name", _prepare_ordered),
    ):
        applier = acting("run", partial(_apply, by_name="by name" in who))
        yield Scene(
            name=f"{who}, maker of its repository again",
            actors=(Actor("r", applier), Actor("n", acting("restore", _make_again))),
            prepare=prepare,
            checks=checks if prepare is _prepare else (*checks, what_is_staged_now_stays),
            is_lock_free=False,
            keeps_order=False,
            foresees=True,
            quick=Quick.NO_LOSS,
        )
