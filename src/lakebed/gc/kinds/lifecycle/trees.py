"""Save the ranges of each metarange of a history as bits. A lifecycle run needs those of every tree.

A part has up to CHUNK metaranges and, in a second table, their ranges. A metarange has a bit for each range. Each row
but the first is XORed with the row before. Metaranges never change, so a later run reads the saved parts, and only
metaranges that are in no part.

Parts of wide trees have sublists in place of ranges, and parts of sublists have their ranges. So a sublist is read
once, however many trees share it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import MetarangeId, SublistId, count_of
from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.engines.engine import PARTS, Table, decode, encode, parts_of, read_part, required, write_part
from lakebed.gc.mark.inputs.ranges import get_metarange, get_sublist
from lakebed.gc.mark.sets.packing import Integers
from lakebed.gc.messages import Part, TreePart
from lakebed.objectstore import ObjectStore
from lakebed.ranges import KnownRanges, SublistList

CHUNK: Final = 4_096
CHUNK_BITS: Final = 1 << 28
"""End a part at this many bits: a reader needs 32 MiB for them. Sublists share no ranges, so each adds its own."""

TREES: Final = Table(
    "a metarange or a sublist, with a bit for each row of its part's second table (bit n % 8 of byte n // 8), XORed "
    "with the row before",
    required(("metarange_id", pa.string()), ("bits", pa.binary())),
)
TREE_RANGES: Final = Table(
    "a range that metaranges of a part have; its place in the table is its bit",
    required(
        ("range_id", pa.string()),
        ("count", pa.int64()),
        ("file_bytes", pa.int64()),
        ("min_key", pa.binary()),
        ("max_key", pa.binary()),
    ),
)
TREE_SUBLISTS: Final = Table(
    "a sublist that wide metaranges of a part have; its place in the table is its bit",
    required(("sublist_id", pa.string())),
)
MASKED_RANGES: Final = Table(
    "a range that metaranges with a mask have, and the number of the union of these masks",
    required(
        ("range_id", pa.string()),
        ("count", pa.int64()),
        ("file_bytes", pa.int64()),
        # Keys of all parts together may exceed the 2 GiB of an array of `binary`.
        ("min_key", pa.large_binary()),
        ("max_key", pa.large_binary()),
        ("mask", pa.int64()),
    ),
)

DEALT_RANGES: Final = Table(
    "a range that some metaranges have, and the union of their masks, from its lowest byte on",
    pa.schema([*TREE_RANGES.schema, *required(("mask", pa.binary()))]),
)

Bits = npt.NDArray[np.uint8]
_FACTS: Final = ("count", "file_bytes", "min_key", "max_key")


async def read_trees(
    engine: Engine, metaranges: Sequence[str], *, folder: str
) -> tuple[list[TreePart], list[TreePart]]:
    """Read these metaranges, and write them into parts in `folder`. Return the parts with ranges, and with sublists."""
    # Open no sublist here: wide trees share nearly all sublists, so many tasks would read the same ones.

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        known, sublists = KnownRanges(), dict[str, int]()
        narrow, wide = _Chunk(_TREES, partial(_ranges_at, known)), _Chunk(_WIDE, partial(_sublists_at, sublists))
        names = share["metarange_id"].to_pylist()
        async for name, data in task.ahead(names, lambda id_: get_metarange(task.store, MetarangeId(id_))):
            listed = known.read_metarange(MetarangeId(name), data)
            if isinstance(listed, SublistList):
                wide.add(name, np.array([sublists.setdefault(id_, len(sublists)) for id_ in listed.ids], np.int64))
            else:
                narrow.add(name, listed)
            for chunk in (narrow, wide):
                if chunk.is_full:
                    yield await chunk.write(task.store, folder)
        for chunk in (narrow, wide):
            if chunk.names:
                yield await chunk.write(task.store, folder)

    rows = pa.table({"metarange_id": pa.array(metaranges, pa.string())})
    # A metarange is small. To decode it takes a few times as long as to read it.
    written = await engine.run(work, rows, PARTS, effort=Effort(requests=4 * len(metaranges)))
    is_wide = pc.starts_with(written["name"], _WIDE.trees)
    return _parts_in(written.filter(pc.invert(is_wide)), folder), _parts_in(written.filter(is_wide), folder)


async def read_sublists(engine: Engine, sublists: Sequence[str], *, folder: str) -> list[TreePart]:
    """Read each of these sublists once, and write them with their ranges into parts in `folder`."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        known = KnownRanges()
        chunk = _Chunk(_TREES, partial(_ranges_at, known))
        names = share["sublist_id"].to_pylist()
        async for name, data in task.ahead(names, lambda id_: get_sublist(task.store, SublistId(id_))):
            chunk.add(name, known.read_sublist(SublistId(name), data))
            if chunk.is_full:
                yield await chunk.write(task.store, folder)
        if chunk.names:
            yield await chunk.write(task.store, folder)

    rows = pa.table({"sublist_id": pa.array(sublists, pa.string())})
    return _parts_in(await engine.run(work, rows, PARTS, effort=Effort(requests=4 * len(sublists))), folder)


def _parts_in(written: pa.Table, folder: str) -> list[TreePart]:
    notes = [msgspec.json.decode(note, type=Part) for note in written["note"].to_pylist()]
    parts = zip(parts_of(written), notes, strict=True)
    return [TreePart(folder=folder, trees=trees, ranges=ranges) for trees, ranges in parts]


class _Files(NamedTuple):
    """Hold the prefixes of the names of a part's two files."""

    trees: str
    ranges: str


_TREES: Final = _Files("trees-", "ranges-")
_WIDE: Final = _Files("wide-", "sublists-")


def _ranges_at(known: KnownRanges, places: Sequence[int]) -> bytes:
    """Return the bytes of TREE_RANGES for these places."""
    counts, sizes = known.numbers()
    facts = [(counts[place], sizes[place], *known.span(place)) for place in places]
    columns = dict(zip(_FACTS, zip(*facts, strict=True), strict=True))
    return encode(TREE_RANGES, TREE_RANGES.rows({"range_id": [str(known.id(place)) for place in places], **columns}))


def _sublists_at(sublists: Mapping[str, int], places: Sequence[int]) -> bytes:
    """Return the bytes of TREE_SUBLISTS for these places."""
    ids = [*sublists]
    return encode(TREE_SUBLISTS, TREE_SUBLISTS.rows({"sublist_id": [ids[place] for place in places]}))


class _Chunk:
    """Collect one part. `describe` returns the bytes of its second table, from the places of its rows."""

    def __init__(self, files: _Files, describe: Callable[[Sequence[int]], bytes]) -> None:
        self._files = files
        self._describe = describe
        self._bits = np.full(0, -1, np.int64)
        self._begin()

    def _begin(self) -> None:
        self.names: list[str] = []
        self._rows: list[Bits] = []
        # The places of the part by bit, and for each place its bit, or -1.
        self._places: list[int] = []
        self._bits[:] = -1

    @property
    def is_full(self) -> bool:
        return len(self.names) >= CHUNK or len(self.names) * len(self._places) >= CHUNK_BITS

    def add(self, name: str, places: Integers) -> None:
        if len(self._bits) <= (last := int(places.max())):
            more = np.full(2 * (last + 1) - len(self._bits), -1, np.int64)
            self._bits = np.concatenate((self._bits, more))
        bits = self._bits[places]
        new = places[bits < 0]
        if len(new):
            self._bits[new] = np.arange(len(self._places), len(self._places) + len(new))
            self._places += new.tolist()
            bits = self._bits[places]
        row = np.zeros(len(self._places), np.bool_)
        row[bits] = True
        self.names.append(name)
        self._rows.append(np.packbits(row, bitorder="little"))

    async def write(self, store: ObjectStore, folder: str) -> pa.Table:
        """Write the part, and begin another."""
        matrix = np.zeros((len(self._rows), -(-len(self._places) // 8)), np.uint8)
        for place, row in enumerate(self._rows):
            matrix[place, : len(row)] = row
        # Trees of one branch differ by few ranges, so this leaves nearly only zeros.
        matrix[1:] ^= matrix[:-1].copy()
        ranges = self._describe(self._places)
        trees = encode(TREES, TREES.rows({"metarange_id": self.names, "bits": _binary(matrix)}))
        # Name the files by their bytes: two tasks may find equal trees, and a task may run twice.
        name = f"{hashlib.sha256(trees + ranges).hexdigest()[:24]}.parquet"
        count = len(self._places)
        note = await write_part(store, folder, self._files.ranges + name, ranges, rows=count, note=None)
        [part] = parts_of(note)
        written = await write_part(store, folder, self._files.trees + name, trees, rows=len(self.names), note=part)
        self._begin()
        return written


def _binary(matrix: Bits) -> pa.Array:
    rows, width = matrix.shape
    ends = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(width))
    return pa.Array.from_buffers(pa.binary(), rows, [None, ends, pa.py_buffer(np.ascontiguousarray(matrix))])


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeParts:
    """Hold the parts of `narrow` metaranges (with ranges), of `wide` ones (with sublists), and of sublists."""

    narrow: tuple[TreePart, ...] = ()
    wide: tuple[TreePart, ...] = ()
    sublists: tuple[TreePart, ...] = ()

    def plus(self, other: TreeParts) -> TreeParts:
        return TreeParts(
            narrow=self.narrow + other.narrow, wide=self.wide + other.wide, sublists=self.sublists + other.sublists
        )

    async def in_folder(self, store: ObjectStore, folder: str) -> TreeParts:
        """Return all parts in this folder. Copy the parts of other runs: their folders may be deleted before ours."""

        async def own(parts: Sequence[TreePart]) -> tuple[TreePart, ...]:
            return tuple(
                [one if one.folder == folder else await _copy_part(store, one, folder=folder) for one in parts]
            )

        return TreeParts(narrow=await own(self.narrow), wide=await own(self.wide), sublists=await own(self.sublists))


async def _copy_part(store: ObjectStore, part: TreePart, *, folder: str) -> TreePart:
    for one in (part.trees, part.ranges):
        await store.put(folder + one.name, await read_part(store, part.folder, one))
    return msgspec.structs.replace(part, folder=folder)


@dataclass(slots=True)
class RangeMasks:
    """Unite, for each range, the masks of all metaranges that have it.

    `masks` are the unions by number; 0 is the empty one. `seen` are metaranges and sublists with known ranges.
    `sublists` have the masks of the wide metaranges that have them.
    """

    # Ranges are rows of columns. As Python objects they take twice as much memory.

    masks: list[int] = field(default_factory=lambda: [0])
    seen: set[str] = field(default_factory=set)
    sublists: dict[str, int] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=lambda: {0: 0})
    _ranges: pa.Table = field(default_factory=TREE_RANGES.schema.empty_table)
    _mask_of: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    async def add(self, store: ObjectStore, parts: Sequence[TreePart], masks: Mapping[str, int]) -> None:
        """Add the ranges of these parts, or raise BadInput. `masks` belong to metaranges or to sublists.

        Skip trees without a mask, and ranges that only these have.
        """
        waiting: list[tuple[pa.Table, Integers]] = []
        for part in parts:
            trees = decode(TREES, await read_part(store, part.folder, part.trees), part.trees)
            ranges = decode(TREE_RANGES, await read_part(store, part.folder, part.ranges), part.ranges)
            names = trees["metarange_id"].to_pylist()
            self.seen.update(names)
            unions, places = _masks_in(trees, ranges.num_rows, [masks.get(name, 0) for name in names])
            numbers = np.array([self._number(union) for union in unions], np.int64)[places]
            waiting.append((ranges.filter(pa.array(numbers > 0)), numbers[numbers > 0]))
            # A merge reads all known ranges, so wait until there are more new rows than these.
            if sum(rows.num_rows for rows, _ in waiting) > self._ranges.num_rows:
                self._merge(waiting)
                waiting = []
        if waiting:
            self._merge(waiting)

    async def add_wide(self, store: ObjectStore, parts: Sequence[TreePart], masks: Mapping[str, int]) -> None:
        """Add the masks of wide metaranges to their sublists, or raise BadInput. Adds no range."""
        for part in parts:
            trees = decode(TREES, await read_part(store, part.folder, part.trees), part.trees)
            sublists = decode(TREE_SUBLISTS, await read_part(store, part.folder, part.ranges), part.ranges)
            names = trees["metarange_id"].to_pylist()
            self.seen.update(names)
            unions, places = _masks_in(trees, sublists.num_rows, [masks.get(name, 0) for name in names])
            for id_, place in zip(sublists["sublist_id"].to_pylist(), places.tolist(), strict=True):
                if unions[place]:
                    self.sublists[id_] = self.sublists.get(id_, 0) | unions[place]

    @property
    def count(self) -> int:
        """Return the number of ranges."""
        return int(self._ranges.num_rows)

    def dealt(self) -> pa.Table:
        """Return DEALT_RANGES, each range once."""
        masks = pa.array([mask.to_bytes(-(-mask.bit_length() // 8), "little") for mask in self.masks], pa.binary())
        return self._ranges.append_column(DEALT_RANGES.schema.field("mask"), masks.take(pa.array(self._mask_of)))

    def add_dealt(self, tables: Sequence[pa.Table]) -> None:
        """Add tables of DEALT_RANGES. A table has a range at most once."""
        parts = []
        for table in tables:
            masks = table["mask"].combine_chunks().dictionary_encode()
            numbers = [self._number(int.from_bytes(mask, "little")) for mask in masks.dictionary.to_pylist()]
            of_rows = np.array(numbers, np.int64)[masks.indices.to_numpy()]
            parts.append((table.select(TREE_RANGES.schema.names), of_rows))
        self._merge(parts)

    def ranges(self) -> pa.Table:
        """Return MASKED_RANGES, each range once, ascending."""
        rows = self._ranges.append_column("mask", pa.array(self._mask_of))
        return rows.cast(MASKED_RANGES.schema).sort_by("range_id")

    def _merge(self, parts: Sequence[tuple[pa.Table, Integers]]) -> None:
        """Add parts: ranges, each once in a part, and the numbers of their masks. Parts share most of their ranges."""
        every = pa.concat_tables([self._ranges, *(rows for rows, _ in parts)])
        # Codes number the ids by first occurrence. So the code of a known range is its row.
        codes = every["range_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        is_first = np.diff(np.maximum.accumulate(codes), prepend=-1) > 0
        at = self._ranges.num_rows
        self._ranges = every.filter(pa.array(is_first))
        self._mask_of = np.concatenate((self._mask_of, np.zeros(self._ranges.num_rows - at, np.int64)))
        for rows, numbers in parts:
            places = codes[at : at + rows.num_rows]
            at += rows.num_rows
            # Few pairs of masks are distinct. Unite each pair once, not once a range.
            count = len(self.masks)
            pairs, inverse = np.unique(self._mask_of[places] * count + numbers, return_inverse=True)
            unions = [self._number(self.masks[pair // count] | self.masks[pair % count]) for pair in pairs.tolist()]
            self._mask_of[places] = np.array(unions, np.int64)[inverse]

    def _number(self, mask: int) -> int:
        if mask not in self._numbers:
            self._numbers[mask] = len(self.masks)
            self.masks.append(mask)
        return self._numbers[mask]


def _masks_in(trees: pa.Table, count: int, masks: Sequence[int]) -> tuple[list[int], Integers]:
    """Return the unions of masks, and for each range of a part the place of the union of its rows."""
    bits = trees["bits"].combine_chunks()
    width = -(-count // 8)
    # XOR words, not bytes: an eighth of the operations.
    matrix = np.zeros((len(bits), -(-width // 8)), np.uint64)
    matrix.view(np.uint8)[:, :width] = np.frombuffer(bits.buffers()[2] or b"", np.uint8)[: width * len(bits)].reshape(
        len(bits), -1
    )
    np.bitwise_xor.accumulate(matrix, axis=0, out=matrix)
    distinct = sorted(set(masks) - {0})
    places = {mask: place for place, mask in enumerate(distinct)}
    numbers = np.array([places.get(mask, -1) for mask in masks], np.int64)
    if not distinct:
        return [0], np.zeros(count, np.int64)
    # Make a row for each mask, with the ranges of its trees. Few columns are distinct: unite masks only for these.
    unions = np.stack([np.bitwise_or.reduce(matrix[numbers == number], axis=0) for number in range(len(distinct))])
    has = np.unpackbits(unions.view(np.uint8), axis=1, count=count, bitorder="little")
    columns = np.ascontiguousarray(np.packbits(has, axis=0, bitorder="little").T)
    _, first, inverse = np.unique(columns.view(f"V{columns.shape[1]}").ravel(), return_index=True, return_inverse=True)
    of_column: list[int] = []
    for place in first.tolist():
        union = 0
        for number in np.flatnonzero(has[:, place]).tolist():
            union |= distinct[number]
        of_column.append(union)
    return of_column, inverse


async def read_new(
    engine: Engine,
    store: ObjectStore,
    masks: Mapping[str, int],
    known: TreeParts,
    *,
    folder: str,
    tell: Callable[[str], None],
) -> tuple[TreeParts, RangeMasks]:
    """Read the metaranges with these masks that are in no known part, and write them into parts in `folder`, or raise
    BadInput.

    Return the new parts, and the masks of the ranges of known parts and of all sublists.
    """
    found = RangeMasks()
    await found.add(store, known.narrow, masks)
    await found.add_wide(store, known.wide, masks)
    new = sorted(masks.keys() - found.seen)
    tell(f"reading {count_of(len(new), 'tree')} of {len(masks):,}")
    narrow, wide = await read_trees(engine, new, folder=folder)
    await found.add_wide(store, wide, masks)
    # Only now every sublist has the masks of all trees.
    await found.add(store, known.sublists, found.sublists)
    sublists = await read_sublists(engine, sorted(found.sublists.keys() - found.seen), folder=folder)
    return TreeParts(narrow=tuple(narrow), wide=tuple(wide), sublists=tuple(sublists)), found
