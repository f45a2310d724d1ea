"""The files of simulated trees: a tree is one value on the simulated disk, and reads as the real bytes of its files.

`SimTrees` write the pairs of a tree at once, under the key of its metarange. A step that reads files of a tree, as a
collection does, gets what the real codec makes of the pairs: one metarange, which names one range. The range lies
nowhere by itself: it is there as long as the metarange is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from explorer.disk import Disk
from lakebed.base import EMPTY_METARANGE, MetarangeId, RangeId, Row, SublistId
from lakebed.ranges import (
    RangeList,
    SublistList,
    decode_metarange,
    decode_range,
    decode_sublist,
    encode_metarange,
    encode_range,
    metarange_key,
    range_key,
    rows_from_table,
    sublist_key,
    table_from_rows,
)

Pairs: TypeAlias = tuple[tuple[bytes, Row], ...]


@dataclass(frozen=True, slots=True)
class TreeFiles:
    metarange_id: MetarangeId
    metarange: bytes
    range: bytes


_KNOWN: Final[dict[str, bytes]] = {}
_HELD: Final[dict[str, str]] = {}
_HOLDERS: Final[dict[str, str]] = {}
"""Key of a range file → key of the metarange that it comes with. What a name stands for follows from content, so this
is no state: a process that has not met a tree learns its files when it reads the metarange."""


@lru_cache(maxsize=100_000)
def files_of(pairs: Pairs, salt: str = "") -> TreeFiles:
    keys, rows = zip(*pairs, strict=True)
    info, data = encode_range(table_from_rows(keys, rows), salt=salt)
    id_, metarange = encode_metarange([info], salt=salt)
    _HOLDERS[range_key(info.id)], _HELD[metarange_key(id_)] = metarange_key(id_), range_key(info.id)
    _KNOWN[range_key(info.id)], _KNOWN[metarange_key(id_)] = data, metarange
    return TreeFiles(id_, metarange, data)


def holder_of(key: str) -> str:
    """Return where the value lies that the bytes of this file are made from."""
    return _HOLDERS.get(key, key)


def range_with(key: str) -> str:
    """Return the key of the range file that comes with the metarange of this key, or nothing."""
    return _HELD.get(key, "")


def known_ranges(beginning: str) -> list[str]:
    return sorted(key for key in _HOLDERS if key.startswith(beginning))


def known_file(key: str) -> bytes | None:
    """Return the file of this key, if a tree that has it was ever made: it follows from the key."""
    return _KNOWN.get(key)


def file_of(value: Any, key: str) -> bytes:
    if isinstance(value, bytes):
        return value
    files = files_of(value.pairs, value.salt)
    return files.range if key in _HOLDERS else files.metarange


class Tree(tuple[Any, ...]):
    """The pairs of a tree, as checkers read them, and the salt of its files."""

    salt: str

    def __new__(cls, pairs: Iterable[Any], salt: str = "") -> Tree:
        made = super().__new__(cls, pairs)
        made.salt = salt
        return made

    @property
    def pairs(self) -> Pairs:
        return tuple(self)


def pairs_in(disk: Disk, metarange: MetarangeId) -> Pairs:
    """Return what a tree holds on this disk, simulated or real; KeyError if a file is missing."""
    if metarange == EMPTY_METARANGE:
        return ()
    held = disk.objectstore[metarange_key(metarange)][0]
    if isinstance(held, Tree):
        return held.pairs
    ids = ranges_of(disk, metarange)
    return tuple(pair for id_ in ids for pair in _decoded(id_, disk.objectstore[range_key(id_)][0]))


def ranges_of(disk: Disk, metarange: MetarangeId) -> Sequence[RangeId]:
    """Return the ranges of a real tree; KeyError if a sublist is missing."""
    listed = _listed(metarange, disk.objectstore[metarange_key(metarange)][0])
    if isinstance(listed, RangeList):
        return _range_ids(listed)
    lists = [_sublist(info.id, disk.objectstore[sublist_key(info.id)][0]) for info in listed]
    return [id_ for ranges in lists for id_ in _range_ids(ranges)]


def sublists_of(disk: Disk, metarange: MetarangeId) -> Sequence[SublistId]:
    """Return the sublists of a real tree; none where it is not wide."""
    listed = _listed(metarange, disk.objectstore[metarange_key(metarange)][0])
    return [info.id for info in listed] if isinstance(listed, SublistList) else ()


def _range_ids(ranges: RangeList) -> list[RangeId]:
    return [info.id for info in ranges]


@lru_cache(maxsize=10_000)
def _listed(metarange: MetarangeId, data: bytes) -> RangeList | SublistList:
    return decode_metarange(metarange, data)


@lru_cache(maxsize=10_000)
def _sublist(id_: SublistId, data: bytes) -> RangeList:
    return decode_sublist(id_, data)


@lru_cache(maxsize=10_000)
def _decoded(id_: RangeId, data: bytes) -> Pairs:
    return tuple(rows_from_table(decode_range(id_, data)))
