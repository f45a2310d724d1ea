"""Asking the ledger: what became of an object, a path, a run. It is the one table that is never cleaned away.

Files are found by name and date of change and read whole; a file changed long before `since` (by the object store's
clock, which gets a day's grace) is not read at all. As plain rows for a look, as a DataFrame for anything larger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from lakebed import handoff
from lakebed.blocks import BlockStore
from lakebed.handoff import LEDGER_PREFIX, LedgerState
from lakebed.retention import DAY_MS

from .files import Files, Lake, in_tasks, whole
from .parts import rows_of_parts, spread
from .tables import LEDGER, PARTS

FILES_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerQuery:
    """What is asked for; what is left out does not count. `path` with a slash at its end is all that is below it;
    `since_ms` is when the row's deed was done.
    """

    run_id: str = ""
    path: str = ""
    address: str = ""
    state: LedgerState | None = None
    since_ms: int | None = None

    def matches(self, name: str) -> bool:
        """Whether a ledger file of this name can hold such rows."""
        return name.endswith(".parquet") and (not self.run_id or f"/{self.run_id}-" in name)

    def select(self, rows: pa.Table) -> pa.Table:
        """Those of these LEDGER rows that are asked for."""
        kept = pc.is_valid(rows["address"])
        if self.run_id:
            kept = pc.and_(kept, pc.equal(rows["run_id"], self.run_id))
        if self.path.endswith("/"):
            kept = pc.and_(kept, pc.starts_with(rows["path"], self.path))
        elif self.path:
            kept = pc.and_(kept, pc.equal(rows["path"], self.path))
        if self.address:
            kept = pc.and_(kept, pc.equal(rows["address"], self.address))
        if self.state is not None:
            kept = pc.and_(kept, pc.equal(rows["state"], self.state.value))
        if self.since_ms is not None:
            since = pa.scalar(self.since_ms, rows.schema.field("deleted_at").type)
            kept = pc.and_(kept, pc.greater_equal(rows["deleted_at"], since))
        return rows.filter(kept)


def ledger_rows_of(files: Files, query: LedgerQuery) -> Iterator[dict[str, Any]]:
    """The rows that are asked for as plain values, oldest runs first, by the columns of the table `ledger`.

    Raises:
        BadInput: a file is no ledger file; the message names it.
    """
    keys = files.act(lambda store: _keys(store, query))
    for start in range(0, len(keys), FILES_AT_ONCE):
        some = keys[start : start + FILES_AT_ONCE]
        for key, data in zip(some, files.read_all(some), strict=True):
            yield from query.select(handoff.decode_ledger(data, name=key)).to_pylist()


def ledger_frame(spark: SparkSession, lake: Lake, query: LedgerQuery, *, tasks: int) -> DataFrame:
    """LEDGER: the same, in no order. Files are listed now, and read when the frame is used."""
    with Files(lake) as files:
        keys = files.act(lambda store: _keys(store, query))
    parts = [handoff.Part(name=key, rows=0, size_bytes=0, sha256="") for key in keys]
    named = spread(spark, PARTS, rows_of_parts(parts), tasks=tasks)

    async def work(store: BlockStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        for key in whole(share)["name"].to_pylist():
            yield query.select(handoff.decode_ledger(await store.get(key), name=key))

    return LEDGER.of(named.mapInArrow(in_tasks(lake, work, LEDGER), LEDGER.spark))


async def _keys(store: BlockStore, query: LedgerQuery) -> list[str]:
    since_ms = None if query.since_ms is None else query.since_ms - DAY_MS
    return [
        stat.key
        async for page in store.list(LEDGER_PREFIX)
        for stat in page
        if query.matches(stat.key) and (since_ms is None or stat.modified_ms >= since_ms)
    ]
