"""Asking the ledger: what became of an object, a path, a run. It is the one table that is never cleaned away.

Files are found by name and date of change and read whole; a file changed long before `since` (by the object store's
clock, which gets a day's grace) is not read at all. As plain rows for a look, as a DataFrame for anything larger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakebed.gc import protocol
from lakebed.gc.protocol import LEDGER_PREFIX, LedgerQuery
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import ObjectStore

from .files import Files, Lake, in_tasks, whole
from .parts import rows_of_parts, spread
from .tables import LEDGER, PARTS

FILES_AT_ONCE: Final = 64


def ledger_rows_of(files: Files, query: LedgerQuery, *, newest_first: bool = False) -> Iterator[dict[str, Any]]:
    """The rows that are asked for as plain values, oldest runs first, by the columns of the table `ledger`. Or the
    newest runs first: within a run then too what was written last.

    Raises:
        BadInput: a file is no ledger file; the message names it.
    """
    keys = sorted(files.act(lambda store: _keys(store, query)), reverse=newest_first)
    for start in range(0, len(keys), FILES_AT_ONCE):
        some = keys[start : start + FILES_AT_ONCE]
        for key, data in zip(some, files.read_all(some), strict=True):
            rows = query.select(protocol.decode_ledger(data, name=key)).to_pylist()
            yield from reversed(rows) if newest_first else rows


def ledger_frame(spark: SparkSession, lake: Lake, query: LedgerQuery, *, tasks: int) -> DataFrame:
    """LEDGER: the same, in no order. Files are listed now, and read when the frame is used."""
    with Files(lake) as files:
        keys = files.act(lambda store: _keys(store, query))
    parts = [protocol.Part(name=key, rows=0, size_bytes=0, sha256="") for key in keys]
    named = spread(spark, PARTS, rows_of_parts(parts), tasks=tasks)

    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        for key in whole(share)["name"].to_pylist():
            yield query.select(protocol.decode_ledger(await store.get(key), name=key))

    return LEDGER.of(named.mapInArrow(in_tasks(lake, work, LEDGER), LEDGER.spark))


async def _keys(store: ObjectStore, query: LedgerQuery) -> list[str]:
    since_ms = None if query.since_ms is None else query.since_ms - DAY_MS
    return [
        stat.key
        async for page in store.list(LEDGER_PREFIX)
        for stat in page
        if query.matches(stat.key) and (since_ms is None or stat.modified_ms >= since_ms)
    ]
