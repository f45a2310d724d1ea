"""Uncommitted garbage: listed, and named by no commit, no staged cell, no open upload and no tracked copy.

docs/design/0001-uncommitted-gc.md, "Flow 1: Clean Run", step 4: `Store DF` − `Committed DF` − `Uncommitted DF`. Only
settled slices were listed, and before anything else was read: what a later upload wrote is in no listing here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from lakebed.blocks import BlockStore
from lakebed.gc.failures import marked
from lakebed.gc.files import Lake, Work, whole
from lakebed.gc.parts import Written, decode, parts_of, read_part, rows_of_parts, spread
from lakebed.gc.read import read_live
from lakebed.gc.runs import Totals
from lakebed.gc.tables import CANDIDATES, PARTS, VERDICTS
from lakebed.gc.verdicts import run_writing, write_portions
from lakebed.handoff import Manifest

from .subtract import subtract


def mark_unreferenced(
    spark: SparkSession,
    lake: Lake,
    *,
    listed: Written,
    live: Written,
    folder: str,
    tasks: int,
    now_ms: int,
    young_since_ms: int | None = None,
) -> tuple[Manifest, Totals]:
    """What was listed (CANDIDATES, each slice in one part) and no row of LIVE names, as parts of DOOMED in `folder`.

    What was written at or after `young_since_ms` stays for its age. Reading, subtracting and writing are one task's
    work: neither what was listed nor what is doomed crosses a shuffle, or passes through the JVM. A part that is
    missing or differs stops the job, named.
    """
    named = spread(spark, PARTS, rows_of_parts(listed.parts), tasks=tasks)
    return run_writing(named, lake, _mark(listed.folder, live, folder, now_ms, young_since_ms), folder=folder)


def _mark(listed_in: str, live: Written, folder: str, now_ms: int, young_since_ms: int | None) -> Work:
    async def work(store: BlockStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        async def verdicts() -> AsyncIterator[pa.Table]:
            named = await read_live(store, live)
            for part in parts_of(whole(share)):
                found = subtract(decode(CANDIDATES, await read_part(store, listed_in, part), part), named)
                yield found if young_since_ms is None else without_young(found, since_ms=young_since_ms)

        async for part in write_portions(store, folder, verdicts(), now_ms=now_ms):
            yield part

    return work


def without_young(verdicts: pa.Table, *, since_ms: int) -> pa.Table:
    """VERDICTS but those written at or after this instant: what the rules let stay for its age."""
    instant = pa.scalar(since_ms * 1000, pa.timestamp("us", tz="UTC"))
    return verdicts.filter(pc.less(verdicts["last_seen_at"], instant))


def minus(candidates: DataFrame, live: DataFrame) -> DataFrame:
    """VERDICTS: `subtract` for each bucket."""
    together = candidates.groupBy("bucket").cogroup(live.groupBy("bucket"))
    return VERDICTS.of(together.applyInArrow(_subtract, VERDICTS.spark))


def _subtract(candidates: pa.Table, live: pa.Table) -> pa.Table:
    with marked():
        return subtract(candidates, live).cast(VERDICTS.schema)
