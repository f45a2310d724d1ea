"""Foreign objects that nothing names: the exact join of keys, a group of buckets at a time (gc/keys.py).

Both sides lie in files of the run: what was listed (keys.LISTED), and what is named, as LIVE with its files of keys
(keys.NAMED). A task takes some groups, reads the files of both sides, and writes what is left as parts of the plan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lakebed.base import FOREIGN_SLICE
from lakebed.blocks import BlockStore
from lakebed.gc.files import Lake, Work, in_tasks, whole
from lakebed.gc.keys import LISTED, NAMED, by_bucket, files_of, group_of, keep_unnamed, read_keys
from lakebed.gc.packing import Cause
from lakebed.gc.parts import spread
from lakebed.gc.read import read_live
from lakebed.gc.runs import Totals
from lakebed.gc.tables import PARTS, VERDICTS, Table
from lakebed.gc.verdicts import sum_parts, write_portions
from lakebed.handoff import Manifest, Pieces

GROUP: Final = Table("a group of buckets of foreign keys", pa.schema([pa.field("group", pa.int64(), nullable=False)]))


def mark_foreign(
    spark: SparkSession,
    lake: Lake,
    *,
    listed: Pieces,
    live: Sequence[Pieces],
    keys_in: str,
    into: str,
    cause: Cause,
    tasks: int,
    now_ms: int,
    young_since_ms: int | None = None,
) -> tuple[Manifest, Totals]:
    """What was listed (files as `keys.write_keys` makes them) and no row of LIVE names, as parts of DOOMED in `into`.

    Files of keys that LIVE names lie in the folder `keys_in`. What was written at or after `young_since_ms` stays for
    its age. What is missing or differs stops the job, named. Memory of a task: a group's keys, a 32nd of all.
    """
    groups = GROUP.rows({"group": sorted({group_of(part) for part in listed.parts})})
    work = _join(listed, live, keys_in, into, cause, now_ms, young_since_ms)
    dealt = spread(spark, GROUP, groups, tasks=tasks)
    return sum_parts(dealt.mapInArrow(in_tasks(lake, work, PARTS), PARTS.spark).toArrow(), into)


def _join(
    listed: Pieces,
    live: Sequence[Pieces],
    keys_in: str,
    into: str,
    cause: Cause,
    now_ms: int,
    young_since_ms: int | None,
) -> Work:
    async def work(store: BlockStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        async def verdicts() -> AsyncIterator[pa.Table]:
            rows = pa.concat_tables([await read_live(store, pieces) for pieces in live])
            in_rows = by_bucket({"key": pc.list_flatten(rows["addresses"]).combine_chunks()}, NAMED)
            files = files_of(rows)
            for group in whole(share)["group"].to_pylist():
                ours = [part for part in listed.parts if group_of(part) == group]
                theirs = [part for part in files if group_of(part) == group]
                named = [in_rows, *await read_keys(store, keys_in, theirs, NAMED)]
                left = keep_unnamed(await read_keys(store, listed.folder, ours, LISTED), named, group)
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
