"""A collection by the lifecycle policy: objects whose every occurrence is due, although commits name them.

A plan publishes nothing and makes no writer wait. It may be stale when it is applied (docs/design/protocols.md, "A
lifecycle run"). So:

1. the service publishes the run, writes down what is staged, uploaded or copied, and reads refs, commits and the policy
   again; another version of the policy ends the run
2. of the plan's objects, those are let off that any of this names, or that have an occurrence which is not due by the
   commits and refs as they are now; the rest is a second table, `garbage.<recheck>`

What an earlier run took is in no later plan, although commits still name it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import pyarrow as pa

from lakebed.base import Invalid, count_of, human_size
from lakebed.gc import protocol
from lakebed.gc.bucketed import Bucketed
from lakebed.gc.context import Cleared, RunContext, folder_in, plan_frame, slice_numbers, write_input
from lakebed.gc.due import Judging, Ranges, deal_due, reach_metaranges, read_spans, sort_out
from lakebed.gc.holding import deal_held
from lakebed.gc.mark import mark_expired
from lakebed.gc.named import deal_live, from_tables
from lakebed.gc.places import Namespace, may_be_swept
from lakebed.gc.protocol import (
    BadInput,
    CommitCounts,
    Expire,
    Manifest,
    Plan,
    PreparedCommits,
    RangeCounts,
    RecheckInputs,
    RunKind,
    RunState,
    RunView,
    StartedRun,
    Totals,
)
from lakebed.gc.recheck import deal_ranges, whole
from lakebed.gc.resume import garbage_of, held_tables, runs_over
from lakebed.gc.rules.lifecycle import Policy, check_policy
from lakebed.gc.verdicts import deal_again

from .kind import Look, SweepRule

NO_POLICY: Final = "no lifecycle policy is set: `lakebed lifecycle policy set` says which objects go"


class NoPolicy(Invalid):
    """No lifecycle policy is set, so nothing goes by one."""


class Lifecycle:
    @property
    def name(self) -> RunKind:
        return RunKind.LIFECYCLE

    @property
    def rule(self) -> SweepRule:
        return SweepRule(may_delete=may_be_swept, look=Look.NOT_YOUNGER)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """docs/design/0003-lifecycle.md. Staged data is looked at when the plan is applied."""

        async def decide(prepared: PreparedCommits) -> Plan:
            return await _plan(context, run, prepared)

        return await context.reread(lambda: context.service.commits_and_policy(run.run_id), decide)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        nothing = protocol.arrow_schema(protocol.EXPIRED).empty_table()
        commits = await write_input(context.store, folder_in(plan, protocol.EXPIRED.name), protocol.EXPIRED, nothing)
        request = Expire(
            kind=RunKind.LIFECYCLE,
            commits=commits,
            rules_version=rules_version,
            planned_ms=plan.now_ms,
            holds_version=plan.holds_version,
        )

        async def look_again(answer: RecheckInputs) -> Cleared:
            return await _recheck(context, plan, answer)

        return await context.reread(
            lambda: context.service.expire(plan.run_id, request), look_again, commits_of=lambda one: whole(one)[0]
        )


async def _plan(context: RunContext, run: StartedRun, prepared: PreparedCommits) -> Plan:
    policy = policy_of(prepared)
    ranges, commits = await read_due(context, prepared.commits, prepared.refs, policy)
    views = await context.service.runs()
    held = await held_tables(context, views, runs_over(views))
    gone = [*held.values(), *await _taken_tables(context, views, held)]
    kept = await deal_held(context, run, commits, prepared.holds, name="holds")
    garbage, totals = await mark_due(
        context, run, policy, ranges, besides=[await _named_in(context, run, gone, "held"), kept]
    )
    objects, size = count_of(totals.all.objects, "object"), human_size(totals.all.size_bytes)
    context.progress(f"{objects}, {size}, to go; writing the plan")
    swept = int(commits["swept"].to_numpy().sum())
    return Plan(
        **plan_frame(context, run, prepared),
        policy=prepared.policy,
        beside=tuple(held),
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


async def read_due(context: RunContext, commits: Manifest, refs: Manifest, policy: Policy) -> tuple[Ranges, pa.Table]:
    """Return the ranges that may have rows that are due, those that have none, and the rows of COMMITS."""
    rows = await context.read(commits, protocol.COMMITS)
    reached = reach_metaranges(rows, await context.read(refs, protocol.REFS), policy)
    trees = count_of(reached.metaranges.num_rows, "tree")
    context.progress(f"reading {trees} of {count_of(rows.num_rows, 'commit')}")
    return sort_out(await read_spans(context.engine, reached.metaranges), reached, policy), rows


async def mark_due(
    context: RunContext,
    run: StartedRun,
    policy: Policy,
    ranges: Ranges,
    *,
    besides: Sequence[Bucketed] = (),
    until_ms: int | None = None,
) -> tuple[Manifest, Totals]:
    """Write GARBAGE: what is due, now or by `until_ms`, and neither stays anywhere nor is named `besides` (LIVE).

    See `Judging` for `until_ms`.
    """
    closed = slice_numbers(run.closed_slices)
    due, stays = await _deal(context, run, policy, ranges, closed=closed, until_ms=until_ms)
    return await mark_expired(
        context.engine, due, [*stays, *besides], into=folder_in(run, protocol.GARBAGE.name), now_ms=run.now_ms
    )


async def _deal(
    context: RunContext,
    run: StartedRun | Plan,
    policy: Policy,
    ranges: Ranges,
    *,
    closed: Collection[int],
    until_ms: int | None = None,
    suffix: str = "",
) -> tuple[Bucketed, list[Bucketed]]:
    """CANDIDATES that are due, and all sides of LIVE that stay."""
    context.progress(f"reading {count_of(ranges.due.num_rows, 'range')}; of {ranges.whole.num_rows:,} all stays")
    judging = Judging(
        policy=policy,
        terms=ranges.terms,
        namespace=Namespace(run.namespace),
        closed=pa.array(sorted(closed), pa.int64()),
        now_ms=run.now_ms,
        until_ms=until_ms,
    )
    due, stays = await deal_due(context.engine, ranges.due, judging, folder=folder_in(run, f"due.tasks{suffix}"))
    unread = await deal_ranges(context, run, ranges.whole, folder=folder_in(run, f"live.tasks{suffix}"))
    return due, [stays, unread]


async def _recheck(context: RunContext, plan: Plan, answer: RecheckInputs) -> Cleared:
    """Keep of the plan's objects those that nothing holds now either, under a name of this recheck.

    Dates count from the plan's now: what was not due then is in no plan.
    """
    commits, uncommitted = whole(answer)
    if answer.refs is None:
        raise BadInput("the server did not say which refs there are", run_id=plan.run_id)
    suffix = f".{commits.digest()[:16]}"
    policy, closed = check_policy(plan.policy.encode()), slice_numbers(answer.closed_slices)
    ranges, _ = await read_due(context, commits, answer.refs, policy)
    _, stays = await _deal(context, plan, policy, ranges, closed=closed, suffix=suffix)
    views = [view for view in await context.service.runs() if view.run_id != plan.run_id]
    held = [*(await held_tables(context, views, runs_over(views))).values()]
    source, rows, effort = from_tables([uncommitted], protocol.UNCOMMITTED)
    staged = await deal_live(
        context.engine,
        source,
        rows,
        uri=plan.namespace,
        folder=folder_in(plan, f"uncommitted.tasks{suffix}"),
        with_keys=True,
        effort=effort,
    )
    candidates = await deal_again(
        context.engine, plan.garbage, folder=folder_in(plan, f"again.tasks{suffix}"), closed=closed
    )
    garbage, totals = await mark_expired(
        context.engine,
        candidates,
        [*stays, staged, await _named_in(context, plan, held, f"held{suffix}")],
        into=folder_in(plan, f"{protocol.GARBAGE.name}{suffix}"),
        now_ms=plan.now_ms,
    )
    return Cleared(garbage=garbage, commits=commits, size_bytes=totals.all.size_bytes)


async def _taken_tables(context: RunContext, views: Sequence[RunView], held: Collection[str]) -> list[Manifest]:
    """Return what ended lifecycle runs took: tables GARBAGE.

    A table that is gone, with the folder of an old run, is left out: a later run finds these objects gone once more.
    """
    found: list[Manifest] = []
    for view in views:
        if view.kind is RunKind.LIFECYCLE and view.state is RunState.ENDED and view.plan and view.run_id not in held:
            try:
                found.append(await garbage_of(context.store, view))
            except BadInput:
                context.progress(f"what run {view.run_id} took is not known any more")
    return found


async def _named_in(context: RunContext, run: StartedRun | Plan, tables: Sequence[Manifest], name: str) -> Bucketed:
    """LIVE of what these tables (GARBAGE) hold."""
    source, rows, effort = from_tables(tables, protocol.GARBAGE)
    return await deal_live(
        context.engine,
        source,
        rows,
        uri=run.namespace,
        folder=folder_in(run, f"{name}.tasks"),
        with_keys=True,
        effort=effort,
    )
