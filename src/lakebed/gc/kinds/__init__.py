"""The kinds of collections, a folder each. The flow knows none of them by name.

`RunKind` (base/runs.py) lists them: a member's value is the name of its folder. `make` in the folder's `plan.py` makes
the kind.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from lakebed.gc.messages import EXPIRED, Mode, Plan, RunKind, RunMode, UncommittedOptions
from lakebed.gc.rules import MetadataRule
from lakebed.gc.runs.context import RunContext

from .kind import Kind, Limits, Look, SweepRule

__all__ = ["Kind", "Look", "SweepRule", "kind_of_plan", "kind_to_plan", "kind_to_plan_again"]


class _Folder(Protocol):
    def make(self, limits: Limits) -> Kind:
        """
        Raises:
            InvalidRequest: these limits lack something that the kind needs.
        """
        ...


def _make(name: RunKind, limits: Limits) -> Kind:
    return cast("_Folder", import_module(f"{__name__}.{name.value}.plan")).make(limits)


def kind_to_plan(name: RunKind, options: UncommittedOptions, metadata: MetadataRule) -> Kind:
    """
    Raises:
        InvalidRequest: only an order makes plans of this kind.
    """
    return _make(name, Limits(options=options, metadata=metadata))


def kind_of_plan(plan: Plan) -> Kind:
    """Return the kind that carries this plan out."""
    is_old_layout = plan.mode is RunMode.OLD_LAYOUT
    options = UncommittedOptions(mode=Mode.OLD_LAYOUT if is_old_layout else Mode.AUTOMATIC)
    return _make(plan.kind, Limits(options=options, erasure=plan.erasure))


async def kind_to_plan_again(context: RunContext, theirs: Plan) -> Kind:
    """Return the kind that plans once more what a plan of another user takes, by the limits of that plan."""
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
