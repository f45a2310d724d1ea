"""Verdicts written down: the doomed objects as Parquet parts of the run, and their totals by the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from lakebed.base import FOREIGN_SLICE, slice_name
from lakebed.gc import protocol
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import ObjectStore

from .files import Lake, Work, in_tasks, whole
from .packing import Cause, pack_foreign, pack_numbered
from .parts import parts_of, read_part, rows_of_parts, spread, write_part
from .runs import WAYS, Total, Totals, sum_totals
from .tables import CANDIDATES, DOOMED, PARTS, VERDICTS

ROWS_PER_PART: Final = 100_000
"""How much of a plan is done or not done: a sweep that is resumed begins with the first part that is not recorded."""


def write_verdicts(verdicts: DataFrame, lake: Lake, *, folder: str, now_ms: int) -> tuple[protocol.Manifest, Totals]:
    """Run the job: VERDICTS become parts in `folder`. The manifest is returned, not written. Ages are by `now_ms`."""
    work = in_tasks(lake, _write_into(folder, now_ms), PARTS)
    return sum_parts(PARTS.of(VERDICTS.of(verdicts).mapInArrow(work, PARTS.spark)).toArrow(), folder)


def sum_parts(written: pa.Table, folder: str) -> tuple[protocol.Manifest, Totals]:
    """Of the PARTS that `write_portions` wrote into `folder` in all tasks."""
    parts = written.sort_by("name")
    totals = sum_totals(msgspec.json.decode(note, type=Totals) for note in parts["note"].to_pylist())
    return protocol.manifest_of(protocol.DOOMED, folder, parts_of(parts)), totals


def doomed_again(spark: SparkSession, lake: Lake, manifest: protocol.Manifest, *, tasks: int) -> DataFrame:
    """CANDIDATES: what a plan (table DOOMED) holds, to be marked once more. Parts that differ stop the job, named."""
    named = spread(spark, PARTS, rows_of_parts(manifest.parts), tasks=tasks)
    return CANDIDATES.of(named.mapInArrow(in_tasks(lake, _read_again(manifest), CANDIDATES), CANDIDATES.spark))


def doomed_objects(spark: SparkSession, lake: Lake, manifest: protocol.Manifest, *, tasks: int) -> DataFrame:
    """DOOMED: the rows of a plan. Parts that differ from the manifest stop the job, named."""
    named = spread(spark, PARTS, rows_of_parts(manifest.parts), tasks=tasks)
    return DOOMED.of(named.mapInArrow(in_tasks(lake, _read_rows(manifest), DOOMED), DOOMED.spark))


def _read_rows(manifest: protocol.Manifest) -> Work:
    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        for part in parts_of(whole(share)):
            yield protocol.read_part(manifest, protocol.DOOMED, part, await read_part(store, manifest.folder, part))

    return work


def _write_into(folder: str, now_ms: int) -> Work:
    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        async def tables() -> AsyncIterator[pa.Table]:
            for batch in share:
                yield pa.Table.from_batches([batch])

        async for part in write_portions(store, folder, tables(), now_ms=now_ms):
            yield part

    return work


async def write_portions(
    store: ObjectStore, folder: str, verdicts: AsyncIterator[pa.Table], *, now_ms: int
) -> AsyncIterator[pa.Table]:
    """In a task: VERDICTS become parts in `folder`; yields a row of PARTS for each, with its `Totals` as the note."""
    partition, number = _partition(), 0
    async for rows in _portions(verdicts):
        name = f"part-{partition:05d}-{number:05d}.parquet"
        data = protocol.encode_part(protocol.DOOMED, _ordered(rows).select(list(protocol.DOOMED.names())))
        yield await write_part(store, folder, name, data, rows=rows.num_rows, note=totals_of(rows, now_ms=now_ms))
        number += 1


def _ordered(rows: pa.Table) -> pa.Table:
    """By slice, sequence and address: as what was listed comes anyhow."""
    slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy()
    same = slices[1:] == slices[:-1]
    if bool(((slices[1:] > slices[:-1]) | same & (sequences[1:] > sequences[:-1])).all()):
        return rows
    return rows.sort_by([("slice", "ascending"), ("sequence", "ascending"), ("address", "ascending")])


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    # Nothing beside it writes to the folder where the driver does the work itself (here.py).
    return 0 if context is None else context.partitionId()


async def _portions(tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
    held: list[pa.Table] = []
    rows = 0
    async for table in tables:
        while rows + table.num_rows >= ROWS_PER_PART:
            cut = ROWS_PER_PART - rows
            yield pa.concat_tables([*held, table.slice(0, cut)])
            held, rows, table = [], 0, table.slice(cut)  # noqa: PLW2901 - what is left of it
        if table.num_rows:
            held.append(table)
            rows += table.num_rows
    if held:
        yield pa.concat_tables(held)


def totals_of(rows: pa.Table, *, now_ms: int) -> Totals:
    """VERDICTS counted in every way."""
    ways: dict[str, dict[str, Total]] = {}
    rows = rows.append_column("age", _ages(rows, now_ms))
    for way in WAYS:
        sums = (
            rows.select([way, "size_bytes"]).group_by(way).aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
        )
        columns = (sums[name].to_pylist() for name in (way, "size_bytes_count", "size_bytes_sum"))
        ways[f"by_{way}"] = {
            _label(name): Total(objects=count, size_bytes=size) for name, count, size in zip(*columns, strict=True)
        }
    size_bytes = pc.sum(rows["size_bytes"]).as_py() or 0
    return Totals(all=Total(objects=rows.num_rows, size_bytes=size_bytes), **ways)


def _ages(rows: pa.Table, now_ms: int) -> pa.Array:
    """For each row the name of its age (AGES). What is dated after now is young."""
    days = (now_ms - rows["last_seen_at"].cast(pa.int64()).to_numpy() // 1000) / DAY_MS
    bounds = [bound for _, bound in protocol.AGES if bound is not None]
    places = pa.array(np.searchsorted(bounds, days, side="right").astype(np.int32))
    return pa.array([name for name, _ in protocol.AGES]).take(places)


def _label(name: str | int) -> str:
    if isinstance(name, str):
        return name
    return "foreign" if name == FOREIGN_SLICE else slice_name(name)


def _read_again(manifest: protocol.Manifest) -> Work:
    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        async for rows in _read_rows(manifest)(store, share):
            for packed in _pack(rows):
                yield packed

    return work


def _pack(rows: pa.Table) -> Iterator[pa.Table]:
    """DOOMED rows as CANDIDATES again. Branch and prefix are not in a plan's parts, and stay empty."""
    causes = rows.select(["reason", "rule"]).group_by(["reason", "rule"]).aggregate([]).to_pylist()
    for cause in sorted(causes, key=lambda row: (row["reason"], row["rule"])):
        same = pc.and_(pc.equal(rows["reason"], cause["reason"]), pc.equal(rows["rule"], cause["rule"]))
        part = rows.filter(same)
        seen_ms = part["last_seen_at"].cast(pa.int64()).to_numpy()
        slices, sizes = part["slice"].to_numpy(), part["size_bytes"].to_numpy()
        own = slices != FOREIGN_SLICE
        sequences = part["sequence"].to_numpy().astype(np.int64)
        paths = part["path"].combine_chunks()
        named = paths.filter(pa.array(own))
        yield pack_numbered(slices[own], sequences[own], sizes[own], seen_ms[own], Cause(**cause), paths=named)
        keys: Sequence[str] = part["address"].filter(pa.array(~own)).to_pylist()
        named = paths.filter(pa.array(~own))
        yield pack_foreign(keys, sizes[~own].tolist(), seen_ms[~own].tolist(), Cause(**cause), paths=named)
