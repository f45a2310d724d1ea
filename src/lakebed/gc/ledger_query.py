"""Asking the ledger: what became of an object, a path, a run. It is the one table that is never cleaned away.

Files are found by name and date of change and read whole; a file changed long before `since` (by the object store's
clock, which gets a day's grace) is not read at all. As plain rows for a look, as a DataFrame for anything larger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pyarrow as pa

from lakebed.base import Tasks
from lakebed.gc import protocol
from lakebed.gc.protocol import LEDGER_PREFIX, LedgerQuery
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import ObjectStore

from .engines import Task, Work
from .files import read_all
from .parts import rows_of_parts

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
