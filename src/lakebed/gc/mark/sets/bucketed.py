"""The join of all marks: both sides dealt into buckets, written to files, and compared some buckets at a time.

The hash of a row's first column gives its bucket, on both sides. Only rows of one bucket are compared, by whole keys.
No file that outlives a run contains the hash.

1. First map: each task writes its rows into the run's folder in the order of buckets, as files of *segments*. A segment
   is a stretch of buckets.
2. The flow counts both sides and cuts the buckets into *shares* (`rows_of_shares`).
3. Second map: each task reads the rows of a share from the files of both sides, with one request a file.

So neither side crosses a shuffle, and the memory of a task is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import NotFound
from lakebed.gc.engines import Effort, Task
from lakebed.gc.engines.engine import Table, check_whole, rows_of_parts
from lakebed.gc.messages import BadInput, Part
from lakebed.objectstore import ObjectStore

BUCKETS: Final = 1024
SEGMENTS: Final = 64
HELD_MAX: Final = 500_000
"""A task writes its rows down at this number of values: 64 segments of 8,000. Sorting more values takes twice as long,
because they no longer fit a shared cache."""

HELD_IN_JOIN: Final = 2_500_000
"""A task joins at most this many values of both sides at once: 200 to 300 MB. One bucket may have more values if the
whole join has a thousand times as many."""

HELD_LEAST: Final = 250_000
"""A smaller share is not worth one request for each file: joining it takes 0.3 s of a core."""

SHARES_WANTED: Final = 32
"""Cut a larger join into this many shares before shares grow: enough for the cores of a cluster."""

_VALUES_A_REQUEST: Final = 1000
"""Joining this many values takes as long as a small request."""

NAMED: Final = Table(
    "a key that something names",
    pa.schema([pa.field("bucket", pa.int16(), nullable=False), pa.field("key", pa.string(), nullable=False)]),
)
LISTED: Final = Table(
    "a key that was found in the namespace",
    pa.schema(
        [
            *NAMED.schema,
            pa.field("size_bytes", pa.int64(), nullable=False),
            pa.field("seen_ms", pa.int64(), nullable=False),
        ]
    ),
)

_WIDTH: Final = BUCKETS // SEGMENTS
# So small a piece takes longer to hand to threads than to write. Arrow IPC with LZ4 takes a third of Parquet's time.
_WRITING: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READING: Final = pa.ipc.IpcReadOptions(use_threads=False)

_MASKS: Final = np.array([(1 << 8 * octets) - 1 for octets in range(9)], np.uint64)
_MIX: Final = np.uint64(0xFF51AFD7ED558CCD)
_SEED: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Describe a file's rows of one stretch of buckets. `weight` counts their values. Without rows it is empty."""

    rows: int
    weight: int
    size_bytes: int
    sha256: str


class BucketFile(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one file: its SEGMENTS segments in order."""

    name: str
    segments: tuple[Segment, ...]


class Bucketed(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one side of a join. `folder` is relative to the namespace and ends with a slash."""

    folder: str
    files: tuple[BucketFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(segment.rows for file in self.files for segment in file.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for file in self.files for segment in file.segments)


class Share(NamedTuple):
    """Give a stretch of buckets: from `first` to before `behind`."""

    first: int
    behind: int


SHARES: Final = Table("some buckets", pa.schema([pa.field(name, pa.int64(), nullable=False) for name in Share._fields]))


def buckets_of(keys: pa.Array) -> npt.NDArray[np.int16]:
    """Return each key's bucket, 0 to BUCKETS - 1. Takes 30 ns for keys of 50 bytes, ten thousand at a time."""
    ends, octets = _bytes_of(keys)
    starts, lengths = ends[:-1], np.diff(ends)
    mixed = lengths.astype(np.uint64) * _SEED
    # Eight bytes from every offset. Mask bytes after a key's end; zeros follow the last key.
    words = np.ndarray((max(0, len(octets) - 7),), "<u8", octets, 0, (1,))
    for at in range(0, int(lengths.max(initial=0)), 8):
        if int(lengths.min()) >= at + 8:
            mixed ^= words[starts + at]
            mixed *= _MIX
            mixed ^= mixed >> _HALF
            continue
        longer = np.flatnonzero(lengths > at)
        some = mixed[longer] ^ words[starts[longer] + at] & _MASKS[np.minimum(lengths[longer] - at, 8)]
        some *= _MIX
        mixed[longer] = some ^ some >> _HALF
    return (mixed % np.uint64(BUCKETS)).astype(np.int16)


def _bytes_of(keys: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the offsets of the keys, with the end of the last, and their bytes, with 8 zeros after them."""
    _, offsets, data = keys.buffers()
    if not len(keys) or data is None:
        return np.zeros(len(keys) + 1, np.int64), np.zeros(8, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return ends - ends[0], np.concatenate((octets, np.zeros(8, np.uint8)))


def _places(rows: pa.Table) -> npt.NDArray[np.int16]:
    """Return each row's bucket by its first column: a key, a bucket of keys, or a slice (below 0: a class of keys)."""
    first = rows.column(0)
    if pa.types.is_string(first.type):
        return buckets_of(first.combine_chunks())
    numbers = first.to_numpy()
    if numbers.dtype == np.int16:
        found: npt.NDArray[np.int16] = numbers
        return found
    mixed = numbers.astype(np.uint64) * _SEED
    mixed ^= mixed >> _HALF
    slices = (mixed % np.uint64(BUCKETS)).astype(np.int64)
    found = np.where(numbers < 0, -1 - numbers, slices).astype(np.int16)
    return found  # noqa: RET504 - its type is declared above


def _weights(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the values of each row in a join: objects of CANDIDATES, keys and words of LIVE, else one."""
    names, weights = rows.schema.names, np.ones(rows.num_rows, np.int64)
    if "sizes" in names:
        weights = pc.divide(pc.binary_length(rows["sizes"]), 8).to_numpy().astype(np.int64)
    elif "bitmap" in names:
        keys, words = pc.list_value_length(rows["addresses"]), pc.divide(pc.binary_length(rows["bitmap"]), 64)
        weights = keys.to_numpy().astype(np.int64) + words.to_numpy().astype(np.int64)
    return weights


def by_bucket(columns: dict[str, Any], table: Table) -> pa.Table:
    """Return rows of NAMED or LISTED, in the order of buckets. `columns` has all columns but the bucket."""
    return _in_order(pa.table({"bucket": buckets_of(columns["key"]), **columns}, schema=table.schema))


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.argsort(_places(rows), kind="stable")))


class Dealer:
    """Collect rows of a task until it writes them down."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows: list[pa.Table] = []
        self.held = 0

    @property
    def has_rows(self) -> bool:
        """Return whether there are rows. They may have no value: a bitmap of few bits has none."""
        return any(rows.num_rows for rows in self._rows)

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self.held += int(_weights(rows).sum())

    def add_keys(self, keys: pa.Array) -> None:
        """Add rows of NAMED."""
        # Hash the keys here, while those of one range are in the core's cache.
        self.add(pa.table({"bucket": buckets_of(keys), "key": keys}, schema=self._table.schema))

    async def write(self, store: ObjectStore, folder: str) -> pa.Table:
        """Store the rows as one file, and drop them. Return a row of PARTS, which `files_of` turns into a BucketFile.

        Raises:
            BadInput: a null. It would fall into some bucket, and would not match its own key.
        """
        rows = pa.concat_tables([self._table.schema.empty_table(), *self._rows]).combine_chunks()
        check_whole(rows, "rows to be joined")
        self._rows, self.held = [], 0
        return row_of(await write_bucketed(store, folder, _in_order(rows)))


async def dealt(
    table: Table, tables: AsyncIterator[pa.Table], store: ObjectStore, folder: str
) -> AsyncIterator[pa.Table]:
    """Write rows of `table` into `folder`, a file whenever HELD_MAX are held. Yield a row of PARTS for each file."""
    dealer = Dealer(table)
    async for rows in tables:
        dealer.add(rows)
        if dealer.held >= HELD_MAX:
            yield await dealer.write(store, folder)
    if dealer.has_rows:
        yield await dealer.write(store, folder)


async def write_bucketed(store: ObjectStore, folder: str, rows: pa.Table) -> BucketFile:
    """Store rows that are in the order of buckets."""
    ends = _ends_of(_places(rows), range(0, BUCKETS + 1, _WIDTH))
    weights = np.concatenate(([0], np.cumsum(_weights(rows))))
    pieces = [_encode(rows.slice(start, end - start)) for start, end in pairwise(ends)]
    segments = tuple(
        Segment(end - start, int(weights[end] - weights[start]), len(data), hashlib.sha256(data).hexdigest())
        for (start, end), data in zip(pairwise(ends), pieces, strict=True)
    )
    # The digest of the digests names the file, so equal rows give the same file.
    together = hashlib.sha256("".join(segment.sha256 for segment in segments).encode()).hexdigest()
    file = BucketFile(name=f"bucketed-{together[:24]}.arrow", segments=segments)
    await store.put(folder + file.name, b"".join(pieces))
    return file


def row_of(file: BucketFile) -> pa.Table:
    """Return a row of PARTS whose note describes the whole file."""
    size_bytes = sum(segment.size_bytes for segment in file.segments)
    part = Part(name=file.name, rows=sum(one.rows for one in file.segments), size_bytes=size_bytes, sha256="")
    return rows_of_parts([part], notes=[msgspec.json.encode(file)])


def files_of(folder: str, rows: pa.Table) -> Bucketed:
    """Return the side that these PARTS describe."""
    notes = rows["note"].to_pylist()
    # Two tasks may have written the same file: list it once.
    files = {file.name: file for note in notes for file in [msgspec.json.decode(note, type=BucketFile)]}
    return Bucketed(folder=folder, files=tuple(files[name] for name in sorted(files)))


def in_side(place: str, row: pa.Table) -> pa.Table:
    """Mark a row of PARTS with its side of the join."""
    return row.set_column(0, row.schema.field("name"), [[place + row["name"][0].as_py()]])


def side_of(written: pa.Table, folder: str, side: str) -> Bucketed:
    """Return the files of one side, as `in_side` marked them."""
    return files_of(folder + side, written.filter(pc.starts_with(written["name"], side)))


def shares_of(first: Bucketed, rest: Iterable[Bucketed] = (), *, most: int = HELD_IN_JOIN) -> list[Share]:
    """Cut the buckets with rows of the first side into stretches of at most `most` values of all sides.

    A stretch of one bucket may have more. A segment with more values is read several times, each time for some of its
    buckets.
    """
    counts = _counts(first) + sum(map(_counts, rest), np.zeros(SEGMENTS, np.int64))
    shares: list[Share] = []
    open_, values = False, 0
    # Buckets without rows of the first side have no candidates, so skip them.
    for segment in np.flatnonzero(_counts(first)).tolist():
        start, count = segment * _WIDTH, int(counts[segment])
        if open_ and values + count <= most and shares[-1].behind == start:
            shares[-1] = Share(shares[-1].first, start + _WIDTH)
            values += count
            continue
        width = _WIDTH
        while width > 1 and count * width > most * _WIDTH:
            width //= 2
        shares += [Share(at, at + width) for at in range(start, start + _WIDTH, width)]
        open_, values = width == _WIDTH, count
    return shares


def rows_of_shares(first: Bucketed, rest: Iterable[Bucketed] = (), *, most: int | None = None) -> pa.Table:
    """Return SHARES: the second map's work by task, of at most `most` values each, or fewer if a join needs it."""
    rest = tuple(rest)
    if most is None:
        values = int(sum(map(_counts, rest), _counts(first)).sum())
        most = min(HELD_IN_JOIN, max(HELD_LEAST, values // SHARES_WANTED))
    shares = shares_of(first, rest, most=most)
    columns = zip(*shares, strict=True) if shares else ((), ())
    return SHARES.rows(dict(zip(Share._fields, columns, strict=True)))


def effort_of(*sides: Bucketed) -> Effort:
    """Estimate the effort of joining these sides."""
    # Bytes alone predict little: a million objects take 20 MB.
    values = sum(int(_counts(side).sum()) for side in sides)
    requests = sum(len(side.files) for side in sides) + values / _VALUES_A_REQUEST
    return Effort(requests=requests, size_bytes=sum(side.size_bytes for side in sides))


def _counts(side: Bucketed) -> npt.NDArray[np.int64]:
    # A row without values takes memory, too.
    rows = [[max(segment.weight, segment.rows) for segment in file.segments] for file in side.files]
    counts: npt.NDArray[np.int64] = np.array(rows, np.int64).reshape(len(rows), SEGMENTS).sum(axis=0)
    return counts


async def in_shares(
    task: Task, rows: pa.Table, *sides: tuple[Sequence[Bucketed], Table]
) -> AsyncIterator[tuple[Share, list[list[pa.Table]]]]:
    """Yield each share with rows of the first side, and the tables of each side. For tasks of the second map."""
    for row in rows.to_pylist():
        share = Share(**row)
        shares = [
            [table for files in side for table in await read_bucketed(task, files, share, of)] for side, of in sides
        ]
        # A slice is one bucket, whatever its size. If its segment was cut, the other cuts may be empty.
        if shares[0]:
            yield share, shares


async def read_bucketed(task: Task, side: Bucketed, share: Share, of: Table) -> list[pa.Table]:
    """Return the rows of these buckets from each file, as tables in the order of buckets.

    Raises:
        BadInput: a file is missing or short, or a segment has a wrong digest or wrong rows.
    """

    async def read(file: BucketFile) -> pa.Table:
        return await _read_file(task.store, side.folder, file, share, of.schema)

    return [table async for _, table in task.ahead(side.files, read) if table.num_rows]


async def _read_file(store: ObjectStore, folder: str, file: BucketFile, share: Share, schema: pa.Schema) -> pa.Table:
    ends = [0, *accumulate(segment.size_bytes for segment in file.segments)]
    numbers = range(share.first // _WIDTH, -(-share.behind // _WIDTH))
    start, end = ends[numbers.start], ends[numbers.stop]
    # The file has no rows in these buckets: save the request.
    if start == end:
        return schema.empty_table()
    try:
        data = await store.get(folder + file.name, start=start, end=end)
    except NotFound as error:
        raise BadInput(f"{folder}{file.name} is missing", part=file.name) from error
    tables = []
    for number in numbers:
        segment = file.segments[number]
        piece = data[ends[number] - start : ends[number + 1] - start]
        # A changed segment could lack a named key, and its object would be deleted.
        if hashlib.sha256(piece).hexdigest() != segment.sha256:
            raise BadInput(f"{folder}{file.name} contradicts its size or digest", part=file.name)
        if segment.rows:
            rows = _decode(piece, file.name, segment, schema)
            # Copy a part of a segment, so that the rest does not stay in memory.
            is_whole = share.first <= number * _WIDTH and (number + 1) * _WIDTH <= share.behind
            tables.append(rows if is_whole else rows.filter(_is_in(rows, share)))
    return pa.concat_tables([schema.empty_table(), *tables])


def _is_in(rows: pa.Table, share: Share) -> pa.Array:
    places = _places(rows)
    return pa.array((places >= share.first) & (places < share.behind))


def keep_unnamed(listed: Sequence[pa.Table], named: Sequence[pa.Table], share: Share) -> pa.Table:
    """Return the LISTED rows of these buckets whose key is in no table of NAMED, each key once. All tables are in the
    order of buckets."""
    edges = range(share.first, share.behind + 1)
    ours, theirs = ([(table, _ends_of(_places(table), edges)) for table in side] for side in (listed, named))
    left = [LISTED.schema.empty_table()]
    for bucket in range(share.behind - share.first):
        rows = pa.concat_tables([LISTED.schema.empty_table(), *_of_bucket(ours, bucket)])
        if not rows.num_rows:
            continue
        keys = pa.concat_tables([NAMED.schema.empty_table(), *_of_bucket(theirs, bucket)])["key"]
        left.append(_seen_last(rows.filter(pc.invert(pc.is_in(rows["key"], value_set=keys)))))
    return pa.concat_tables(left).combine_chunks()


def _seen_last(rows: pa.Table) -> pa.Table:
    """Return each key once, with its last date: a key may have been listed twice."""
    if len(pc.unique(rows["key"])) == rows.num_rows:
        return rows
    rows = rows.sort_by([(name, "ascending") for name in ("key", "seen_ms", "size_bytes")])
    keys = rows["key"].combine_chunks()
    is_last = pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
    return rows.filter(pa.concat_arrays([is_last, pa.array([True])]))


def _of_bucket(tables: Iterable[tuple[pa.Table, list[int]]], bucket: int) -> Iterator[pa.Table]:
    return (table.slice(ends[bucket], ends[bucket + 1] - ends[bucket]) for table, ends in tables)


def _ends_of(places: npt.NDArray[np.int16], buckets: range) -> list[int]:
    """Return for each of `buckets` the number of rows in lower buckets. `places` ascend."""
    ends: list[int] = np.searchsorted(places, np.array(buckets, np.int16)).tolist()
    return ends


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
        raise BadInput(f"{name} holds no rows: {error}", part=name) from error
    if not rows.schema.equals(schema) or rows.num_rows != segment.rows:
        raise BadInput(f"{name} holds other columns or rows than it should", part=name)
    return rows
