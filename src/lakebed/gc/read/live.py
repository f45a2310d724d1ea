"""Everything that is named, written into the run's folder (`live/`, docs/formats/gc-plan.md): one row a bucket.

An eighth of a byte for each object there ever was: tasks that go through a listing read all of it, and the listing
itself, a hundred times as large, never crosses a shuffle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from lakebed.blocks import BlockStore
from lakebed.gc.files import Lake, Work, in_tasks, whole
from lakebed.gc.packing import LiveSet
from lakebed.gc.parts import decode, encode, parts_of, read_part, write_part
from lakebed.gc.tables import LIVE, PARTS, check_whole
from lakebed.handoff import Pieces


def write_live(live: DataFrame, lake: Lake, *, folder: str) -> Pieces:
    """Run the job: LIVE rows become parts in `folder`, each bucket in one row of one of them. One small shuffle."""
    together = LIVE.of(live).repartition("bucket")
    rows = PARTS.of(together.mapInArrow(in_tasks(lake, _write_into(folder), PARTS), PARTS.spark)).toArrow()
    return Pieces(folder=folder, parts=tuple(parts_of(rows.sort_by("name"))))


async def read_live(store: BlockStore, live: Pieces) -> pa.Table:
    """LIVE.

    Raises:
        BadInput: a part is missing or differs.
    """
    tables = [decode(LIVE, await read_part(store, live.folder, part), part) for part in live.parts]
    return pa.concat_tables([LIVE.schema.empty_table(), *tables]).combine_chunks()


def _write_into(folder: str) -> Work:
    async def work(store: BlockStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        found = LiveSet()
        rows = whole(share)
        check_whole(rows, "live objects")
        found.add_rows(rows)
        # A bucket is in one task's share only, so its name tells parts apart.
        together = found.rows()
        name = f"bucket-{together['bucket'][0].as_py()}.parquet"
        yield await write_part(store, folder, name, encode(LIVE, together), rows=together.num_rows, note=None)

    return work
