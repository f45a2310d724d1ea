"""Count the objects that a lifecycle policy would delete on each of the coming days, without any new write.

A simulation is a plan without a cutoff: each object is deleted on the day on which its last occurrence is due. Day d
equals a plan made d days from now; a property test checks it. A simulation writes tables into a run's folder, and no
plan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Invalid, count_of
from lakebed.gc.engines import Effort, Task
from lakebed.gc.engines.engine import Table, required, rows_of_parts
from lakebed.gc.kinds.lifecycle.plan import Lifecycle, mark_due, policy_of
from lakebed.gc.mark.mark import read_rows
from lakebed.gc.messages import (
    REFS,
    BranchesPlan,
    PreparedCommits,
    SimulatedBranch,
    SimulatedRow,
    Simulation,
    StartedRun,
)
from lakebed.gc.rules import DAY_MS
from lakebed.gc.rules.lifecycle import Policy, check_policy
from lakebed.gc.runs.context import RunContext

DAYS_MAX: Final = 3_660

_SUMS: Final = Table(
    "what goes on a day (counted from today) by a rule, last kept by a branch; a triple may come several times",
    required(
        ("day", pa.int64()),
        ("rule", pa.string()),
        ("branch", pa.string()),
        ("objects", pa.int64()),
        ("size_bytes", pa.int64()),
    ),
)


class BadDays(Invalid):
    """The number of days to simulate is negative or too large."""


def check_days(days: int) -> None:
    """Check the number of days, or raise BadDays."""
    if not 0 <= days <= DAYS_MAX:
        raise BadDays(f"{days} days cannot be simulated: say 0 to {DAYS_MAX:,}", days=days)


async def simulate(context: RunContext, *, days: int, policy: str = "") -> Simulation:
    """Return the objects due on each day, by the policy in force or by `policy`, which is not saved. Deletes nothing.

    Raises:
        BadDays, NoPolicy, InvalidPolicy: see `check_days`, `policy_of` and `check_policy`.
        BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
    """
    check_days(days)
    # Check the form before the run starts. `_check` compares it with the branches later.
    if policy:
        check_policy(policy.encode())
    # A run record is needed: the service writes the inputs into the run's folder.
    run = await context.service.start(Lifecycle().name)

    async def work(prepared: PreparedCommits) -> Simulation:
        return await _simulate(context, run, prepared, days=days, policy=policy)

    return await context.reread(lambda: context.service.commits_for(run.run_id, run.kind), work)


async def _simulate(
    context: RunContext, run: StartedRun, prepared: PreparedCommits, *, days: int, policy: str
) -> Simulation:
    checked = await _check(context, prepared, policy) if policy else policy_of(prepared)
    garbage, totals = await mark_due(context, run, checked, prepared, until_ms=run.now_ms + days * DAY_MS)
    objects = count_of(totals.all.objects, "object")
    context.progress(f"{objects} will go within {count_of(days, 'day')}")
    read, today = read_rows(garbage), run.now_ms // DAY_MS

    async def add_up(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async for rows in read(task, share):
            due = rows["last_seen_at"].cast(pa.int64()).to_numpy() // DAY_MS
            # Objects that are due already are deleted today.
            days_ahead = np.maximum(due - today, 0)
            columns = pa.table(
                {"day": days_ahead, "rule": rows["rule"], "branch": rows["reason"], "size_bytes": rows["size_bytes"]}
            )
            yield _sums(columns, [("size_bytes", "count"), ("size_bytes", "sum")])

    parts = rows_of_parts(garbage.parts)
    sums = await context.engine.run(add_up, parts, _SUMS, effort=Effort(size_bytes=garbage.size_bytes))
    added = sums.group_by(["day", "rule", "branch"]).aggregate([("objects", "sum"), ("size_bytes", "sum")])
    order = [("day", "ascending"), ("rule", "ascending"), ("branch", "ascending")]
    return Simulation(
        run_id=run.run_id,
        now_ms=run.now_ms,
        days=days,
        policy_version=None if policy else prepared.rules_version,
        total=totals.all,
        rows=tuple(
            SimulatedRow(
                date=_date(today + row["day"]),
                rule=row["rule"],
                branch=row["branch"],
                objects=row["objects_sum"],
                size_bytes=row["size_bytes_sum"],
            )
            for row in added.sort_by(order).to_pylist()
        ),
    )


def simulate_branches(plan: BranchesPlan, *, days: int) -> tuple[SimulatedBranch, ...]:
    """Return the branches of a plan that a sweep of one of the coming days deletes, by date and name."""
    going = sorted(
        (one.goes_ms, one.branch, "" if one.expires_ms and one.expires_ms <= one.goes_ms else one.rule)
        for one in plan.branches
        if one.goes_ms is not None and one.goes_ms <= plan.now_ms + days * DAY_MS
    )
    return tuple(SimulatedBranch(date=_date(at // DAY_MS), branch=branch, rule=rule) for at, branch, rule in going)


async def _check(context: RunContext, prepared: PreparedCommits, policy: str) -> Policy:
    """Refuse a policy that could not be set, such as one with a period for a missing branch."""
    refs = await context.read(prepared.refs, REFS)
    return check_policy(policy.encode(), branches=[row["name"] for row in refs.to_pylist() if row["kind"] == "branch"])


def _sums(rows: pa.Table, columns: list[tuple[str, str]]) -> pa.Table:
    sums = rows.group_by(["day", "rule", "branch"]).aggregate(columns)
    return _SUMS.rows(
        {
            **{name: sums[name] for name in ("day", "rule", "branch")},
            "objects": pc.cast(sums["size_bytes_count"], pa.int64()),
            "size_bytes": sums["size_bytes_sum"],
        }
    )


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_MS / 1000, UTC).date().isoformat()
