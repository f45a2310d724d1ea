"""A committed run deletes objects that only expired commits name.

A plan publishes nothing, so it may be stale when it is applied. The steps of an apply (docs/design/protocols.md,
"Naming a commit while a collection of committed data runs"):

1. The service publishes the commits and bumps branches. It records staged, uploaded and copied objects, and reads refs,
   commits and rules again. A commit that one of these names stays.
2. Keep the plan's objects that a staged, uploaded or copied entry names, or a commit that stays only since the plan.
   Write the rest as a second table, `garbage.<recheck>`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import count_of, human_size
from lakebed.gc import messages
from lakebed.gc.kinds import Limits, Look, SweepRule
from lakebed.gc.mark.holding import keep_held
from lakebed.gc.mark.inputs.listing import find_unknown_files
from lakebed.gc.mark.inputs.named import check_live, judge, spare
from lakebed.gc.mark.inputs.ranges import deal_expired, deal_ranges, read_ranges
from lakebed.gc.mark.mark import look_again, mark_expired
from lakebed.gc.mark.sets.places import may_be_swept
from lakebed.gc.messages import (
    Cleared,
    CommitCounts,
    Expire,
    Plan,
    PreparedCommits,
    RangeCounts,
    RecheckInputs,
    RunKind,
    StartedRun,
)
from lakebed.gc.rules import NO_RULES, NoRules, Rules, check_rules
from lakebed.gc.runs.context import RunContext, folder_in, plan_frame, slice_numbers, whole, write_input


@dataclass(frozen=True, slots=True)
class Committed:
    """`among`: expire only these commits, as another plan of the same run does. With None, expire any."""

    among: frozenset[str] | None = None
    name: ClassVar = RunKind.COMMITTED
    rule: ClassVar = SweepRule(may_delete=may_be_swept, look=Look.NOT_YOUNGER)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """Plan as in docs/design/0004-committed-retention.md, steps 1 to 6. The apply looks at staged data."""

        async def decide(prepared: PreparedCommits) -> Plan:
            return await _plan(context, run, prepared, self.among)

        return await context.reread(lambda: context.service.commits(run.run_id), decide)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        assert plan.expired is not None, "committed plans have one"
        request = Expire(
            commits=plan.expired, rules_version=rules_version, holds_version=plan.holds_version, uid=plan.uid
        )
        context.progress(f"expiring {count_of(plan.expired.rows, 'commit')}")

        async def look_again(answer: RecheckInputs) -> Cleared:
            return await _recheck(context, plan, answer)

        return await context.expire(plan, request, look_again)


def make(limits: Limits) -> Committed:
    return Committed(limits.expired)


async def _plan(context: RunContext, run: StartedRun, prepared: PreparedCommits, among: frozenset[str] | None) -> Plan:
    rules = _rules_of(prepared)
    commits = await context.read(prepared.commits, messages.COMMITS)
    refs = await context.read(prepared.refs, messages.REFS)
    judged = await keep_held(context, run, judge(commits, refs, rules, now_ms=run.now_ms), prepared.holds)
    if among is not None:
        judged = spare(judged, set(judged.expired_ids().to_pylist()) - among)
    expired_commits = int(judged.expired.sum())
    context.progress(f"{expired_commits:,} of {count_of(commits.num_rows, 'commit')} expired; reading their ranges")
    ranges = await read_ranges(context.engine, judged.metaranges, folder=folder_in(run, "ranges.tasks"))
    live, expired = ranges.of(live=True), ranges.of(live=False)
    # Without any live range every object would look like garbage, so stop if commits stay and none was read.
    check_live(judged.metaranges, live.count)
    context.progress(f"marking {count_of(expired.count, 'expired range')} against {live.count:,} live")
    candidates = await deal_expired(
        context.engine,
        expired,
        uri=run.namespace,
        folder=folder_in(run, "expired.tasks"),
        closed=slice_numbers(run.closed_slices),
    )
    named = await deal_ranges(context, run, live, folder=folder_in(run, "live.tasks"))
    garbage, totals = await mark_expired(
        context.engine,
        candidates,
        [named],
        into=folder_in(run, messages.GARBAGE.name),
        now_ms=run.now_ms,
        # Erasures and legal holds find the objects of a deferred run by any of their paths.
        all_names=True,
    )
    objects, size = count_of(totals.all.objects, "object"), human_size(totals.all.size_bytes)
    context.progress(f"{objects}, {size}, to go; writing the plan")
    ids = pa.table({"id": judged.expired_ids()})
    unknown = await find_unknown_files(context.engine, context.store)
    return Plan(
        **plan_frame(context, run, prepared),
        expired=await write_input(context.store, folder_in(run, messages.EXPIRED.name), messages.EXPIRED, ids),
        commit_counts=CommitCounts(
            all=commits.num_rows,
            kept=int(judged.kept.sum()),
            expired=expired_commits,
            swept=int((~judged.kept & ~judged.expired).sum()),
        ),
        range_counts=RangeCounts(live=live.count, expired=expired.count),
        garbage=garbage,
        totals=totals,
        **unknown.facts(),
    )


def _rules_of(prepared: PreparedCommits) -> Rules:
    if prepared.rules is None:
        raise NoRules(NO_RULES)
    return check_rules(prepared.rules)


async def _recheck(context: RunContext, plan: Plan, answer: RecheckInputs) -> Cleared:
    """Write the plan's objects that nothing names now, into tables named by this recheck."""
    commits, uncommitted = whole(answer)
    garbage, totals = await look_again(
        context,
        plan,
        plan.garbage,
        # The plan is compared with these commits already. Only commits that stay since then can name its objects.
        kept=await _kept_by(context, plan),
        commits=commits,
        uncommitted=uncommitted,
        closed=slice_numbers(answer.closed_slices),
    )
    size_bytes = totals.all.size_bytes
    return Cleared(garbage=garbage, commits=commits, expiring=answer.expiring, size_bytes=size_bytes)


async def _kept_by(context: RunContext, plan: Plan) -> pa.Table:
    """Return the rows (COMMITS) of commits whose objects the plan kept."""
    assert plan.expired is not None, "committed plans have one"
    commits = await context.read(plan.commits, messages.COMMITS)
    expiring = (await context.read(plan.expired, messages.EXPIRED))["id"].combine_chunks()
    stays = pc.invert(pc.or_(commits["swept"], pc.is_in(commits["id"], value_set=expiring)))
    return commits.filter(stays)
