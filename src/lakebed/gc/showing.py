"""Show single rows without Spark: a plan's objects, the commits whose data it takes, and the ledger.

The ledger is the one table that is never cleaned away. Its files are found by name and date of change and read whole; a
file changed long before `since` (by the object store's clock, which gets a day's grace) is not read at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pyarrow as pa

from lakebed.base import Tasks
from lakebed.gc import protocol
from lakebed.gc.protocol import LEDGER_PREFIX, ExpiringCommit, GarbageObject, LedgerQuery, Plan, below, garbage_rows
from lakebed.gc.rules import DAY_MS, check_rules
from lakebed.objectstore import ObjectStore

from .engines import Task, Work
from .inputs.history import expiring, judge
from .runs.context import read_all, read_garbage, read_input
from .tables import check_table, rows_of_parts


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


FILES_AT_ONCE: Final = 64


async def ledger_rows_of(
    store: ObjectStore, tasks: Tasks, query: LedgerQuery, *, newest_first: bool = False
) -> AsyncIterator[dict[str, Any]]:
    """The rows that are asked for as plain values, oldest runs first, by the columns of the table `ledger`. Or the
    newest runs first: within a run then too what was written last.

    Raises:
        BadInput: a file is no ledger file; the message names it.
    """
    keys = sorted(await _keys(store, query), reverse=newest_first)
    for start in range(0, len(keys), FILES_AT_ONCE):
        some = keys[start : start + FILES_AT_ONCE]
        for key, data in zip(some, await read_all(store, tasks, some), strict=True):
            rows = query.select(protocol.decode_ledger(data, name=key)).to_pylist()
            for row in reversed(rows) if newest_first else rows:
                yield row


async def ledger_parts(store: ObjectStore, query: LedgerQuery) -> pa.Table:
    """PARTS: the files of the ledger that may have rows for this query."""
    keys = await _keys(store, query)
    return rows_of_parts([protocol.Part(name=key, rows=0, size_bytes=0, sha256="") for key in keys])


def reading_ledger(query: LedgerQuery) -> Work:
    """The work from PARTS of the ledger to the rows that are asked for."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        for key in share["name"].to_pylist():
            yield query.select(protocol.decode_ledger(await task.store.get(key), name=key))

    return work


async def _keys(store: ObjectStore, query: LedgerQuery) -> list[str]:
    since_ms = None if query.since_ms is None else query.since_ms - DAY_MS
    return [
        stat.key
        async for page in store.list(LEDGER_PREFIX)
        for stat in page
        if query.matches(stat.key) and (since_ms is None or stat.modified_ms >= since_ms)
    ]
