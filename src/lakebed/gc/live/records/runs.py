"""Keep the records of collection runs, and of their plans. Each move is one `set_if`, listed in `RUN_MOVES`.

Planners may write to the object store, where the plans are. So the record of a plan names its maker and the SHA-256 of
`plan.json`, which has the digests of all other files. An apply by another user plans again (`looking.py` of the
collectors). Calls without a user (one process, no server) keep no records of plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from lakebed.base import RUN_MOVES, Conflict, RunId
from lakebed.gc.live.errors import RunMoved, RunNotFound, StalePlan, WrongKind
from lakebed.gc.live.options import ServiceOptions
from lakebed.gc.live.reading.reading import fresh_secret
from lakebed.gc.messages import Apply, NotePlanned, PlannedBy, RunKind, RunList, RunState, RunView, check_run_id
from lakebed.kv import Held, PredicateFailed
from lakebed.versions import (
    ERASED,
    PRUNED,
    CopyRecord,
    CopyState,
    PlannedRecord,
    RunRecord,
    SliceRecord,
    SliceState,
    TakingRecord,
    UploadRecord,
    UploadState,
    Versions,
)

CERTIFY = "certify"
_BEGUN = (RunState.PLANNING, RunState.MARKING, RunState.EXPIRING)


class RunBook:
    def __init__(self, versions: Versions, options: ServiceOptions, *, user_id: str = "") -> None:
        """Events say that `user_id` made the moves."""
        self._versions = versions
        self._options = options
        self._user_id = user_id

    # Records

    async def read(self, run_id: RunId) -> tuple[RunRecord, Held]:
        """Return the record of a run, or raise RunNotFound."""
        record = await self._versions.retired.find_run(run_id)
        if record is None:
            raise RunNotFound(f"there is no collection run {run_id}", run_id=run_id)
        return record

    async def read_as(self, run_id: RunId, kind: RunKind, *states: RunState) -> tuple[RunRecord, Held]:
        """Return the record of a run of this kind in one of these states.

        Raises:
            RunNotFound, WrongKind: no run has this id, or the run is of another kind.
            RunMoved: the run is in another state.
        """
        record, held = await self.read(run_id)
        if record.kind is not kind:
            raise WrongKind(f"run {run_id} is of kind {record.kind.value}, not {kind.value}", run_id=run_id)
        if record.state not in states:
            raise moved(run_id, record)
        return record, held

    async def read_marking(self, run_id: RunId) -> RunRecord:
        """Return the record of a marking run. Kinds that publish never mark.

        Raises:
            RunNotFound, WrongKind: no run has this id, or its kind publishes.
            RunMoved: the run is in another state.
        """
        record, _ = await self.read(run_id)
        if record.kind.publishes:
            raise WrongKind(f"run {run_id} is of kind {record.kind.value}, which does not mark", run_id=run_id)
        if record.state is not RunState.MARKING:
            raise moved(run_id, record)
        return record

    async def write(self, run_id: RunId, record: RunRecord, before: Held | None) -> Held:
        """Replace exactly `before`, or create the record if `before` is None.

        Raises:
            RunMoved: another process moved the run.
            OutcomeUnknown: the answer was lost, and the record differs from this one or cannot be read.
        """
        try:
            return await self._versions.retired.write_run(run_id, record, before, by=self._user_id)
        except PredicateFailed:
            raise moved(run_id, (await self.read(run_id))[0]) from None

    async def check_not_retired(self, run_id: RunId) -> None:
        """Check, after the run's record was written, that no collection of metadata retired its unapplied plan.

        Raises:
            RunMoved: the plan is retired. The run is now abandoned.
        """
        if (await self._versions.retired.are_retired([run_id]))[0]:
            raise moved(run_id, await self.move(run_id, RunState.ABANDONED))

    async def read_to_apply(self, run_id: RunId, body: Apply) -> RunRecord:
        """Return the record of a run whose plan may be applied. For a run without a record, return one to write.

        Raises:
            RunNotFound, WrongKind, RunMoved: the run's state does not allow an apply, or its plan was retired.
            StalePlan: the run was marked with another plan.
        """
        if body.kind.publishes:
            return await self.read_published(run_id, body.kind)
        record, _ = await self.read_as(run_id, body.kind, RunState.MARKED)
        if record.plan != body.plan:
            raise StalePlan(f"run {run_id} was marked with another plan", run_id=run_id)
        return record

    async def read_published(self, run_id: RunId, kind: RunKind) -> RunRecord:
        """Return the record of a run of a kind that publishes. For a run without a record, return one to write.

        Raises:
            WrongKind, RunMoved: the run's state does not allow an apply, or its plan was retired.
        """
        try:
            record, _ = await self.read_as(run_id, kind, RunState.PLANNING, RunState.EXPIRING, RunState.SWEEPING)
        except RunNotFound:
            # Runs that publish have no record before their first apply. A collection of metadata may delete such plans.
            if (await self._versions.retired.are_retired([run_id]))[0]:
                raise RunMoved(f"the plan of run {run_id} was retired: plan again", run_id=run_id) from None
            now_ms = self._versions.ports.clock.now_ms()
            return RunRecord(kind=kind, state=RunState.PLANNING, started_ms=now_ms)
        return record

    async def view(self, run_id: RunId, record: RunRecord) -> RunView:
        """Return the view of a run, with the number of its expiring commits."""
        return view(run_id, record, expiring=len(await self._versions.retired.expiring(run_id)))

    async def views(self, planners: Mapping[RunId, str]) -> list[RunView]:
        """Return all runs, newest first. `planners` has the planner of each run."""
        runs = reversed(await self._versions.retired.runs())
        return [view(run_id, record, planned_by=planners.get(run_id, "")) for run_id, record in runs]

    async def forgotten(self, views: Sequence[RunView]) -> list[RunView]:
        """Return the runs without a record among `views` that took objects which commits go on naming, newest first."""
        known = {view.run_id for view in views}
        taking = [record async for record in self._versions.taken.runs() if record[0] not in known]
        return [
            RunView(
                run_id=run,
                kind=_kind_of(record),
                state=RunState.ENDED,
                started_ms=record.taken_ms,
            )
            for run, record in reversed(taking)
        ]

    # Moves

    async def start_marking(self, kind: RunKind) -> tuple[RunId, RunRecord]:
        """Create a run of this kind, marking. From now on the cleaner keeps finished upload and copy records."""
        run_id = RunId(self._versions.ports.ids.fresh())
        now_ms = self._versions.ports.clock.now_ms()
        record = RunRecord(
            kind=kind,
            state=RunState.MARKING,
            started_ms=now_ms,
            secret=fresh_secret(self._versions.ports.ids),
        )
        await self.write(run_id, record, None)
        return run_id, record

    async def move(self, run_id: RunId, state: RunState, *, plan: str = "", saved: str = "") -> RunRecord:
        """Move a run to `state`. Do nothing if it is in this state already (with the same plan, if given).

        Raises:
            RunMoved: the move is not allowed, the run has not recorded its commits yet, or it is deferred.
        """
        record, held = await self.read(run_id)
        if record.state is state and plan in ("", record.plan):
            return record
        if state not in RUN_MOVES[record.kind][record.state]:
            raise moved(run_id, record)
        if record.kind.takes_committed and record.state is RunState.SWEEPING and not record.swept:
            # Its commits would be in neither list: removed from the run's own, and not yet among swept commits.
            message = f"run {run_id} is sweeping, and has not written down yet what it takes: apply it again"
            raise RunMoved(message, run_id=run_id, state=record.state.value)
        if record.until_ms and not record.purging:
            # An ended run protects no object: another run could delete its objects before the window is over.
            raise RunMoved(f"run {run_id} is deferred", run_id=run_id, state=record.state.value)
        after = replace(record, state=state, plan=plan or record.plan, saved=saved or record.saved)
        await self.write(run_id, after, held)
        return after

    async def end_unapplied(self, run_id: RunId) -> RunRecord:
        """End a marked run whose plan will not be applied. An ended run without a plan has deleted nothing.

        Raises:
            RunMoved: the run is not marked, or an apply of it began.
        """
        record, held = await self.read(run_id)
        if record.state is not RunState.MARKED or record.began:
            raise moved(run_id, record)
        after = replace(record, state=RunState.ENDED, plan="")
        await self.write(run_id, after, held)
        return after

    async def note(self, run_id: RunId, *states: RunState, began: bool, sweeps: str, saved: str) -> RunRecord:
        """Record for an apply that it began, the table that it deletes instead of the plan's, and its saved state.

        After `began`, only the apply ends the run.

        Raises:
            RunMoved: the run is no longer in one of these states.
        """
        while True:
            record, held = await self.read(run_id)
            if record.state not in states:
                raise moved(run_id, record)
            after = replace(
                record, began=began or record.began, sweeps=sweeps or record.sweeps, saved=saved or record.saved
            )
            if after == record:
                return record
            try:
                await self.write(run_id, after, held)
            except RunMoved:
                continue
            return after

    async def note_swept(self, run_id: RunId) -> None:
        """Record that each commit of a sweeping run has its swept record. From now on the run may end."""
        while True:
            record, held = await self.read(run_id)
            if record.swept or record.state is not RunState.SWEEPING:
                return
            try:
                await self.write(run_id, replace(record, swept=True), held)
            except RunMoved:
                continue
            return

    async def note_certified(self, run_id: RunId) -> None:
        """Record, for events, that a certificate of this erasure is about to be signed. A run's record may be gone."""
        retired = self._versions.retired
        while (found := await retired.find_run(run_id)) is not None:
            if any(change.operation == CERTIFY for change in found[0].changes):
                return
            with suppress(PredicateFailed):
                await retired.write_run(run_id, *found, by=self._user_id, step=CERTIFY)

    async def count_on(self, run_id: RunId, others: Sequence[str]) -> None:
        """Record on these runs that this run deletes objects because their commits are swept.

        From then on they can be undone only after this run was undone.

        Raises:
            StalePlan: one of these runs was undone.
        """
        for other in map(RunId, others):
            while True:
                found = await self._versions.retired.find_run(other)
                record, held = found or (None, None)
                if record is not None and record.state is RunState.UNDONE:
                    what = f"run {other} was undone, and its commits are back: apply run {run_id} again"
                    raise StalePlan(what, run_id=run_id, undone=other)
                # A run that can no longer be undone needs no note.
                if record is None or not record.may_be_undone or run_id in record.counted_by:
                    break
                with suppress(RunMoved):
                    await self.write(other, replace(record, counted_by=(*record.counted_by, run_id)), held)
                    break

    async def abandon_dead(self) -> list[RunId]:
        """Abandon runs that plan, mark or publish for too long. A live one fails at its next move."""
        now_ms = self._versions.ports.clock.now_ms()
        abandoned: list[RunId] = []
        for run_id, record in await self._versions.retired.runs():
            if record.state in _BEGUN and _is_old(record.started_ms, now_ms, self._options.dead_run_age_ms):
                try:
                    await self.move(run_id, RunState.ABANDONED)
                except RunMoved:
                    continue
                abandoned.append(run_id)
        return abandoned

    # Slices

    async def close_slices_for_runs(self) -> None:
        """End this server's slice if a run began after it was opened, so that the next run can collect its objects."""
        # A run's record tells every server to do this. The server that starts a run ends its own slice at once.
        now_ms = self._versions.ports.clock.now_ms()
        began = [record.started_ms for _, record in await self._versions.retired.runs()]
        # Skip runs dated ahead of this clock: they would end each slice as soon as it is opened.
        began_ms = max((started_ms for started_ms in began if started_ms <= now_ms), default=None)
        if began_ms is not None:
            await self._versions.slices.end(opened_until_ms=began_ms)

    async def closed_slices(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of closed slices, ascending, and the names of all others.

        Closes this server's own slice first, and fences owners that seem dead.
        """
        # This makes the server's latest uploads collectable. A fence closes slices of dead owners, and costs one freeze
        # of every branch.
        await self._versions.slices.end()
        await self._fence_dead_owners()
        records = [item async for item in self._versions.inventory.every(SliceRecord)]
        closed = tuple(name for name, record in records if record.state is SliceState.CLOSED)
        return closed, tuple(name for name, record in records if record.state is not SliceState.CLOSED)

    async def _fence_dead_owners(self) -> None:
        versions = self._versions
        now_ms, age_ms = versions.ports.clock.now_ms(), self._options.dead_owner_age_ms
        slices = [item async for item in versions.inventory.every(SliceRecord)]
        dead = [n for n, s in slices if s.state is not SliceState.CLOSED and _is_old(s.opened_ms, now_ms, age_ms)]
        await versions.fencing.fence_slices(dead)
        linking = [
            name
            async for name, upload in versions.inventory.every(UploadRecord)
            if upload.state in (UploadState.LINKING, UploadState.REVOKED) and _is_old(upload.issued_ms, now_ms, age_ms)
        ]
        await versions.fencing.fence_records(UploadRecord, linking)
        copying = [
            name
            async for name, copy in versions.inventory.every(CopyRecord)
            if copy.state is not CopyState.DONE and _is_old(copy.started_ms, now_ms, age_ms)
        ]
        await versions.fencing.fence_records(CopyRecord, copying)


def check_uid(versions: Versions, uid: str) -> None:
    """Check that a run belongs to this repository: another repository's plan does not know its objects.

    Raises:
        Conflict: the run belongs to an earlier repository of this name.
    """
    if uid and uid != versions.uid:
        raise Conflict("the run is of a repository that had this name before: plan again", uid=uid)


def _is_old(then_ms: int, now_ms: int, age_ms: int) -> bool:
    """Return whether to fence or abandon work that began then, which is safe at any time."""
    # A date far ahead of this clock is old too: the work would otherwise never be cleaned up.
    return abs(now_ms - then_ms) >= age_ms


def moved(run_id: RunId, record: RunRecord) -> RunMoved:
    return RunMoved(f"run {run_id} is {record.state.value}", run_id=run_id, state=record.state.value)


def _kind_of(record: TakingRecord) -> RunKind:
    """Return the kind of a run by what it wrote down in place of the rules of a policy."""
    by_order, of_tables = record.rules == (ERASED,), record.rules == (PRUNED,)
    named = [kind for kind in RunKind if kind.takes_named]
    return next(kind for kind in named if (kind.spec.by_order, kind.spec.of_tables) == (by_order, of_tables))


def view(run_id: RunId, record: RunRecord, *, expiring: int = 0, planned_by: str = "") -> RunView:
    return RunView(
        run_id=run_id,
        kind=record.kind,
        state=record.state,
        started_ms=record.started_ms,
        expiring=expiring,
        plan=record.plan,
        until_ms=record.until_ms or None,
        window=record.window,
        is_purging=record.purging,
        planned_by=planned_by,
        applied_by=record.applied_by,
        sweeps=record.sweeps,
        saved=record.saved,
        unpublished_ms=record.unpublished_ms or None,
    )


class Planners:
    """Keep the maker of each plan, and show runs with the makers of their plans."""

    def __init__(self, versions: Versions, runs: RunBook, *, user_id: str, is_job: bool) -> None:
        self._versions = versions
        self._runs = runs
        self._user_id = user_id
        self._is_job = is_job

    async def note(self, run_id: str, body: NotePlanned) -> PlannedBy:
        """Record that the caller made this plan. A repeated call changes nothing.

        Raises:
            StalePlan: the record has another plan of the run, or another user.
        """
        id_ = check_run_id(run_id)
        ports = self._versions.ports
        record = PlannedRecord(
            kind=body.kind, by=self._user_id, plan=body.plan, made_ms=ports.clock.now_ms(), by_job=self._is_job
        )
        if self._user_id:
            found = await self._versions.retired.note_planned(id_, record)
            if (found.kind, found.by, found.plan) != (record.kind, record.by, record.plan):
                raise StalePlan(f"another plan of run {run_id} is on record", run_id=run_id)
        return self._planned_by(id_, record)

    async def judge(self, run_id: RunId, body: Apply) -> tuple[str, bool]:
        """Return the maker of this plan, and whether the caller's apply must plan again.

        Raises:
            StalePlan: the run is an erasure without a record of this plan. No user who may erase asked for it.
        """
        if not self._user_id:
            return "", False
        record = await self._versions.retired.find_planned(run_id)
        is_known = record is not None and (record.kind, record.plan) == (body.kind, body.plan_file)
        if record is None or not is_known:
            # The apply trusts an erasure's order. The plan's record proves that its maker may erase.
            if body.kind.spec.by_order:
                raise StalePlan(f"run {run_id} has no such plan on record: plan the erasure again", run_id=run_id)
            return "", True
        return record.by, not self._is_own(record)

    async def of(self, run_id: RunId) -> str:
        """Return the maker of a run's plan, or an empty string if unknown."""
        record = await self._versions.retired.find_planned(run_id) if self._user_id else None
        return "" if record is None else record.by

    async def run(self, run_id: str) -> RunView:
        """Return a run with its planner, or raise RunNotFound."""
        id_ = check_run_id(run_id)
        record, _ = await self._runs.read(id_)
        return replace(await self._runs.view(id_, record), planned_by=await self.of(id_))

    async def runs(self, *, forgotten: bool = False) -> RunList:
        """Return every run, newest first, and the maker of each plan.

        With `forgotten`, runs follow whose records are gone, and that took objects which commits go on naming.
        """
        planned = await self.every()
        views = await self._runs.views({RunId(plan.run_id): plan.by for plan in planned})
        if forgotten:
            views += await self._runs.forgotten(views)
        return RunList(runs=tuple(views), planned=tuple(planned))

    async def every(self) -> list[PlannedBy]:
        """Return the maker of each plan, oldest first."""
        if not self._user_id:
            return []
        return [self._planned_by(run, record) for run, record in (await self._versions.retired.planned()).items()]

    async def forget_retired(self) -> None:
        """Remove the records of plans whose folders a collection of metadata retired."""
        if not self._user_id:
            return
        told = await self._versions.outbox.told()
        runs = [run for run in await self._versions.retired.planned() if told is None or told(run)[0]]
        retired = await self._versions.retired.are_retired(runs)
        await self._versions.retired.forget_planned([run for run, gone in zip(runs, retired, strict=True) if gone])

    def _planned_by(self, run_id: RunId, record: PlannedRecord) -> PlannedBy:
        return PlannedBy(run_id=run_id, by=record.by, is_own=self._is_own(record))

    def _is_own(self, record: PlannedRecord) -> bool:
        # Every user may trust a plan by a job of the server: only the server could write it.
        return record.by_job or record.by == self._user_id
