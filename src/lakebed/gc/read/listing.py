"""The namespace, listed by settled slice: what lies there, whoever names it.

Slices spread over tasks; each task lists several of its slices at once and writes what it found into the run's folder
(`listed/`, docs/formats/gc-plan.md). Written down because it must be counted before it is used, and because a plan must
be able to show what it was made from. Listed first of all, before anything that names objects is read
(docs/design/protocols.md, "A collection of uncommitted data").
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakebed.base import parse_slice_name, slice_name
from lakebed.blocks import BlockStat, BlockStore
from lakebed.gc.files import Lake, Work, ahead, in_tasks, whole
from lakebed.gc.packing import Cause, pack_numbered
from lakebed.gc.parts import encode, spread, write_part
from lakebed.gc.tables import CANDIDATES, PARTS, SETTLED
from lakebed.handoff import DATA_PREFIX, STRAYS_MAX, Found

UNREFERENCED: Final = Cause(reason="unreferenced")
OBJECTS_PER_PART: Final = 1 << 20


Issued: TypeAlias = Mapping[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
"""By slice: sequences that were handed out, and when. Bytes may come to lie there after the slice was listed."""

SIZE_UNKNOWN: Final = -1
"""In place of the size of an object that was not listed, and may not be there."""


def list_slices(
    spark: SparkSession, lake: Lake, slices: Sequence[int], *, folder: str, tasks: int, issued: Issued | None = None
) -> DataFrame:
    """PARTS (of CANDIDATES) written into `folder`, each slice in one of them, each with a `Found` as its note. One
    listing of the namespace, when it is run."""
    settled = spread(spark, SETTLED, SETTLED.rows({"bucket": sorted(slices)}), tasks=tasks)
    return PARTS.of(settled.mapInArrow(in_tasks(lake, listing_into(folder, issued or {}), PARTS), PARTS.spark))


def listing_into(folder: str, issued: Issued) -> Work:
    """The work of `list_slices`: from SETTLED to PARTS."""

    async def work(store: BlockStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        async def flush() -> pa.Table:
            table = pa.concat_tables(rows)
            name = f"slices-{slice_name(first)}.parquet"
            return await write_part(store, folder, name, encode(CANDIDATES, table), rows=table.num_rows, note=found)

        names = [slice_name(number) for number in whole(share)["bucket"].to_pylist()]
        rows: list[pa.Table] = []
        found = Found()
        async for name, (packed, more) in ahead(names, lambda name: list_slice(store, name)):
            if not rows:
                first = _number(name)
            rows += [packed, *_not_listed(_number(name), packed, issued)]
            found = found.plus(more)
            if found.objects >= OBJECTS_PER_PART:
                yield await flush()
                rows, found = [], Found()
        if rows:
            yield await flush()

    return work


async def list_slice(store: BlockStore, name: str) -> tuple[pa.Table, Found]:
    """CANDIDATES of one slice (no row where it is empty), and what was found."""
    prefix = f"{DATA_PREFIX}{name}/"
    ours: list[BlockStat] = []
    strays: list[str] = []
    async for page in store.list(prefix):
        for stat in page:
            digits = stat.key[len(prefix) :]
            if len(digits) == 8 and digits.isascii() and digits.isdigit():
                ours.append(stat)
            else:
                strays.append(stat.key)
    sizes = np.array([stat.size_bytes for stat in ours], np.int64)
    packed = pack_numbered(
        np.full(len(ours), _number(name), np.int64),
        np.array([int(stat.key[len(prefix) :]) for stat in ours], np.int64),
        sizes,
        np.array([stat.modified_ms for stat in ours], np.int64),
        UNREFERENCED,
    )
    return packed, Found(
        objects=len(ours),
        size_bytes=int(sizes.sum()),
        slices=1,
        strays=tuple(strays[:STRAYS_MAX]),
        strays_count=len(strays),
    )


def _not_listed(slice_: int, packed: pa.Table, issued: Issued) -> Iterator[pa.Table]:
    """CANDIDATES of what was handed out in a slice and does not lie there yet."""
    if slice_ not in issued:
        return
    sequences, issued_ms = issued[slice_]
    listed = np.frombuffer(b"".join(packed["sequences"].to_pylist()), "<u4")
    new = ~np.isin(sequences, listed)
    if new.any():
        sizes = np.full(int(new.sum()), SIZE_UNKNOWN, np.int64)
        slices = np.full(len(sizes), slice_, np.int64)
        yield pack_numbered(slices, sequences[new], sizes, issued_ms[new], UNREFERENCED)


def _number(name: str) -> int:
    number = parse_slice_name(name)
    assert number is not None, name
    return number
