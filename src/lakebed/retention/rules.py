"""The rules of forgetting: for how many days a branch's history stays after it has been replaced.

A number of days for the repository, and one for each branch that needs another
(docs/design/0004-committed-retention.md). No rules at all is not the same as any rule: without rules nothing of the
committed data is ever collected.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import Invalid

DAY_MS: Final = 86_400_000
DAYS_MAX: Final = 365_000
"""A thousand years: more is a slip of the keyboard, and would overflow nothing but sense."""


class InvalidRules(Invalid):
    """Rules nobody can have meant."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """`branch_days` overrides `default_days` for the branches it names, whether they exist or not."""

    default_days: int
    branch_days: dict[str, int] = {}
    tags_pin: bool = True
    """Whether a tag keeps its commit. The design document's bare rule knows only branches."""

    def days_of(self, branch: str) -> int:
        return self.branch_days.get(branch, self.default_days)

    def since_ms(self, branch: str | None, now_ms: int) -> int:
        """The beginning of the retention period: of a branch, or (None) of what hangs on no branch."""
        days = self.default_days if branch is None else self.days_of(branch)
        return now_ms - days * DAY_MS


def check_rules(rules: Rules) -> Rules:
    """
    Raises:
        InvalidRules: a number of days below 0 or over DAYS_MAX, or a rule for the empty name. 0 days are allowed:
            only heads (and their first parents) stay.
    """
    for name, days in (("default", rules.default_days), *sorted(rules.branch_days.items())):
        if not 0 <= days <= DAYS_MAX:
            raise InvalidRules(f"retention of {name}: {days} days, must be 0 to {DAYS_MAX}", branch=name, days=days)
    if "" in rules.branch_days:
        raise InvalidRules("a rule for a branch without a name")
    return rules
