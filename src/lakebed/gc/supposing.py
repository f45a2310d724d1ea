"""What a run would take by other rules: a plan that is marked so, and that changes nothing for anybody.

The live side is asked as ever, but for its rules others are taken. A plan of committed data may be applied when these
rules are the repository's by then, compared as a whole and asked of the server at that moment (applying.py); in
between it has no version that the server would accept. A run of uncommitted data is bound to its plan while it marks,
so one that only supposes is abandoned where another would be marked, and can never be applied. Metadata goes by no
rules, and there is nothing to suppose of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import Conflict
from lakebed.gc.protocol import Manifest, Plan, PreparedCommits, Requests, RunView, Service
from lakebed.gc.rules import Rules, check_rules

from .live_side import LiveSide

NO_VERSION: Final = -1


class NotTheRules(Conflict):
    """The plan was made to see what other rules would take, and these are not in force."""


class Supposing(Service):
    """Serve a plan by rules that are not the repository's."""

    def __init__(self, requests: Requests, rules: Rules) -> None:
        """
        Raises:
            InvalidRules: these rules could not be saved either.
        """
        super().__init__(requests)
        self.rules_supposed = check_rules(rules)

    async def commits(self, run_id: str) -> PreparedCommits:
        prepared = await super().commits(run_id)
        return msgspec.structs.replace(prepared, rules=self.rules_supposed, rules_version=NO_VERSION)

    async def marked(self, run_id: str, plan: Manifest) -> RunView:  # noqa: ARG002 - bound to nothing
        return await self.abandoned(run_id)


def version_to_condemn_by(live_side: LiveSide, plan: Plan) -> int:
    """The version of the rules that a plan may be applied by. The server compares it with the one in force.

    Raises:
        NotTheRules: the plan supposes rules, and others are in force now.
    """
    if not plan.what_if:
        return plan.rules_version
    current = live_side.rules()
    if current.rules is None or current.rules != plan.rules:
        raise NotTheRules(
            f"run {plan.run_id} was planned by rules that are not the repository's: save them first, or plan again",
            run_id=plan.run_id,
        )
    return current.version
