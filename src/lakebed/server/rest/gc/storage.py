"""Explain the storage of a repository, from plans, records of runs, and the range lists of the default branch.

Costs the names of the run folders, a small read for each of some plans, and the list of ranges of one tree. With
`committed` also every commit record, and 400 lists of ranges for each part at most (`lakebed.gc.live.explain.trees`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lakebed.base import RunId
from lakebed.catalog import Repository
from lakebed.gc.live import CommittedParts, Searches, committed_steps
from lakebed.gc.messages import Keeper, Plan, RunKind, RunMode, RunState, Storage, StoragePart, Total, WhyProgress
from lakebed.objectstore import ObjectStore
from lakebed.operations.gc import collectors
from lakebed.server.http.requests import RestRequest
from lakebed.server.http.routing import Resource, in_repository
from lakebed.server.state import AppState
from lakebed.versions import BranchNotFound, RunRecord

from .plans import plans_of, read_plan, run_names

DEFERRED_MAX: Final = 20
CLEAN_SOUGHT_MAX: Final = 10
"""The most plans of uncommitted data to read in search of a plan that listed every closed slice."""


class Storages(Resource):
    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._searches = Searches(state.ports)

    @in_repository(collectors.GET_GC_STORAGE)
    async def get(self, request: RestRequest, repository: Repository) -> Storage:
        counted: dict[Keeper, Total | None] | None = None
        if request.flag("committed"):
            token, found = await self._committed(repository, request)
            if not isinstance(found, CommittedParts):
                return Storage(
                    listed=None,
                    listed_by="",
                    listed_ms=0,
                    parts=(),
                    rest=None,
                    continuation_token=token,
                    progress=found,
                )
            counted = found.totals
        objectstore = repository.versions.objectstore
        names = await run_names(objectstore)
        runs = dict(await repository.versions.retired.runs())
        clean = await _clean_plan(objectstore, names)
        parts = [
            *await self._head(repository),
            *await _waiting(objectstore, names, runs),
            *await _deferred(objectstore, names, runs),
        ]
        uncounted: list[Keeper] = []
        if counted is not None:
            waiting = [part.total for part in parts if part.keeper is Keeper.WAITING and _takes_committed(part)]
            uncounted = [keeper for keeper, total in counted.items() if total is None]
            now_ms = self._state.ports.clock.now_ms()
            for keeper, named in counted.items():
                if named is not None:
                    kept = _less(named, waiting) if keeper is Keeper.HISTORY else named
                    parts.append(StoragePart(keeper=keeper, total=kept, as_of_ms=now_ms))
        listed = None if clean is None or clean.listing is None else clean.listing
        total = None if listed is None else Total(objects=listed.objects, size_bytes=listed.size_bytes)
        return Storage(
            listed=total,
            listed_by="" if clean is None else clean.run_id,
            listed_ms=0 if clean is None else clean.now_ms,
            parts=tuple(parts),
            rest=None if total is None else _less(total, [part.total for part in parts]),
            uncounted=tuple(uncounted),
        )

    async def _committed(
        self, repository: Repository, request: RestRequest
    ) -> tuple[str, CommittedParts | WhyProgress | None]:
        """Count what commits keep. Where the request says how many files, return the progress of the count."""
        versions, branch = repository.versions, repository.record.default_branch
        if files := request.integer("files", 0):
            token = request.query("continuation_token") or None
            return await self._searches.committed(versions, branch, token, files=files)
        parts: CommittedParts | None = None
        async for step in committed_steps(versions, default_branch=branch):
            parts = step if isinstance(step, CommittedParts) else None
        return "", parts

    async def _head(self, repository: Repository) -> list[StoragePart]:
        refs = repository.versions.refs
        try:
            head = await refs.resolve_commit(f"{repository.record.default_branch}@")
        except BranchNotFound:
            return []  # The repository is bare.
        size = await repository.versions.staging.measure(head, prefix=b"")
        total = Total(objects=size.objects, size_bytes=size.size_bytes)
        return [StoragePart(keeper=Keeper.HEAD, total=total, as_of_ms=self._state.ports.clock.now_ms())]


async def _clean_plan(objectstore: ObjectStore, names: Sequence[tuple[str, RunKind]]) -> Plan | None:
    """Return the newest plan that listed every closed slice."""
    # Only runs of uncommitted data list slices. They are the kinds that publish nothing.
    listing = [(run_id, kind) for run_id, kind in names if not kind.publishes]
    async for plan in plans_of(objectstore, listing[:CLEAN_SOUGHT_MAX]):
        if plan.mode is RunMode.CLEAN and plan.listing is not None:
            return plan
    return None


async def _waiting(
    objectstore: ObjectStore, names: Sequence[tuple[str, RunKind]], runs: Mapping[RunId, RunRecord]
) -> list[StoragePart]:
    """Return the objects that the newest plan of each kind would delete, unless an apply of the plan has begun."""
    parts: list[StoragePart] = []
    for kind in RunKind:
        if not kind.takes_objects:
            continue
        async for plan in plans_of(objectstore, [run for run in names if run[1] is kind]):
            record = runs.get(RunId(plan.run_id))
            is_begun = record is not None and (record.began or record.state not in {RunState.MARKED, RunState.PLANNING})
            if not is_begun and not plan.what_if:
                parts.append(_part(Keeper.WAITING, plan))
            break
    return parts


async def _deferred(
    objectstore: ObjectStore, names: Sequence[tuple[str, RunKind]], runs: Mapping[RunId, RunRecord]
) -> list[StoragePart]:
    waiting = [
        (run_id, kind, record)
        for run_id, kind in names
        if (record := runs.get(RunId(run_id))) is not None and record.until_ms and not record.state.is_over
    ]
    return [
        _part(Keeper.DEFERRED, await read_plan(objectstore, kind, run_id), until_ms=record.until_ms)
        for run_id, kind, record in waiting[:DEFERRED_MAX]
    ]


def _part(keeper: Keeper, plan: Plan, *, until_ms: int | None = None) -> StoragePart:
    return StoragePart(
        keeper=keeper,
        total=plan.totals.all,
        as_of_ms=plan.now_ms,
        run_id=plan.run_id,
        kind=plan.kind,
        until_ms=until_ms,
    )


def _takes_committed(part: StoragePart) -> bool:
    return part.kind is not None and part.kind.takes_committed


def _less(total: Total, parts: Sequence[Total]) -> Total:
    """Return the total minus the parts, at least zero: the parts were counted at other times."""
    objects = total.objects - sum(part.objects for part in parts)
    size_bytes = total.size_bytes - sum(part.size_bytes for part in parts)
    return Total(objects=max(0, objects), size_bytes=max(0, size_bytes))
