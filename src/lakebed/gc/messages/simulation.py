"""Declare the report of the objects that a lifecycle policy would take on each of the coming days."""

from __future__ import annotations

import msgspec

from .run.plans import Total

__all__ = ["SimulatedBranch", "SimulatedRow", "Simulation"]


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
