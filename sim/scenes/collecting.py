"""One process that collects: the shipped flow, the in-process service and the local engine, over simulated ports.

Nothing here decides anything: it hands the shipped code its ports. A run writes and reads dozens of files of its own; a
scene says which of these no other actor looks at (`ports.Private`), so that they are no steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from explorer.effects import effect
from lakebed.base import Clock, Conflict, NotFound, Ports
from lakebed.gc.engines import ROWS_PER_PART, LocalEngine
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.live import CollectionService, ServiceOptions
from lakebed.gc.live.installation.installation import INSTALLATION_KEY
from lakebed.gc.live.records.runs import RunBook
from lakebed.gc.live.records.settings import RuleBook
from lakebed.gc.machine import flow
from lakebed.gc.messages import (
    GC_PREFIX,
    INSTALLATION_PREFIX,
    LC_PREFIX,
    Mode,
    Plan,
    Requests,
    RunKind,
    RunReport,
    Service,
    UncommittedOptions,
)
from lakebed.gc.rules import MetadataRule, Rules
from lakebed.gc.runs.context import RunContext, list_plans
from lakebed.gc.runs.resume import UnfinishedRun, holding_runs, unfinished_runs
from lakebed.kv import Store
from lakebed.objectstore import Deleter, ObjectStore
from lakebed.versions import Versions
from sim.ports.ports import LEVELS, REPORTS, TREES, SimDeleter, SimObjectStore, set_ahead

DAY_MS: Final = 86_400_000
READERS: Final = b"(readers)"
"""A partition of the simulation's own: who is reading bytes. Only the grace of a run looks there."""

_INSTALLATION: Final = (INSTALLATION_KEY.decode(), INSTALLATION_PREFIX, LC_PREFIX)
PRIVATE: Final = (*_INSTALLATION, TREES, REPORTS, LEVELS, GC_PREFIX)
"""What one process that collects has to itself, in scenes that delete no tree."""
PRIVATE_BESIDE_TREES: Final = (*_INSTALLATION, LEVELS, GC_PREFIX)
"""Likewise in scenes that do."""
STEPS: Final = (*_INSTALLATION, TREES, REPORTS, LEVELS)
"""Each file of a run is a step."""

OPTIONS: Final = ServiceOptions(scan_page=100, dead_run_age_ms=0, dead_owner_age_ms=1 << 42, readers_grace_ms=0)
FENCING: Final = ServiceOptions(scan_page=100, dead_run_age_ms=0, dead_owner_age_ms=0, readers_grace_ms=0)
"""Takes every owner for dead."""
PAGED: Final = ServiceOptions(
    scan_page=1, page_rows=1, dead_run_age_ms=0, dead_owner_age_ms=1 << 42, readers_grace_ms=0
)
"""Reads one cell or record at a time."""

_UNCOMMITTED: Final = UncommittedOptions(clean_every=1 << 30, clean_after_ms=1 << 50)
"""No run is a clean one because that is due."""
_RULE: Final = MetadataRule(file_age_ms_min=-1, runs_newest=0, run_age_ms_min=-1)
"""Every file and every run is old."""


class Collecting:
    """`has_grace`: an apply waits for those whom it sees reading. A part of a plan has `rows_per_part` at most."""

    def __init__(
        self,
        repo: Versions,
        options: ServiceOptions = OPTIONS,
        *,
        has_grace: bool = False,
        open_deleter: Callable[[], Deleter] | None = None,
        rows_per_part: int = ROWS_PER_PART,
    ) -> None:
        store: object = repo.objectstore
        assert isinstance(store, SimObjectStore)
        clock: Clock = repo.ports.clock
        if has_grace:
            clock = _Grace(clock, repo.store)
        self.grace_s = 1 if has_grace else 0
        self.service = CollectionService(repo, options)
        self.runs = RunBook(repo, options)
        self.rules = RuleBook(repo)
        ports = Ports(clock, repo.ports.ids, repo.ports.tasks)
        opener = open_deleter or (lambda: SimDeleter(store.own))
        engine = LocalEngine(repo.objectstore, repo.ports, open_deleter=opener, rows_per_part=rows_per_part)
        self.context = context_of(self.service, repo.objectstore, ports, engine)

    async def plan(self, kind: RunKind, mode: Mode = Mode.CLEAN, *, active_only: bool = False) -> Plan:
        options = replace(_UNCOMMITTED, mode=mode, active_only=active_only)
        return await flow.plan(self.context, kind_to_plan(kind, options, _RULE))

    async def apply(self, run_id: str, *, window: str | None = None) -> RunReport:
        return await flow.apply(self.context, run_id, window=window, grace_s=self.grace_s)

    async def run(self, kind: RunKind, mode: Mode = Mode.CLEAN) -> None:
        await self.apply((await self.plan(kind, mode)).run_id)

    async def apply_all(self, *, window: str | None = None) -> None:
        """Apply every plan there is, the oldest first, as far as it may be applied."""
        for run_id in await list_plans(self.context.store):
            with suppress(Conflict, NotFound):
                await self.apply(run_id, window=window)

    async def apply_one(self, number: int, *, window: str | None) -> None:
        await self.apply((await list_plans(self.context.store))[number], window=window)

    async def resume(self) -> None:
        """Take each run that marks for dead, and go on with each whose deletes began."""
        await self.runs.abandon_dead()
        views = await self.context.service.runs()
        for run in await unfinished_runs(self.context.store, self.context.ports.tasks, views):
            with suppress(Conflict, NotFound):
                await self.apply(run.run_id)

    async def finish(self) -> None:
        """Bring each run whose deletes may have begun to its end, if it takes months, as far as can be."""
        store, ports = self.context.store, self.context.ports
        before: list[UnfinishedRun] = []
        while (runs := await holding_runs(store, ports.tasks, await self.context.service.runs())) != before:
            before = runs
            set_ahead(ports, 30 * DAY_MS)
            for run in runs:
                with suppress(Conflict, NotFound):
                    await self.apply(run.run_id)

    async def purge(self) -> None:
        await flow.purge(self.context, grace_s=self.grace_s)

    async def collect_all(self, has_garbage: Callable[[], bool]) -> None:
        """Collect what nothing names, and leave what rules might keep."""
        if has_garbage():
            await self.run(RunKind.UNCOMMITTED)
        if has_garbage():
            await self.rules.write(Rules(default="1d"))
            await self.run(RunKind.COMMITTED)
            await self.run(RunKind.UNCOMMITTED)


def context_of(
    requests: Requests, store: ObjectStore, ports: Ports, engine: LocalEngine, *, repository: str = "sim"
) -> RunContext:
    """Return what a flow is given. It reports its progress to no one."""

    def ignore(_: str) -> None:
        return

    service = Service(requests)
    return RunContext(repository=repository, service=service, engine=engine, store=store, ports=ports, progress=ignore)


class _Grace:
    """A clock whose naps are longer than any read: a sleep is over when those are through who were reading then."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._is_over = False

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def sleep(self, seconds: float) -> None:
        del seconds
        if not self._is_over:
            page = await self._store.scan(READERS, b"", 100)
            await effect(("until", READERS, tuple(page.keys)))
            self._is_over = True
