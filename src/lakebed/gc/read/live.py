"""Everything that is named, written into the run's folder (`live/`, docs/formats/gc-plan.md): one row a bucket.

An eighth of a byte for each object there ever was: tasks that go through a listing read all of it, and the listing
itself, a hundred times as large, never crosses a shuffle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakebed.gc.files import Lake, Work, in_tasks, whole
from lakebed.gc.here import BYTES_HERE, run_here
from lakebed.gc.packing import LiveSet
from lakebed.gc.parts import decode, encode, parts_of, read_part, rows_of_parts, spread, write_part
from lakebed.gc.protocol import Part, Pieces, part_of
from lakebed.gc.tables import LIVE, PARTS, Table, check_whole
from lakebed.objectstore import ObjectStore


def gather_live(
    spark: SparkSession,
    lake: Lake,
    work: Work,
    rows: pa.Table,
    table: Table,
    *,
    folder: str,
    tasks: int,
    bytes_here: int = BYTES_HERE,
) -> Pieces:
    """Run `work`, which makes LIVE of `rows` (of `table`), in tasks, and write what all of them found into `folder`,
    each bucket in one row of one part.

    Each task writes down what it found. Up to `bytes_here` of that are put together by the driver, more is shuffled.
    """
    first = f"{folder.removesuffix('/')}.tasks/"
    dealt = spread(spark, table, rows, tasks=tasks)
    found = parts_of(dealt.mapInArrow(in_tasks(lake, _then_write(work, first), PARTS), PARTS.spark).toArrow())
    parts = rows_of_parts(found)
    if sum(part.size_bytes for part in found) <= bytes_here:
        written = run_here(lake, _together(first, folder), parts, PARTS)
        return Pieces(folder=folder, parts=tuple(parts_of(written)))
    again = spread(spark, PARTS, parts, tasks=tasks).mapInArrow(in_tasks(lake, _read_parts(first), LIVE), LIVE.spark)
    return write_live(again, lake, folder=folder)


def write_live(live: DataFrame, lake: Lake, *, folder: str) -> Pieces:
    """Run the job: LIVE rows become parts in `folder`, each bucket in one row of one of them. One small shuffle."""
    together = LIVE.of(live).repartition("bucket")
    rows = PARTS.of(together.mapInArrow(in_tasks(lake, _write_into(folder), PARTS), PARTS.spark)).toArrow()
    return Pieces(folder=folder, parts=tuple(parts_of(rows.sort_by("name"))))


async def read_live(store: ObjectStore, live: Pieces) -> pa.Table:
    """LIVE.

    Raises:
        BadInput: a part is missing or differs.
    """
    tables = [await _read(store, live.folder, part) for part in live.parts]
    return pa.concat_tables([LIVE.schema.empty_table(), *tables]).combine_chunks()


async def _read(store: ObjectStore, folder: str, part: Part) -> pa.Table:
    return decode(LIVE, await read_part(store, folder, part), part)


def _then_write(work: Work, folder: str) -> Work:
    """From what `work` takes to PARTS of LIVE."""

    async def then(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        async for live in work(store, share):
            if not live.num_rows:
                continue
            data = encode(LIVE, live)
            # By its content: an attempt of the task that Spark gave up on cannot write over it.
            name = f"task-{part_of('', data, rows=0).sha256[:16]}.parquet"
            yield await write_part(store, folder, name, data, rows=live.num_rows, note=None)

    return then


def _read_parts(folder: str) -> Work:
    """From PARTS to LIVE."""

    async def read(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        for part in parts_of(whole(share)):
            yield await _read(store, folder, part)

    return read


def _together(first: str, folder: str) -> Work:
    """From PARTS in one folder to the one part in the other of all LIVE rows in them."""

    async def together(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        rows = [live async for live in _read_parts(first)(store, share)]
        async for part in _write_into(folder)(store, iter(pa.concat_tables(rows).to_batches())):
            yield part

    return together


def _write_into(folder: str) -> Work:
    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        found = LiveSet()
        rows = whole(share)
        check_whole(rows, "live objects")
        found.add_rows(rows)
        # A bucket is in one task's share only, so its name tells parts apart.
        together = found.rows()
        name = f"bucket-{together['bucket'][0].as_py()}.parquet"
        yield await write_part(store, folder, name, encode(LIVE, together), rows=together.num_rows, note=None)

    return work
