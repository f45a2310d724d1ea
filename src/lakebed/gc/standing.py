"""How far a run has come, for whoever waits for it or finds it left behind.

What is done is counted by parts of the plan: a part has a file in the ledger when it is done, and not before. So a look
costs a listing of a few names, and may be behind by what is under way, at most 100,000 objects a task.
"""

from __future__ import annotations

import msgspec

from lakebed.base import RunId
from lakebed.gc.protocol import (
    LEDGER_PREFIX,
    Manifest,
    Plan,
    PlanMissing,
    RunKind,
    RunState,
    RunView,
    decode_report,
    report_path,
)

from .files import Files
from .listed import ended_without_deleting
from .runs import read_plan
from .unfinished import read_begun, read_started, recheck_of


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is that of the run's record; `planned` or, by supposed rules, `supposed` where it has none; `plan` the
    digest on that record, and `condemned` how many commits are, until the run is over.

    `objects` and `size_bytes` are what goes, `objects_done` are those of the parts that are recorded, whatever became
    of each; all None where it is not known. `began_ms` and `ended_ms` are of its applies: None where none began, or it
    has not ended. `window` is that of its quarantine, empty where objects are deleted.
    """

    run_id: str
    kind: RunKind
    state: str
    started_ms: int
    condemned: int = 0
    plan: str = ""
    objects: int | None = None
    size_bytes: int | None = None
    objects_done: int | None = None
    began_ms: int | None = None
    ended_ms: int | None = None
    window: str = ""
    nothing_deleted: bool = False

    @property
    def is_unfinished(self) -> bool:
        """Its deletes may have begun, and it has not ended."""
        is_at_it = self.state == RunState.SWEEPING or (self.state == RunState.MARKED and self.began_ms is not None)
        return is_at_it and not self.nothing_deleted


def standing_by_record(view: RunView) -> Standing:
    """For who cannot reach the namespace."""
    return Standing(
        run_id=view.run_id,
        kind=view.kind,
        state=view.state.value,
        started_ms=view.started_ms,
        condemned=view.condemned,
        plan=view.plan,
        nothing_deleted=ended_without_deleting(view),
    )


def standing_of(files: Files, run_id: str, view: RunView | None) -> Standing:
    """Costs a few small reads, and a listing of the run's files in the ledger.

    Raises:
        PlanMissing: there is neither a record nor a plan.
        BadInput: a file of the run is unreadable.
    """
    try:
        plan = read_plan(files, run_id)
    except PlanMissing:
        if view is None:
            raise
        return standing_by_record(view)
    if view is None:
        planned = Standing(
            run_id=run_id,
            kind=plan.kind,
            state="supposed" if plan.what_if else "planned",
            started_ms=plan.now_ms,
        )
        return _with_total(planned, plan)
    found, begun = _with_total(standing_by_record(view), plan), read_begun(files, plan.kind, run_id)
    if begun is None or found.nothing_deleted:
        return found
    goes = _goes(files, plan, view)
    return msgspec.structs.replace(
        found,
        began_ms=begun.began_ms,
        window=begun.window,
        objects=goes.rows if goes else found.objects,
        size_bytes=found.size_bytes if goes is plan.doomed else None,
        objects_done=_done(files, plan, goes) if goes else None,
        ended_ms=_ended_ms(files, plan) if view.state is RunState.ENDED else None,
    )


def _with_total(found: Standing, plan: Plan) -> Standing:
    """A committed run has its record only since it is applied: it began with its plan."""
    total = plan.totals.all
    return msgspec.structs.replace(found, started_ms=plan.now_ms, objects=total.objects, size_bytes=total.size_bytes)


def _goes(files: Files, plan: Plan, view: RunView) -> Manifest | None:
    """What the run was let to take; None where it was not, yet."""
    if plan.kind is RunKind.UNCOMMITTED:
        return plan.doomed
    return recheck_of(files, plan, view).doomed if view.plan else None


def _done(files: Files, plan: Plan, goes: Manifest) -> int:
    started = read_started(files, plan)
    if started is None:
        return 0
    recorded = files.sizes(f"{LEDGER_PREFIX}date={started.date}/{plan.run_id}-")
    return sum(part.rows for part in goes.parts if part.name in recorded)


def _ended_ms(files: Files, plan: Plan) -> int | None:
    name = report_path(plan.kind, RunId(plan.run_id))
    data = files.find(name)
    return None if data is None else decode_report(data, name=name).run_end_time_ms
