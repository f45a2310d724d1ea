"""A pruning run deletes files of tables that nothing but the hidden branch of tables names.

It goes as a lifecycle run does (docs/design/0016-tables.md, "Pruning"): commits of the hidden branch go on naming what
it takes, and its records say so to readers and to commits of tables. A plan publishes nothing. The apply:

1. The service publishes the run, and records staged, uploaded and copied objects, and reads refs and commits.
2. Keep the plan's objects that one of these names, but for commits of the hidden branch alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Invalid, RangeId, count_of, human_size
from lakebed.gc import messages
from lakebed.gc.engines import Task
from lakebed.gc.kinds import Limits, Look, SweepRule
from lakebed.gc.mark.holding import deal_held, metaranges_of
from lakebed.gc.mark.inputs.named import check_live, deal_tables
from lakebed.gc.mark.inputs.ranges import (
    Candidates,
    ListedRanges,
    deal_candidates,
    deal_ranges,
    pack_rows,
    read_entries,
    read_ranges,
)
from lakebed.gc.mark.mark import look_again, mark_expired
from lakebed.gc.mark.sets.packing import Cause
from lakebed.gc.mark.sets.places import Namespace, may_be_swept
from lakebed.gc.messages import Cleared, Plan, PreparedCommits, RangeCounts, RecheckInputs, RunKind, StartedRun
from lakebed.gc.runs.context import RunContext, counts_of, folder_in, plan_frame, slice_numbers, whole
from lakebed.gc.runs.resume import held_tables, runs_over, taken_tables
from lakebed.ranges import range_number

PRUNING: Final = Cause(reason="pruning", rule="pruning", branch="tables")
_COLUMNS: Final = ["key", "slice", "sequence", "address", "size_bytes", "modified_ms"]


@dataclass(frozen=True, slots=True)
class Pruning:
    name: ClassVar = RunKind.PRUNING
    rule: ClassVar = SweepRule(may_delete=may_be_swept, look=Look.NOT_YOUNGER)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        decide = partial(_plan, context, run)
        return await context.reread(lambda: context.service.commits_for(run.run_id, run.kind), decide)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        recheck = partial(_recheck, context, plan)
        return await context.expire_no_commits(plan, rules_version, recheck, planned_ms=plan.now_ms)


def make(_: Limits) -> Pruning:
    return Pruning()


async def _plan(context: RunContext, run: StartedRun, prepared: PreparedCommits) -> Plan:
    if prepared.tables_ms is None:
        raise Invalid("this repository has no tables: there is nothing to prune")
    commits = await context.read(prepared.commits, messages.COMMITS)
    ranges = await _read_ranges(context, run, commits)
    own, others = ranges.of(live=False), ranges.of(live=True)
    context.progress(f"marking {count_of(own.count, 'range')} of tables against {others.count:,} of all other commits")
    candidates = await deal_candidates(
        context.engine,
        own,
        _written_before(run.now_ms - prepared.tables_ms),
        uri=run.namespace,
        folder=folder_in(run, "old.tasks"),
        closed=slice_numbers(run.closed_slices),
    )
    views = await context.service.runs()
    held = await held_tables(context, views, runs_over(views))
    # What earlier runs deleted is in commits of the hidden branch until they are swept.
    gone = await taken_tables(context, views, held)
    sides = [
        await deal_ranges(context, run, others, folder=folder_in(run, "live.tasks")),
        await deal_tables(context, run, [*held.values(), *gone.values()], messages.GARBAGE, "held"),
        await deal_held(context, run, commits, prepared.holds, name="holds"),
    ]
    garbage, totals = await mark_expired(
        context.engine,
        candidates,
        sides,
        into=folder_in(run, messages.GARBAGE.name),
        now_ms=run.now_ms,
        all_names=True,
    )
    objects, size = count_of(totals.all.objects, "file"), human_size(totals.all.size_bytes)
    context.progress(f"{objects} of tables, {size}, to go; writing the plan")
    # Retention rules do not apply to files that no commit of theirs names.
    return Plan(
        **plan_frame(context, run, prepared) | {"rules": None, "rules_version": 0},
        beside=tuple(held),
        commit_counts=counts_of(commits),
        range_counts=RangeCounts(live=others.count, expired=own.count),
        garbage=garbage,
        totals=totals,
    )


async def _read_ranges(context: RunContext, run: StartedRun, commits: pa.Table) -> ListedRanges:
    """Return all ranges; those that only commits of the hidden branch have are not live.

    Raises:
        EmptyLiveSet: other commits have entries, and no range of theirs was read.
    """
    there = commits.filter(pc.and_(pc.invert(commits["swept"]), pc.not_equal(commits["metarange_id"], "")))
    trees: dict[str, bool] = {}
    for tree, is_of_tables in zip(there["metarange_id"].to_pylist(), there["expiring"].to_pylist(), strict=True):
        trees[tree] = trees.get(tree, False) or not is_of_tables
    metaranges = metaranges_of(trees)
    ranges = await read_ranges(context.engine, metaranges, folder=folder_in(run, "ranges.tasks"))
    check_live(metaranges, ranges.of(live=True).count)
    return ranges


def _written_before(until_ms: int) -> Candidates:
    """Return a reader of the objects of entries that were written before this time."""

    async def read(task: Task, share: pa.Table, namespace: Namespace) -> AsyncIterator[pa.Table]:
        async for fact, rows, _ in read_entries(task, share, _COLUMNS):
            old = rows.filter(pa.array(rows["modified_ms"].to_numpy() < until_ms))
            if not old.num_rows:
                continue
            seen_in = range_number(RangeId(fact["range_id"]))
            for packed in pack_rows(old, PRUNING, old["modified_ms"].to_numpy(), namespace, seen_in=seen_in):
                yield packed

    return read


async def _recheck(context: RunContext, plan: Plan, answer: RecheckInputs) -> Cleared:
    """Write the plan's objects that nothing else names now, into a table named by this recheck."""
    commits, uncommitted = whole(answer)
    planned = await context.read(plan.commits, messages.COMMITS)
    garbage, totals = await look_again(
        context,
        plan,
        plan.garbage,
        # The service marks commits of the hidden branch: as expiring for a plan, and as swept here.
        kept=planned.filter(pc.invert(pc.or_(planned["swept"], planned["expiring"]))),
        commits=commits,
        uncommitted=uncommitted,
        closed=slice_numbers(answer.closed_slices),
    )
    return Cleared(garbage=garbage, commits=commits, size_bytes=totals.all.size_bytes)
