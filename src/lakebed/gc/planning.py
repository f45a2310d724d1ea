"""Plan: decide what goes, write it down with everything it rests on, and delete nothing.

A plan needs no permission to delete, and may be made, shown and thrown away as often as one likes. Every kind has a
file of its own (planning_committed.py, planning_uncommitted.py) and ends in one Parquet table of doomed objects and
`plan.json`, which is written last (runs.py).

Anything missing, short or unknown stops the plan with an error that names it. No live object at all, where there
should be some, is such a thing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from lakebed.base import LakebedError
from lakebed.gc.protocol import BadInput, RunKind, StartedRun, UncommittedOptions

from .clocks import wall_clock_ms
from .failures import told
from .files import Files
from .planning_committed import plan_committed
from .planning_metadata import plan_metadata
from .planning_uncommitted import plan_uncommitted
from .runs import Plan, write_plan
from .supposing import NO_VERSION
from .workshop import Workshop


def plan_run(shop: Workshop, kind: RunKind, options: UncommittedOptions) -> Plan:
    """Start a run, plan it and write the plan. Deletes nothing.

    Raises:
        NoRules: a committed run, and there are no rules.
        NoSavedState: an optimised run was asked for, and there is nothing that it could go on from.
        BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
        TaskUnavailable: the object store cannot be reached.
        RunAbandoned: somebody ended the run meanwhile.
    """
    run = shop.live_side.start(kind)
    if run.namespace.rstrip("/") != shop.lake.uri.rstrip("/"):
        raise BadInput(f"run {run.run_id} is of {run.namespace}, not of {shop.lake.uri}", input="namespace")
    with told(), Files(shop.lake) as files:
        if kind is RunKind.COMMITTED:
            plan = plan_committed(shop, run, files)
        elif kind is RunKind.METADATA:
            plan = plan_metadata(shop, run, files)
        else:
            with _abandoned_on_error(shop, run):
                plan = plan_uncommitted(shop, run, files, options)
        if plan.rules_version == NO_VERSION:
            plan = msgspec.structs.replace(plan, what_if=True)
        plan = msgspec.structs.replace(plan, made_ms=wall_clock_ms())
        write_plan(files, plan)
    return plan


@contextlib.contextmanager
def _abandoned_on_error(shop: Workshop, run: StartedRun) -> Iterator[None]:
    """A run that is left marking keeps the server from cleaning up, for as long as it may seem alive."""
    try:
        yield
    except BaseException:
        # Marked already, abandoned by somebody else, or no server there: what went wrong first is what is told.
        with contextlib.suppress(LakebedError):
            shop.live_side.abandoned(run.run_id)
        raise
