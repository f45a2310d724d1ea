"""Compute the tables of the design document (docs/design/0003-lifecycle.md), with dates in milliseconds.

policy_table        each run's policy: rule, prefix, branch, and the date before which objects are due
current_rules       the rules of this run, with the latest date of any run that ended: `last_deleted`
earliest_by_branch  for each branch the earliest `last_deleted` of its rules
potential_commits   commits that may name objects which no run deleted, by the document's intersection of dates
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from lakebed.base import CommitId
from lakebed.gc.rules.history import History
from lakebed.gc.rules.rules import SINCE_EVER_MS

from .due import NO_BRANCH, branches_of
from .periods import NEVER_MS, parse_period
from .policy import Policy

__all__ = [
    "ALL_BRANCHES",
    "CurrentRule",
    "PolicyRow",
    "current_rules",
    "earliest_by_branch",
    "policy_table",
    "potential_commits",
    "potential_since_ms",
]

ALL_BRANCHES = NO_BRANCH
"""An empty branch stands for all branches without a row of their own."""


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """Give the date before which objects are due: `date_to_be_deleted`. `prefix` is a glob if the rule has one."""

    run_id: str
    rule_id: str
    prefix: str
    branch: str
    date_to_be_deleted: int


class CurrentRule(msgspec.Struct, frozen=True, kw_only=True):
    """`last_deleted` is None if no run has deleted objects by this prefix and branch."""

    prefix: str
    branch: str
    date_to_be_deleted: int
    last_deleted: int | None


def policy_table(policy: Policy, *, run_id: str, now_ms: int) -> list[PolicyRow]:
    """Return the policy as a table, in the order of rule ids. The row for all branches is first in each rule."""
    return [
        PolicyRow(
            run_id=run_id,
            rule_id=rule.id,
            prefix=rule.pattern.text,
            branch=branch,
            date_to_be_deleted=parse_period(period).cutoff_ms(now_ms),
        )
        for rule in sorted(policy.rules, key=lambda rule: rule.id)
        for branch, period in (*(() if rule.period is None else ((ALL_BRANCHES, rule.period),)), *rule.branches)
    ]


def current_rules(rows: Iterable[PolicyRow], *, run_id: str, ended: Collection[str]) -> list[CurrentRule]:
    """Return the rules of a run. `ended` are the runs that deleted every object of their plan.

    A rule is its prefix and branch: its id has no influence.
    """
    rows = list(rows)
    last: dict[tuple[str, str], int] = {}
    # Deleted objects never return. So take the latest date, even if a later policy was looser.
    for row in rows:
        if row.run_id in ended and row.run_id != run_id:
            place = (row.prefix, row.branch)
            last[place] = max(row.date_to_be_deleted, last.get(place, row.date_to_be_deleted))
    return [
        CurrentRule(
            prefix=row.prefix,
            branch=row.branch,
            date_to_be_deleted=row.date_to_be_deleted,
            last_deleted=last.get((row.prefix, row.branch)),
        )
        for row in rows
        if row.run_id == run_id
    ]


def earliest_by_branch(rules: Iterable[CurrentRule]) -> dict[str, int | None]:
    """Return the earliest `last_deleted` of each branch, or None if a rule of it never ran: the whole branch is new."""
    found: dict[str, int | None] = {}
    for rule in rules:
        before = found.get(rule.branch, rule.last_deleted)
        is_new = before is None or rule.last_deleted is None
        found[rule.branch] = None if is_new else min(before, rule.last_deleted)  # type: ignore[type-var]  # neither is None
    return found


def potential_since_ms(earliest: Mapping[str, int | None], branches: Collection[str]) -> int:
    """Return the date from which commits that all these branches reach are potential: the intersection of the branches.

    Return NEVER_MS if no rule covers one of the branches: its commits have no object to delete.
    """
    return max(_since_ms(earliest, branch) for branch in branches)


def _since_ms(earliest: Mapping[str, int | None], branch: str) -> int:
    """Return the earliest date of the branch's own rules and the rules for all branches."""
    dates = [earliest[name] for name in {branch, ALL_BRANCHES} if name in earliest]
    return min((SINCE_EVER_MS if date is None else date for date in dates), default=NEVER_MS)


def potential_commits(history: History, earliest: Mapping[str, int | None]) -> dict[CommitId, frozenset[str]]:
    """Return the potential commits, each with the branches that reach it, or raise BrokenHistory."""
    return {
        commit: branches
        # Only shown: as a source of candidates it would miss objects for good. Two idle branches with periods of 5 and
        # 15 days share a commit. When its objects are due by both, the intersection wants commits that are younger than
        # the date of the branch with 5 days.
        for commit, branches in branches_of(history).items()
        if not history.commits[commit].swept
        and history.commits[commit].created_ms >= potential_since_ms(earliest, branches)
    }
