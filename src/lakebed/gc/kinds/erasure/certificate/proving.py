"""Find the run which proves that no garbage is left from before an erasure.

Bytes that were overwritten, deleted or reset away while they were staged may have been at an erased path. So may those
of a refused upload, of an address that was never linked, and of parts. No record has their path: to write it down would
cost every such write an operation. So an erasure does not search for them. A clean run of uncommitted data takes them
all, and proves that none is left, where

1. the erasure's plan was complete when it began to look, as the erasure was published by then
2. it ended by its record, so each of its deletes was done; what waited for a window was, too
3. it listed each slice that there was when the erasure began, and that is on record; any other stands (certifying.py)
4. it kept nothing of these slices but what is staged: no upload, no copy, nothing for its age
5. the runs of whose objects it took none have ended likewise, or are deferred and have paths on record

A certificate keeps a proof, as the run's files go some day. Of one that left out a slice without a record, or what a
deferred run keeps, it keeps none: the slice may come on record later, and the run may end with objects left or lose
its record.

No clock decides that. It costs a few reads of records and of the run's files, and lists no objects. Doubt means that
garbage stands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, count_of
from lakebed.gc import messages
from lakebed.gc.engines.tables import CANDIDATES, CLOSED, Table, decode, read_part
from lakebed.gc.mark.inputs.listing import SIZE_UNKNOWN
from lakebed.gc.mark.inputs.named import LiveSet
from lakebed.gc.mark.sets.packing import named_by, unpack
from lakebed.gc.messages import (
    PROOF,
    UNCOMMITTED,
    BadInput,
    Collected,
    Manifest,
    Pieces,
    Plan,
    PlanMissing,
    RunKind,
    RunMode,
    RunReport,
    RunState,
    RunView,
    StartedRun,
    decode_report,
    report_path,
)
from lakebed.gc.runs.context import RunContext, find, read_plan, slice_numbers
from lakebed.gc.runs.resume import garbage_of

RUNS_READ_MAX: Final = 32
NO_RUN: Final = "no clean run of uncommitted data began after the erasure did"


async def find_proof(context: RunContext, erasure: str, now: StartedRun, *, has_unlisted: bool) -> Collected | str:
    """Return the latest run that proves it for this erasure; or why the latest one that comes near does not.

    `now` names the slices that there are; `has_unlisted` says whether one without a record lies there, too.
    """
    views = {view.run_id: view for view in await context.service.runs()}
    try:
        known = await _slices_before(context, erasure)
    except (PlanMissing, BadInput) as error:
        return f"which slices there were is unknown ({error}): erase once more"
    if (names := now.all_slices()) is not None:
        # A slice in which every upload failed loses its record, and has no object.
        known &= frozenset(slice_numbers(names))
    why = ""
    for view in _candidates(views.values()):
        try:
            plan = await read_plan(context.store, view.run_id)
            if erasure not in plan.erasures:
                continue
            doubt = await _doubt(context, view, plan, views=views, known=known)
        except PlanMissing:
            continue
        except BadInput as error:
            doubt = str(error)
        if not doubt:
            is_whole = not (has_unlisted or any(_defers_named(views.get(other)) for other in plan.beside))
            return Collected(
                run_id=view.run_id,
                began_ms=plan.now_ms,
                plan=view.plan,
                total=plan.totals.all,
                proof=PROOF if is_whole else 0,
            )
        why = why or f"run {view.run_id} {doubt}"
    return why or NO_RUN


async def _slices_before(context: RunContext, erasure: str) -> frozenset[int]:
    """Return the slices that there were when the erasure began.

    Raises:
        PlanMissing, BadInput: that is not on record.
    """
    plan = await read_plan(context.store, erasure)
    if plan.slices is None:
        raise BadInput("an earlier release planned it", input="slices")
    return frozenset(await _slices(context, plan.slices))


def _candidates(views: Iterable[RunView]) -> Sequence[RunView]:
    """Return runs of uncommitted data with a plan, the latest first. One that ended unapplied has none on record."""
    states = (RunState.MARKED, RunState.ENDED)
    found = [view for view in views if view.kind is RunKind.UNCOMMITTED and view.state in states and view.plan]
    return found[:RUNS_READ_MAX]


async def _doubt(
    context: RunContext, view: RunView, plan: Plan, *, views: Mapping[str, RunView], known: Collection[int]
) -> str:
    """Return why this run proves nothing; empty where it does."""
    if plan.mode is not RunMode.CLEAN or plan.keeps is None or plan.uncommitted is None:
        return "was not a clean one"
    if plan.what_if:
        return "was planned by rules that were not saved"
    if doubt := await _left_of(context, view):
        return doubt
    if unread := len(frozenset(known).difference(await _slices(context, plan.keeps.slices))):
        return f"left {count_of(unread, 'slice')} out: still written to then, or too young. Collect again in a moment"
    for other in plan.beside:
        if doubt := await _left_of_other(context, views.get(other)):
            return f"took nothing that run {other} had, which {doubt}"
    kept = await _count_kept(context, plan.keeps.kept, plan.uncommitted, known)
    if kept:
        return f"kept {count_of(kept, 'object')} of uploads or copies, or for their age. Collect again when these end"
    return ""


async def _left_of(context: RunContext, view: RunView) -> str:
    """Return what a run has not deleted of all that it may, by its record and its report.

    Raises:
        BadInput: its table or its report is unreadable.
    """
    if view.state is RunState.ABANDONED or not view.plan:
        return "deleted nothing"
    if view.state is not RunState.ENDED:
        until = "" if view.until_ms is None else f": it keeps its objects until {_day(view.until_ms)}"
        return f"has not ended{until}"
    report = await _report(context, view)
    bound = await garbage_of(context.store, view)
    left = report.objects_failed + report.objects_kept + bound.rows - report.garbage_objects
    return f"left {count_of(left, 'object')}" if left else ""


async def _left_of_other(context: RunContext, view: RunView | None) -> str:
    """Return likewise, of a run beside. Commits named what a deferred run of another kind keeps: the erasure, and each
    certificate, looks into its table by path.
    """
    if view is None:
        return "is not on record any more"
    return "" if _defers_named(view) else await _left_of(context, view)


def _defers_named(view: RunView | None) -> bool:
    """Say whether a run keeps, for a window, what commits named."""
    if view is None or view.kind is RunKind.UNCOMMITTED:
        return False
    return view.until_ms is not None and view.state is not RunState.ENDED


async def _report(context: RunContext, view: RunView) -> RunReport:
    name = report_path(view.kind, messages.check_run_id(view.run_id))
    data = await find(context.store, name)
    if data is None:
        raise BadInput(f"{name} is missing", input="report")
    return decode_report(data, name=name)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()


async def _count_kept(context: RunContext, kept: Pieces, uncommitted: Manifest, known: Collection[int]) -> int:
    """Count the objects of known slices that the run kept, and that were there and not staged.

    An address where nothing lay then was used after the erasure, or never.
    """
    if not kept.parts:
        return 0
    staged, slices = await _staged(context, uncommitted), np.array(sorted(known), np.int64)
    count = 0
    for part in kept.parts:
        objects = unpack(await _read(context, kept.folder, part, CANDIDATES))
        in_slices = np.repeat(objects.candidates["bucket"].to_numpy(), objects.counts)
        left: npt.NDArray[np.bool_] = np.isin(in_slices, slices) & (objects.sizes != SIZE_UNKNOWN)
        count += int((left & ~named_by(staged, objects)).sum())
    return count


async def _staged(context: RunContext, uncommitted: Manifest) -> pa.Table:
    """LIVE of what cells named when the run read them."""
    live = LiveSet()
    for part in uncommitted.parts:
        data = await context.store.get(uncommitted.folder + part.name)
        rows = messages.read_part(uncommitted, UNCOMMITTED, part, data, ["slice", "sequence", "source"])
        chosen = pc.and_(pc.equal(rows["source"], "staging"), pc.not_equal(rows["slice"], FOREIGN_SLICE))
        rows = rows.filter(chosen)
        live.add_numbers(rows["slice"].to_numpy(), rows["sequence"].to_numpy().astype(np.int64))
    return live.rows()


async def _slices(context: RunContext, pieces: Pieces) -> list[int]:
    tables = [await _read(context, pieces.folder, part, CLOSED) for part in pieces.parts]
    return [number for table in tables for number in table["bucket"].to_pylist()]


async def _read(context: RunContext, folder: str, part: messages.Part, table: Table) -> pa.Table:
    return decode(table, await read_part(context.store, folder, part), part)
