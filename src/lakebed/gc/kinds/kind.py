"""A kind of collection: what may go, what it is compared with, and what must be asked again before it goes.

The flow (gc/machine/flow.py) plans and applies every kind alike. A new kind is a folder beside this file, whose
`plan.py` has `make`, and a member of `RunKind`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from lakebed.gc.messages import Apply, ErasureOrder, Plan, RunKind, StartedRun, UncommittedOptions
from lakebed.gc.rules import MetadataRule
from lakebed.gc.runs.context import Cleared, RunContext


class Look(enum.Enum):
    """Compare what the plan says of a key in no slice before the sweep deletes it: others may have written such a key
    again.
    """

    NONE = "none"
    SAME = "same size and date as listed"
    NOT_YOUNGER = "same size, and not written after it was named"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRule:
    """Decide which keys a plan of this kind may delete at all, whatever its table holds. Travels to tasks."""

    may_delete: Callable[[str], bool]
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limit what a run of any kind takes, by a request or by a plan. Each kind reads what concerns it.

    `expired`: expire no other commits. `again`: the run that is planned once more; its folder stays.
    """

    options: UncommittedOptions
    metadata: MetadataRule = field(default_factory=MetadataRule)
    erasure: ErasureOrder | None = None
    expired: frozenset[str] | None = None
    again: str = ""


class Kind(Protocol):
    @property
    def name(self) -> RunKind: ...

    @property
    def rule(self) -> SweepRule: ...

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """Decide what goes and write it down, with everything it rests on. Delete nothing.

        Raises:
            BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
        """
        ...

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        """Publish what the plan takes, then look again: leave out what has come to be named since. The plan of a kind
        that publishes nothing (`RunKind.publishes`) is final.

        Raises:
            RunAbandoned: the service refused the plan.
        """
        ...


async def begin_unpublished(context: RunContext, plan: Plan, rules_version: int) -> Cleared:
    """Note in the run's record that an apply began: from here on no collection of metadata ends the run.

    Raises:
        Conflict: it did already.
    """
    request = Apply(kind=plan.kind, plan=plan.garbage.digest(), rules_version=rules_version, begins=True, uid=plan.uid)
    await context.service.applying(plan.run_id, request)
    return Cleared(garbage=plan.garbage, commits=plan.commits, size_bytes=plan.totals.all.size_bytes)
