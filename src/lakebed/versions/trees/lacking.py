"""Find files of trees, and objects that trees name, that are not there: by listings, and a read of every tree.

A listing shows a thousand names for one request. So a bit is kept for each object that a tree names, and a listing
clears it. Objects of addresses that this system did not make are looked up one by one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import (
    FOREIGN_SLICE,
    MetarangeId,
    Ports,
    format_address,
    key_inside,
    key_to_path,
    parse_address,
    slice_name,
)
from lakebed.objectstore import ObjectMissing, ObjectStore
from lakebed.ranges import RangeInfo, metarange_key, range_key, rows_from_table, sublist_key

from . import Trees

SHOWN: Final = 10
READ_TOGETHER: Final = 4
"""A range takes megabytes once it is decoded."""
_NAMED_TOGETHER: Final = 10_000
_CHUNK: Final = 1024
TOGETHER: Final = 16
_KEYS_A_FILE: Final = 100  # Listing these costs about as much as reading a file.
_FOLDERS: Final = ("_lakefs/metaranges/", "_lakefs/sublists/", "_lakefs/ranges/")

Numbers = npt.NDArray[np.int64]

_Place: TypeAlias = tuple[int, int] | str | None
"""Slice and sequence, or a key; None: outside the namespace."""


class LackingFiles:
    """`lost` has for each tree that lacks files their keys and ids; `files`, the ids of all files of whole trees."""

    def __init__(self, objectstore: ObjectStore, trees: Trees, ports: Ports) -> None:
        self._objectstore = objectstore
        self._trees = trees
        self._ports = ports
        self.lost: dict[MetarangeId, Mapping[str, str]] = {}
        self.files: set[str] = set()

    async def look(self, wanted: Iterable[MetarangeId]) -> AsyncGenerator[int, None]:
        """Look at these trees. Yield how many files were read since the last step; a listing counts by its keys.

        Raises:
            MetarangeCorrupt, SublistCorrupt: a file is there, and short or altered.
        """
        there: set[str] = set()
        for prefix in _FOLDERS:
            async for page in self._objectstore.list(prefix):
                there.update(stat.key for stat in page)
                yield max(1, len(page) // _KEYS_A_FILE)
        whole = []
        for tree in wanted:
            if (key := metarange_key(tree)) in there:
                whole.append(tree)
            else:
                self.lost[tree] = {key: tree}

        async def read(tree: MetarangeId) -> dict[str, str]:
            lists = {sublist_key(info.id): str(info.id) for info in await self._trees.sublists(tree)}
            if lost := {key: id_ for key, id_ in lists.items() if key not in there}:
                return lost  # Without them the ranges cannot be read.
            ranges = {range_key(info.id): str(info.id) for info in await self._trees.ranges(tree)}
            if lost := {key: id_ for key, id_ in ranges.items() if key not in there}:
                return lost
            self.files.update((tree, *lists.values(), *ranges.values()))
            return {}

        async for tree, lost in self._ports.tasks.ahead(whole, read, most=TOGETHER):
            if lost:
                self.lost[tree] = lost
            yield 1


class LackingObjects:
    """`count` objects are not there. `some` has the first of them, each once: a path that names it, and its key.

    `outside` counts entries whose objects lie outside the namespace: these are not looked for.
    """

    def __init__(self, objectstore: ObjectStore, trees: Trees, ports: Ports) -> None:
        self._objectstore = objectstore
        self._trees = trees
        self._ports = ports
        self.count = 0
        self.outside = 0
        self.some: list[tuple[str, str]] = []

    async def look(self, wanted: Iterable[MetarangeId]) -> None:
        """Look for every object of these trees, whose files are there.

        Raises:
            FileCorrupt: a file of a tree is missing, short or altered.
        """
        ranges: dict[str, RangeInfo] = {}
        for tree in wanted:
            ranges |= {info.id: info for info in await self._trees.ranges(tree)}
        unseen, keys = _Bits(), set[str]()
        async for _, table in self._ports.tasks.ahead([*ranges.values()], self._trees.entries, most=READ_TOGETHER):
            slices, sequences, foreign = _columns(table)
            unseen.add(slices, sequences)
            for place in map(self._place_of, foreign):
                if place is None:
                    self.outside += 1
                elif isinstance(place, str):
                    keys.add(place)
                else:
                    unseen.add(*np.array([place]).T)
            # A range that is in memory awaits nothing, and one thread serves all.
            await self._ports.clock.sleep(0)

        async def clear(slice_: int) -> None:
            async for page in self._objectstore.list(f"data/{slice_name(slice_)}/"):
                found = [place for stat in page if (place := parse_address(stat.key)) is not None]
                unseen.discard(*np.array(found, np.int64).reshape(-1, 2).T)
                await self._ports.clock.sleep(0)

        async for _ in self._ports.tasks.ahead(unseen.slices(), clear, most=TOGETHER):
            pass
        lost = {key async for key, there in self._ports.tasks.ahead(sorted(keys), self._is_there) if not there}
        self.count = unseen.count() + len(lost)
        if self.count:
            await self._name([*ranges.values()], unseen, lost)

    async def _name(self, ranges: list[RangeInfo], unseen: _Bits, lost: set[str]) -> None:
        """Read ranges again until enough missing objects have a path. Many ranges and paths may name one object."""
        paths: dict[str, str] = {}
        for info in ranges:
            table = await self._trees.entries(info)
            for start in range(0, table.num_rows, _NAMED_TOGETHER):
                await self._ports.clock.sleep(0)
                for key, place in self._places(table.slice(start, _NAMED_TOGETHER)):
                    match place:
                        case str() if place in lost:
                            paths.setdefault(place, key_to_path(key))
                        case (slice_, sequence) if unseen.has(slice_, sequence):
                            paths.setdefault(format_address(slice_, sequence), key_to_path(key))
                    if len(paths) == min(self.count, SHOWN):
                        self.some = [(path, address) for address, path in paths.items()]
                        return

    def _places(self, table: pa.Table) -> Iterator[tuple[bytes, _Place]]:
        for key, (_, slice_, sequence, address, *_) in rows_from_table(table):
            yield key, self._place_of(address) if slice_ == FOREIGN_SLICE else (slice_, sequence)

    def _place_of(self, address: str) -> _Place:
        inside = key_inside(address, self._objectstore.uri)
        return None if inside is None else parse_address(inside) or inside

    async def _is_there(self, key: str) -> bool:
        try:
            await self._objectstore.stat(key)
        except ObjectMissing:
            return False
        return True


def _columns(table: pa.Table) -> tuple[Numbers, Numbers, list[str]]:
    """Return the slices and the sequences of addresses in slices, and the other addresses."""
    slices = table.column("slice").to_numpy()
    is_ours = slices != FOREIGN_SLICE
    foreign = table.column("address").filter(pa.array(~is_ours)).to_pylist()
    return slices[is_ours], table.column("sequence").to_numpy()[is_ours].astype(np.int64), foreign


class _Bits:
    """Hold a set of places: a bit for each."""

    def __init__(self) -> None:
        self._chunks: dict[int, dict[int, int]] = {}

    def add(self, slices: Numbers, sequences: Numbers) -> None:
        """Add places, in any order."""
        for slice_, number, bits in _in_chunks(slices, sequences):
            chunks = self._chunks.setdefault(slice_, {})
            chunks[number] = chunks.get(number, 0) | bits

    def discard(self, slices: Numbers, sequences: Numbers) -> None:
        """Take out those of these places that are in the set."""
        for slice_, number, bits in _in_chunks(slices, sequences):
            chunks = self._chunks.get(slice_, {})
            if number in chunks:
                chunks[number] &= ~bits

    def has(self, slice_: int, sequence: int) -> bool:
        return bool(self._chunks.get(slice_, {}).get(sequence // _CHUNK, 0) >> sequence % _CHUNK & 1)

    def slices(self) -> list[int]:
        return sorted(self._chunks)

    def count(self) -> int:
        return sum(bits.bit_count() for chunks in self._chunks.values() for bits in chunks.values())


def _in_chunks(slices: Numbers, sequences: Numbers) -> Iterator[tuple[int, int, int]]:
    """Yield slice, number of the chunk and its bits, for each chunk that has one of these places."""
    order = np.lexsort((sequences, slices))
    slices, chunks, places = slices[order], sequences[order] // _CHUNK, sequences[order] % _CHUNK
    starts = np.flatnonzero((np.diff(slices, prepend=-1) != 0) | (np.diff(chunks, prepend=-1) != 0))
    for start, end in pairwise([*starts.tolist(), len(slices)]):
        bits = np.zeros(_CHUNK, np.bool_)
        bits[places[start:end]] = True
        yield int(slices[start]), int(chunks[start]), int.from_bytes(np.packbits(bits, bitorder="little"), "little")
