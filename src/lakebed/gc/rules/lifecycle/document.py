"""The tables of the design document (docs/design/0003-lifecycle.md), as it writes them, with dates in milliseconds.

    policy_table        each run's policy: rule, prefix, branch, and the date before which objects go
    current_rules       that of this run, with the latest date of any run that ended: `last_deleted`
    earliest_by_branch  for each branch the earliest `last_deleted` of its rules
    potential_commits   the commits that may name what no run took yet, by the document's intersection of dates

The last one is computed and shown, and no run uses it to find candidates: it misses objects for ever. Take two idle
branches with periods of 5 and 15 days that share a commit. When its objects are due by both, the intersection asks for
commits younger than the branch with 5 days does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from lakebed.base import CommitId
from lakebed.gc.rules.durations import SINCE_EVER_MS
from lakebed.gc.rules.history import History

from .due import NO_BRANCH, branches_of
from .periods import NEVER_MS, parse_period
from .policy import Policy

ALL_BRANCHES = NO_BRANCH
"""An empty branch stands for all that have no row of their own."""


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """`date_to_be_deleted`: objects written before it are due. `prefix` is a glob where the rule has one."""

    run_id: str
    rule_id: str
    prefix: str
    branch: str
    date_to_be_deleted: int


class CurrentRule(msgspec.Struct, frozen=True, kw_only=True):
    """`last_deleted` None: no run took anything by this prefix and branch yet."""

    prefix: str
    branch: str
    date_to_be_deleted: int
    last_deleted: int | None


def policy_table(policy: Policy, *, run_id: str, now_ms: int) -> list[PolicyRow]:
    """Return the policy as a table. The rules are in the order of their ids, the row for all branches first."""
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
    """Return the rules of a run. `ended` are the runs that deleted all that they planned.

    A rule is its prefix and branch: its id has no influence. What a run took is gone for good. So the latest date
    counts, also where a later policy was looser.
    """
    rows = list(rows)
    last: dict[tuple[str, str], int] = {}
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
    """Return for each branch the earliest `last_deleted`; None where a rule never ran: all of the branch is new."""
    found: dict[str, int | None] = {}
    for rule in rules:
        before = found.get(rule.branch, rule.last_deleted)
        is_new = before is None or rule.last_deleted is None
        found[rule.branch] = None if is_new else min(before, rule.last_deleted)  # type: ignore[type-var]  # neither is None
    return found


def potential_since_ms(earliest: Mapping[str, int | None], branches: Collection[str]) -> int:
    """Return from when on a commit that these branches reach is potential: the intersection over all of them.

    NEVER_MS: no rule covers one of the branches, so no commit on it has anything to give.
    """
    return max(_since_ms(earliest, branch) for branch in branches)


def _since_ms(earliest: Mapping[str, int | None], branch: str) -> int:
    """A branch has its own rules and those for all branches: the earlier date counts."""
    dates = [earliest[name] for name in {branch, ALL_BRANCHES} if name in earliest]
    return min((SINCE_EVER_MS if date is None else date for date in dates), default=NEVER_MS)


def potential_commits(history: History, earliest: Mapping[str, int | None]) -> dict[CommitId, frozenset[str]]:
    """Return the potential commits with the branches that reach each.

    Raises:
        BrokenHistory: a commit that something names is missing.
    """
    return {
        commit: branches
        for commit, branches in branches_of(history).items()
        if not history.commits[commit].swept
        and history.commits[commit].created_ms >= potential_since_ms(earliest, branches)
    }
