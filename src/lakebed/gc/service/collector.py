"""Both collections, whole, in plain Python: for tests, for the simulator, and to be read.

The same calls in the same order as the collectors on Spark make over HTTP, the same files in the run's folder, and
`lakebed.gc.rules` to decide. Everything is held in memory, so it is for small repositories. It deletes through a
callable that is handed in: this file cannot delete by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, CommitId, MetarangeId, NotFound, RangeId, RunId, format_address, parse_address
from lakebed.gc.protocol import (
    COMMITS,
    CONDEMNED,
    DOOMED,
    REFS,
    UNCOMMITTED,
    Condemn,
    Condemnation,
    End,
    Manifest,
    Mark,
    ReadUncommitted,
    RunKind,
    StartRun,
    Sweep,
    arrow_schema,
)
from lakebed.gc.rules import (
    NOTHING_SAVED,
    CommitFacts,
    History,
    Namespace,
    Saved,
    Trees,
    Verdict,
    check_live,
    doomed_addresses,
    judge_commits,
    new_addresses,
    optimised_run,
)
from lakebed.objectstore import DeleteFailure
from lakebed.ranges import decode_range, range_key
from lakebed.versions import RefState, Versions

from .collection_service import CollectionService
from .errors import RulesNotFound
from .inputs import Inputs

Delete = Callable[[Sequence[str]], Awaitable[Sequence[DeleteFailure]]]

BATCH_KEYS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """`failed` are doomed keys that could not be deleted. `strays` were found below `data/` and are none of ours.
    `saved` is what a run of uncommitted data leaves for the next.
    """

    run_id: str
    doomed: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    strays: frozenset[str] = frozenset()
    swept: frozenset[CommitId] = frozenset()
    taken_out: int = 0
    saved: Saved = NOTHING_SAVED


class Collector:
    def __init__(self, versions: Versions, service: CollectionService, delete: Delete) -> None:
        self._versions = versions
        self._service = service
        self._delete = delete

    async def collect_uncommitted(self, base: Saved = NOTHING_SAVED) -> Collected:
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
        plan = await inputs.write_table(DOOMED, DOOMED.name, plan_of(found.doomed, reason="unreferenced"))
        await self._service.mark(started.run_id, Mark(plan=plan))
        failed = await self._sweep(found.doomed)
        await self._service.end(started.run_id, End(plan=plan.digest()))
        return Collected(
            run_id=started.run_id,
            doomed=found.doomed,
            failed=failed,
            strays=found.strays,
            saved=replace(saved, kept=saved.kept | failed),
        )

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

    async def collect_committed(self) -> Collected:
        """Plan by the rules as they are, condemn, recheck, sweep (docs/design/0004-committed-retention.md).

        Raises:
            RulesNotFound: no rules are set.
            RulesChanged: they were changed while it ran; nothing was deleted.
            BadInput, EmptyLiveSet, …: something could not be read; nothing was deleted.
        """
        started = await self._service.start(StartRun(kind=RunKind.COMMITTED))
        inputs = Inputs(self._versions.objectstore, RunKind.COMMITTED, RunId(started.run_id))
        prepared = await self._service.prepare_commits(started.run_id)
        if prepared.rules is None:
            raise RulesNotFound("no retention rules are set for this repository")
        history = await self._history(inputs, prepared.commits, prepared.refs)
        verdict = judge_commits(history, prepared.rules, now_ms=started.now_ms)
        condemned = await inputs.write_table(
            CONDEMNED, CONDEMNED.name, pa.table({"id": pa.array(sorted(verdict.expired), pa.string())})
        )
        answer = await self._condemn(started.run_id, Condemn(commits=condemned, rules_version=prepared.rules_version))
        return await self._sweep_committed(started.run_id, inputs, answer, namespace=started.namespace)

    async def _condemn(self, run_id: str, body: Condemn) -> Condemnation:
        answer = await self._service.condemn(run_id, body)
        while answer.continuation_token is not None:
            again = Condemn(
                commits=body.commits,
                rules_version=body.rules_version,
                continuation_token=answer.continuation_token,
            )
            answer = await self._service.condemn(run_id, again)
        return answer

    async def _sweep_committed(self, run_id: str, inputs: Inputs, answer: Condemnation, *, namespace: str) -> Collected:
        assert answer.commits is not None
        assert answer.refs is not None
        assert answer.uncommitted is not None
        history = await self._history(inputs, answer.commits, answer.refs)
        expired = await self._condemned(inputs, answer.commits)
        there = {commit.id for commit in history.commits.values() if not commit.swept}
        doomed = doomed_addresses(
            history,
            Verdict(kept=frozenset(there - expired), expired=expired),
            await self._trees(history),
            uncommitted=await self._addresses(inputs, answer.uncommitted),
            namespace=Namespace(uri=namespace, closed=frozenset(answer.closed_slices)),
        )
        plan = await inputs.write_table(DOOMED, DOOMED.name, plan_of(frozenset(doomed), reason="expired"))
        await self._service.sweep(run_id, Sweep(plan=plan, commits=answer.commits))
        failed = await self._sweep(frozenset(doomed))
        await self._service.end(run_id, End(plan=plan.digest()))
        return Collected(
            run_id=run_id, doomed=frozenset(doomed), failed=failed, swept=expired, taken_out=answer.taken_out
        )

    async def _sweep(self, doomed: frozenset[str]) -> frozenset[str]:
        failed: set[str] = set()
        keys = sorted(doomed)
        for start in range(0, len(keys), BATCH_KEYS):
            failed |= {failure.key for failure in await self._delete(keys[start : start + BATCH_KEYS])}
        return frozenset(failed)

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

    async def _condemned(self, inputs: Inputs, commits: Manifest) -> frozenset[CommitId]:
        rows = (await inputs.read_table(COMMITS, commits)).select(["id", "condemned"]).to_pylist()
        return frozenset(CommitId(row["id"]) for row in rows if row["condemned"])

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


def plan_of(doomed: frozenset[str], *, reason: str) -> pa.Table:
    keys = sorted(doomed)
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
    ]
    schema = arrow_schema(DOOMED)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
