"""Show the progress of runs: of one run, followed or stopped, and of all runs of a repository in one list.

A part of the plan is done when the ledger has a file for it. So the progress costs one listing of a few names, and
does not include the parts under way.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from lakebed.base import LakebedError, OutcomeUnknown, RunId, Tasks, Unavailable, count_of
from lakebed.gc.messages import (
    DELETES_ALLOWED,
    Manifest,
    Plan,
    PlanMissing,
    PlanSummary,
    RunKind,
    RunState,
    RunView,
    decode_report,
    record_of,
    report_path,
)
from lakebed.objectstore import ObjectStore

from .context import Progress, find, list_plans, read_plan, sizes
from .recording import Ledger
from .resume import read_begun, read_started, recheck_of, unfinished_runs

DEFERRED: Final = "deferred"
"""The state shown for a run that waits for the end of its window. The run's record has another state."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a run."""

    run_id: str
    kind: RunKind
    # The state in the run's record, or `deferred` until `until_ms`. Without a record it is `planned`, or `supposed` for
    # a plan by rules that are not saved.
    state: str
    started_ms: int
    # Commits that the run expires, until it is over.
    expiring: int = 0
    # The digest in the record.
    plan: str = ""
    # The objects to delete.
    objects: int | None = None
    size_bytes: int | None = None
    # The objects of recorded parts, whatever their outcome. These three are None where unknown.
    objects_done: int | None = None
    # The start of the run's first apply and its end, or None.
    began_ms: int | None = None
    ended_ms: int | None = None
    # The requested window, or empty.
    window: str = ""
    until_ms: int | None = None
    nothing_deleted: bool = False

    @property
    def is_unfinished(self) -> bool:
        """Return whether the run's deletes may have begun, and the run has not ended."""
        is_at_it = self.state == RunState.SWEEPING or (self.state == RunState.MARKED and self.began_ms is not None)
        return is_at_it and not self.nothing_deleted


def run_status_by_record(view: RunView) -> RunStatus:
    """Return the status by the record alone, for a caller that cannot reach the namespace."""
    return RunStatus(
        run_id=view.run_id,
        kind=view.kind,
        state=_state_of(view),
        started_ms=view.started_ms,
        expiring=view.expiring,
        plan=view.plan,
        until_ms=view.until_ms,
        nothing_deleted=ended_without_deleting(view),
    )


async def run_status_of(store: ObjectStore, tasks: Tasks, run_id: str, view: RunView | None) -> RunStatus:
    """Return the status of a run. Costs a few small reads, and a listing of the run's files in the ledger.

    Raises:
        PlanMissing: the run has neither a record nor a plan.
        BadInput: a file of the run is unreadable.
    """
    try:
        plan = await read_plan(store, run_id)
    except PlanMissing:
        if view is None:
            raise
        return run_status_by_record(view)
    status = status_by_plan(plan, view)
    begun = None if view is None else await read_begun(store, tasks, plan.kind, run_id)
    if view is None or begun is None or status.nothing_deleted:
        return status
    goes = await _goes(store, plan, view)
    return msgspec.structs.replace(
        status,
        began_ms=begun.began_ms,
        window=begun.window,
        objects=goes.rows if goes else status.objects,
        size_bytes=status.size_bytes if goes is plan.garbage else None,
        objects_done=await _done(store, plan, goes) if goes else None,
        ended_ms=await _ended_ms(store, plan) if view.state is RunState.ENDED else None,
    )


def status_by_plan(plan: Plan, view: RunView | None) -> RunStatus:
    """Return the status by plan and record. A committed run has a record only from its first apply on."""
    state = "supposed" if plan.what_if else "planned"
    planned = RunStatus(run_id=plan.run_id, kind=plan.kind, state=state, started_ms=plan.now_ms)
    status, total = planned if view is None else run_status_by_record(view), plan.totals.all
    return msgspec.structs.replace(status, started_ms=plan.now_ms, objects=total.objects, size_bytes=total.size_bytes)


async def _goes(store: ObjectStore, plan: Plan, view: RunView) -> Manifest | None:
    """Return the table of objects that the service lets the run delete, or None before that."""
    if not plan.kind.publishes:
        return (await recheck_of(store, plan, view)).garbage if view.sweeps else plan.garbage
    return (await recheck_of(store, plan, view)).garbage if view.plan else None


async def _done(store: ObjectStore, plan: Plan, goes: Manifest) -> int:
    started = await read_started(store, plan)
    if started is None:
        return 0
    # A ledger file is written when its part is done, so names are enough.
    files = await sizes(store, Ledger(run_id=plan.run_id, date=started.date).prefix)
    recorded = {record_of(name) for name in files}
    return sum(part.rows for part in goes.parts if part.name in recorded)


async def _ended_ms(store: ObjectStore, plan: Plan) -> int | None:
    name = report_path(plan.kind, RunId(plan.run_id))
    data = await find(store, name)
    return None if data is None else decode_report(data, name=name).run_end_time_ms


def _state_of(view: RunView) -> str:
    return (
        DEFERRED
        if view.until_ms is not None and not view.is_purging and view.state in DELETES_ALLOWED
        else view.state.value
    )


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list of runs."""

    run_id: str
    kind: RunKind
    # As in `RunStatus`.
    state: str
    started_ms: int
    # The objects of the plan; None without a finished plan, or if the run ended without deleting (`nothing_deleted`).
    objects: int | None = None
    size_bytes: int | None = None
    what_if: bool = False
    nothing_deleted: bool = False
    # The deletes may have begun, and the run has not ended.
    has_begun: bool = False
    # The end of a deferred run's window.
    until_ms: int | None = None
    # The plan's author by the server's record.
    planned_by: str = ""
    # The author is the caller, or a job of the server.
    is_own: bool = False


async def list_runs(store: ObjectStore, tasks: Tasks, views: Iterable[RunView], *, limit: int) -> list[ListedRun]:
    """Return at most `limit` runs, newest first. Costs a listing of the run folders, and a few reads for each row."""
    known = {view.run_id: view for view in views}
    planned = set(await list_plans(store))
    newest = sorted({*known, *planned}, reverse=True)[:limit]
    shown = [known[id_] for id_ in newest if id_ in known]
    begun = {run.run_id for run in await unfinished_runs(store, tasks, shown)}
    listed = [
        listed_run(id_, known.get(id_), await read_plan(store, id_) if id_ in planned else None) for id_ in newest
    ]
    return [msgspec.structs.replace(run, has_begun=run.run_id in begun) for run in listed]


def ended_without_deleting(view: RunView) -> bool:
    """Return whether the run ended without deletes. An ended run has a plan in its record if it may have deleted."""
    return view.state is RunState.ENDED and not view.plan


def listed_run(run_id: str, view: RunView | None, plan: Plan | PlanSummary | None) -> ListedRun:
    """Return the row of a run that has a record, a plan, or both."""
    if view is not None and ended_without_deleting(view):
        return ListedRun(
            run_id=run_id, kind=view.kind, state=view.state.value, started_ms=view.started_ms, nothing_deleted=True
        )
    if plan is None:
        assert view is not None, "a run is listed for its record or for its plan"
        return ListedRun(run_id=run_id, kind=view.kind, state=_state_of(view), started_ms=view.started_ms)
    total = plan.total if isinstance(plan, PlanSummary) else plan.totals.all
    return ListedRun(
        run_id=run_id,
        kind=plan.kind,
        until_ms=None if view is None else view.until_ms,
        state=_state_of(view) if view is not None else "supposed" if plan.what_if else "planned",
        started_ms=plan.now_ms,
        objects=total.objects,
        size_bytes=total.size_bytes,
        what_if=plan.what_if,
    )


def apply_command(kind: RunKind) -> str:
    """Return the command that applies plans of this kind only."""
    return kind.spec.command


def go_on_command(repository: str, run_ids: Sequence[str], kind: RunKind, options: Sequence[str] = ()) -> str:
    """Return the command that applies the runs. `options`: the options that an apply needs like its plan."""
    return shlex.join([*apply_command(kind).split(), f"lakefs://{repository}", *run_ids, *options])


@contextlib.contextmanager
def reporting_where(
    command: Callable[[RunKind], str], run_id: str, run_status: Callable[[], RunStatus], progress: Progress
) -> Iterator[None]:
    """Report the progress of an apply and the command that continues it, if the apply stops or no server answers."""
    try:
        yield
    except (KeyboardInterrupt, Unavailable, OutcomeUnknown):
        try:
            status = run_status()
            progress(left_off(status, command(status.kind)))
        except LakebedError:
            progress(
                f"stopped; what was done of run {run_id} is recorded; if its deletes began, the next `gc run` goes on "
                f"with it, or at once an apply of the run"
            )
        raise


def left_off(status: RunStatus, command: str) -> str:
    """Return one sentence for a person who stopped an apply, or saw it stop."""
    if status.state == RunState.ENDED:
        return f"stopped, and run {status.run_id} had ended"
    if not status.is_unfinished:
        return f"stopped before run {status.run_id} deleted anything; apply it again: {command}"
    done = f"what was done of run {status.run_id} is recorded"
    if status.objects is not None and status.objects_done is not None:
        done = (
            f"{status.objects_done:,} of {count_of(status.objects, 'object')} of run {status.run_id} recorded as done"
        )
    return f"stopped: {done}; the next `gc run` goes on with it, or at once: {command}"
