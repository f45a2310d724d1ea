"""Define the kinds of runs, a folder each: the objects to delete, the recheck before, and the checks of the sweep.

The flow (gc/machine/flow.py) plans and applies every kind alike, and names no kind. `RunKind` (base/runs.py) lists the
kinds: a member's value is the name of its folder. `make` in the folder's `plan.py` makes the kind.
`saved.py` is the state that a run leaves for the next one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from lakebed.gc.messages import (
    EXPIRED,
    Apply,
    Cleared,
    ErasureOrder,
    Mode,
    Plan,
    RunKind,
    RunMode,
    StartedRun,
    UncommittedOptions,
)
from lakebed.gc.rules import MetadataRule
from lakebed.gc.runs.context import RunContext


class Look(enum.Enum):
    """Compare a key outside of slices with its row in the plan before the sweep deletes it."""

    # Lakebed never writes an address of a slice again. Others may write other keys again.

    NONE = "none"
    SAME = "same size and date as listed"
    NOT_YOUNGER = "same size, and not written after it was named"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRule:
    """Decide which keys a plan of this kind may delete at all, whatever its table has. Spark sends it to tasks."""

    may_delete: Callable[[str], bool]
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limit the objects of a run of any kind, by a request or by a plan. Each kind reads its own fields."""

    options: UncommittedOptions
    metadata: MetadataRule = field(default_factory=MetadataRule)
    erasure: ErasureOrder | None = None
    # If given, the plan expires no other commits.
    expired: frozenset[str] | None = None
    # Keep the folder of this run, which is planned once more.
    again: str = ""


class Kind(Protocol):
    @property
    def name(self) -> RunKind: ...

    @property
    def rule(self) -> SweepRule: ...

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """Decide which objects to delete, and write them with all inputs. Delete nothing.

        Raises:
            BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
        """
        ...

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        """Publish the plan, then look again, and leave out objects that have a name by now.

        The plan of a kind that publishes nothing (`RunKind.publishes`) is final.

        Raises:
            RunAbandoned: the service refused the plan.
        """
        ...


async def begin_unpublished(context: RunContext, plan: Plan, rules_version: int) -> Cleared:
    """Record that an apply of the run began. From here on no metadata run ends it.

    Raises:
        Conflict: an apply began already.
    """
    request = Apply(kind=plan.kind, plan=plan.garbage.digest(), rules_version=rules_version, begins=True, uid=plan.uid)
    await context.service.applying(plan.run_id, request)
    return Cleared(garbage=plan.garbage, commits=plan.commits, size_bytes=plan.totals.all.size_bytes)


class _Folder(Protocol):
    def make(self, limits: Limits) -> Kind:
        """Make the kind of this folder.

        Raises:
            InvalidRequest: these limits lack something that the kind needs.
        """
        ...


def _make(name: RunKind, limits: Limits) -> Kind:
    # Import late, because the folders import this module.
    return cast("_Folder", import_module(f"{__name__}.{name.value}.plan")).make(limits)


def kind_to_plan(name: RunKind, options: UncommittedOptions, metadata: MetadataRule) -> Kind:
    """Return the kind that plans by these options.

    Raises:
        InvalidRequest: only an order makes plans of this kind.
    """
    return _make(name, Limits(options=options, metadata=metadata))


def kind_of_plan(plan: Plan) -> Kind:
    """Return the kind that applies this plan."""
    # Of the modes, only an old layout changes how a plan is applied.
    is_old_layout = plan.mode is RunMode.OLD_LAYOUT
    options = UncommittedOptions(mode=Mode.OLD_LAYOUT if is_old_layout else Mode.AUTOMATIC)
    return _make(plan.kind, Limits(options=options, erasure=plan.erasure))


async def kind_to_plan_again(context: RunContext, theirs: Plan) -> Kind:
    """Return the kind that plans the objects of another user's plan once more, by the limits of that plan."""
    # An optimised run may be impossible by now, so leave the choice to the plan.
    mode = {RunMode.CLEAN: Mode.CLEAN, RunMode.OPTIMISED: Mode.AUTOMATIC, RunMode.OLD_LAYOUT: Mode.OLD_LAYOUT}
    options = UncommittedOptions(
        mode=mode[theirs.mode], active_only=theirs.active_only, token_expiry_ms=theirs.token_expiry_ms
    )
    among = None if theirs.expired is None else (await context.read(theirs.expired, EXPIRED))["id"].to_pylist()
    return _make(
        theirs.kind,
        Limits(
            options=options,
            erasure=theirs.erasure,
            expired=None if among is None else frozenset(among),
            again=theirs.run_id,
        ),
    )
