"""Show how far runs have come: one run, waited for or left behind, and all of a repository in one list.

Progress is counted by parts of the plan: a part has a file in the ledger when it is done, and not before. So a look
costs a listing of a few names, and may be behind by the parts that are under way.
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
"""The state of a run that waits for the end of its window; on its record it is one that may delete."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is that of the run's record; `planned` or, by supposed rules, `supposed` where it has none; `plan` the
    digest on that record, and `expiring` how many commits are, until the run is over.

    `objects` and `size_bytes` are what goes, `objects_done` are those of the parts that are recorded, whatever became
    of each; all None where it is not known. `began_ms` and `ended_ms` are of its applies: None where none began, or it
    has not ended. `window` is the one that was asked for, empty where none was. Of a run that waits for the end of it
    the state is `deferred`, until `until_ms`.
    """

    run_id: str
    kind: RunKind
    state: str
    started_ms: int
    expiring: int = 0
    plan: str = ""
    objects: int | None = None
    size_bytes: int | None = None
    objects_done: int | None = None
    began_ms: int | None = None
    ended_ms: int | None = None
    window: str = ""
    until_ms: int | None = None
    nothing_deleted: bool = False

    @property
    def is_unfinished(self) -> bool:
        """Its deletes may have begun, and it has not ended."""
        is_at_it = self.state == RunState.SWEEPING or (self.state == RunState.MARKED and self.began_ms is not None)
        return is_at_it and not self.nothing_deleted


def run_status_by_record(view: RunView) -> RunStatus:
    """For who cannot reach the namespace."""
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
    """Costs a few small reads, and a listing of the run's files in the ledger.

    Raises:
        PlanMissing: there is neither a record nor a plan.
        BadInput: a file of the run is unreadable.
    """
    try:
        plan = await read_plan(store, run_id)
    except PlanMissing:
        if view is None:
            raise
        return run_status_by_record(view)
    if view is None:
        planned = RunStatus(
            run_id=run_id,
            kind=plan.kind,
            state="supposed" if plan.what_if else "planned",
            started_ms=plan.now_ms,
        )
        return _with_total(planned, plan)
    found, begun = _with_total(run_status_by_record(view), plan), await read_begun(store, tasks, plan.kind, run_id)
    if begun is None or found.nothing_deleted:
        return found
    goes = await _goes(store, plan, view)
    return msgspec.structs.replace(
        found,
        began_ms=begun.began_ms,
        window=begun.window,
        objects=goes.rows if goes else found.objects,
        size_bytes=found.size_bytes if goes is plan.garbage else None,
        objects_done=await _done(store, plan, goes) if goes else None,
        ended_ms=await _ended_ms(store, plan) if view.state is RunState.ENDED else None,
    )


def _with_total(found: RunStatus, plan: Plan) -> RunStatus:
    """A committed run has its record only since it is applied: it began with its plan."""
    total = plan.totals.all
    return msgspec.structs.replace(found, started_ms=plan.now_ms, objects=total.objects, size_bytes=total.size_bytes)


async def _goes(store: ObjectStore, plan: Plan, view: RunView) -> Manifest | None:
    """Return the objects that the service let the run take; None before that."""
    if not plan.kind.publishes:
        return (await recheck_of(store, plan, view)).garbage if view.sweeps else plan.garbage
    return (await recheck_of(store, plan, view)).garbage if view.plan else None


async def _done(store: ObjectStore, plan: Plan, goes: Manifest) -> int:
    started = await read_started(store, plan)
    if started is None:
        return 0
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
    """`state` is that of the run's record; `planned` or, by supposed rules, `supposed` where it has none. `objects` and
    `size_bytes` are what the plan takes, None where there is no finished plan, or where the run ended and none of it
    was deleted (`nothing_deleted`). `planned_by` made the plan, by the server's record; `is_own`: that is the caller,
    or a job of the server. `has_begun`: its deletes may have begun, and it has not ended. `deferred` ones wait
    until `until_ms`.
    """

    run_id: str
    kind: RunKind
    state: str
    started_ms: int
    objects: int | None = None
    size_bytes: int | None = None
    what_if: bool = False
    nothing_deleted: bool = False
    has_begun: bool = False
    until_ms: int | None = None
    planned_by: str = ""
    is_own: bool = False


async def list_runs(store: ObjectStore, tasks: Tasks, views: Iterable[RunView], *, limit: int) -> list[ListedRun]:
    """The newest first, at most `limit`. Costs a listing of the run folders, and one read for each that is shown."""
    known = {view.run_id: view for view in views}
    planned = set(await list_plans(store))
    newest = sorted({*known, *planned}, reverse=True)[:limit]
    shown = [known[id_] for id_ in newest if id_ in known]
    begun = {run.run_id for run in await unfinished_runs(store, tasks, shown)}
    found = [_listed(id_, known.get(id_), await read_plan(store, id_) if id_ in planned else None) for id_ in newest]
    return [msgspec.structs.replace(run, has_begun=run.run_id in begun) for run in found]


def ended_without_deleting(view: RunView) -> bool:
    """A run that ended has a plan on its record only if that was, or may have been, carried out."""
    return view.state is RunState.ENDED and not view.plan


def _listed(run_id: str, view: RunView | None, plan: Plan | None) -> ListedRun:
    if view is not None and ended_without_deleting(view):
        return ListedRun(
            run_id=run_id, kind=view.kind, state=view.state.value, started_ms=view.started_ms, nothing_deleted=True
        )
    if plan is None:
        assert view is not None, "a run is listed for its record or for its plan"
        return ListedRun(run_id=run_id, kind=view.kind, state=_state_of(view), started_ms=view.started_ms)
    return ListedRun(
        run_id=run_id,
        kind=plan.kind,
        until_ms=None if view is None else view.until_ms,
        state=_state_of(view) if view is not None else "supposed" if plan.what_if else "planned",
        started_ms=plan.now_ms,
        objects=plan.totals.all.objects,
        size_bytes=plan.totals.all.size_bytes,
        what_if=plan.what_if,
    )


def apply_command(kind: RunKind) -> str:
    """Return the command that applies plans of this kind, and of no other."""
    return kind.spec.command


def go_on_command(repository: str, run_ids: Sequence[str], kind: RunKind, options: Sequence[str] = ()) -> str:
    """Return the command that applies the runs. `options`: those that it needs as the plans did."""
    return shlex.join([*apply_command(kind).split(), f"lakefs://{repository}", *run_ids, *options])


@contextlib.contextmanager
def reporting_where(
    command: Callable[[RunKind], str], run_id: str, run_status: Callable[[], RunStatus], progress: Progress
) -> Iterator[None]:
    """Say how far an apply came, and which command continues it, if it stops or no server answers."""
    try:
        yield
    except (KeyboardInterrupt, Unavailable, OutcomeUnknown):
        try:
            found = run_status()
            progress(left_off(found, command(found.kind)))
        except LakebedError:
            progress(
                f"stopped; what was done of run {run_id} is recorded; if its deletes began, the next `gc run` goes on "
                f"with it, or at once an apply of the run"
            )
        raise


def left_off(found: RunStatus, command: str) -> str:
    """One sentence for who stopped an apply, or saw it stop."""
    if found.state == RunState.ENDED:
        return f"stopped, and run {found.run_id} had ended"
    if not found.is_unfinished:
        return f"stopped before run {found.run_id} deleted anything; apply it again: {command}"
    done = f"what was done of run {found.run_id} is recorded"
    if found.objects is not None and found.objects_done is not None:
        done = f"{found.objects_done:,} of {count_of(found.objects, 'object')} of run {found.run_id} recorded as done"
    return f"stopped: {done}; the next `gc run` goes on with it, or at once: {command}"
