"""A metarange: the ranges of one tree in key order, by content (docs/formats/metarange.md).

It names every entry of a commit by content, so equal trees have equal ids. A tree without entries is EMPTY_METARANGE
and has no file. Of most trees one file lists all ranges. Of a wide tree the ranges are cut by content into *sublists*,
a file each, and the metarange lists those: so a small change of a wide tree writes one sublist and a short metarange.

All files are columnar, and are decoded into columns: a list makes an object only of the row that a reader asks for.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import EMPTY_METARANGE, MetarangeId, RangeId, SublistId

from .codec import RangeInfo
from .cutting import CutRule
from .sealed import (
    FileCorrupt,
    KeyColumn,
    Kind,
    SealedFile,
    chunk,
    digest_columns,
    fact_of,
    footer_bytes,
    salt_facts,
    salted,
    write_sealed,
)

__all__ = [
    "InfoList",
    "KnownRanges",
    "MetarangeCorrupt",
    "RangeList",
    "SublistCorrupt",
    "SublistInfo",
    "SublistList",
    "decode_metarange",
    "decode_sublist",
    "encode_metarange",
    "encode_sublist",
    "ends_sublist",
    "metarange_key",
    "sublist_key",
]

_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.binary(), nullable=False),
        pa.field("min_key", pa.binary(), nullable=False),
        pa.field("max_key", pa.binary(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("file_bytes", pa.int64(), nullable=False),
    ]
)

# The size of a file depends on the library that compressed it, so it is no part of a list's identity.
_IDENTITY: Final = [name for name in _SCHEMA.names if name != "file_bytes"]


class MetarangeCorrupt(FileCorrupt):
    """The file of a metarange is damaged, as for RangeCorrupt. The fact `metarange_id` names it."""

    kind = "metarange"


class SublistCorrupt(MetarangeCorrupt):
    """The file of a sublist is damaged, as for RangeCorrupt. The fact `sublist_id` names it."""

    kind = "sublist"


class SublistInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a sublist as its metarange does, in the terms of a RangeInfo: `count` is of entries."""

    id: SublistId
    min_key: bytes
    max_key: bytes
    count: int
    size_bytes: int
    file_bytes: int


Info = TypeVar("Info", RangeInfo, SublistInfo)


METARANGE_KIND: Final = Kind(
    name="metarange",
    version=1,
    schema=_SCHEMA,
    encodings={
        "id": "PLAIN",
        "min_key": "DELTA_BYTE_ARRAY",
        "max_key": "DELTA_BYTE_ARRAY",
        "count": "DELTA_BINARY_PACKED",
        "size_bytes": "DELTA_BINARY_PACKED",
        "file_bytes": "DELTA_BINARY_PACKED",
    },
    dictionaries=(),
    constants=(),
    compressed=("min_key", "max_key"),
    sections=("id",),
    raw=None,
    sorted_by="min_key",
    group_rows=65_536,
    error=MetarangeCorrupt,
)
WIDE_KIND: Final = METARANGE_KIND._replace(version=2)
SUBLIST_KIND: Final = METARANGE_KIND._replace(name="sublist", error=SublistCorrupt)


MADE_MAX: Final = 256
"""A list keeps at most this number of the objects that it made: 100 KB."""


class InfoList(Sequence[Info], Generic[Info]):
    """Hold the list of a file, ascending, in columns. `table` has the same, for those who go over all rows."""

    __slots__ = ("_columns", "_made", "max_keys", "table")
    _make: Callable[..., Info]

    def __init__(self, table: pa.Table | None = None) -> None:
        if table is None:
            table = _SCHEMA.empty_table()  # not while modules are imported, for it imports pandas (`leave_pandas_out`)
        texts: list[KeyColumn] = [KeyColumn(chunk(table, name)) for name in ("id", "min_key", "max_key")]
        numbers: list[Sequence[int]] = [
            memoryview(chunk(table, name).to_numpy()) for name in ("count", "size_bytes", "file_bytes")
        ]
        self.max_keys: KeyColumn = texts[2]
        self._columns: tuple[Sequence[Any], ...] = (*texts, *numbers)
        self.table = table
        self._made: dict[int, Info] = {}

    def __len__(self) -> int:
        return len(self.max_keys)

    @overload
    def __getitem__(self, at: int) -> Info: ...
    @overload
    def __getitem__(self, at: slice) -> list[Info]: ...
    def __getitem__(self, at: int | slice) -> Info | list[Info]:
        if isinstance(at, slice):
            return [self._info(row) for row in range(*at.indices(len(self)))]
        info = self._made.get(at)
        if info is None:
            info = self._info(range(len(self))[at])
            # Point reads ask for the same few rows again and again.
            if len(self._made) >= MADE_MAX:
                self._made.clear()
            self._made[at] = info
        return info

    def __iter__(self) -> Iterator[Info]:
        return map(self._info, range(len(self)))

    @property
    def ids(self) -> list[str]:
        """Return the ids alone, in a tenth of the time that objects take."""
        return [id_.hex() for id_ in self._columns[0]]

    @property
    def nbytes(self) -> int:
        """Return the memory of the columns: about 200 bytes a row. Adding it up takes a tenth of the decoding."""
        size: int = self.table.nbytes
        return size

    def position(self, key: bytes) -> int:
        """Return the first row that does not end before the key."""
        return self.max_keys.position(key)

    def total(self, start: bytes, end: bytes | None) -> tuple[int, int, list[Info]]:
        """Return entries and bytes of the rows that lie whole between two keys, and the rows that reach across a key.

        Costs two bisections and a sum. At most two rows are returned.
        """
        first = self.position(start)
        stop = len(self) if end is None else bisect_left(self, end, first, key=lambda info: info.min_key)
        edges = [self[at] for at in sorted({first, stop - 1}) if first <= at < stop]
        edges = [info for info in edges if info.min_key < start or (end is not None and info.max_key >= end)]
        count, size_bytes = (
            int(chunk(self.table, name).to_numpy()[first:stop].sum()) for name in ("count", "size_bytes")
        )
        return count - sum(info.count for info in edges), size_bytes - sum(info.size_bytes for info in edges), edges

    def _info(self, row: int) -> Info:
        id_, min_key, max_key, count, size_bytes, file_bytes = [column[row] for column in self._columns]
        return self._make(
            id=id_.hex(), min_key=min_key, max_key=max_key, count=count, size_bytes=size_bytes, file_bytes=file_bytes
        )


class RangeList(InfoList[RangeInfo]):
    """List ranges: all of a tree, or those of one sublist."""

    __slots__ = ()
    _make = RangeInfo


class SublistList(InfoList[SublistInfo]):
    """List the sublists of a wide tree."""

    __slots__ = ()
    _make = SublistInfo


def metarange_key(id_: MetarangeId) -> str:
    """Return the key of the file in the storage namespace. EMPTY_METARANGE has none."""
    assert id_ != EMPTY_METARANGE
    return f"_lakefs/metaranges/{id_}.parquet"


def sublist_key(id_: SublistId) -> str:
    """Return the key of the file in the storage namespace."""
    return f"_lakefs/sublists/{id_}.parquet"


def ends_sublist(info: RangeInfo | SublistInfo, rule: CutRule) -> bool:
    """Return whether a sublist ends behind this range or sublist, whatever follows: its last key alone decides.

    Only a strong cut ends a sublist. So a sublist that ends so also ends in a whole range.
    """
    hashed = crc32(info.max_key)
    return hashed % rule.strong == 0 and (hashed >> 13) % rule.listed == 0


def encode_metarange(infos: Sequence[RangeInfo | SublistInfo], *, salt: str = "") -> tuple[MetarangeId, bytes]:
    """Return the metarange that lists these ranges, or else these sublists (ascending, disjoint), and its file.

    Nothing gives EMPTY_METARANGE and no bytes. For `salt` see `encode_range`.
    """
    if not infos:
        return EMPTY_METARANGE, b""
    id_, data = _encode(WIDE_KIND if isinstance(infos[0], SublistInfo) else METARANGE_KIND, infos, salt)
    return MetarangeId(id_), data


def encode_sublist(ranges: Sequence[RangeInfo], *, salt: str = "") -> tuple[SublistInfo, bytes]:
    """Return the sublist of these ranges (at least one, ascending, disjoint) and its file."""
    id_, data = _encode(SUBLIST_KIND, ranges, salt)
    info = SublistInfo(
        id=SublistId(id_),
        min_key=ranges[0].min_key,
        max_key=ranges[-1].max_key,
        count=sum([info.count for info in ranges]),
        size_bytes=sum([info.size_bytes for info in ranges]),
        file_bytes=len(data),
    )
    return info, data


def decode_metarange(id_: MetarangeId, data: bytes) -> RangeList | SublistList:
    """Return the ranges, or of a wide tree the sublists, after a check of every byte of the file and of the id.

    Raises:
        MetarangeCorrupt: the data are not the metarange of that id, whole and unaltered.
    """
    return decode_wide(id_, data) if is_wide(id_, data) else decode_ranges(METARANGE_KIND, id_, data)


def is_wide(id_: MetarangeId, data: bytes) -> bool:
    """Return whether the file says that it lists sublists. Only a hint: who reads it as such checks the footer.

    Raises:
        MetarangeCorrupt: the data are not the end of a Parquet file.
    """
    format_ = fact_of(data[-footer_bytes(METARANGE_KIND, id_, data) :], "lakebed.format")
    return format_ == WIDE_KIND.format.encode()


def decode_sublist(id_: SublistId, data: bytes) -> RangeList:
    """Return the ranges of a sublist, checked likewise.

    Raises:
        SublistCorrupt: the data are not the sublist of that id, whole and unaltered.
    """
    return decode_ranges(SUBLIST_KIND, id_, data)


def decode_wide(id_: MetarangeId, data: bytes) -> SublistList:
    return SublistList(_decode(WIDE_KIND, id_, data))


def decode_ranges(kind: Kind, id_: str, data: bytes) -> RangeList:
    """Decode a metarange or a sublist, as its kind says."""
    return RangeList(_decode(kind, id_, data))


def _encode(kind: Kind, infos: Sequence[RangeInfo | SublistInfo], salt: str) -> tuple[str, bytes]:
    assert all(left.max_key < right.min_key for left, right in pairwise(infos)), "ranges must ascend"
    assert len({type(info) for info in infos}) == 1, "one level to a file"
    columns = {name: [getattr(info, name) for info in infos] for name in _SCHEMA.names}
    columns["id"] = [bytes.fromhex(id_) for id_ in columns["id"]]
    table = pa.Table.from_pydict(columns, _SCHEMA)
    id_ = _identity(kind, table, salt)
    return id_, write_sealed(kind, id_, table, salt_facts(salt))


def _decode(kind: Kind, id_: str, data: bytes) -> pa.Table:
    return _checked(kind, id_, SealedFile(kind, id_, data))


def _checked(kind: Kind, id_: str, file: SealedFile) -> pa.Table:
    table = file.read()
    found = _identity(kind, table, file.salt)
    if found != id_:
        raise kind.error(id_, f"what it lists is {kind.name} {found}", found_id=found)
    return table


def _identity(kind: Kind, table: pa.Table, salt: str) -> str:
    return digest_columns(salted(f"lakebed {kind.format}\n".encode(), salt), table.select(_IDENTITY))


# Known ranges. The trees of a history share most of their ranges, so a list of known ranges is read by its ids alone.
# A list's id is the digest of its rows. The rows that earlier lists had of the same ranges give that digest only where
# this list has the same rows. So nothing is taken on trust, and unknown rows are decoded.

Places = npt.NDArray[np.int64]

_ID_BYTES: Final = 32


class KnownRanges:
    """Give each range a place, from 0 on, in the order in which lists named them. The places of a list are ascending
    in keys, as it is.

    Reading 20 known ranges costs 30 µs and 1,400 cost 0.25 ms, a sixth and a half of decoding them. A range that is
    known takes about 600 bytes.
    """

    def __init__(self) -> None:
        self._ids: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._min_keys: list[bytes] = []
        self._max_keys: list[bytes] = []
        # Columns: entries, size of the objects, size of the file, lengths of both keys.
        self._numbers = np.zeros((5, 1024), np.int64)
        self._last = self._facts(b"", np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self._ids)

    def id(self, place: int) -> RangeId:
        return RangeId(self._ids[place].hex())

    def span(self, place: int) -> tuple[bytes, bytes]:
        """Return the first and the last key."""
        return self._min_keys[place], self._max_keys[place]

    def numbers(self, first: int = 0) -> tuple[list[int], list[int]]:
        """Return the entries of each range from this place on, and the sizes of their files."""
        counts, _, file_bytes, _, _ = self._numbers[:, first : len(self)].tolist()
        return counts, file_bytes

    def ids(self, first: int = 0) -> list[str]:
        """Return the ids from this place on."""
        return [id_.hex() for id_ in self._ids[first:]]

    def read_metarange(self, id_: MetarangeId, data: bytes) -> Places | SublistList:
        """Return the places of the ranges, or of a wide tree its sublists. Checks all that `decode_metarange` does.

        Raises:
            MetarangeCorrupt: the data are not the metarange of that id, whole and unaltered.
        """
        if is_wide(id_, data):
            return decode_wide(id_, data)
        return self._read(METARANGE_KIND, id_, data)

    def read_sublist(self, id_: SublistId, data: bytes) -> Places:
        """
        Raises:
            SublistCorrupt: the data are not the sublist of that id, whole and unaltered.
        """
        return self._read(SUBLIST_KIND, id_, data)

    def _read(self, kind: Kind, id_: str, data: bytes) -> Places:
        file = SealedFile(kind, id_, data)
        ids = file.first_values(_ID_BYTES)
        known = None if ids is None else self._known(ids)
        if known is not None and known.digest(kind, file.salt) == id_:
            self._last = known
            return known.places
        return self._add(_checked(kind, id_, file))

    def _known(self, ids: bytes) -> _Known | None:
        """Return the known facts about these ranges; None where one is unknown."""
        last = self._last
        if len(last.ids) != len(ids):
            places = self._look_up(np.frombuffer(ids, f"V{_ID_BYTES}").tolist())
            return None if places is None else self._facts(ids, places)
        # Neighbours differ in few places: only those are looked up.
        differs = np.flatnonzero((_words(ids) != _words(last.ids)).any(axis=1))
        at = differs.tolist()
        places = self._look_up([ids[row * _ID_BYTES : (row + 1) * _ID_BYTES] for row in at])
        if places is None:
            return None
        part = self._facts(b"", places)
        made = _Known(ids, last.places.copy(), last.numbers.copy(), last.min_keys.copy(), last.max_keys.copy())
        made.places[differs] = places
        made.numbers[:, differs] = part.numbers
        for row, min_key, max_key in zip(at, part.min_keys, part.max_keys, strict=True):
            made.min_keys[row], made.max_keys[row] = min_key, max_key
        return made

    def _look_up(self, ids: Sequence[bytes]) -> Places | None:
        try:
            return np.array([self._places[id_] for id_ in ids], np.int64)
        except KeyError:
            return None

    def _facts(self, ids: bytes, places: Places) -> _Known:
        at = places.tolist()
        min_keys, max_keys = ([keys[place] for place in at] for keys in (self._min_keys, self._max_keys))
        return _Known(ids, places, self._numbers[:, places], min_keys, max_keys)

    def _add(self, table: pa.Table) -> Places:
        ids: list[bytes] = [*KeyColumn(chunk(table, "id"))]
        new = [row for row, id_ in enumerate(ids) if self._is_new(id_)]
        if new:
            self._append(table, new)
        places = np.array([self._places[id_] for id_ in ids], np.int64)
        self._last = self._facts(b"".join(ids), places)
        return places

    def _is_new(self, id_: bytes) -> bool:
        """Return whether it was not known. It has a place from now on."""
        if id_ in self._places:
            return False
        self._places[id_] = len(self._ids)
        self._ids.append(id_)
        return True

    def _append(self, table: pa.Table, new: Sequence[int]) -> None:
        """Take the facts of these rows, whose ids were appended before."""
        first = len(self._min_keys)
        columns: Any = [chunk(table, name).to_numpy() for name in ("count", "size_bytes", "file_bytes")]
        keys = [KeyColumn(chunk(table, name)) for name in ("min_key", "max_key")]
        min_keys, max_keys = ([column[row] for row in new] for column in keys)
        if self._numbers.shape[1] < first + len(new):
            room = np.zeros((5, first + len(new)), np.int64)
            self._numbers = np.concatenate((self._numbers[:, :first], room), axis=1)
        part = self._numbers[:, first : first + len(new)]
        part[:3] = [column[new] for column in columns]
        part[3:] = [[len(key) for key in keys] for keys in (min_keys, max_keys)]
        self._min_keys += min_keys
        self._max_keys += max_keys


class _Known(NamedTuple):
    """Hold the known facts about the ranges of a list."""

    ids: bytes
    places: Places
    numbers: npt.NDArray[np.int64]
    min_keys: list[bytes]
    max_keys: list[bytes]

    def digest(self, kind: Kind, salt: str) -> str:
        """Return the id of a list of these ranges: `digest_columns` of its columns. A test holds both equal."""
        counts, sizes, _, min_lengths, max_lengths = self.numbers
        digest = hashlib.sha256(salted(f"lakebed {kind.format}\n".encode(), salt))
        digest.update(len(counts).to_bytes(8, "little"))
        digest.update(np.full(len(counts), _ID_BYTES, "<u4").tobytes() + self.ids)
        digest.update(min_lengths.astype("<u4").tobytes() + b"".join(self.min_keys))
        digest.update(max_lengths.astype("<u4").tobytes() + b"".join(self.max_keys))
        digest.update(counts.tobytes() + sizes.tobytes())
        return digest.hexdigest()


def _words(ids: bytes) -> npt.NDArray[np.uint64]:
    return np.frombuffer(ids, np.uint64).reshape(-1, _ID_BYTES // 8)
