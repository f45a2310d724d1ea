"""Keep the windows of deferred runs (docs/design/0010-deferred-delete.md).

    defer    write the list of waiting objects, then set the end of the window in the run's record
    purge    after both clocks passed the end of the window, set `purging`; then read the current names, page by page

Each is one conditional write of the run's record, so a longer window and the deletes exclude each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from lakebed.base import Conflict, RunId, RunKind, RunState
from lakebed.gc import messages
from lakebed.gc.live.errors import RunMoved, StalePlan, WrongKind
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.live.publish.expiring import Expiring, read_garbage, uncommitted_name
from lakebed.gc.live.reading.commits import read_snapshot, read_swept
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.live.reading.reading import Continuations, Cursor, Reader, Reading, fresh_secret
from lakebed.gc.live.records.runs import RunBook, moved
from lakebed.objectstore import ObjectMissing, store_clock_ms
from lakebed.versions import RunRecord, Versions

__all__ = ["WindowOpen"]

_DELETING = (RunState.MARKED, RunState.SWEEPING)


class WindowOpen(Conflict):
    """The run's objects stay until its window is over. Facts: `run_id`, `until_ms`."""


class Deferring:
    def __init__(self, versions: Versions, runs: RunBook, reading: Reading, expiring: Expiring) -> None:
        self._versions = versions
        self._runs = runs
        self._expiring = expiring
        self._reading = reading
        self._installation = Installation(versions)

    async def defer(self, run_id: str, body: messages.Defer) -> messages.RunView:
        """Keep the objects of the run for a window from now on, or until the end of an earlier, longer window.

        Raises:
            RunMoved: the run may not delete, or its purge began.
            StalePlan: the run may delete another table.
            WrongKind: runs of this kind are never deferred. A restore could not use the files of metadata runs.
            InvalidDuration, BadWindow: the window is invalid.
        """
        id_ = messages.check_run_id(run_id)
        messages.window_end_ms(body.window, 0)
        record, held = await self._runs.read(id_)
        self._check_may_delete(id_, record)
        if body.plan.digest() not in {record.plan, record.sweeps}:
            raise StalePlan(f"run {run_id} may delete another table", run_id=run_id)
        if record.purging:
            raise RunMoved(f"the window of run {run_id} is over: it deletes", run_id=run_id, state=record.state.value)
        kind = record.kind
        # Before the record: every reader that sees a deferred run can read its objects.
        waiting = messages.encode_deferred(messages.Deferred(run_id=id_, kind=kind, garbage=body.plan))
        await self._versions.objectstore.put(messages.deferred_path(kind, id_), waiting)
        # The later of two clocks begins the window, and the earlier one ends it: a wrong clock only delays deletes.
        now_ms = max(await self._clocks_ms())
        until_ms = max(messages.window_end_ms(body.window, now_ms), record.until_ms)
        window = body.window if until_ms > record.until_ms else record.window
        record = replace(record, until_ms=until_ms, window=window, saved=body.saved or record.saved)
        await self._runs.write(id_, record, held)
        # Each of its commits has a `swept/<commit>` record, so no writer needs this list any more.
        await self._expiring.drop_expiring(id_)
        return await self._runs.view(id_, record)

    async def purge(self, run_id: str, body: messages.Purge) -> messages.RecheckInputs:
        """Let a deferred run delete after its window, and write the current names of objects into its folder.

        Raises:
            OtherInstallation: see `Installation.check`.
            RunMoved: the run is not deferred, or has ended.
            WindowOpen: the window is not over by at least one clock.
            BadContinuation: the token belongs to another purge or is invalid.
        """
        id_ = messages.check_run_id(run_id)
        await self._installation.check()
        if body.continuation_token is None:
            record = await self._begin_purging(id_)
            cursor = Cursor(name=uncommitted_name(record.attempt))
            swept = await read_swept(self._versions, for_good=_is_for_good(record.kind))
            inputs = Inputs(self._versions.objectstore, record.kind, id_)
            await inputs.write_swept(swept.commits, attempt=record.attempt)
        else:
            record, _ = await self._runs.read(id_)
            self._check_may_delete(id_, record)
            cursor = Continuations(id_, record, Reader.COLLECTOR).cursor(body.continuation_token)
        inputs = Inputs(self._versions.objectstore, record.kind, id_)
        page = await self._reading.read_page(inputs, cursor)
        if page.cursor is not None:
            token = Continuations(id_, record, Reader.COLLECTOR).token(page.cursor)
            return messages.RecheckInputs(run_id=id_, continuation_token=token)
        # Slices never reopen. A slice that seems open now comes from older, restored records: its objects stay.
        closed, _ = await self._runs.closed_slices()
        # Commits after staging, as everywhere: an entry committed in between would be in neither read.
        known = await inputs.read_swept(attempt=record.attempt)
        snapshot = await read_snapshot(self._versions, known=known, for_good=_is_for_good(record.kind))
        return messages.RecheckInputs(
            run_id=id_,
            commits=await inputs.write_tables(
                messages.COMMITS,
                f"{messages.COMMITS.name}.{record.attempt}",
                snapshot.commits_tables(),
                self._versions.ports.tasks,
            ),
            refs=await inputs.write_table(
                messages.REFS, f"{messages.REFS.name}.{record.attempt}", snapshot.refs_table()
            ),
            uncommitted=page.whole,
            closed_slices=closed,
        )

    async def _begin_purging(self, run_id: RunId) -> RunRecord:
        record, held = await self._runs.read(run_id)
        self._check_may_delete(run_id, record)
        if not record.until_ms:
            raise RunMoved(f"run {run_id} is not deferred", run_id=run_id, state=record.state.value)
        # A purge that began continues even if a clock was set back.
        if not record.purging and min(await self._clocks_ms()) < record.until_ms:
            what = f"the objects of run {run_id} stay until its window is over"
            raise WindowOpen(what, run_id=run_id, until_ms=record.until_ms)
        ids = self._versions.ports.ids
        record = replace(record, purging=True, attempt=ids.fresh(), secret=fresh_secret(ids))
        await self._runs.write(run_id, record, held)
        return record

    def _check_may_delete(self, run_id: RunId, record: RunRecord) -> None:
        if not record.kind.can_wait:
            raise WrongKind(f"run {run_id} is of kind {record.kind.value}, which is never deferred", run_id=run_id)
        # A sweeping run of committed data must have its swept records: before that its commits could still be named.
        is_bound = record.began if record.state is RunState.MARKED else record.swept
        if record.state not in _DELETING or not is_bound:
            raise moved(run_id, record)

    async def _clocks_ms(self) -> tuple[int, int]:
        return self._versions.ports.clock.now_ms(), await store_clock_ms(self._versions.objectstore, messages.CLOCK_KEY)


def _is_for_good(kind: RunKind) -> bool:
    """Return whether to read only commits swept for good: the run does not publish, so it never calls `count_on`."""
    return not kind.publishes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredRun:
    run_id: RunId
    kind: RunKind
    until_ms: int


class DeferredRuns:
    """Read the objects of deferred runs, for a restore or a question."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def runs(self) -> list[DeferredRun]:
        """Return deferred runs, newest first. Includes runs that purge, for their remaining objects."""
        return [
            DeferredRun(run_id=run_id, kind=record.kind, until_ms=record.until_ms)
            for run_id, record in reversed(await self._versions.retired.runs())
            if record.until_ms and record.state in _DELETING
        ]

    async def table_of(self, run: DeferredRun) -> messages.Manifest | None:
        """Return the table GARBAGE of a run, or None if the run has ended and its folder was deleted.

        Raises:
            BadInput: the table's file is unreadable.
        """
        try:
            data = await self._versions.objectstore.get(messages.deferred_path(run.kind, run.run_id))
        except ObjectMissing:
            return None
        return messages.decode_deferred(data, run.run_id).garbage

    async def part(self, garbage: messages.Manifest, part: messages.Part) -> pa.Table:
        """Read one part of a table GARBAGE and check it against its manifest, or raise BadInput."""
        return await read_garbage(self._versions, garbage, part)
