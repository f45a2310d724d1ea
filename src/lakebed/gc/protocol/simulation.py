"""Declare the report of what a lifecycle policy would take on each of the coming days."""

from __future__ import annotations

import msgspec

from .plans import Total


class SimulatedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Sum up what goes on a day (`2026-11-22`, UTC) by a rule.

    `branch` kept it longest; empty: commits on no branch did.
    """

    date: str
    rule: str
    branch: str
    objects: int
    size_bytes: int


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by date, rule and branch; none for days on which nothing goes. `policy_version` None: it is not saved."""

    run_id: str
    now_ms: int
    days: int
    policy_version: int | None
    total: Total
    rows: tuple[SimulatedRow, ...]
