"""A collection by the lifecycle policy: objects whose every occurrence is due, although commits name them.

A plan publishes nothing and makes no writer wait. It is only shown: this release cannot apply one.
"""

from __future__ import annotations

from typing import Final, NoReturn

import pyarrow as pa

from lakebed.base import Conflict, Invalid, count_of, human_size
from lakebed.gc import protocol
from lakebed.gc.context import RunContext, folder_in, plan_frame, slice_numbers
from lakebed.gc.due import Judging, Ranges, deal_due, reach_metaranges, read_spans, sort_out
from lakebed.gc.mark import mark_expired
from lakebed.gc.places import Namespace, may_be_swept
from lakebed.gc.protocol import CommitCounts, Manifest, Plan, PreparedCommits, RangeCounts, RunKind, StartedRun, Totals
from lakebed.gc.recheck import deal_ranges
from lakebed.gc.rules.lifecycle import Policy, check_policy

from .kind import Look, SweepRule

NO_POLICY: Final = "no lifecycle policy is set: `lakebed lifecycle policy set` says which objects go"


class NoPolicy(Invalid):
    """No lifecycle policy is set, so nothing goes by one."""


class NotApplied(Conflict):
    """This release cannot apply lifecycle plans."""


class Lifecycle:
    @property
    def name(self) -> RunKind:
        return RunKind.LIFECYCLE

    @property
    def rule(self) -> SweepRule:
        return SweepRule(may_delete=may_be_swept, look=Look.NOT_YOUNGER)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """docs/design/0003-lifecycle.md. Staged data is looked at when a plan is applied."""

        async def decide(prepared: PreparedCommits) -> Plan:
            return await _plan(context, run, prepared)

        return await context.reread(lambda: context.service.commits_and_policy(run.run_id), decide)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> NoReturn:  # noqa: ARG002 - the port's
        raise NotApplied("a lifecycle plan shows what would go; this release cannot apply it", run_id=plan.run_id)


async def _plan(context: RunContext, run: StartedRun, prepared: PreparedCommits) -> Plan:
    policy = policy_of(prepared)
    ranges, commits = await read_due(context, prepared, policy)
    garbage, totals = await mark_due(context, run, policy, ranges)
    objects, size = count_of(totals.all.objects, "object"), human_size(totals.all.size_bytes)
    context.progress(f"{objects}, {size}, to go; writing the plan")
    swept = int(commits["swept"].to_numpy().sum())
    return Plan(
        **plan_frame(context, run, prepared),
        policy=prepared.policy,
        commit_counts=CommitCounts(all=commits.num_rows, kept=commits.num_rows - swept, expired=0, swept=swept),
        range_counts=RangeCounts(live=ranges.whole.num_rows, expired=ranges.due.num_rows),
        garbage=garbage,
        totals=totals,
    )


def policy_of(prepared: PreparedCommits) -> Policy:
    """
    Raises:
        NoPolicy: none is set.
    """
    if not prepared.policy:
        raise NoPolicy(NO_POLICY)
    return check_policy(prepared.policy.encode())


async def read_due(context: RunContext, prepared: PreparedCommits, policy: Policy) -> tuple[Ranges, pa.Table]:
    """Return the ranges that may have rows that are due, those that have none, and COMMITS."""
    commits = await context.read(prepared.commits, protocol.COMMITS)
    refs = await context.read(prepared.refs, protocol.REFS)
    reached = reach_metaranges(commits, refs, policy)
    trees = count_of(reached.metaranges.num_rows, "tree")
    context.progress(f"reading {trees} of {count_of(commits.num_rows, 'commit')}")
    return sort_out(await read_spans(context.engine, reached.metaranges), reached, policy), commits


async def mark_due(
    context: RunContext, run: StartedRun, policy: Policy, ranges: Ranges, *, until_ms: int | None = None
) -> tuple[Manifest, Totals]:
    """Write GARBAGE: what is due, now or by `until_ms`, and stays nowhere. See `Judging` for `until_ms`."""
    context.progress(f"reading {count_of(ranges.due.num_rows, 'range')}; of {ranges.whole.num_rows:,} all stays")
    judging = Judging(
        policy=policy,
        terms=ranges.terms,
        namespace=Namespace(run.namespace),
        closed=pa.array(slice_numbers(run.closed_slices), pa.int64()),
        now_ms=run.now_ms,
        until_ms=until_ms,
    )
    due, stays = await deal_due(context.engine, ranges.due, judging, folder=folder_in(run, "due.tasks"))
    whole = await deal_ranges(context, run, ranges.whole, folder=folder_in(run, "live.tasks"))
    return await mark_expired(
        context.engine, due, [whole, stays], into=folder_in(run, protocol.GARBAGE.name), now_ms=run.now_ms
    )
