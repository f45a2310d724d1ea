"""A range: some thousands of entries with neighbouring keys, in one immutable file (docs/formats/range.md).

Its id is the digest of its logical columns; the file is Parquet, so that Spark, DuckDB and people read it as it is.
What is checked when:

- Opening a file checks its footer: seal, format, id (`footer.py`).
- Reading columns or row groups checks the sections that hold them, by the digests in the footer (`sealed.py`). A row
  group has three: the keys, the digests, and the rest. What is not read is not checked.
- Decoding with `verify` also computes the id anew from the columns. The cache does so on first load. The rewriting of
  ranges and diffs rest on the sections: they read each file once, and a diff reads little of it.
- `summary_of` needs the footer alone, which `read_end` finds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import RangeId, Row

from .digest import digest_columns
from .footer import FileCorrupt, Kind, fact_of, footer_bytes, open_footer, salt_facts, salted
from .schema import ENTRIES_SCHEMA, chunk, rows_from_table
from .sealed import SealedFile, write_sealed
from .summary import SliceSummary, decode_summary, encode_summary, summarise
from .view import KeyColumn

RANGE_TITLE: Final = b"lakebed range 2\n"
GROUP_ROWS: Final = 2048
"""Rows of a row group: what a diff must read to show one entry. Against 4,096 and one group for the whole file that
takes 0.6, 0.9 and 1.5 ms (8,192 entries); encoding takes 5.7, 5.5 and 5.0 ms, and 38.2, 37.7 and 37.3 bytes an
entry."""

TAIL_BYTES: Final = 1 << 16
"""How much of a range's end is asked for at first: more than the footer of nearly all."""

_FEW: Final = 32
_SUMMARY: Final = "lakebed.slices"


class RangeCorrupt(FileCorrupt):
    """A range file is missing, cut short, altered, of a later format, or not the range it is named as. The fact
    `range_id` names it, `reason` says what is wrong, `namespace` (where known) where it lies."""

    kind = "range"


class RangeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a metarange says of a range. `size_bytes` sums its entries' sizes; `file_bytes` is the size of the file as
    this range's writer made it (another version of pyarrow may make another), for estimates only."""

    id: RangeId
    min_key: bytes
    max_key: bytes
    count: int
    size_bytes: int
    file_bytes: int


RANGE_KIND: Final = Kind(
    name="range",
    version=2,
    schema=ENTRIES_SCHEMA,
    encodings={
        "key": "PLAIN",
        "digest": "PLAIN",
        "sequence": "DELTA_BINARY_PACKED",
        "address": "DELTA_BYTE_ARRAY",
        "size_bytes": "DELTA_BINARY_PACKED",
        "checksum": "DELTA_LENGTH_BYTE_ARRAY",
        "modified_ms": "DELTA_BINARY_PACKED",
        "metadata": "DELTA_LENGTH_BYTE_ARRAY",
    },
    dictionaries=("content_type", "slice"),
    constants=("address", "checksum", "content_type", "metadata"),
    compressed=("key", "address", "checksum", "metadata"),
    sections=("key", "digest", "slice"),
    raw="digest",
    sorted_by="key",
    group_rows=GROUP_ROWS,
    error=RangeCorrupt,
)


def range_key(id_: RangeId) -> str:
    """Where the file lies in the storage namespace."""
    return f"_lakefs/ranges/{id_}.parquet"


def encode_range(entries: pa.Table, *, salt: str = "") -> tuple[RangeInfo, bytes]:
    """The range of these entries (at least one, sorted, unique) and its file. About 0.6 µs an entry.

    A `salt` makes it another file with another id, for where the id of the bare content was given up for ever
    (docs/design/protocols.md, "A collection of metadata").
    """
    entries = entries.combine_chunks()
    keys = chunk(entries, "key")
    assert len(keys)
    assert entries.schema.equals(ENTRIES_SCHEMA), entries.schema
    assert pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1)), min_count=0).as_py(), "keys must ascend"
    id_ = RangeId(digest_columns(salted(RANGE_TITLE, salt), entries))
    data = write_sealed(RANGE_KIND, id_, entries, {_SUMMARY: encode_summary(summarise(entries)), **salt_facts(salt)})
    info = RangeInfo(
        id=id_,
        min_key=keys[0].as_py(),
        max_key=keys[-1].as_py(),
        count=len(keys),
        size_bytes=pc.sum(chunk(entries, "size_bytes")).as_py(),
        file_bytes=len(data),
    )
    return info, data


def decode_range(id_: RangeId, data: bytes, columns: Sequence[str] | None = None, verify: bool = True) -> pa.Table:
    """The entries of a range, or some columns of them. What is read is checked always; with `verify` and all columns,
    the id is also computed anew.

    Raises:
        RangeCorrupt: this is not the range of that id, whole and unaltered.
    """
    file = RangeFile(id_, data)
    table = file.table(columns)
    if verify and columns is None:
        found = digest_columns(salted(RANGE_TITLE, file.salt), table)
        if found != id_:
            raise RangeCorrupt(id_, f"its entries are those of range {found}", found_id=found)
    return table


class RangeFile:
    """An open range file, for those who need parts of it. Opening and every read may raise RangeCorrupt."""

    def __init__(self, id_: RangeId, data: bytes) -> None:
        self._file = SealedFile(RANGE_KIND, id_, data)
        self.salt = self._file.salt
        self._ends = np.cumsum(self._file.group_rows)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All entries, each column in one chunk."""
        return self._file.read(columns)

    @cached_property
    def digests(self) -> npt.NDArray[np.int64]:
        return self._file.raw()

    @cached_property
    def keys(self) -> KeyColumn:
        return KeyColumn(chunk(self.table(["key"]), "key"))

    def position_behind(self, key: bytes) -> int:
        """How many keys are smaller or equal."""
        return bisect_right(self.keys, key)

    def has_keys_of(self, other: RangeFile, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the key at each of these positions is known, without reading it, to be the other's at that position:
        where nothing was added or removed before, the keys of a row group are the same bytes."""
        size = min(len(self._ends), len(other._ends))
        is_same = np.zeros(len(self._ends) + 1, np.bool_)
        is_same[:size] = [mine == theirs for mine, theirs in zip(self._key_sections, other._key_sections, strict=False)]
        is_same[:size] &= self._ends[:size] == other._ends[:size]
        known: npt.NDArray[np.bool_] = is_same[np.searchsorted(self._ends, rows, side="right")]
        return known

    @cached_property
    def _key_sections(self) -> list[bytes]:
        return self._file.section_digests("key")

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """The entries at these ascending positions, or some columns. Reads only the row groups that hold them."""
        if len(rows) == len(self):
            return self.table(columns)
        groups, rows = self._in_groups(rows)
        return self._file.read(columns, groups, rows)

    def rows_at(self, rows: npt.NDArray[np.int64]) -> list[tuple[bytes, Row]]:
        """(key, row) at these ascending positions; reads as `take` does."""
        if len(rows) > _FEW:
            return rows_from_table(self.take(rows))
        if not len(rows):
            return []
        groups, rows = self._in_groups(rows)
        keys, *columns = self._file.values(groups, rows.tolist())
        return list(zip(keys, zip(*columns, strict=True), strict=True))

    def _in_groups(self, rows: npt.NDArray[np.int64]) -> tuple[list[int], npt.NDArray[np.int64]]:
        """The row groups that hold these rows, and where the rows stand in what is read of those."""
        group_of = np.searchsorted(self._ends, rows, side="right")
        groups = np.flatnonzero(np.bincount(group_of))
        sizes = np.array(self._file.group_rows)
        shift = np.zeros(len(sizes), np.int64)
        shift[groups] = np.cumsum(sizes[groups]) - self._ends[groups]
        return groups.tolist(), rows + shift[group_of]


def summary_of(id_: RangeId, data: bytes) -> SliceSummary:
    """The slice summary, from the whole file or any end of it that holds all of the footer (`footer_size`).

    Raises:
        RangeCorrupt: not the end of this range's file, or the summary was altered.
    """
    try:
        return decode_summary(fact_of(open_footer(RANGE_KIND, id_, data), _SUMMARY))
    except ValueError as error:
        raise RangeCorrupt(id_, str(error)) from error


def footer_size(id_: RangeId, end: bytes) -> int:
    """How many bytes at the end of the file hold its footer; 8 of them are enough to tell.

    Raises:
        RangeCorrupt: this is not the end of a Parquet file.
    """
    return footer_bytes(RANGE_KIND, id_, end)


async def read_end(id_: RangeId, file_bytes: int, read: Callable[[int], Awaitable[bytes]]) -> bytes:
    """An end of a file that holds all of its footer. `read` gives the file from a byte on; nearly always one read is
    enough. `file_bytes` is what the metarange says, and may be wrong.

    Raises:
        RangeCorrupt: not a Parquet file.
    """
    start = max(0, file_bytes - TAIL_BYTES)
    end = await read(start)
    if start and (len(end) < 8 or footer_size(id_, end[-8:]) > len(end)):
        end = await read(0)
    return end
