"""Which objects that trees name are not in the namespace: each range is read once, and each slice listed once.

A listing shows a thousand names for one request. So a bit is kept for each object that a tree names, and a listing
clears it. Objects of addresses that this system did not make are looked up one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

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
from lakebed.ranges import RangeInfo, rows_from_table

from . import Trees
from .lacking import TOGETHER

SHOWN: Final = 10
READ_TOGETHER: Final = 4
"""A range takes megabytes once it is decoded."""
_CHUNK: Final = 1024

_Place: TypeAlias = tuple[int, int] | str | None
"""Slice and sequence, or a key; None: outside the namespace."""


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
            for _, place in self._places(table):
                if place is None:
                    self.outside += 1
                elif isinstance(place, str):
                    keys.add(place)
                else:
                    unseen.add(*place)

        async def clear(slice_: int) -> None:
            async for page in self._objectstore.list(f"data/{slice_name(slice_)}/"):
                for stat in page:
                    if (found := parse_address(stat.key)) is not None:
                        unseen.discard(*found)

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
            for key, place in self._places(await self._trees.entries(info)):
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
            if slice_ != FOREIGN_SLICE:
                yield key, (slice_, sequence)
            else:
                inside = key_inside(address, self._objectstore.uri)
                yield key, None if inside is None else parse_address(inside) or inside

    async def _is_there(self, key: str) -> bool:
        try:
            await self._objectstore.stat(key)
        except ObjectMissing:
            return False
        return True


class _Bits:
    """A set of places, at a bit for each."""

    def __init__(self) -> None:
        self._chunks: dict[int, dict[int, int]] = {}

    def add(self, slice_: int, sequence: int) -> None:
        chunks = self._chunks.setdefault(slice_, {})
        chunks[sequence // _CHUNK] = chunks.get(sequence // _CHUNK, 0) | 1 << sequence % _CHUNK

    def discard(self, slice_: int, sequence: int) -> None:
        chunks = self._chunks.get(slice_, {})
        if sequence // _CHUNK in chunks:
            chunks[sequence // _CHUNK] &= ~(1 << sequence % _CHUNK)

    def has(self, slice_: int, sequence: int) -> bool:
        return bool(self._chunks.get(slice_, {}).get(sequence // _CHUNK, 0) >> sequence % _CHUNK & 1)

    def slices(self) -> list[int]:
        return sorted(self._chunks)

    def count(self) -> int:
        return sum(bits.bit_count() for chunks in self._chunks.values() for bits in chunks.values())
