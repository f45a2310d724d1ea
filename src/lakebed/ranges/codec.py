"""A range: some thousands of entries with neighbouring keys, in one immutable file (docs/formats/range.md).

Its id is the digest of its logical columns. The file is Parquet, so that Spark, DuckDB and people read it as it is.
Each step checks what it reads:

- Opening a file checks its footer: seal, format, id (`sealed.py`).
- Reading columns or row groups checks the sections that hold them, by the digests in the footer. A row group has
  three: the keys, the digests, and the rest. Sections that are not read are not checked.
- Decoding a whole range also computes the id anew from the columns. The cache does so on first load. Diffs, the
  rewriting of ranges and the search for a first key rely on the sections: a diff reads little of each file.
- `summary_of` needs the footer alone, which `read_end` finds.
"""

from __future__ import annotations

import base64
import struct
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, SEQUENCE_MAX, RangeId, Row

from .sealed import (
    FileCorrupt,
    KeyColumn,
    Kind,
    SealedFile,
    chunk,
    digest_columns,
    fact_of,
    footer_bytes,
    open_footer,
    salt_facts,
    salted,
    write_sealed,
)
from .view import ENTRIES_SCHEMA, rows_from_table

__all__ = [
    "RangeCorrupt",
    "RangeFile",
    "RangeInfo",
    "SliceSummary",
    "decode_range",
    "encode_range",
    "footer_size",
    "range_beginning",
    "range_key",
    "range_number",
    "read_end",
    "summary_of",
]

# The summary: one bitmap a slice, in the footer of a range, so the end of the file is enough to read it. Collectors OR
# bitmaps instead of reading rows (docs/design/0006-addresses-and-ranges.md). It only counts entries with a foreign
# address: where `foreign` is not zero, the collector must read the address column too.

VERSION: Final = 1
_HEAD: Final = struct.Struct("<IIQ")
_SLICE: Final = struct.Struct("<qIIII")
_SPARSE: Final = 0
_DENSE: Final = 1

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.uint32]


class SliceBitmap(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Hold the numbers of one slice that a range names.

    Either `words` has them, from `first_word` on, or the ascending `numbers`. The other one is None.
    """

    slice: int
    first_word: int
    words: Words | None
    numbers: Numbers | None

    def sequences(self) -> Numbers:
        """Return the numbers, ascending, each once."""
        if self.numbers is not None:
            return self.numbers
        assert self.words is not None
        bits = np.unpackbits(self.words.view(np.uint8), bitorder="little")
        return (np.flatnonzero(bits) + 64 * self.first_word).astype(np.uint32)

    @property
    def words_needed(self) -> int:
        """Return the number of words that a bitmap from word 0 needs to take this one in."""
        if self.words is not None:
            return self.first_word + len(self.words)
        assert self.numbers is not None
        return int(self.numbers[-1]) // 64 + 1

    def or_into(self, bitmap: Words) -> None:
        """Set our bits in a bitmap that starts at word 0 and has at least `words_needed` words."""
        if self.words is not None:
            bitmap[self.first_word : self.first_word + len(self.words)] |= self.words
            return
        assert self.numbers is not None
        bits = np.left_shift(np.uint64(1), (self.numbers & 63).astype(np.uint64))
        np.bitwise_or.at(bitmap, self.numbers >> 6, bits)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceSummary:
    """Hold bitmaps in ascending order of slice, and the number of entries with a foreign address."""

    bitmaps: tuple[SliceBitmap, ...]
    foreign: int


def summarise(entries: pa.Table) -> SliceSummary:
    """Summarise a table with the columns `slice` and `sequence`."""
    encoded = chunk(entries, "slice").dictionary_encode()
    slices, codes = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
    sequences = chunk(entries, "sequence").to_numpy()
    assert not len(sequences) or 0 <= sequences.min() <= sequences.max() <= SEQUENCE_MAX
    # One number for each address, in order of slice and then sequence: half the time of sorting by two columns.
    ascending = np.argsort(slices)
    ranks = np.empty(len(slices), dtype=np.int64)
    ranks[ascending] = np.arange(len(slices))
    places = ranks[codes] << 32 | sequences
    if (places[1:] < places[:-1]).any():
        # Objects written in the order of their paths, as bulk loads write them, need no sort.
        places = np.sort(places)
    ends = np.searchsorted(places, np.arange(1, len(slices) + 1) << 32).tolist()
    bitmaps, foreign = [], 0
    for slice_, start, end in zip(slices[ascending].tolist(), [0, *ends], ends, strict=False):
        if slice_ == FOREIGN_SLICE:
            foreign = end - start
        else:
            bitmaps.append(_bitmap(slice_, _unique(places[start:end].astype(np.uint32))))
    return SliceSummary(bitmaps=tuple(bitmaps), foreign=foreign)


def encode_summary(summary: SliceSummary) -> str:
    parts = [_HEAD.pack(VERSION, len(summary.bitmaps), summary.foreign)]
    items = [bitmap.numbers if bitmap.words is None else bitmap.words for bitmap in summary.bitmaps]
    for bitmap, values in zip(summary.bitmaps, items, strict=True):
        assert values is not None
        form = _SPARSE if bitmap.words is None else _DENSE
        parts.append(_SLICE.pack(bitmap.slice, form, bitmap.first_word, len(values), 0))
    parts += [values.tobytes() for values in items if values is not None]
    return base64.b64encode(b"".join(parts)).decode()


def decode_summary(text: bytes) -> SliceSummary:
    """Decode a summary. The caller names the file in its error.

    Raises:
        ValueError: the text is no summary, or one of a later version.
    """
    payload = base64.b64decode(text)
    if len(payload) < _HEAD.size:
        raise ValueError("no slice summary")
    version, count, foreign = _HEAD.unpack_from(payload)
    if version != VERSION:
        raise ValueError(f"slice summary of version {version}, and this release reads {VERSION}")
    bitmaps, start = [], _HEAD.size + count * _SLICE.size
    # Slices of one array of all items take half the time of an array for each bitmap.
    halves, at = np.frombuffer(payload, dtype="<u4", offset=start), 0
    for slice_, form, first_word, items, _ in _SLICE.iter_unpack(payload[_HEAD.size : start]):
        end = at + (2 * items if form == _DENSE else items)
        if end > len(halves):
            raise ValueError("the slice summary is cut short")
        values, words, numbers, at = halves[at:end], None, None, end
        if form == _DENSE:
            words = values.view(np.uint64)
        else:
            numbers = values
        bitmaps.append(SliceBitmap(slice=slice_, first_word=first_word, words=words, numbers=numbers))
    return SliceSummary(bitmaps=tuple(bitmaps), foreign=foreign)


def _bitmap(slice_: int, numbers: Numbers) -> SliceBitmap:
    first_word, last_word = int(numbers[0]) >> 6, int(numbers[-1]) >> 6
    if 8 * (last_word - first_word + 1) >= 4 * len(numbers):
        return SliceBitmap(slice=slice_, first_word=0, words=None, numbers=numbers)
    bits = np.zeros(64 * (last_word - first_word + 1), dtype=np.uint8)
    bits[numbers - np.uint32(64 * first_word)] = 1
    words = np.packbits(bits, bitorder="little").view("<u8")
    return SliceBitmap(slice=slice_, first_word=first_word, words=words, numbers=None)


def _unique(numbers: Numbers) -> Numbers:
    """Drop repeated numbers: two entries may share an object (a shallow copy)."""
    return numbers[np.concatenate(([True], numbers[1:] != numbers[:-1]))]


RANGE_TITLE: Final = b"lakebed range 2\n"
GROUP_ROWS: Final = 2048
"""Put this many rows into a row group, the least that a diff reads to show one entry. For 2,048, 4,096 and 8,192 rows
that takes 0.6, 0.9 and 1.5 ms; encoding takes 5.7, 5.5 and 5.0 ms, and 38.2, 37.7 and 37.3 bytes an entry."""

TAIL_BYTES: Final = 1 << 16
"""Read this much of a range's end at first: more than nearly every footer takes."""

_FEW: Final = 32
_SUMMARY: Final = "lakebed.slices"


class RangeCorrupt(FileCorrupt):
    """The file of a range is missing, cut short, altered, of a later format, or another range's.

    The fact `range_id` names it, `reason` says what is wrong, and `namespace` (where known) where it lies.
    """

    kind = "range"


class RangeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a range as its metarange does. `size_bytes` sums the sizes of its entries.

    `file_bytes` is the size of the file as its writer made it, for estimates only: another version of pyarrow may make
    a file of another size.
    """

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
    """Return the key of the file in the storage namespace."""
    return f"_lakefs/ranges/{id_}.parquet"


def range_number(id_: RangeId) -> int:
    """Return the first 64 bits of the id, as a signed number: a short name for tables of many rows."""
    return int.from_bytes(bytes.fromhex(id_[:16]), signed=True)


def range_beginning(number: int) -> str:
    """Return the beginning of the key of the range with this `range_number`."""
    return f"_lakefs/ranges/{number.to_bytes(8, signed=True).hex()}"


def encode_range(entries: pa.Table, *, salt: str = "") -> tuple[RangeInfo, bytes]:
    """Return the range of these entries (at least one, sorted, unique) and its file. Costs about 0.6 µs an entry.

    A `salt` makes another file with another id. The writer needs it where the id of the bare content was retired for
    ever (docs/design/protocols.md, "A collection of metadata").
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


def decode_range(id_: RangeId, data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the entries of a range, or these columns of them, after a check of all that is read.

    Without `columns` the id is also computed anew.

    Raises:
        RangeCorrupt: the data are not the range of that id, whole and unaltered.
    """
    file = RangeFile(id_, data)
    table = file.table(columns)
    if columns is None:
        found = digest_columns(salted(RANGE_TITLE, file.salt), table)
        if found != id_:
            raise RangeCorrupt(id_, f"its entries are those of range {found}", found_id=found)
    return table


class RangeFile:
    """Read parts of a range file. Opening and every read may raise RangeCorrupt."""

    def __init__(self, id_: RangeId, data: bytes) -> None:
        self._id = id_
        self._file = SealedFile(RANGE_KIND, id_, data)
        self.salt = self._file.salt
        self._ends = np.cumsum(self._file.group_rows)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def table(self, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None) -> pa.Table:
        """Return all entries, or those of some row groups, each column in one chunk."""
        return self._file.read(columns, groups)

    @property
    def group_rows(self) -> list[int]:
        """Return the number of entries of each row group."""
        return self._file.group_rows

    def group_names(self) -> list[bytes]:
        """Return for each row group 32 bytes: row groups of any two ranges with one name hold the same entries.

        Costs 2 µs each, for the footer has them.
        """
        return self._file.group_names()

    @cached_property
    def summary(self) -> SliceSummary:
        """Return what `summary_of` returns, from the footer that was read."""
        return _decode_summary(self._id, self._file.footer)

    @cached_property
    def digests(self) -> npt.NDArray[np.int64]:
        return self._file.raw()

    def find(self, start: bytes) -> tuple[int, bytes | None]:
        """Count the keys before `start`, and return the first one from there on; None where all are smaller.

        Reads the keys of one row group. The seal proves which group that is, and the digest of its section proves the
        keys.
        """
        groups = self._file.groups_of(start)
        keys = KeyColumn(chunk(self.table(["key"], groups), "key")) if groups else ()
        at = bisect_left(keys, start)
        if at == len(keys):
            return len(self), None
        return int(self._ends[groups[-1]]) - len(keys) + at, keys[at]

    def has_keys_of(self, other: RangeFile, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return, for each position, whether both files are known to have the same key there, without reading keys.

        Where no entry was added or removed before, the keys of a row group are the same bytes.
        """
        size = min(len(self._ends), len(other._ends))
        is_same = np.zeros(len(self._ends) + 1, np.bool_)
        is_same[:size] = [mine == theirs for mine, theirs in zip(self._key_sections, other._key_sections, strict=False)]
        is_same[:size] &= self._ends[:size] == other._ends[:size]
        known: npt.NDArray[np.bool_] = is_same[np.searchsorted(self._ends, rows, side="right")]
        return known

    @cached_property
    def _key_sections(self) -> list[bytes]:
        return self._file.section_digests("key")

    def between(self, start: int, stop: int) -> pa.Table:
        """Return the entries from a position to before another. Reads only their row groups."""
        first, last = np.searchsorted(self._ends, (start, stop - 1), side="right").tolist()
        table = self.table(None, range(first, last + 1))
        return table.slice(start - (int(self._ends[first - 1]) if first else 0), stop - start)

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the entries at these ascending positions, or some columns. Reads only their row groups."""
        if len(rows) == len(self):
            return self.table(columns)
        groups, rows = self._in_groups(rows)
        return self._file.read(columns, groups, rows)

    def rows_at(self, rows: npt.NDArray[np.int64]) -> list[tuple[bytes, Row]]:
        """Return (key, row) at these ascending positions. Reads as `take` does."""
        if len(rows) > _FEW:
            return rows_from_table(self.take(rows))
        if not len(rows):
            return []
        groups, rows = self._in_groups(rows)
        keys, *columns = self._file.values(groups, rows.tolist())
        return list(zip(keys, zip(*columns, strict=True), strict=True))

    def _in_groups(self, rows: npt.NDArray[np.int64]) -> tuple[list[int], npt.NDArray[np.int64]]:
        """Return the row groups that hold these rows, and the positions of the rows in those groups joined."""
        group_of = np.searchsorted(self._ends, rows, side="right")
        groups = np.flatnonzero(np.bincount(group_of))
        sizes = np.array(self._file.group_rows)
        shift = np.zeros(len(sizes), np.int64)
        shift[groups] = np.cumsum(sizes[groups]) - self._ends[groups]
        return groups.tolist(), rows + shift[group_of]


def summary_of(id_: RangeId, data: bytes) -> SliceSummary:
    """Return the slice summary, from the whole file or any end of it that holds the whole footer (`footer_size`).

    Raises:
        RangeCorrupt: the data are not the end of this range's file, or the summary was altered.
    """
    return _decode_summary(id_, open_footer(RANGE_KIND, id_, data))


def _decode_summary(id_: RangeId, footer: bytes) -> SliceSummary:
    try:
        return decode_summary(fact_of(footer, _SUMMARY))
    except ValueError as error:
        raise RangeCorrupt(id_, str(error)) from error


def footer_size(id_: RangeId, end: bytes) -> int:
    """Return the size of the footer at the end of the file, from the last 8 bytes or more.

    Raises:
        RangeCorrupt: the bytes are not the end of a Parquet file.
    """
    return footer_bytes(RANGE_KIND, id_, end)


async def read_end(id_: RangeId, file_bytes: int, read: Callable[[int], Awaitable[bytes]]) -> bytes:
    """Return an end of a file that holds its whole footer. Nearly always costs one read.

    `read` returns the file from a byte on. `file_bytes` is the size in the metarange, which may be wrong.

    Raises:
        RangeCorrupt: the file is not Parquet.
    """
    start = max(0, file_bytes - TAIL_BYTES)
    end = await read(start)
    if start and (len(end) < 8 or footer_size(id_, end[-8:]) > len(end)):
        end = await read(0)
    return end
