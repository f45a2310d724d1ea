"""What a plan holds in single: its objects, a part at a time, and the commits whose data it gives up. Without Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator

from lakebed.base import Tasks
from lakebed.gc import protocol
from lakebed.gc.protocol import ExpiringCommit, GarbageObject, Plan, below, garbage_rows
from lakebed.gc.rules import check_rules
from lakebed.objectstore import ObjectStore

from .context import read_garbage, read_input
from .history import expiring, judge
from .named import check_table


async def objects_of(store: ObjectStore, plan: Plan, *, prefix: str = "") -> AsyncIterator[GarbageObject]:
    """The objects whose path or address begins with `prefix`, in the plan's order; one part of it in memory at a time.

    Raises:
        BadInput: a part is missing, short or changed.
    """
    check_table(plan.garbage, protocol.GARBAGE)
    for part in plan.garbage.parts:
        for row in garbage_rows(below(await read_garbage(store, plan, part), prefix)):
            yield row


async def expiring_of(store: ObjectStore, tasks: Tasks, plan: Plan, *, limit: int) -> list[ExpiringCommit]:
    """The commits whose data a plan gives up, the newest first, without their messages: those of the verdict that the
    plan was made by, made again from what it rests on. Costs what that did (bench `active`, for a million commits).

    Raises:
        BadInput: something the plan rests on is missing or changed.
    """
    if plan.expired is None or not plan.expired.rows or plan.rules is None:
        return []
    commits = await read_input(store, tasks, plan.commits, protocol.COMMITS)
    refs = await read_input(store, tasks, plan.refs, protocol.REFS)
    return expiring(judge(commits, refs, check_rules(plan.rules), now_ms=plan.now_ms), limit=limit)
