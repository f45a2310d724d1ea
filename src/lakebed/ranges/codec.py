"""A range: some thousands of entries with neighbouring keys, in one immutable file (docs/formats/range.md).

Its id is the digest of its logical columns; the file is Parquet, so that Spark, DuckDB and people read it as it is.
What is checked when:

- Opening a file checks its seal over all bytes, its format, its id and its schema (`sealed.py`). Every read does that.
- Decoding with `verify` also computes the id anew from the columns. The cache does so on first load. The rewriting of
  ranges and diffs rest on the seal: they read each file once, and some read one column of it.
- `summary_of` reads the footer alone, and checks the summary's own digest, which binds it to the id.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import RangeId

from .digest import digest_columns
from .schema import ENTRIES_SCHEMA, chunk
from .sealed import (
    IDENTITY_FACTS,
    MAGIC,
    FileCorrupt,
    Kind,
    check_facts,
    fact_of_footer,
    open_sealed,
    salt_facts,
    salt_of,
    salted,
    write_sealed,
)
from .summary import SliceSummary, decode_summary, encode_summary, summarise
from .view import KeyColumn

RANGE_TITLE: Final = b"lakebed range 1\n"
GROUP_ROWS: Final = 2048
"""Rows of a row group: what a diff must read to show one entry. Against 4,096 and one group for the whole file that
takes 0.6, 0.9 and 1.5 ms (8,192 entries); encoding takes 5.7, 5.5 and 5.0 ms, and 38.2, 37.7 and 37.3 bytes an
entry."""

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
    version=1,
    schema=ENTRIES_SCHEMA,
    encodings={
        "key": "DELTA_BYTE_ARRAY",
        "digest": "PLAIN",
        "sequence": "DELTA_BINARY_PACKED",
        "address": "DELTA_BYTE_ARRAY",
        "size_bytes": "DELTA_BINARY_PACKED",
        "checksum": "DELTA_LENGTH_BYTE_ARRAY",
        "modified_ms": "DELTA_BINARY_PACKED",
        "metadata": "DELTA_LENGTH_BYTE_ARRAY",
    },
    dictionaries=("content_type", "slice"),
    compressed=("key", "address", "checksum", "metadata"),
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
    facts = {_SUMMARY: encode_summary(id_, summarise(entries)), **salt_facts(salt)}
    data = write_sealed(RANGE_KIND, id_, entries, facts)
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
    """The entries of a range, or some columns of them. The seal is checked always; with `verify` and all columns, the
    id is also computed anew.

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
        self.id = id_
        self._file = open_sealed(RANGE_KIND, id_, data)
        self.salt = salt_of(self._file)

    def __len__(self) -> int:
        rows: int = self._file.metadata.num_rows
        return rows

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All entries, each column in one chunk."""
        return self._read(lambda: self._file.read(columns, use_threads=False)).combine_chunks()

    @cached_property
    def digests(self) -> npt.NDArray[np.int64]:
        digests: npt.NDArray[np.int64] = chunk(self.table(["digest"]), "digest").to_numpy()
        return digests

    @cached_property
    def keys(self) -> KeyColumn:
        return KeyColumn(chunk(self.table(["key"]), "key"))

    def position_behind(self, key: bytes) -> int:
        """How many keys are smaller or equal."""
        return bisect_right(self.keys, key)

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """The entries at these ascending positions, or some columns. Reads only the row groups that hold them."""
        if len(rows) == len(self):
            return self.table(columns)
        sizes = self._group_sizes
        ends = np.cumsum(sizes)
        group_of = np.searchsorted(ends, rows, side="right")
        groups = np.unique(group_of)
        read = self._read(
            lambda: self._file.read_row_groups(groups.tolist(), columns, use_threads=False)
        ).combine_chunks()
        # Where each of these groups starts in what was read, against where it starts in the file.
        shift = np.cumsum(sizes[groups]) - ends[groups]
        return read.take(pa.array(rows + shift[np.searchsorted(groups, group_of)]))

    @cached_property
    def _group_sizes(self) -> npt.NDArray[np.int64]:
        metadata = self._file.metadata
        return np.array([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])

    def _read(self, read: Any) -> pa.Table:
        try:
            return read()
        except (pa.ArrowException, OSError) as error:
            raise RangeCorrupt(self.id, f"cannot be decoded: {error}") from error


def summary_of(id_: RangeId, data: bytes) -> SliceSummary:
    """The slice summary, from the whole file or any end of it that holds all of the footer (`footer_size`).

    Raises:
        RangeCorrupt: not the end of this range's file, or the summary was altered.
    """
    size = footer_size(id_, data)
    if size > len(data):
        raise RangeCorrupt(id_, f"{len(data)} bytes of a footer of {size}")
    footer = data[-size:]
    check_facts(RANGE_KIND, id_, {name.encode(): fact_of_footer(footer, name) for name in IDENTITY_FACTS})
    try:
        return decode_summary(id_, fact_of_footer(footer, _SUMMARY))
    except ValueError as error:
        raise RangeCorrupt(id_, str(error)) from error


def footer_size(id_: RangeId, end: bytes) -> int:
    """How many bytes at the end of the file hold its footer; 8 of them are enough to tell.

    Raises:
        RangeCorrupt: this is not the end of a Parquet file.
    """
    if len(end) < 8 or end[-4:] != MAGIC:
        raise RangeCorrupt(id_, "cut short or not Parquet")
    return int.from_bytes(end[-8:-4], "little") + 8
