"""Foreign objects that nothing names: the exact join of keys, some buckets at a time (gc/keys.py).

Both sides lie in files of the run: what was listed (keys.LISTED), and what is named (keys.NAMED). A task takes some
shares, one after the other, reads what the files of both sides have of one, and writes what is left as parts of the
plan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lakebed.base import FOREIGN_SLICE
from lakebed.gc.files import Lake, Work, in_tasks, whole
from lakebed.gc.keys import LISTED, NAMED, KeyFiles, Share, keep_unnamed, read_keys, shares_of
from lakebed.gc.packing import Cause
from lakebed.gc.parts import spread
from lakebed.gc.protocol import Manifest
from lakebed.gc.runs import Totals
from lakebed.gc.tables import PARTS, VERDICTS, Table
from lakebed.gc.verdicts import sum_parts, write_portions
from lakebed.objectstore import ObjectStore

SHARES: Final = Table(
    "some buckets of foreign keys",
    pa.schema([pa.field(name, pa.int64(), nullable=False) for name in Share._fields]),
)


def mark_foreign(
    spark: SparkSession,
    lake: Lake,
    *,
    listed: KeyFiles,
    named: Sequence[KeyFiles],
    into: str,
    cause: Cause,
    tasks: int,
    now_ms: int,
    young_since_ms: int | None = None,
) -> tuple[Manifest, Totals]:
    """What was listed and none of the others names, as parts of DOOMED in `into`.

    What was written at or after `young_since_ms` stays for its age. What is missing or differs stops the job, named.
    Memory of a task: `keys.KEYS_MAX` keys, however many there are.
    """
    shares = shares_of(listed, named)
    columns = zip(*shares, strict=True) if shares else ((), ())
    rows = SHARES.rows(dict(zip(Share._fields, columns, strict=True)))
    work = _join(listed, named, into, cause, now_ms, young_since_ms)
    dealt = spread(spark, SHARES, rows, tasks=tasks)
    return sum_parts(dealt.mapInArrow(in_tasks(lake, work, PARTS), PARTS.spark).toArrow(), into)


def _join(
    listed: KeyFiles, named: Sequence[KeyFiles], into: str, cause: Cause, now_ms: int, young_since_ms: int | None
) -> Work:
    async def work(store: ObjectStore, dealt: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        async def verdicts() -> AsyncIterator[pa.Table]:
            for row in whole(dealt).to_pylist():
                share = Share(**row)
                keys = [table for side in named for table in await read_keys(store, side, share, NAMED)]
                left = keep_unnamed(await read_keys(store, listed, share, LISTED), keys, share)
                if young_since_ms is not None:
                    left = left.filter(pc.less(left["seen_ms"], young_since_ms))
                yield _verdicts(left, cause)

        async for part in write_portions(store, into, verdicts(), now_ms=now_ms):
            yield part

    return work


def _verdicts(rows: pa.Table, cause: Cause) -> pa.Table:
    texts = {"reason": cause.reason, "rule": cause.rule, "branch": cause.branch, "prefix": "", "path": ""}
    same: dict[str, object] = {name: pa.repeat(text, rows.num_rows) for name, text in texts.items()}
    seen_us = pc.multiply(rows["seen_ms"], 1000)
    return VERDICTS.rows(
        same
        | {
            "address": rows["key"],
            "slice": np.full(rows.num_rows, FOREIGN_SLICE, np.int64),
            "sequence": np.zeros(rows.num_rows, np.int32),
            "size_bytes": rows["size_bytes"],
            "last_seen_at": seen_us.cast(pa.timestamp("us", tz="UTC")),
        }
    )
