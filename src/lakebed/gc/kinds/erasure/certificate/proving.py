"""Find the run which proves that no garbage is left from before an erasure.

Garbage may have been at an erased path, and no record has its path. So an erasure does not search for garbage. A clean
run of uncommitted data deletes all of it. Such a run is a proof if

1. the erasure was published before the run began to look
2. the run ended and left no object of its plan, deferred objects included
3. the run listed each recorded slice that existed when the erasure began
4. of these slices the run kept staged objects only: no upload, no copy, no object that was too young
5. the runs whose objects it left alone have ended likewise, or are deferred with all paths on record

No clock decides. In doubt, the certificate reports garbage. Reads some records and files of runs, and lists no objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, Basis, RunKind, RunState, count_of
from lakebed.gc import messages
from lakebed.gc.engines.engine import CANDIDATES, CLOSED, Table, decode, read_part
from lakebed.gc.mark.inputs.listing import SIZE_UNKNOWN
from lakebed.gc.mark.inputs.named import LiveSet
from lakebed.gc.mark.sets.packing import named_by, unpack
from lakebed.gc.runs.context import RunContext, find, read_plan, slice_numbers
from lakebed.gc.runs.resume import garbage_of

RUNS_READ_MAX: Final = 32
NO_RUN: Final = "no clean run of uncommitted data began after the erasure did"


async def find_proof(
    context: RunContext, erasure: str, now: messages.StartedRun, *, has_unlisted: bool
) -> messages.Collected | str:
    """Return the latest run that proves that this erasure left no garbage, or why the latest candidate does not.

    `now` names the slices that exist. `has_unlisted`: `data/` has folders or files without a slice record.
    """
    # Overwritten, deleted and reset entries, refused uploads, unlinked addresses and parts leave garbage. A record of
    # its path would cost an operation for each such write.
    views = {view.run_id: view for view in await context.service.runs()}
    try:
        known = await _slices_before(context, erasure)
    except (messages.PlanMissing, messages.BadInput) as error:
        return f"which slices there were is unknown ({error}): erase once more"
    # A slice that is not listed now needs no proof.
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
        except messages.PlanMissing:
            continue
        except messages.BadInput as error:
            doubt = str(error)
        if not doubt:
            # With 0 each certificate looks for a proof again. An unlisted slice may get its record later. A deferred
            # run may end with objects left, or lose its record.
            is_whole = not (has_unlisted or any(_defers_named(views.get(other)) for other in plan.beside))
            return messages.Collected(
                run_id=view.run_id,
                began_ms=plan.now_ms,
                plan=view.plan,
                total=plan.totals.all,
                proof=messages.PROOF if is_whole else 0,
            )
        why = why or f"run {view.run_id} {doubt}"
    return why or NO_RUN


async def _slices_before(context: RunContext, erasure: str) -> frozenset[int]:
    """Return the slices that existed when the erasure began, or raise PlanMissing or BadInput."""
    plan = await read_plan(context.store, erasure)
    if plan.slices is None:
        raise messages.BadInput("an earlier release planned it", input="slices")
    return frozenset(await _slices(context, plan.slices))


def _candidates(views: Iterable[messages.RunView]) -> Sequence[messages.RunView]:
    """Return at most RUNS_READ_MAX runs of uncommitted data that have a plan on record, the latest first."""
    # A run that ended without an apply has no plan on record.
    states = (RunState.MARKED, RunState.ENDED)
    candidates = [view for view in views if view.kind is RunKind.UNCOMMITTED and view.state in states and view.plan]
    return candidates[:RUNS_READ_MAX]


async def _doubt(
    context: RunContext,
    view: messages.RunView,
    plan: messages.Plan,
    *,
    views: Mapping[str, messages.RunView],
    known: Collection[int],
) -> str:
    """Return why this run proves nothing, or "" if it is a proof."""
    if plan.mode is not messages.RunMode.CLEAN or plan.keeps is None or plan.uncommitted is None:
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


async def _left_of(context: RunContext, view: messages.RunView) -> str:
    """Return how many objects a run left, or why it has not ended, as text. Return "" if it deleted all.

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


async def _left_of_other(context: RunContext, view: messages.RunView | None) -> str:
    """Return the same of a run whose objects the proving run left alone."""
    # Commits named the objects of a deferred run of another kind, so its table has their paths. The erasure and each
    # certificate look into the table by path.
    if view is None:
        return "is not on record any more"
    takes_commits = view.kind.spec.basis is Basis.RULES
    if _defers_named(view) and not (takes_commits and view.is_purging):
        return ""
    left = await _left_of(context, view)
    # The proving run kept what commits of that run named. A certificate reads these only while the run may be undone.
    return f"{left or 'has ended since'}. Collect again" if takes_commits else left


def _defers_named(view: messages.RunView | None) -> bool:
    """Return whether a run is deferred and keeps objects that commits named."""
    if view is None or view.kind is RunKind.UNCOMMITTED:
        return False
    return view.until_ms is not None and view.state is not RunState.ENDED


async def _report(context: RunContext, view: messages.RunView) -> messages.RunReport:
    name = messages.report_path(view.kind, messages.check_run_id(view.run_id))
    data = await find(context.store, name)
    if data is None:
        raise messages.BadInput(f"{name} is missing", input="report")
    return messages.decode_report(data, name=name)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()


async def _count_kept(
    context: RunContext, kept: messages.Pieces, uncommitted: messages.Manifest, known: Collection[int]
) -> int:
    """Count the objects of known slices that the run kept and that were not staged."""
    # SIZE_UNKNOWN: no object was at the address then. So it was used after the erasure, or never.
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


async def _staged(context: RunContext, uncommitted: messages.Manifest) -> pa.Table:
    """Return the objects (LIVE) that cells named when the run read the cells."""
    live = LiveSet()
    for part in uncommitted.parts:
        data = await context.store.get(uncommitted.folder + part.name)
        rows = messages.read_part(uncommitted, messages.UNCOMMITTED, part, data, ["slice", "sequence", "source"])
        chosen = pc.and_(pc.equal(rows["source"], "staging"), pc.not_equal(rows["slice"], FOREIGN_SLICE))
        rows = rows.filter(chosen)
        live.add_numbers(rows["slice"].to_numpy(), rows["sequence"].to_numpy().astype(np.int64))
    return live.rows()


async def _slices(context: RunContext, pieces: messages.Pieces) -> list[int]:
    tables = [await _read(context, pieces.folder, part, CLOSED) for part in pieces.parts]
    return [number for table in tables for number in table["bucket"].to_pylist()]


async def _read(context: RunContext, folder: str, part: messages.Part, table: Table) -> pa.Table:
    return decode(table, await read_part(context.store, folder, part), part)
