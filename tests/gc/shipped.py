"""The shipped collections in one process: the flow, the local engine and the service, over the stores of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from lakebed.base import CommitId
from lakebed.gc import messages
from lakebed.gc.api.showing import ledger_rows_of
from lakebed.gc.engines import LocalEngine
from lakebed.gc.kinds import kind_to_plan
from lakebed.gc.live import CollectionService
from lakebed.gc.machine import flow
from lakebed.gc.mark.inputs.listing import run_file, tree_file
from lakebed.gc.messages import LEFTOVERS, LedgerQuery, Mode, Plan, RunKind, Service, UncommittedOptions
from lakebed.gc.rules import MetadataRule
from lakebed.gc.runs.context import RunContext, folder_in, read_garbage, read_plan, write_input, write_plan
from lakebed.gc.runs.resume import recheck_of, unfinished_runs
from lakebed.objectstore import DeleteFailure
from lakebed.versions import Versions

Delete = Callable[[Sequence[str]], Awaitable[Sequence[DeleteFailure]]]


class Deleting:
    """The right to delete, as a test grants it."""

    def __init__(self, uri: str, act: Delete) -> None:
        self.uri = uri
        self._act = act

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return await self._act(keys)

    async def close(self) -> None:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection did: `garbage` is its table, `failed` are keys that stayed, `swept` the commits that went."""

    run_id: str
    garbage: frozenset[str]
    failed: frozenset[str]
    swept: frozenset[CommitId]
    unknown_files: frozenset[str]


class Collector:
    """`meanwhile` happens between plan and apply."""

    def __init__(self, versions: Versions, service: CollectionService, delete: Delete) -> None:
        store, ports = versions.objectstore, versions.context.ports
        deleter = Deleting(store.uri, delete)
        self.context = RunContext(
            repository="repo",
            service=Service(service),
            engine=LocalEngine(store, ports, open_deleter=lambda: deleter),
            store=store,
            ports=ports,
            progress=lambda _: None,
        )
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def collect_uncommitted(self, mode: Mode = Mode.CLEAN) -> Collected:
        return await self._collect(RunKind.UNCOMMITTED, UncommittedOptions(mode=mode))

    async def collect_committed(self) -> Collected:
        return await self._collect(RunKind.COMMITTED, UncommittedOptions())

    async def _collect(self, kind: RunKind, options: UncommittedOptions) -> Collected:
        run_id = await self.planned(kind, options)
        if self.meanwhile is not None:
            await self.meanwhile()
        return await self.again(run_id)

    async def planned(self, kind: RunKind, options: UncommittedOptions) -> str:
        """The id of a run that is only planned."""
        return (await flow.plan(self.context, kind_to_plan(kind, options, MetadataRule()))).run_id

    async def again(self, run_id: str) -> Collected:
        """Apply a plan, for the first time or after something failed."""
        await flow.apply(self.context, run_id, grace_s=0)
        return await self.outcome(run_id)

    async def finish(self) -> None:
        """Go on with every run whose deletes began, as a nightly run does first."""
        context = self.context
        for run in await unfinished_runs(context.store, context.ports.tasks, await context.service.runs()):
            await flow.apply(context, run.run_id, grace_s=0)

    async def outcome(self, run_id: str) -> Collected:
        store, plan = self.context.store, await read_plan(self.context.store, run_id)
        commits: set[str] = set()
        garbage = plan.garbage
        if plan.kind.publishes:
            view = await self.context.service.run(run_id)
            assert view is not None
            cleared = await recheck_of(store, plan, view)
            table = await self.context.read(cleared.commits, messages.COMMITS)
            commits = set(table.filter(table["expiring"])["id"].to_pylist())
            garbage = cleared.garbage
        taken = msgspec.structs.replace(plan, garbage=garbage)
        tables = [await read_garbage(store, taken, part) for part in garbage.parts]
        addresses = [key for table in tables for key in table["address"].to_pylist()]
        return Collected(
            run_id=run_id,
            garbage=frozenset(addresses),
            failed=frozenset([key async for key in self._failed(run_id)]),
            swept=frozenset(map(CommitId, commits)),
            unknown_files=frozenset(plan.unknown_files),
        )

    async def _failed(self, run_id: str) -> AsyncIterator[str]:
        async for row in ledger_rows_of(self.context.store, self.context.ports.tasks, LedgerQuery(run_id=run_id)):
            if row["error"]:
                yield row["address"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMetadata:
    """What a run wants: files by id with their keys, runs with the keys in their folders. A test may add to it."""

    plan: Plan
    files: dict[str, str]
    runs: dict[str, list[str]]

    @property
    def run_id(self) -> str:
        return self.plan.run_id


class MetadataCollector(Collector):
    def __init__(
        self, versions: Versions, service: CollectionService, delete: Delete, rule: MetadataRule | None = None
    ) -> None:
        super().__init__(versions, service, delete)
        self._rule = rule or MetadataRule()

    async def collect(self) -> frozenset[str]:
        """Plan and apply; the keys that went."""
        return await self.apply(await self.plan())

    async def plan(self) -> PlannedMetadata:
        kind = kind_to_plan(RunKind.METADATA, UncommittedOptions(), self._rule)
        plan = await flow.plan(self.context, kind)
        assert plan.leftovers is not None
        wanted = (await self.context.read(plan.leftovers, LEFTOVERS)).to_pylist()
        files: dict[str, str] = {}
        runs: dict[str, list[str]] = {row["id"]: [] for row in wanted if row["kind"] == "run"}
        for part in plan.garbage.parts:
            for key in (await read_garbage(self.context.store, plan, part))["address"].to_pylist():
                if id_ := tree_file(key):
                    files[id_] = key
                elif run := run_file(key):
                    runs[run[1]].append(key)
        return PlannedMetadata(plan=plan, files=files, runs=runs)

    async def apply(self, planned: PlannedMetadata) -> frozenset[str]:
        plan, store = planned.plan, self.context.store
        rows = [("file", id_) for id_ in planned.files] + [("run", id_) for id_ in planned.runs]
        kinds, ids = zip(*rows, strict=True) if rows else ((), ())
        schema = messages.arrow_schema(LEFTOVERS)
        table = pa.table([pa.array(kinds, pa.string()), pa.array(ids, pa.string())], schema=schema)
        leftovers = await write_input(store, folder_in(plan, LEFTOVERS.name), LEFTOVERS, table)
        await write_plan(store, msgspec.structs.replace(plan, leftovers=leftovers))
        await flow.apply(self.context, plan.run_id, grace_s=0)
        return (await self.outcome(plan.run_id)).garbage
