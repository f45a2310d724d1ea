"""A collection of metadata, whole, in plain Python: for tests, for the simulator, and to be read.

The same calls in the same order as the collector on Spark makes over HTTP, the same files in the run's folder, and
`lakebed.gc.rules` to decide. It deletes through a callable that is handed in: this file cannot delete by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakebed.base import MetarangeId, RunId
from lakebed.gc.protocol import (
    COMMITS,
    DOOMED,
    LEFTOVERS,
    REFS,
    End,
    GiveUp,
    Manifest,
    PrepareCommits,
    RunKind,
    StartRun,
    Sweep,
    arrow_schema,
    run_folder,
)
from lakebed.gc.rules import MetadataRule, RunFacts, Trees, named_files, old_runs, unnamed_files
from lakebed.objectstore import ObjectStat
from lakebed.versions import Versions

from .collection_service import CollectionService
from .collector import Delete, history_of, plan_of
from .inputs import Inputs
from .metadata import FILE, RUN

_TREES = ("_lakefs/ranges/", "_lakefs/metaranges/")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMetadata:
    """What a run wants: files by id with their keys, runs with the keys in their folders. `named` is what commits that
    were not swept named."""

    run_id: str
    files: dict[str, str]
    runs: dict[str, list[str]]
    named: frozenset[str]


class MetadataCollector:
    def __init__(
        self, versions: Versions, service: CollectionService, delete: Delete, rule: MetadataRule | None = None
    ) -> None:
        self._versions = versions
        self._service = service
        self._delete = delete
        self._rule = rule or MetadataRule()

    async def collect(self) -> frozenset[str]:
        """Plan and apply; the keys that went."""
        return await self.apply(await self.plan())

    async def plan(self) -> PlannedMetadata:
        """List, then read what names. Publishes nothing."""
        started = await self._service.start(StartRun(kind=RunKind.METADATA))
        listed = {stat.key: stat for prefix in _TREES for stat in await self._list(prefix)}
        runs = await self._runs()
        folders = {run.id: await self._list(run_folder(RunKind(run.kind), RunId(run.id))) for run in runs}
        prepared = await self._service.prepare_commits(started.run_id, PrepareCommits(kind=RunKind.METADATA))
        named = await self._named(self._inputs(started.run_id), prepared.commits, prepared.refs)
        keys = {key.rpartition("/")[2].removesuffix(".parquet"): key for key in listed}
        written_ms = {id_: listed[key].modified_ms for id_, key in keys.items()}
        gone = unnamed_files(written_ms, named, rule=self._rule, now_ms=started.now_ms)
        old = old_runs(runs, rule=self._rule, now_ms=started.now_ms)
        return PlannedMetadata(
            run_id=started.run_id,
            files={id_: keys[id_] for id_ in sorted(gone)},
            runs={run_id: [stat.key for stat in folders[run_id]] for run_id in sorted(old)},
            named=frozenset(named),
        )

    async def apply(self, plan: PlannedMetadata) -> frozenset[str]:
        """Publish, look again, sweep.

        Raises:
            RunMoved: the run is over, or another one gave it up.
        """
        inputs = self._inputs(plan.run_id)
        answer = await self._service.give_up(plan.run_id, GiveUp(leftovers=await self._leftovers(inputs, plan)))
        named = await self._named(inputs, answer.commits, answer.refs)
        taken_up = {run_id for run_id, keys in plan.runs.items() if await self._is_taken_up(run_id, keys)}
        doomed = frozenset(_spared(plan, named, taken_up.union(answer.runs_alive)))
        manifest = await inputs.write_table(DOOMED, DOOMED.name, plan_of(doomed, reason="unnamed"))
        await self._service.sweep(plan.run_id, Sweep(plan=manifest, commits=answer.commits))
        await self._delete(sorted(doomed))
        await self._service.end(plan.run_id, End(plan=manifest.digest()))
        return doomed

    def _inputs(self, run_id: str) -> Inputs:
        return Inputs(self._versions.objectstore, RunKind.METADATA, RunId(run_id))

    async def _list(self, prefix: str) -> Sequence[ObjectStat]:
        return [stat async for page in self._versions.objectstore.list(prefix) for stat in page]

    async def _runs(self) -> list[RunFacts]:
        return [
            RunFacts(id=view.run_id, kind=view.kind.value, state=view.state.value, touched_ms=view.started_ms)
            for view in (await self._service.runs()).runs
        ]

    async def _is_taken_up(self, run_id: str, planned: Sequence[str]) -> bool:
        """Whether the run wrote something since the plan: it was applied, and what it saved stays."""
        folders = [await self._list(run_folder(kind, RunId(run_id))) for kind in RunKind]
        return any(stat.key not in planned for stats in folders for stat in stats)

    async def _leftovers(self, inputs: Inputs, plan: PlannedMetadata) -> Manifest:
        columns: list[Any] = [[FILE] * len(plan.files) + [RUN] * len(plan.runs), [*plan.files, *plan.runs]]
        return await inputs.write_table(LEFTOVERS, LEFTOVERS.name, pa.table(columns, schema=arrow_schema(LEFTOVERS)))

    async def _named(self, inputs: Inputs, commits: Manifest, refs: Manifest) -> set[str]:
        history = history_of(await inputs.read_table(COMMITS, commits), await inputs.read_table(REFS, refs))
        trees = {commit.metarange_id for commit in history.commits.values() if not commit.swept} - {MetarangeId("")}
        ranges = {tree: [info.id for info in await self._versions.trees.ranges(tree)] for tree in sorted(trees)}
        return named_files(history, Trees(ranges=ranges, addresses={}))


def _spared(plan: PlannedMetadata, named: set[str], alive: set[str]) -> Iterable[str]:
    yield from (key for id_, key in plan.files.items() if id_ not in named)
    for run_id, keys in plan.runs.items():
        if run_id not in alive:
            yield from keys
