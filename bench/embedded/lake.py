"""A committed tree of ten million entries, and changes to it: what `rewrite`, `pages` and `document` stand on.

Entry n is part n % 400 of day n // 400, in slices of 10,000 objects. All columns are made by numpy and Arrow, a stretch
at a time. The tree is built by a process of its own, so that no figure holds what building takes, and without fsync.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bench.harness import in_process
from lakebed.base import EMPTY_METARANGE, MetarangeId, slice_number
from lakebed.objectstore import ObjectStore, ObjectStoreOptions, open_objectstore
from lakebed.ranges import CHANGES_SCHEMA
from lakebed.runtime import live_ports
from lakebed.versions import TreeCache, Trees

CACHE_BYTES = 64 << 20
BUILT_TOGETHER = 250_000
A_DAY = 400
SLICE = slice_number(opened_at_ms=1_790_000_000_000, random_bits=1)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)

Numbers = npt.NDArray[np.int64]


def open_lake(folder: Path, *, durable: bool = True) -> ObjectStore:
    return open_objectstore("local://bench/lake", ObjectStoreOptions(local_root=folder, local_durable=durable))


def open_trees(objectstore: ObjectStore) -> Trees:
    """With nothing in its cache."""
    return Trees(objectstore, TreeCache(CACHE_BYTES), live_ports())


def build(folder: Path, count: int) -> MetarangeId:
    """The tree of entries 0 to before `count`, in a process of its own."""
    return MetarangeId(in_process("embedded.lake", folder, count).decode().strip())


def puts(numbers: Numbers, *, generation: int) -> pa.Table:
    """CHANGES_SCHEMA: these entries (ascending) as of a generation; each has all columns but the key different."""
    slices, sequences = numbers // 10_000, numbers % 10_000
    # A generation is a day in which everything was written anew, in slices of its own.
    slices += SLICE + generation * 1_000_000
    mixed = mix(numbers, generation)
    return changes_of(
        key=_keys(numbers),
        digest=mixed.view(np.int64),
        slice=slices,
        sequence=sequences.astype(np.int32),
        size_bytes=1_000_000 + (mixed >> np.uint64(44)).astype(np.int64),
        checksum=checksums(mixed),
        modified_ms=1_790_000_000_000 + generation * 86_400_000 + numbers * 37,
    )


def changes(numbers: Numbers, *, generation: int) -> pa.Table:
    """Of every ten entries the first gets a new neighbour, the second goes, the others get new values."""
    table = puts(numbers, generation=generation)
    keys = table["key"].combine_chunks()
    kind = pa.array(np.arange(len(numbers)) % 10)
    keys = pc.if_else(pc.equal(kind, 0), pc.binary_join_element_wise(keys, b"+", b""), keys)
    return table.set_column(0, CHANGES_SCHEMA.field("key"), keys).set_column(
        table.num_columns - 1, CHANGES_SCHEMA.field("tombstone"), pc.equal(kind, 1)
    )


def contiguous(count: int, of: int) -> Numbers:
    """`count` neighbours in the middle of `of` entries."""
    return np.arange(count) + (of - count) // 2


def clustered(count: int, of: int, *, places: int) -> Numbers:
    """The same at so many places, evenly spread."""
    each = count // places
    starts = np.arange(places) * (of // places) + of // places // 3
    return (starts[:, None] + np.arange(each)).ravel()


def scattered(count: int, of: int) -> Numbers:
    """One in each stretch of equal length, somewhere."""
    stretch = of // count
    return np.arange(count) * stretch + np.random.default_rng(1).integers(0, stretch, count)


def changes_of(**columns: Any) -> pa.Table:
    rows = len(columns["key"])
    same = {"address": "", "content_type": "application/octet-stream", "metadata": b"", "tombstone": False}
    columns |= {
        name: pa.repeat(pa.scalar(value, CHANGES_SCHEMA.field(name).type), rows) for name, value in same.items()
    }
    return pa.table([columns[name] for name in CHANGES_SCHEMA.names], schema=CHANGES_SCHEMA)


def _keys(numbers: Numbers) -> pa.Array:
    days, parts = pa.array(numbers // A_DAY), pa.array(numbers % A_DAY)
    named = [pc.utf8_lpad(pc.cast(values, pa.string()), 5, "0") for values in (days, parts)]
    suffix = pc.cast(pa.array(numbers * 2654435761 % 2**32), pa.string())
    joined = pc.binary_join_element_wise("events/day=", named[0], "/part-", named[1], "-", suffix, ".parquet", "")
    return joined.cast(pa.binary())


def mix(numbers: Numbers, generation: int) -> npt.NDArray[np.uint64]:
    """64 bits that differ wherever number or generation do, and look random (the finaliser of SplitMix64)."""
    mixed = numbers.astype(np.uint64) * np.uint64(1_000) + np.uint64(generation + 1)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def checksums(mixed: npt.NDArray[np.uint64]) -> pa.Array:
    """32 hex digits each."""
    both = np.stack((mixed, mixed * np.uint64(0x9E3779B97F4A7C15)), axis=1)
    return in_hex(both.view(np.uint8).reshape(len(mixed), 16))


def in_hex(octets: npt.NDArray[np.uint8]) -> pa.Array:
    """The rows of bytes as texts."""
    rows, each = octets.shape
    digits = _HEX[np.stack((octets >> 4, octets & 15), axis=2)]
    offsets = pa.py_buffer(np.arange(0, 2 * each * rows + 1, 2 * each, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), rows, [None, offsets, pa.py_buffer(digits.tobytes())])


async def _build(folder: Path, count: int) -> MetarangeId:
    objectstore = open_lake(folder, durable=False)
    trees, metarange = open_trees(objectstore), EMPTY_METARANGE
    for start in range(0, count, BUILT_TOGETHER):
        numbers = np.arange(start, min(start + BUILT_TOGETHER, count))
        metarange = (await trees.apply(metarange, puts(numbers, generation=0))).metarange_id
    await objectstore.close()
    return metarange


if __name__ == "__main__":
    print(asyncio.run(_build(Path(sys.argv[1]), int(sys.argv[2]))))
