"""What collections must take by the specification (`lakebed.gc.rules`), over a real service: for tests to compare with.

Everything is held in memory, and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, CommitId, MetarangeId, NotFound, RangeId, RunId, format_address, parse_address
from lakebed.gc.live import CollectionService
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.messages import (
    COMMITS,
    GARBAGE,
    REFS,
    UNCOMMITTED,
    End,
    Manifest,
    Mark,
    PrepareCommits,
    ReadUncommitted,
    RunKind,
    StartRun,
    arrow_schema,
    run_folder,
)
from lakebed.gc.rules import (
    NOTHING_SAVED,
    CommitFacts,
    History,
    MetadataRule,
    Namespace,
    RunFacts,
    Saved,
    Trees,
    check_live,
    named_files,
    new_addresses,
    old_runs,
    optimised_run,
    unnamed_files,
)
from lakebed.objectstore import ObjectStat
from lakebed.ranges import decode_range, range_key
from lakebed.versions import RefState, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Specified:
    """`saved` is what a run of uncommitted data leaves for the next."""

    garbage: frozenset[str]
    saved: Saved = NOTHING_SAVED


class Specification:
    def __init__(self, versions: Versions, service: CollectionService) -> None:
        self._versions = versions
        self._service = service

    async def collect_uncommitted(self, base: Saved = NOTHING_SAVED) -> Specified:
        """A run to its end: a clean one (docs/design/0001-uncommitted-gc.md, "Flow 1"), or with a base an optimised one
        ("Flow 2"). `Collected.saved` is the base of the next.

        Raises:
            RunMoved: the run was abandoned while it marked; nothing was deleted.
            BadInput, EmptyLiveSet, …: something could not be read; nothing was deleted.
        """
        started = await self._service.start(StartRun(kind=RunKind.UNCOMMITTED))
        assert started.uploads is not None
        inputs = Inputs(self._versions.objectstore, RunKind.UNCOMMITTED, RunId(started.run_id))
        namespace = Namespace(uri=started.namespace, closed=frozenset(started.closed_slices))
        listing = await self._listing(namespace, base)
        uploads = await self._addresses(inputs, started.uploads)
        uncommitted = await self._addresses(inputs, await self._read_uncommitted(started.run_id))
        prepared = await self._service.prepare_commits(started.run_id)
        history = await self._history(inputs, prepared.commits, prepared.refs)
        new = {id_: commit for id_, commit in history.commits.items() if id_ not in base.commits}
        committed = new_addresses(history, await self._trees(History(commits=new, heads={})), base)
        check_live(history, committed or base.committed)
        young_since_ms = prepared.rules.uncommitted_since_ms(started.now_ms) if prepared.rules else None
        found, saved = optimised_run(
            base,
            listing,
            uploads=uploads,
            commits=history.commits,
            committed=committed,
            uncommitted=uncommitted,
            namespace=namespace,
            young_since_ms=young_since_ms,
            uploaded_ms=listing if young_since_ms is None else await self._ages(listing, base.kept | uploads),
        )
        plan = await inputs.write_table(GARBAGE, GARBAGE.name, plan_of(found.garbage, reason="unreferenced"))
        await self._service.mark(started.run_id, Mark(plan=plan))
        await self._service.end(started.run_id, End(plan=plan.digest()))
        return Specified(garbage=found.garbage, saved=saved)

    async def _listing(self, namespace: Namespace, base: Saved) -> dict[str, int]:
        """When each object was written: of all below `data/`, or of closed slices that the base has not."""
        fresh = sorted(namespace.closed - base.slices)
        prefixes = [f"data/{name}/" for name in fresh] if base.slices else ["data/"]
        objectstore = self._versions.objectstore
        return {
            stat.key: stat.modified_ms
            for prefix in prefixes
            async for page in objectstore.list(prefix)
            for stat in page
        }

    async def _ages(self, listing: dict[str, int], more: AbstractSet[str]) -> dict[str, int]:
        """The same, with other candidates. Where no bytes ever came, none can be too young."""
        found = dict(listing)
        for key in sorted(more - listing.keys()):
            with suppress(NotFound):
                found[key] = 0
                found[key] = (await self._versions.objectstore.stat(key)).modified_ms
        return found

    # Reading what the live side wrote

    async def _read_uncommitted(self, run_id: str) -> Manifest:
        page = await self._service.read_uncommitted(run_id, ReadUncommitted())
        while page.continuation_token is not None:
            page = await self._service.read_uncommitted(
                run_id, ReadUncommitted(continuation_token=page.continuation_token)
            )
        assert page.manifest is not None
        return page.manifest

    async def _addresses(self, inputs: Inputs, manifest: Manifest) -> set[str]:
        return set((await inputs.read_table(UNCOMMITTED, manifest)).column("address").to_pylist())

    async def _history(self, inputs: Inputs, commits: Manifest, refs: Manifest) -> History:
        return history_of(await inputs.read_table(COMMITS, commits), await inputs.read_table(REFS, refs))

    async def _trees(self, history: History) -> Trees:
        """Contents of every commit that was not swept. A file that cannot be read stops the run."""
        ranges: dict[MetarangeId, list[RangeId]] = {}
        addresses: dict[RangeId, list[str]] = {}
        for metarange in sorted({commit.metarange_id for commit in history.commits.values() if not commit.swept}):
            if metarange:
                ranges[metarange] = [info.id for info in await self._versions.trees.ranges(metarange)]
        for range_ in sorted({range_ for found in ranges.values() for range_ in found}):
            data = await self._versions.objectstore.get(range_key(range_))
            table = decode_range(range_, data, columns=["slice", "sequence", "address"])
            addresses[range_] = [_address(row) for row in table.to_pylist()]
        return Trees(ranges=ranges, addresses=addresses)


def history_of(commits: pa.Table, refs: pa.Table) -> History:
    """The tables COMMITS and REFS as the specification wants them. A ref that is being made holds its commit."""
    rows: list[dict[str, Any]] = commits.to_pylist()
    created = commits.column("creation_date").cast(pa.int64()).to_pylist()
    facts = {
        CommitId(row["id"]): CommitFacts(
            id=CommitId(row["id"]),
            parents=tuple(CommitId(parent) for parent in row["parents"]),
            created_ms=created_ms,
            metarange_id=MetarangeId(row["metarange_id"]),
            swept=row["swept"],
        )
        for row, created_ms in zip(rows, created, strict=True)
    }
    named: list[dict[str, Any]] = refs.to_pylist()
    return History(
        commits=facts,
        heads={row["name"]: CommitId(row["commit_id"]) for row in named if row["kind"] == "branch"},
        tags={row["name"]: CommitId(row["commit_id"]) for row in named if row["kind"] == "tag"},
        held=frozenset(
            CommitId(row["commit_id"])
            for row in named
            if row["kind"] == "intent" or row["state"] == RefState.CREATING.value
        ),
    )


def _address(row: dict[str, Any]) -> str:
    return row["address"] if row["slice"] == FOREIGN_SLICE else format_address(row["slice"], row["sequence"])


def plan_of(garbage: frozenset[str], *, reason: str) -> pa.Table:
    keys = sorted(garbage)
    places = [parse_address(key) or (FOREIGN_SLICE, 0) for key in keys]
    count = len(keys)
    columns: list[list[Any]] = [
        keys,
        [slice_ for slice_, _ in places],
        [sequence for _, sequence in places],
        [0] * count,
        [reason] * count,
        [""] * count,
        [0] * count,
        [""] * count,
        [None] * count,
        [None] * count,
        [None] * count,
    ]
    schema = arrow_schema(GARBAGE)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


_TREES = ("_lakefs/ranges/", "_lakefs/sublists/", "_lakefs/metaranges/")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMetadata:
    """What a run wants: files by id with their keys, runs with the keys in their folders. `named` is what commits that
    were not swept named."""

    run_id: str
    files: dict[str, str]
    runs: dict[str, list[str]]
    named: frozenset[str]


class MetadataSpecification:
    def __init__(self, versions: Versions, service: CollectionService, rule: MetadataRule) -> None:
        self._versions = versions
        self._service = service
        self._rule = rule

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

    def _inputs(self, run_id: str) -> Inputs:
        return Inputs(self._versions.objectstore, RunKind.METADATA, RunId(run_id))

    async def _list(self, prefix: str) -> Sequence[ObjectStat]:
        return [stat async for page in self._versions.objectstore.list(prefix) for stat in page]

    async def _runs(self) -> list[RunFacts]:
        return [
            RunFacts(id=view.run_id, kind=view.kind.value, state=view.state.value, touched_ms=view.started_ms)
            for view in (await self._service.runs()).runs
        ]

    async def _named(self, inputs: Inputs, commits: Manifest, refs: Manifest) -> set[str]:
        history = history_of(await inputs.read_table(COMMITS, commits), await inputs.read_table(REFS, refs))
        trees = {commit.metarange_id for commit in history.commits.values() if not commit.swept} - {MetarangeId("")}
        of = self._versions.trees
        ranges = {tree: [info.id for info in await of.ranges(tree)] for tree in sorted(trees)}
        sublists = {tree: [info.id for info in await of.sublists(tree)] for tree in sorted(trees)}
        return named_files(history, Trees(ranges=ranges, sublists=sublists, addresses={}))
