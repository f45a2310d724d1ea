"""A collection of committed data: objects that only expired commits name.

A plan publishes nothing and makes no writer wait. Commit records and rules give the commits that stay and those that
go; their ranges give the objects. It may be stale when it is applied, so it is published first and then asked once more
(docs/design/protocols.md, "Naming a commit while a collection of committed data runs"):

1. the service publishes the commits, bumps branches, writes down what is staged, uploaded or copied, and reads refs,
   commits and rules again; a commit that something names is taken out
2. of the plan's objects, those are let off that any of this names, or a commit that stays now and did not stay when the
   plan was made; the rest is a second table, `doomed.<recheck>`
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Invalid, count_of, human_size
from lakebed.gc import protocol
from lakebed.gc.bucketed import Bucketed
from lakebed.gc.context import Cleared, RunContext, folder_in, plan_frame, slice_numbers, write_input
from lakebed.gc.history import check_live, judge, newly_kept
from lakebed.gc.mark import mark_expired
from lakebed.gc.named import deal_live, from_tables
from lakebed.gc.places import may_be_swept
from lakebed.gc.protocol import (
    BadInput,
    CommitCounts,
    Condemn,
    Condemnation,
    Manifest,
    Plan,
    PreparedCommits,
    RangeCounts,
    RunKind,
    StartedRun,
)
from lakebed.gc.ranges import deal_expired, effort_of_ends, from_ranges, read_ranges
from lakebed.gc.rules import Rules, check_rules
from lakebed.gc.strays import find_strays
from lakebed.gc.verdicts import deal_again

from .kind import Look, SweepRule

NO_RULES: Final = "no retention rules are set: `lakebed gc rules set-default` says how long committed data stays"


class NoRules(Invalid):
    """No retention rules are set, so nothing of the committed data may go."""


class Committed:
    @property
    def name(self) -> RunKind:
        return RunKind.COMMITTED

    @property
    def rule(self) -> SweepRule:
        return SweepRule(may_delete=may_be_swept, look=Look.NOT_YOUNGER)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """docs/design/0004-committed-retention.md, steps 1 to 6. Staged data is looked at when the plan is applied."""

        async def decide(prepared: PreparedCommits) -> Plan:
            return await _plan(context, run, prepared)

        return await context.reread(lambda: context.service.commits(run.run_id), decide)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        assert plan.condemned is not None, "committed plans have one"
        request = Condemn(commits=plan.condemned, rules_version=rules_version)
        context.progress(f"condemning {count_of(plan.condemned.rows, 'commit')}")

        async def look_again(answer: Condemnation) -> Cleared:
            return await _recheck(context, plan, answer)

        return await context.reread(
            lambda: context.service.condemn(plan.run_id, request), look_again, commits_of=lambda one: _whole(one)[0]
        )


async def _plan(context: RunContext, run: StartedRun, prepared: PreparedCommits) -> Plan:
    rules = _rules_of(prepared)
    commits = await context.read(prepared.commits, protocol.COMMITS)
    refs = await context.read(prepared.refs, protocol.REFS)
    judged = judge(commits, refs, rules, now_ms=run.now_ms)
    expired_commits = int(judged.expired.sum())
    context.progress(f"{expired_commits:,} of {count_of(commits.num_rows, 'commit')} expired; reading their ranges")
    ranges = await read_ranges(context.engine, judged.metaranges, folder=folder_in(run, "ranges.tasks"))
    live, expired = ranges.filter(ranges["is_live"]), ranges.filter(pc.invert(ranges["is_live"]))
    check_live(judged.metaranges, live.num_rows)
    context.progress(f"marking {count_of(expired.num_rows, 'expired range')} against {live.num_rows:,} live")
    candidates = await deal_expired(
        context.engine,
        expired,
        uri=run.namespace,
        folder=folder_in(run, "expired.tasks"),
        closed=slice_numbers(run.closed_slices),
    )
    named = await _deal_ranges(context, run, live, folder=folder_in(run, "live.tasks"))
    doomed, totals = await mark_expired(
        context.engine, candidates, [named], into=folder_in(run, protocol.DOOMED.name), now_ms=run.now_ms
    )
    objects, size = count_of(totals.all.objects, "object"), human_size(totals.all.size_bytes)
    context.progress(f"{objects}, {size}, to go; writing the plan")
    ids = pa.table({"id": judged.expired_ids()})
    unknown = await find_strays(context.store)
    return Plan(
        **plan_frame(context, run, prepared),
        condemned=await write_input(context.store, folder_in(run, protocol.CONDEMNED.name), protocol.CONDEMNED, ids),
        commit_counts=CommitCounts(
            all=commits.num_rows,
            kept=int(judged.kept.sum()),
            expired=expired_commits,
            swept=int((~judged.kept & ~judged.expired).sum()),
        ),
        range_counts=RangeCounts(live=live.num_rows, expired=expired.num_rows),
        doomed=doomed,
        totals=totals,
        **unknown.facts(),
    )


def _rules_of(prepared: PreparedCommits) -> Rules:
    if prepared.rules is None:
        raise NoRules(NO_RULES)
    return check_rules(prepared.rules)


async def _deal_ranges(context: RunContext, run: StartedRun | Plan, ranges: pa.Table, *, folder: str) -> Bucketed:
    return await deal_live(
        context.engine,
        from_ranges,
        ranges,
        uri=run.namespace,
        folder=folder,
        with_keys=True,
        effort=effort_of_ends(ranges),
    )


def _whole(answer: Condemnation) -> tuple[Manifest, Manifest]:
    if answer.commits is None or answer.uncommitted is None:
        raise BadInput("the server condemned without saying what must be kept", run_id=answer.run_id)
    return answer.commits, answer.uncommitted


async def _recheck(context: RunContext, plan: Plan, answer: Condemnation) -> Cleared:
    """Keep of the plan's objects those that nothing names now either, under a name of this recheck.

    Only ranges that the plan did not count as live are read again: what is new since, and what was taken out.
    """
    commits, uncommitted = _whole(answer)
    name = commits.digest()[:16]
    now = await context.read(commits, protocol.COMMITS)
    new, old = newly_kept(await _kept_by(context, plan), now)
    # The other way round than in planning: a range is "live" here if the plan kept it, so that only new ones are left.
    either = pa.concat_tables([_flag(new, live=False), _flag(old, live=True)]) if new.num_rows else new
    ranges = await read_ranges(context.engine, either, folder=folder_in(plan, f"ranges.tasks.{name}"))
    fresh = ranges.filter(pc.invert(ranges["is_live"])) if new.num_rows else ranges
    objects, new_ranges = count_of(plan.doomed.rows, "object"), count_of(fresh.num_rows, "new range")
    context.progress(f"rechecking {objects} against {new_ranges} and what is staged")
    source, rows, effort = from_tables([uncommitted], protocol.UNCOMMITTED)
    staged = await deal_live(
        context.engine,
        source,
        rows,
        uri=plan.namespace,
        folder=folder_in(plan, f"uncommitted.tasks.{name}"),
        with_keys=True,
        effort=effort,
    )
    candidates = await deal_again(
        context.engine,
        plan.doomed,
        folder=folder_in(plan, f"again.tasks.{name}"),
        closed=slice_numbers(answer.closed_slices),
    )
    doomed, _ = await mark_expired(
        context.engine,
        candidates,
        [await _deal_ranges(context, plan, fresh, folder=folder_in(plan, f"live.tasks.{name}")), staged],
        into=folder_in(plan, f"{protocol.DOOMED.name}.{name}"),
        now_ms=plan.now_ms,
    )
    return Cleared(doomed=doomed, commits=commits, condemned=answer.condemned)


async def _kept_by(context: RunContext, plan: Plan) -> pa.Table:
    """The ids of the commits whose objects the plan counted as live."""
    assert plan.condemned is not None, "committed plans have one"
    commits = await context.read(plan.commits, protocol.COMMITS)
    condemned = (await context.read(plan.condemned, protocol.CONDEMNED))["id"].combine_chunks()
    stays = pc.invert(pc.or_(commits["swept"], pc.is_in(commits["id"], value_set=condemned)))
    return commits.filter(stays)


def _flag(metaranges: pa.Table, *, live: bool) -> pa.Table:
    place = metaranges.schema.get_field_index("is_live")
    flags = pa.repeat(pa.scalar(live), metaranges.num_rows)
    return metaranges.set_column(place, metaranges.schema.field("is_live"), flags)
