"""A metarange: the ranges of one tree in key order, by content (docs/formats/metarange.md).

It names every entry of a commit by content, so equal trees have equal ids. A tree without entries is EMPTY_METARANGE
and has no file. Of most trees one file lists all ranges. Of a wide tree the ranges are cut by content into *sublists*,
a file each, and the metarange lists those: so a small change of a wide tree writes one sublist and a short metarange.

All files are columnar, and are decoded into columns: a list makes an object only of the row that a reader asks for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar, overload
from zlib import crc32

import msgspec
import pyarrow as pa

from lakebed.base import EMPTY_METARANGE, MetarangeId, SublistId

from .codec import RangeInfo
from .cutting import CutRule
from .schema import chunk
from .sealed import (
    FileCorrupt,
    Kind,
    SealedFile,
    digest_columns,
    fact_of,
    footer_bytes,
    salt_facts,
    salted,
    write_sealed,
)
from .view import KeyColumn

__all__ = [
    "InfoList",
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
    file = SealedFile(kind, id_, data)
    table = file.read()
    found = _identity(kind, table, file.salt)
    if found != id_:
        raise kind.error(id_, f"what it lists is {kind.name} {found}", found_id=found)
    return table


def _identity(kind: Kind, table: pa.Table, salt: str) -> str:
    return digest_columns(salted(f"lakebed {kind.format}\n".encode(), salt), table.select(_IDENTITY))
