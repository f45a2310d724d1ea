"""What unfinished runs hold: the objects of their plans (tables DOOMED), which no other run may take (unfinished.py).

Each part is checked against its manifest: a part less would read as "no run holds these".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from lakebed.base import FOREIGN_SLICE
from lakebed.gc import protocol
from lakebed.gc.files import Lake, Work, in_tasks, whole
from lakebed.gc.here import BYTES_HERE, run_here
from lakebed.gc.keys import KeyFiles, KeySet, files_of
from lakebed.gc.packing import LiveSet
from lakebed.gc.parts import parts_of, read_part, rows_by_key, spread
from lakebed.gc.protocol import Manifest, Pieces
from lakebed.gc.tables import PARTS
from lakebed.objectstore import ObjectStore

from .live import gather_live


def held_objects(spark: SparkSession, lake: Lake, tables: Sequence[Manifest], *, tasks: int, folder: str) -> Pieces:
    """LIVE of the addresses of slices in these tables, written into `folder`. No job where they have no rows."""
    if not any(table.rows for table in tables):
        return Pieces(folder=folder)
    return gather_live(spark, lake, _reading_numbers(tables), rows_by_key(tables), PARTS, folder=folder, tasks=tasks)


def held_keys(spark: SparkSession, lake: Lake, tables: Sequence[Manifest], *, tasks: int, folder: str) -> KeyFiles:
    """The other keys in these tables, written into `folder` (gc/keys.py). A job, unless it is small."""
    rows, work = rows_by_key(tables), _reading_keys(tables, folder)
    if sum(table.size_bytes for table in tables) <= BYTES_HERE:
        return files_of(folder, run_here(lake, work, rows, PARTS))
    named = spread(spark, PARTS, rows, tasks=tasks)
    return files_of(folder, named.mapInArrow(in_tasks(lake, work, PARTS), PARTS.spark).toArrow())


def _reading_numbers(tables: Sequence[Manifest]) -> Work:
    """From PARTS of the tables to LIVE."""

    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        live = LiveSet()
        async for rows in _rows(store, tables, share, ["slice", "sequence"]):
            numbered = rows.filter(pc.not_equal(rows["slice"], FOREIGN_SLICE))
            live.add_numbers(numbered["slice"].to_numpy(), numbered["sequence"].to_numpy())
        yield live.rows()

    return work


def _reading_keys(tables: Sequence[Manifest], folder: str) -> Work:
    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        async for rows in _rows(store, tables, share, ["slice", "address"]):
            keys = KeySet()
            keys.add(rows.filter(pc.equal(rows["slice"], FOREIGN_SLICE))["address"].combine_chunks())
            if keys.held:
                yield await keys.write(store, folder)

    return work


async def _rows(
    store: ObjectStore, tables: Sequence[Manifest], share: Iterator[pa.RecordBatch], columns: list[str]
) -> AsyncIterator[pa.Table]:
    """Of each part that is dealt here. A part has at most `verdicts.ROWS_PER_PART` of them."""
    of_key = {table.folder + part.name: (table, part) for table in tables for part in table.parts}
    for named in parts_of(whole(share)):
        table, part = of_key[named.name]
        yield protocol.read_part(table, protocol.DOOMED, part, await read_part(store, "", named), columns)
