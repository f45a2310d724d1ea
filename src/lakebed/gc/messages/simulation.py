"""Declare the report of what a lifecycle policy would take on each of the coming days."""

from __future__ import annotations

import msgspec

from .run.plans import Total


class SimulatedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Sum up what goes on a day (`2026-11-22`, UTC) by a rule.

    `branch` kept it longest: a branch, or a pattern of the rule that several branches match (`*`: the rule's own
    period). Empty: commits on no branch did.
    """

    date: str
    rule: str
    branch: str
    objects: int
    size_bytes: int


class SimulatedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch that a sweep on this day (UTC) deletes. `rule` is its pattern; empty: it was made to last until then."""

    date: str
    branch: str
    rule: str


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by date, rule and branch; none for days on which nothing goes. `policy_version` None: it is not saved.

    `branches` are those that a sweep of each day would delete, by date and name. None for a policy that is not saved:
    the server judges branches by the one in force.
    """

    run_id: str
    now_ms: int
    days: int
    policy_version: int | None
    total: Total
    rows: tuple[SimulatedRow, ...]
    branches: tuple[SimulatedBranch, ...] | None = None
