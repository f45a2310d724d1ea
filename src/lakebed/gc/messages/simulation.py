"""Declare the report of the objects that a lifecycle policy would take on each of the coming days."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from .run.plans import Total

__all__ = ["OWN_PERIOD", "SimulatedBranch", "SimulatedRow", "SimulatedSums", "Simulation", "kept_by", "sums_of"]

BRANCHES_SUMMED: Final = 50
"""The branches with the most bytes in the sums. The others are left out."""
OWN_PERIOD: Final = "*"
"""The `branch` of a row where the rule's own period counts, for any branch without a period of its own."""


class SimulatedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of objects that one rule takes on a day (`2026-11-22`, UTC).

    `branch` kept the objects longest. It is a branch, or a pattern of the rule that several branches match (`*`: the
    rule's own period). Empty: commits on no branch kept them longest.
    """

    date: str
    rule: str
    branch: str
    objects: int
    size_bytes: int


class SimulatedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch that this day's (UTC) sweep deletes. `rule`: the pattern, or empty if it had an end date."""

    date: str
    branch: str
    rule: str


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by date, rule and branch; days without deletes have no row. `policy_version` None: it is not saved."""

    run_id: str
    now_ms: int
    days: int
    policy_version: int | None
    total: Total
    rows: tuple[SimulatedRow, ...]
    # The branches that each day's sweep would delete, by date and name. None for a policy that is not saved: the server
    # judges branches by the policy in force.
    branches: tuple[SimulatedBranch, ...] | None = None


class SimulatedSums(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation, summed up: a job of the server keeps this record.

    Dates, rules and branches are those of the rows. `by_date` is in order. `by_branch` has the largest alone.
    `branches_by_date`: how many branches each day's sweep would delete; None for a policy that is not saved.
    """

    run_id: str
    now_ms: int
    days: int
    policy_version: int | None
    total: Total
    by_date: dict[str, Total]
    by_rule: dict[str, Total]
    by_branch: dict[str, Total]
    branches_by_date: dict[str, int] | None


def kept_by(branch: str) -> str:
    """Return the branch of a row for people."""
    return {"": "(no branch)", OWN_PERIOD: "(any other branch)"}.get(branch, branch)


def sums_of(found: Simulation) -> SimulatedSums:
    def summed(name: str) -> dict[str, Total]:
        sums: dict[str, Total] = {}
        for row in found.rows:
            key = getattr(row, name)
            more = Total(objects=row.objects, size_bytes=row.size_bytes)
            sums[key] = sums.get(key, Total()).plus(more)
        return sums

    largest = sorted(summed("branch").items(), key=lambda pair: (-pair[1].size_bytes, pair[0]))
    return SimulatedSums(
        run_id=found.run_id,
        now_ms=found.now_ms,
        days=found.days,
        policy_version=found.policy_version,
        total=found.total,
        by_date=summed("date"),
        by_rule=summed("rule"),
        by_branch=dict(largest[:BRANCHES_SUMMED]),
        branches_by_date=None if found.branches is None else dict(Counter(one.date for one in found.branches)),
    )
