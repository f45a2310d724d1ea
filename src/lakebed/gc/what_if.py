"""Plan by rules that are not saved: a plan that is marked so, and that changes nothing for anyone.

The service is asked as always, but its rules are replaced. A plan of committed data may be applied when these rules are
the repository's by then, compared as a whole and asked of the service at that moment; before that it has no version
that the service accepts. A run of uncommitted data is bound to its plan while it marks, so one by other rules is
abandoned where another would be marked, and can never be applied. Metadata goes by no rules.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import Conflict
from lakebed.gc.protocol import Manifest, Plan, PreparedCommits, RunView, Service
from lakebed.gc.rules import Rules, check_rules

NO_VERSION: Final = -1


class NotTheRules(Conflict):
    """The plan was made to see what other rules would take, and these are not in force."""


class WhatIf(Service):
    """A service by other rules."""

    def __init__(self, service: Service, rules: Rules) -> None:
        """
        Raises:
            InvalidRules: these rules could not be saved either.
        """
        super().__init__(service.requests)
        self._rules = check_rules(rules)

    async def commits(self, run_id: str) -> PreparedCommits:
        prepared = await super().commits(run_id)
        return msgspec.structs.replace(prepared, rules=self._rules, rules_version=NO_VERSION)

    async def marked(self, run_id: str, plan: Manifest) -> RunView:  # noqa: ARG002 - bound to nothing
        return await self.abandoned(run_id)


async def version_to_expire_by(service: Service, plan: Plan) -> int:
    """The version of the rules that a plan may be applied by. The service compares it with the one in force.

    Raises:
        NotTheRules: the plan was made by other rules, and these are not in force now.
    """
    if not plan.what_if:
        return plan.rules_version
    current = await service.rules()
    if current.rules is None or current.rules != plan.rules:
        raise NotTheRules(
            f"run {plan.run_id} was planned by rules that are not the repository's: save them first, or plan again",
            run_id=plan.run_id,
        )
    return current.version
