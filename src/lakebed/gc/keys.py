"""Foreign keys by the million: what makes their join exact and still cheap.

A key that is no slice and sequence has to be compared as a whole string. That takes 0.3 µs where one table holds all
of them, and a fifth of it where the table fits into a core's own cache. So keys are dealt into buckets by a hash over
all their bytes, the same on both sides of the join, and only what shares a bucket is compared. The hash decides nothing
else: two keys with one hash are two keys.

Where they are many, neither side crosses Spark's shuffle. A task writes the keys it found into the run's folder, as
*segments* of one file: each holds a stretch of buckets, and is an Arrow IPC stream with LZ4 (a third of what Parquet
takes to write and to read). Whoever joins some buckets reads the segments that have them, a request for each file, and
checks each against its digest. How many buckets that are is only decided when both sides are written down and counted
(`shares_of`): as few as it takes for a task to hold no more than KEYS_MAX keys, were there ever so many in all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import NotFound
from lakebed.gc.protocol import BadInput, Part
from lakebed.objectstore import ObjectStore

from .buckets import BUCKETS, buckets_of
from .parts import rows_of_parts

SEGMENTS: Final = 64
HELD_MAX: Final = 500_000
"""How many keys a task holds before it writes them down, as 64 segments of 8,000 keys: with more of them, bringing them
into order takes twice as long, for they no longer fit a shared cache."""

KEYS_MAX: Final = 2_500_000
"""How many keys of both sides a task holds when it joins some: 200 to 300 MB. More only if one bucket has more, which
takes a thousand times as many in all."""

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

_WIDTH: Final = BUCKETS // SEGMENTS
# Handing so small a thing to threads takes longer than doing it.
_WRITING: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READING: Final = pa.ipc.IpcReadOptions(use_threads=False)


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """What a file has of so many buckets. Without rows it has no bytes."""

    rows: int
    size_bytes: int
    sha256: str


class KeyFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file, with its SEGMENTS segments one behind the other."""

    name: str
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)


class KeyFiles(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a join. `folder` is relative to the namespace and ends with a slash."""

    folder: str
    files: tuple[KeyFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class Share(NamedTuple):
    """Some buckets: from `first` to before `behind`."""

    first: int
    behind: int


def by_bucket(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Rows of NAMED or LISTED in the order of their buckets, from the other columns."""
    return _in_order(pa.table({"bucket": buckets_of(columns["key"]), **columns}, schema=schema))


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.argsort(rows["bucket"].to_numpy(), kind="stable")))


class KeySet:
    """Keys that a task found to be named, until it writes them down."""

    def __init__(self) -> None:
        self._keys: list[pa.Array] = []
        self._buckets: list[npt.NDArray[np.int16]] = []
        self.held = 0

    def add(self, keys: pa.Array) -> None:
        # Hashed here, for the keys of one range are still in the core's cache.
        self._buckets.append(buckets_of(keys))
        self._keys.append(keys)
        self.held += len(keys)

    async def write(self, store: ObjectStore, folder: str) -> pa.Table:
        """Store them as one file, and hold none. A row of PARTS, from which `files_of` makes a KeyFile."""
        columns = {"bucket": np.concatenate(self._buckets), "key": pa.concat_arrays(self._keys)}
        self._keys, self._buckets, self.held = [], [], 0
        return row_of(await write_keys(store, folder, _in_order(pa.table(columns, schema=NAMED))))


async def write_keys(store: ObjectStore, folder: str, rows: pa.Table) -> KeyFile:
    """Store rows that are in the order of buckets. Equal rows make equal files of one name."""
    pieces = [_encode(rows.slice(start, end - start)) for start, end in _stretches(rows)]
    counts = [end - start for start, end in _stretches(rows)]
    segments = tuple(
        Segment(count, len(data), hashlib.sha256(data).hexdigest()) for count, data in zip(counts, pieces, strict=True)
    )
    together = hashlib.sha256("".join(segment.sha256 for segment in segments).encode()).hexdigest()
    file = KeyFile(name=f"foreign-{together[:24]}.arrow", segments=segments)
    await store.put(folder + file.name, b"".join(pieces))
    return file


def _stretches(rows: pa.Table) -> Iterator[tuple[int, int]]:
    ends = _ends_of(rows, range(0, BUCKETS + 1, _WIDTH))
    return pairwise(ends)


def row_of(file: KeyFile) -> pa.Table:
    """A row of PARTS that says all of it."""
    size_bytes = sum(segment.size_bytes for segment in file.segments)
    part = Part(name=file.name, rows=file.rows, size_bytes=size_bytes, sha256="")
    return rows_of_parts([part], notes=[msgspec.json.encode(file)])


def files_of(folder: str, rows: pa.Table) -> KeyFiles:
    """Of PARTS that `row_of` made, each file once, also where two tasks wrote the same."""
    found = {file.name: file for note in rows["note"].to_pylist() for file in [msgspec.json.decode(note, type=KeyFile)]}
    return KeyFiles(folder=folder, files=tuple(found[name] for name in sorted(found)))


def shares_of(listed: KeyFiles, named: Iterable[KeyFiles], *, most: int = KEYS_MAX) -> list[Share]:
    """All buckets in which anything was listed, in stretches of at most `most` keys of both sides; or of one bucket.

    A segment with more keys than that is read several times, each time for some of its buckets.
    """
    counts = _counts(listed) + sum(map(_counts, named), np.zeros(SEGMENTS, np.int64))
    shares: list[Share] = []
    open_, held = False, 0
    for segment in np.flatnonzero(_counts(listed)).tolist():
        first, count = segment * _WIDTH, int(counts[segment])
        if open_ and held + count <= most and shares[-1].behind == first:
            shares[-1] = Share(shares[-1].first, first + _WIDTH)
            held += count
            continue
        width = _WIDTH
        while width > 1 and count * width > most * _WIDTH:
            width //= 2
        shares += [Share(at, at + width) for at in range(first, first + _WIDTH, width)]
        open_, held = width == _WIDTH, count
    return shares


def _counts(side: KeyFiles) -> npt.NDArray[np.int64]:
    rows = [[segment.rows for segment in file.segments] for file in side.files]
    counts: npt.NDArray[np.int64] = np.array(rows, np.int64).reshape(len(rows), SEGMENTS).sum(axis=0)
    return counts


async def read_keys(store: ObjectStore, side: KeyFiles, share: Share, schema: pa.Schema) -> list[pa.Table]:
    """Of each file what it has of these buckets, as tables in the order of buckets.

    Raises:
        BadInput: a file is missing or short, a segment differs, or holds something else.
    """
    tables = [await _read_file(store, side.folder, file, share, schema) for file in side.files]
    return [table for table in tables if table.num_rows]


async def _read_file(store: ObjectStore, folder: str, file: KeyFile, share: Share, schema: pa.Schema) -> pa.Table:
    ends = [0, *accumulate(segment.size_bytes for segment in file.segments)]
    numbers = range(share.first // _WIDTH, -(-share.behind // _WIDTH))
    start, end = ends[numbers.start], ends[numbers.stop]
    if start == end:
        return schema.empty_table()
    try:
        data = await store.get(folder + file.name, start=start, end=end)
    except NotFound as error:
        raise BadInput(f"{folder}{file.name} is missing", part=file.name) from error
    found = []
    for number in numbers:
        segment = file.segments[number]
        piece = data[ends[number] - start : ends[number + 1] - start]
        if hashlib.sha256(piece).hexdigest() != segment.sha256:
            raise BadInput(f"{folder}{file.name} contradicts its size or digest", part=file.name)
        if segment.rows:
            rows = _decode(piece, file.name, segment, schema)
            # Copied where only some of it is wanted, for the rest shall not stay in memory.
            is_whole = share.first <= number * _WIDTH and (number + 1) * _WIDTH <= share.behind
            found.append(rows if is_whole else rows.filter(_is_in(rows, share)))
    return pa.concat_tables([schema.empty_table(), *found])


def _is_in(rows: pa.Table, share: Share) -> pa.Array:
    buckets = rows["bucket"]
    return pc.and_(pc.greater_equal(buckets, share.first), pc.less(buckets, share.behind))


def keep_unnamed(listed: Sequence[pa.Table], named: Sequence[pa.Table], share: Share) -> pa.Table:
    """Of tables of LISTED the rows of these buckets whose key is in no table of NAMED, each key once. All these tables
    are in the order of buckets."""
    edges = range(share.first, share.behind + 1)
    ours, theirs = [(table, _ends_of(table, edges)) for table in listed], [(t, _ends_of(t, edges)) for t in named]
    left = [LISTED.empty_table()]
    for bucket in range(share.behind - share.first):
        rows = pa.concat_tables([LISTED.empty_table(), *_of_bucket(ours, bucket)])
        if not rows.num_rows:
            continue
        keys = pa.concat_tables([NAMED.empty_table(), *_of_bucket(theirs, bucket)])["key"]
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


def _of_bucket(tables: Iterable[tuple[pa.Table, list[int]]], bucket: int) -> list[pa.Table]:
    return [table.slice(ends[bucket], ends[bucket + 1] - ends[bucket]) for table, ends in tables]


def _ends_of(rows: pa.Table, buckets: range) -> list[int]:
    """How many rows are of a bucket below each of these."""
    found: list[int] = np.searchsorted(rows["bucket"].to_numpy(), np.array(buckets, np.int16)).tolist()
    return found


def _encode(rows: pa.Table) -> bytes:
    if not rows.num_rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_WRITING) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _decode(data: bytes, name: str, segment: Segment, schema: pa.Schema) -> pa.Table:
    try:
        rows = pa.ipc.open_stream(data, options=_READING).read_all()
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{name} holds no keys: {error}", part=name) from error
    if not rows.schema.equals(schema) or rows.num_rows != segment.rows:
        raise BadInput(f"{name} holds other columns or rows than it should", part=name)
    return rows
