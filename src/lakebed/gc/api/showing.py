"""Show single rows without Spark: a plan's objects, its expiring commits, and the ledger.

The ledger is never deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from lakebed.base import Tasks
from lakebed.gc import messages
from lakebed.gc.engines import Task, Work
from lakebed.gc.engines.engine import check_table, rows_of_parts
from lakebed.gc.mark.inputs.named import expiring, judge
from lakebed.gc.messages import (
    LEDGER_PREFIX,
    ExpiringCommit,
    GarbageObject,
    LedgerQuery,
    Plan,
    below,
    decode_record,
    garbage_rows,
    ledger_records,
)
from lakebed.gc.rules import DAY_MS, check_rules
from lakebed.gc.runs.context import read_all, read_garbage, read_input
from lakebed.objectstore import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


async def objects_of(store: ObjectStore, plan: Plan, *, prefix: str = "") -> AsyncIterator[GarbageObject]:
    """Yield the objects whose path or address begins with `prefix`, in the plan's order. Holds one part in memory.

    Raises:
        BadInput: a part is missing, short or changed.
    """
    check_table(plan.garbage, messages.GARBAGE)
    for part in plan.garbage.parts:
        for row in garbage_rows(below(await read_garbage(store, plan, part), prefix)):
            yield row


async def expiring_of(store: ObjectStore, tasks: Tasks, plan: Plan, *, limit: int) -> list[ExpiringCommit]:
    """Return the commits that a plan expires, the newest first, without their messages. Judges the plan's inputs again,
    at the same cost (bench `active`, for a million commits).

    Raises:
        BadInput: an input of the plan is missing or changed.
    """
    if plan.expired is None or not plan.expired.rows or plan.rules is None:
        return []
    commits = await read_input(store, tasks, plan.commits, messages.COMMITS)
    refs = await read_input(store, tasks, plan.refs, messages.REFS)
    return expiring(judge(commits, refs, check_rules(plan.rules), now_ms=plan.now_ms), limit=limit)


RECORDS_AT_ONCE: Final = 64


def marked_by_side(a: DataFrame, b: DataFrame) -> DataFrame:
    """Return the objects of either table (GARBAGE), each once. `side` is a, b or both."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that all Spark code uses

    marked = [
        table.withColumn("in_a", F.lit(place == 0)).withColumn("in_b", F.lit(place == 1))
        for place, table in enumerate((a, b))
    ]
    facts = [name for name in messages.GARBAGE.names() if name != "address"]
    each = marked[0].unionByName(marked[1]).groupBy("address")
    # The plans may have different facts about an object. Show the greater row, so that the answer is always the same.
    row = F.max(F.struct(*facts)).alias("row")
    either = each.agg(row, F.max("in_a").alias("in_a"), F.max("in_b").alias("in_b"))
    side = F.when(F.col("in_a") & F.col("in_b"), "both").when(F.col("in_a"), "a").otherwise("b")
    return either.select("address", "row.*", side.alias("side"))


async def ledger_rows_of(
    store: ObjectStore, tasks: Tasks, query: LedgerQuery, *, newest_first: bool = False
) -> AsyncIterator[dict[str, Any]]:
    """Yield the matching rows of the table `ledger` as plain values, oldest runs first. With `newest_first`, yield the
    newest runs first, and the last row of a run first.

    Raises:
        BadInput: a file is not a ledger file; the message names it.
    """
    records = await _records(store, query)
    if newest_first:
        records.reverse()
    for start in range(0, len(records), RECORDS_AT_ONCE):
        some = records[start : start + RECORDS_AT_ONCE]
        data = iter(await read_all(store, tasks, [name for names in some for name in names]))
        for names in some:
            rows = query.select(decode_record(names, [next(data) for _ in names])).to_pylist()
            for row in reversed(rows) if newest_first else rows:
                yield row


async def ledger_parts(store: ObjectStore, query: LedgerQuery) -> pa.Table:
    """Return PARTS: the ledger's records that may match the query, named by their first file. `note` has all files."""
    records = await _records(store, query)
    parts = [messages.Part(name=names[0], rows=0, size_bytes=0, sha256="") for names in records]
    return rows_of_parts(parts, notes=[msgspec.json.encode(names) for names in records])


def reading_ledger(query: LedgerQuery) -> Work:
    """Return the work from PARTS of the ledger to the matching rows."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        for note in share["note"].to_pylist():
            names = msgspec.json.decode(note, type=list[str])
            yield query.select(decode_record(names, [await task.store.get(name) for name in names]))

    return work


async def _records(store: ObjectStore, query: LedgerQuery) -> list[tuple[str, ...]]:
    """Return the records that may match the query, in the order of names."""
    # Skip records whose last file is older than `since` by the object store's clock, with a day's tolerance.
    since_ms = 0 if query.since_ms is None else query.since_ms - DAY_MS
    pages = store.list(LEDGER_PREFIX)
    changed_ms = {stat.key: stat.modified_ms async for page in pages for stat in page if query.matches(stat.key)}
    return [names for names in ledger_records(changed_ms) if max(changed_ms[name] for name in names) >= since_ms]
