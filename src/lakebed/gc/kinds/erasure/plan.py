"""An erasure deletes every object that selected entries ever named, in any commit and on any branch, for good.

Applies as a lifecycle run does (docs/design/protocols.md, "A lifecycle run"), with an order in place of the policy:

1. Delete unchanged staged entries of the plan's objects, and abort uploads of which it has all parts.
2. The service publishes the run, records staged, uploaded and copied objects, and reads refs and commits again.
3. Keep objects that a staged, uploaded or copied entry names, an entry that is not selected (unless the order takes
   shared objects), or a legal hold. Write the rest as a second table, `garbage.<recheck>`.

Committed entries remain, and a read of one reports the erasure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace

from lakebed.base import count_of, human_size, parse_slice_name
from lakebed.gc import messages
from lakebed.gc.engines.engine import CLOSED
from lakebed.gc.kinds import Limits, Look, SweepRule
from lakebed.gc.kinds.erasure.certificate.certifying import queued_of
from lakebed.gc.kinds.erasure.certificate.foreseeing import foresee
from lakebed.gc.kinds.erasure.certificate.standing import Commits
from lakebed.gc.mark.holding import check_planned_holds, deal_held
from lakebed.gc.mark.inputs.named import deal_tables
from lakebed.gc.mark.inputs.ranges import ListedRanges, deal_ranges
from lakebed.gc.mark.mark import mark_again, mark_expired
from lakebed.gc.mark.sets.bucketed import Bucketed
from lakebed.gc.mark.sets.places import may_be_swept
from lakebed.gc.messages import (
    DATA_PREFIX,
    Cleared,
    ErasureOrder,
    InvalidRequest,
    Manifest,
    Pieces,
    Plan,
    PreparedCommits,
    RangeCounts,
    RecheckInputs,
    RunKind,
    StagedEntry,
    StartedRun,
)
from lakebed.gc.rules import Holds
from lakebed.gc.runs.context import RunContext, counts_of, folder_in, plan_frame, slice_numbers, whole, write_piece

from .erasing import add_others, deal_selected, deal_staying, deferred_runs, key_of, read_ranges_by_span


@dataclass(frozen=True, slots=True)
class Erasure:
    order: ErasureOrder
    name: ClassVar = RunKind.ERASURE
    rule: ClassVar = SweepRule(may_delete=may_be_swept, look=Look.NOT_YOUNGER)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        # Read staged entries before commits: an entry that is committed in between would be in neither.
        staged, others = await context.service.staged_and_others(run.run_id, self.order.selection)
        order = replace(self.order, staged=staged)
        queued = await queued_of(context, run.run_id, self.order.selection)

        async def decide(prepared: PreparedCommits) -> Plan:
            return await _plan(context, run, order, queued, others, prepared)

        return await context.reread(lambda: context.service.commits_for(run.run_id, run.kind), decide)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        holds = await context.service.holds()
        check_planned_holds(holds, plan)
        staged = [entry for entry in self.order.staged if not entry.is_sealed and not holds.of(path=entry.path)]
        going = await _that_go(context, plan, self.order, staged)
        # Unstage before the recheck, which keeps each object that a staged entry still names.
        if going:
            count = await context.service.unstage(plan.run_id, going, uid=plan.uid)
            context.progress(f"deleted {count_of(count, 'staged entry', 'staged entries')}")

        async def look_again(answer: RecheckInputs) -> Cleared:
            return await _recheck(context, plan, self.order, answer, holds)

        return await context.expire_no_commits(plan, rules_version, look_again)


def make(limits: Limits) -> Erasure:
    if limits.erasure is None:
        raise InvalidRequest("an erasure says what it erases: lakebed erase plan")
    return Erasure(limits.erasure)


async def _that_go(
    context: RunContext, plan: Plan, order: ErasureOrder, staged: Sequence[StagedEntry]
) -> Sequence[StagedEntry]:
    """Return the staged entries whose objects the plan deletes. A later plan finds the other entries by their paths."""
    if not staged:
        return ()
    goes = frozenset((await context.read(plan.garbage, messages.GARBAGE))["address"].to_pylist())
    in_parts = any(entry.multipart_id for entry in staged)
    # An upload ends with all of its parts. So keep one that got a part after the plan.
    now = await context.service.staged(plan.run_id, order.selection) if in_parts else ()
    parts = [entry for entry in (*staged, *now) if entry.multipart_id]
    kept = {part.multipart_id for part in parts if key_of(part, plan.namespace) not in goes}
    return [entry for entry in staged if key_of(entry, plan.namespace) in goes and entry.multipart_id not in kept]


async def _plan(
    context: RunContext,
    run: StartedRun,
    order: ErasureOrder,
    queued: Sequence[StagedEntry],
    others: Manifest | None,
    prepared: PreparedCommits,
) -> Plan:
    """Return the plan. It keeps `others` (UNCOMMITTED), the objects of staged entries that are not selected."""
    commits = await context.read(prepared.commits, messages.COMMITS)
    ranges = await read_ranges_by_span(context.engine, commits, order.selection, folder=folder_in(run, "ranges.tasks"))
    meeting, apart = ranges.meeting, ranges.apart
    context.progress(
        f"reading {count_of(meeting.count, 'range')} that may have selected entries; {apart.count:,} have none"
    )
    closed = slice_numbers(run.closed_slices)
    candidates, stays = await _candidates(context, run, order, queued, prepared.holds, meeting, closed)
    sides = [await deal_held(context, run, commits, prepared.holds, name="holds")]
    sides += [await deal_staying(context, run, order.staged, prepared.holds, closed=closed)]
    if others is not None:
        sides += [await deal_tables(context, run, [others], messages.UNCOMMITTED, "others")]
    if not order.takes_shared:
        sides += [stays, await deal_ranges(context, run, apart, folder=folder_in(run, "live.tasks"))]
    garbage, totals = await mark_expired(
        context.engine,
        candidates,
        sides,
        into=folder_in(run, messages.GARBAGE.name),
        now_ms=run.now_ms,
        all_names=True,
        # An earlier erasure deleted objects whose entries remain, so ask the store which objects exist. Do not ask for
        # staged ones: their bytes may still be on the way.
        unasked=frozenset(key_of(entry, run.namespace) for entry in order.staged),
    )
    objects, size = count_of(totals.all.objects, "object"), human_size(totals.all.size_bytes)
    context.progress(f"{objects}, {size}, to go; writing the plan")
    planned = Commits(prepared, commits, ranges)
    outlook, checksums = await foresee(context, run, order, planned, queued=queued, garbage=garbage)
    # Retention rules do not apply to erasures.
    frame = plan_frame(context, run, prepared) | {"rules": None, "rules_version": 0}
    return Plan(
        **frame,
        erasure=replace(order, checksums=checksums),
        outlook=outlook,
        slices=await _write_slices(context, run),
        commit_counts=counts_of(commits),
        range_counts=RangeCounts(live=apart.count, expired=meeting.count),
        garbage=garbage,
        totals=totals,
    )


async def _candidates(
    context: RunContext,
    run: StartedRun,
    order: ErasureOrder,
    queued: Sequence[StagedEntry],
    holds: Holds,
    meeting: ListedRanges,
    closed: Collection[int],
) -> tuple[Bucketed, Bucketed]:
    """Return the objects of selected entries and, second, the objects of other entries in the same ranges.

    Objects of deferred runs and of the queue of hard delete are candidates if a path alone selects them.
    """
    due, stays = await deal_selected(
        context.engine,
        meeting,
        order.selection,
        uri=run.namespace,
        folder=folder_in(run, "due.tasks"),
        closed=closed,
    )
    candidates = await add_others(
        context,
        due,
        (*order.staged, *queued),
        await deferred_runs(context),
        order.selection,
        takes_shared=order.takes_shared,
        holds=holds,
        uri=run.namespace,
        closed=closed,
    )
    return candidates, stays


async def _write_slices(context: RunContext, run: StartedRun) -> Pieces | None:
    names = run.all_slices()
    if names is None:
        return None
    # Write unrecorded slices as well. A restore may record one later, and a proof must have listed it.
    data = await context.store.level(DATA_PREFIX)
    folders = {folder[len(DATA_PREFIX) : -1] for folder in data.folders}
    lying = {name for name in folders if parse_slice_name(name) is not None}
    rows = CLOSED.rows({"bucket": slice_numbers(sorted(lying.union(names)))})
    return await write_piece(context.store, folder_in(run, "slices"), messages.part_name(0), CLOSED, rows)


async def _recheck(
    context: RunContext, plan: Plan, order: ErasureOrder, answer: RecheckInputs, holds: Holds
) -> Cleared:
    """Write the plan's objects that nothing keeps now, into tables named by this recheck."""
    commits, uncommitted = whole(answer)
    name, closed = commits.digest()[:16], slice_numbers(answer.closed_slices)
    suffix = f".{name}"
    rows = await context.read(commits, messages.COMMITS)
    sides = [
        await deal_tables(context, plan, [uncommitted], messages.UNCOMMITTED, f"uncommitted{suffix}"),
        await deal_held(context, plan, rows, holds, name=f"holds{suffix}"),
    ]
    # An object that an unselected entry names is shared. Only an order that takes shared objects deletes it.
    if not order.takes_shared:
        ranges = await read_ranges_by_span(
            context.engine, rows, order.selection, folder=folder_in(plan, f"ranges.tasks{suffix}")
        )
        _, stays = await deal_selected(
            context.engine,
            ranges.meeting,
            order.selection,
            uri=plan.namespace,
            folder=folder_in(plan, f"due.tasks{suffix}"),
            closed=closed,
        )
        unselected = folder_in(plan, f"live.tasks{suffix}")
        sides += [stays, await deal_ranges(context, plan, ranges.apart, folder=unselected)]
    garbage, totals = await mark_again(context, plan, plan.garbage, sides, name=name, closed=closed)
    return Cleared(garbage=garbage, commits=commits, size_bytes=totals.all.size_bytes)
