"""Plan again before an apply when another user made the plan: that user may write to the object store.

The apply plans anew and deletes only objects that are in both plans. Each row is from its own plan. From the other
plan it takes only limits: the time, the mode and the expired commits. So a forged plan can only keep garbage.
The cost is one more plan and a join of the two tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec

from lakebed.gc import messages
from lakebed.gc.kinds import Kind, kind_of_plan, kind_to_plan_again
from lakebed.gc.mark.inputs.named import deal_tables
from lakebed.gc.mark.mark import deal_again, mark_expired
from lakebed.gc.messages import (
    EXPIRED,
    GARBAGE,
    LEFTOVERS,
    Manifest,
    Plan,
    RunKind,
    RunView,
    Service,
    StartedRun,
    check_manifest,
)
from lakebed.gc.runs.context import RunContext, folder_in, slice_numbers, write_input

Decide = Callable[[RunContext, Kind], Awaitable[tuple[Plan, StartedRun]]]


class _Looking(Service):
    """Answer for a second plan of the objects that another user's plan names."""

    def __init__(self, service: Service, theirs: Plan) -> None:
        super().__init__(service.requests)
        self._theirs = theirs

    async def start(self, kind: RunKind) -> StartedRun:
        """Begin a run that measures ages from the other plan's start. Younger objects stay."""
        run = await super().start(kind)
        return msgspec.structs.replace(run, now_ms=min(run.now_ms, self._theirs.now_ms))

    async def marked(self, run_id: str, plan: Manifest) -> RunView:  # noqa: ARG002 - no apply carries that run out
        return await self.abandoned(run_id)

    async def runs(self) -> tuple[RunView, ...]:
        """Hide the run itself: its objects would be treated as those of an unfinished run."""
        return tuple(view for view in await super().runs() if view.run_id != self._theirs.run_id)


async def plan_again(context: RunContext, theirs: Plan, decide: Decide) -> tuple[Kind, Plan]:
    """Return a plan of the same run with the objects that are in both `theirs` and a new plan. Return its kind, too.

    Raises:
        BadInput: the other plan's table is missing or changed.
        Conflict: planning failed.
    """
    check_manifest(theirs.garbage, name=theirs.garbage.folder)
    looking = replace(context, service=_Looking(context.service, theirs))
    # The erasure's order is trusted as well: the server recorded that a user who may erase made this plan.
    kind = await kind_to_plan_again(context, theirs)
    ours, run = await decide(looking, kind)
    suffix = f".{ours.commits.digest()[:16]}"
    garbage, totals = await _in_both(context, ours, theirs, run, into=folder_in(theirs, f"{GARBAGE.name}{suffix}"))
    both = msgspec.structs.replace(
        ours,
        run_id=theirs.run_id,
        garbage=garbage,
        totals=totals,
        expired=await _moved(context, ours.expired, EXPIRED, theirs, suffix),
        leftovers=await _moved(context, ours.leftovers, LEFTOVERS, theirs, suffix),
        # The saved state describes more objects than the reduced table has.
        keeps=None,
        dues=None,
    )
    return kind_of_plan(ours) if ours.erasure is not None else kind, both


async def _in_both(
    context: RunContext, ours: Plan, theirs: Plan, run: StartedRun, *, into: str
) -> tuple[Manifest, messages.Totals]:
    """Write the rows of our table whose objects are also in the other table."""
    closed = slice_numbers(run.closed_slices)

    async def without(other: Manifest, name: str, into: str) -> tuple[Manifest, messages.Totals]:
        named = await deal_tables(context, run, [other], GARBAGE, name)
        rows = await deal_again(context.engine, ours.garbage, folder=folder_in(run, f"again.{name}"), closed=closed)
        return await mark_expired(context.engine, rows, [named], into=into, now_ms=run.now_ms, all_names=True)

    # Both tables may be large. First write the rows that only our table has, then all rows without these.
    only_ours, _ = await without(theirs.garbage, "theirs", folder_in(run, f"{GARBAGE.name}.ours"))
    return await without(only_ours, "ours", into)


async def _moved(
    context: RunContext, manifest: Manifest | None, table: messages.Table, theirs: Plan, suffix: str
) -> Manifest | None:
    """Write a table of our plan into the folder of the other plan's run, where the server reads it."""
    if manifest is None:
        return None
    rows = await context.read(manifest, table)
    return await write_input(context.store, folder_in(theirs, f"{table.name}{suffix}"), table, rows)
