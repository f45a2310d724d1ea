"""Look again at a table of garbage, before it is deleted: leave out what has come to be named since.

Only ranges that were not counted as live before are read: of commits that are new, and of those that stay after all.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import count_of
from lakebed.gc import protocol
from lakebed.gc.protocol import BadInput, Manifest, Plan, RecheckInputs, StartedRun, Totals

from .bucketed import Bucketed
from .context import RunContext, folder_in
from .history import newly_kept
from .mark import deal_again, mark_expired
from .named import deal_live, from_tables
from .ranges import effort_of_ends, from_ranges, read_ranges


async def look_again(
    context: RunContext,
    plan: Plan,
    garbage: Manifest,
    *,
    kept: pa.Table,
    commits: Manifest,
    uncommitted: Manifest,
    closed: Sequence[int],
) -> tuple[Manifest, Totals]:
    """Write the rows of `garbage` that nothing names as a table of its own, named after `commits`.

    `kept` are the ids of commits whose objects were counted as live before; `commits` and `uncommitted` are all that is
    named now. Of a slice that is not `closed` nothing is left.
    """
    name = commits.digest()[:16]
    now = await context.read(commits, protocol.COMMITS)
    new, old = newly_kept(kept, now)
    # The other way round than in planning: a range is "live" here if the plan kept it, so that only new ones are left.
    either = pa.concat_tables([_flag(new, live=False), _flag(old, live=True)]) if new.num_rows else new
    ranges = await read_ranges(context.engine, either, folder=folder_in(plan, f"ranges.tasks.{name}"))
    fresh = ranges.filter(pc.invert(ranges["is_live"])) if new.num_rows else ranges
    objects, new_ranges = count_of(garbage.rows, "object"), count_of(fresh.num_rows, "new range")
    context.progress(f"rechecking {objects} against {new_ranges} and what is staged")
    staged = await deal_tables(context, plan, [uncommitted], protocol.UNCOMMITTED, f"uncommitted.{name}")
    candidates = await deal_again(context.engine, garbage, folder=folder_in(plan, f"again.tasks.{name}"), closed=closed)
    return await mark_expired(
        context.engine,
        candidates,
        [await deal_ranges(context, plan, fresh, folder=folder_in(plan, f"live.tasks.{name}")), staged],
        into=folder_in(plan, f"{protocol.GARBAGE.name}.{name}"),
        now_ms=plan.now_ms,
    )


def whole(answer: RecheckInputs) -> tuple[Manifest, Manifest]:
    if answer.commits is None or answer.uncommitted is None:
        raise BadInput("the server did not say what must be kept", run_id=answer.run_id)
    return answer.commits, answer.uncommitted


async def deal_tables(
    context: RunContext, run: StartedRun | Plan, tables: Sequence[Manifest], table: protocol.Table, name: str
) -> Bucketed:
    """Deal what these tables of one kind name. `name` tells the folder of tasks from those of other looks."""
    source, rows, effort = from_tables(tables, table)
    return await deal_live(
        context.engine,
        source,
        rows,
        uri=run.namespace,
        folder=folder_in(run, f"{name}.tasks"),
        with_keys=True,
        effort=effort,
    )


async def deal_ranges(context: RunContext, run: StartedRun | Plan, ranges: pa.Table, *, folder: str) -> Bucketed:
    return await deal_live(
        context.engine,
        from_ranges,
        ranges,
        uri=run.namespace,
        folder=folder,
        with_keys=True,
        effort=effort_of_ends(ranges),
    )


def _flag(metaranges: pa.Table, *, live: bool) -> pa.Table:
    place = metaranges.schema.get_field_index("is_live")
    flags = pa.repeat(pa.scalar(live), metaranges.num_rows)
    return metaranges.set_column(place, metaranges.schema.field("is_live"), flags)
