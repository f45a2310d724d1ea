"""Foreign keys by the million: what makes their join exact and still cheap.

A key that is no slice and sequence has to be compared as a whole string. That takes 0.3 µs where one table holds all
of them, and a fifth of it where the table fits into a core's own cache. So keys are dealt into buckets by a hash over
all their bytes, the same on both sides of the join, and only what shares a bucket is compared. The hash decides nothing
else: two keys with one hash are two keys.

Where they are many, neither side crosses Spark's shuffle. A task writes the keys it found into the run's folder, a file
for each *group* of buckets, in the order of buckets; whoever joins a group reads its files of both sides. Such a file
is an Arrow IPC stream with LZ4 (a third of what Parquet takes to write and to read), it is named by its group and its
digest, and is checked against them like every part of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed import handoff
from lakebed.blocks import BlockStore
from lakebed.handoff import BadInput, Part

from .buckets import BUCKETS, buckets_of
from .packing import LiveSet
from .parts import read_part

GROUPS: Final = 32
HELD_MAX: Final = 500_000
"""How many keys a task holds before it writes them down, as 32 files of 16,000 keys: with more of them, bringing them
into order takes twice as long, for they no longer fit a shared cache."""

NAMED: Final = pa.schema([pa.field("bucket", pa.int16(), nullable=False), pa.field("key", pa.string(), nullable=False)])
"""Keys that something names."""

LISTED: Final = pa.schema(
    [
        *NAMED,
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("seen_ms", pa.int64(), nullable=False),
    ]
)
"""Keys that were found in the namespace."""

_PER_GROUP: Final = BUCKETS // GROUPS
_PREFIX: Final = "foreign-"


def by_bucket(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Rows of NAMED or LISTED in the order of their buckets, from the other columns."""
    return _in_order(pa.table({"bucket": buckets_of(columns["key"]), **columns}, schema=schema))


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.argsort(rows["bucket"].to_numpy(), kind="stable")))


async def write_keys(store: BlockStore, folder: str, rows: pa.Table) -> list[Part]:
    """Store rows that are in the order of buckets, and return the parts. Equal rows make equal files of one name."""
    parts = []
    ends = _ends_of(rows, range(_PER_GROUP, BUCKETS + 1, _PER_GROUP))
    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if start < end:
            data = _encode(rows.slice(start, end - start))
            part = handoff.part_of(_PREFIX, data, rows=end - start)
            name = f"{_PREFIX}{group:02d}-{part.sha256[:24]}.arrow"
            parts.append(Part(name=name, rows=part.rows, size_bytes=part.size_bytes, sha256=part.sha256))
            await store.put(folder + name, data)
    return parts


async def write_held(store: BlockStore, folder: str, live: LiveSet, *, most: int = 0) -> None:
    """Store the foreign keys that a live set holds, if they are more than `most`; from then on it knows their files."""
    if live.keys_held > most:
        keys, buckets = live.take_keys()
        rows = _in_order(pa.table({"bucket": buckets, "key": keys}, schema=NAMED))
        for part in await write_keys(store, folder, rows):
            live.add_part(part, group=group_of(part))


def group_of(part: Part) -> int:
    return int(part.name[len(_PREFIX) :].partition("-")[0])


def files_of(live: pa.Table) -> list[Part]:
    """Of LIVE the files that it names, each once, also where two tasks wrote the same."""
    texts = sorted({text for text in live["part"].to_pylist() if text})
    return [msgspec.json.decode(text, type=Part) for text in texts]


async def read_keys(store: BlockStore, folder: str, parts: Iterable[Part], schema: pa.Schema) -> list[pa.Table]:
    """A table for each part.

    Raises:
        BadInput: a part is missing, differs, or holds something else.
    """
    return [_decode(await read_part(store, folder, part), part, schema) for part in parts]


def keep_unnamed(listed: Sequence[pa.Table], named: Sequence[pa.Table], group: int) -> pa.Table:
    """Of tables of LISTED the rows of this group whose key is in no table of NAMED, each key once. All these tables are
    in the order of buckets."""
    edges = range(group * _PER_GROUP, (group + 1) * _PER_GROUP + 1)
    ours, theirs = [(table, _ends_of(table, edges)) for table in listed], [(t, _ends_of(t, edges)) for t in named]
    left = [LISTED.empty_table()]
    for bucket in range(_PER_GROUP):
        rows = pa.concat_tables([LISTED.empty_table(), *_stretches(ours, bucket)])
        if not rows.num_rows:
            continue
        keys = pa.concat_tables([NAMED.empty_table(), *_stretches(theirs, bucket)])["key"]
        left.append(_seen_last(rows.filter(pc.invert(pc.is_in(rows["key"], value_set=keys)))))
    return pa.concat_tables(left).combine_chunks()


def _seen_last(rows: pa.Table) -> pa.Table:
    """Of rows with one key that which was seen last, should a key have been listed twice."""
    if len(pc.unique(rows["key"])) == rows.num_rows:
        return rows
    rows = rows.sort_by([(name, "ascending") for name in ("key", "seen_ms", "size_bytes")])
    keys = rows["key"].combine_chunks()
    is_last = pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
    return rows.filter(pa.concat_arrays([is_last, pa.array([True])]))


def _stretches(tables: Iterable[tuple[pa.Table, list[int]]], bucket: int) -> list[pa.Table]:
    return [table.slice(ends[bucket], ends[bucket + 1] - ends[bucket]) for table, ends in tables]


def _ends_of(rows: pa.Table, buckets: range) -> list[int]:
    """How many rows are of a bucket below each of these."""
    found: list[int] = np.searchsorted(rows["bucket"].to_numpy(), np.array(buckets, np.int16)).tolist()
    return found


def _encode(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _decode(data: bytes, part: Part, schema: pa.Schema) -> pa.Table:
    try:
        rows = pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{part.name} holds no keys: {error}", part=part.name) from error
    if not rows.schema.equals(schema) or rows.num_rows != part.rows:
        raise BadInput(f"{part.name} holds other columns or rows than it should", part=part.name)
    return rows
