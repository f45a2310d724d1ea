"""Parquet files that name their kind and id, and whose readers notice every flipped bit (docs/formats/range.md).

The bytes before the footer are divided into *sections*; the footer carries their digests, and a digest of itself. So a
reader of a part hashes the footer and that part only, and every byte is in one of them. A constant column is made from
the footer, in a tenth of the time of decoding it.

The content digest, and not the seal, proves that the columns are those of the id. Ids are SHA-256 over the canonical
bytes of logical columns.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.base import Corrupt

__all__ = ["FileCorrupt", "KeyColumn", "chunk"]

MAGIC: Final = b"PAR1"
END_BYTES: Final = 8
"""The length of the footer, u32, and MAGIC."""
SALT: Final = "lakebed.salt"
SEAL: Final = "lakebed.seal"
_SEAL_DIGITS: Final = 64
NO_SEAL: Final = "0" * _SEAL_DIGITS

_CONSTANT: Final = "lakebed.constant"
_SECTIONS: Final = "lakebed.sections"
_CONSTANT_BYTES_MAX: Final = 256
_PAGE_HEADER_MAX: Final = 128
_SOME: Final = 2048

ObjectArray = npt.NDArray[np.object_]

_decode_constant = msgspec.json.Decoder(dict[str, str]).decode


class Kind(NamedTuple):
    """Describe one of our two kinds of files.

    `sections` are the columns with which the sections of a row group begin. `raw` is a column whose values
    are the end of its section, as they lie in memory. `dictionaries` may hold few values, and `constants` may hold one.
    """

    name: str
    version: int
    schema: pa.Schema
    encodings: dict[str, str]
    dictionaries: tuple[str, ...]
    constants: tuple[str, ...]
    compressed: tuple[str, ...]
    sections: tuple[str, ...]
    raw: str | None
    sorted_by: str
    group_rows: int
    error: type[FileCorrupt]

    @property
    def format(self) -> str:
        return f"{self.name} {self.version}"


class FileCorrupt(Corrupt):
    """A file of a tree is missing, cut short, altered, of a later format, or has another id than its name says."""

    kind = "file"

    def __init__(self, id_: str, reason: str, /, **facts: object) -> None:
        super().__init__(f"{self.kind} {id_}: {reason}", **{**facts, f"{self.kind}_id": id_, "reason": reason})
        self.id = id_
        self.reason = reason

    def in_namespace(self, uri: str) -> FileCorrupt:
        """Return the same error with the storage namespace among its facts."""
        named = type(self)(self.id, self.reason, **{**self.facts, "namespace": uri})
        named.args = (f"{self.args[0]} (in {uri})",)
        return named


class _Group(NamedTuple):
    """Describe a row group: its rows, and the start, length and digest of each of its sections."""

    rows: int
    sections: list[tuple[int, int, bytes]]


def write_sealed(kind: Kind, id_: str, table: pa.Table, facts: Mapping[str, str]) -> bytes:
    """Write the file. Its bytes depend on the version of pyarrow, its id does not."""
    constant = {name: value for name in kind.constants if (value := _only_value(chunk(table, name))) is not None}
    groups = range(0, table.num_rows, kind.group_rows)
    no_sections = "0" * (-(-len(groups) * _group_layout(kind).size // 3) * 4)
    table = _with_dictionaries(table, constant)
    compressed = {*kind.compressed} - {*constant}
    sink = pa.BufferOutputStream()
    collected: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        sink,
        table.schema,
        version="2.6",
        compression={name: "zstd" if name in compressed else "none" for name in kind.schema.names},
        use_dictionary=[name for name in kind.schema.names if name in kind.dictionaries or name in constant],
        column_encoding={name: encoding for name, encoding in kind.encodings.items() if name not in constant},
        write_statistics=[kind.sorted_by],
        sorting_columns=[pq.SortingColumn(kind.schema.get_field_index(kind.sorted_by))],
        store_schema=False,
        write_page_checksum=True,
        metadata_collector=collected,
    ) as writer:
        writer.write_table(table, row_group_size=kind.group_rows)
        constants = msgspec.json.encode(constant).decode()
        own = {"lakebed.format": kind.format, "lakebed.id": id_, _CONSTANT: constants, _SECTIONS: no_sections}
        writer.add_key_value_metadata({**own, **facts, SEAL: NO_SEAL})
    return _sealed(kind, id_, memoryview(sink.getvalue()).cast("B"), collected[0], table)


def _sealed(kind: Kind, id_: str, data: memoryview, metadata: pq.FileMetaData, table: pa.Table) -> bytes:
    """Fill in the sections and the seal of a file."""
    body_bytes = len(data) - footer_bytes(kind, id_, data[-8:].tobytes())
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    begin = [kind.schema.get_field_index(name) for name in kind.sections]
    starts = [_start_of(group.column(column)) for group in groups for column in begin]
    # The first section includes the magic, which stands before the first page.
    bounds = [0, *starts[1:], body_bytes] if starts else [body_bytes]
    facts: list[int | bytes] = []
    for number, group in enumerate(groups):
        facts.append(group.num_rows)
        for at in range(number * len(begin), (number + 1) * len(begin)):
            section = data[bounds[at] : bounds[at + 1]]
            facts += [len(section), hashlib.sha256(section).digest()]
    _check_raw(kind, data, bounds[1:], table, groups)
    footer = bytearray(data[body_bytes:])
    sections = base64.b64encode(struct.pack("<" + _group_layout(kind).format[1:] * len(groups), *facts))
    _fill(footer, _SECTIONS, sections)
    seal_at = footer.rindex(fact_mark(SEAL, len(NO_SEAL))) + len(fact_mark(SEAL, len(NO_SEAL)))
    _fill(footer, SEAL, seal_of(footer, seal_at))
    return b"".join((data[:body_bytes], footer))


def _check_raw(
    kind: Kind, data: memoryview, ends: Sequence[int], table: pa.Table, groups: Sequence[pq.RowGroupMetaData]
) -> None:
    """Check that `SealedFile.raw` will return the column. It does not ask Parquet for the place of the values."""
    if kind.raw is None:
        return
    values, position, row = chunk(table, kind.raw).to_numpy(), kind.sections.index(kind.raw), 0
    for end, group in zip(ends[position :: len(kind.sections)], groups, strict=True):
        expected = values[row : row + group.num_rows].tobytes()
        # Comparing views goes element by element, a hundred times slower.
        assert data[end - len(expected) : end].tobytes() == expected, "a column that is not plain"
        row += group.num_rows


class SealedFile:
    """Read a file whose footer holds, and check each section on its first read.

    Opening costs 20 µs, because the decoder opens only when a read needs it. Opening and any read may raise the kind's
    error.
    """

    def __init__(self, kind: Kind, id_: str, data: bytes) -> None:
        self._kind = kind
        self._id = id_
        self._data = data
        self.footer = footer = open_footer(kind, id_, data)
        self._groups = self._read_sections(fact_of(footer, _SECTIONS), len(data) - len(footer))
        self._checked: set[tuple[int, int]] = set()
        self._constants = fact_of(footer, _CONSTANT)
        self._constant = _decode_constant(self._constants)
        self.salt = fact_of(footer, SALT).decode()
        self.group_rows = [group.rows for group in self._groups]

    def section_digests(self, first_column: str) -> list[bytes]:
        """Return, for each row group, the digest of the section that begins with this column."""
        number = self._kind.sections.index(first_column)
        return [group.sections[number][2] for group in self._groups]

    def group_names(self) -> list[bytes]:
        """Return for each row group 32 bytes that name its rows: groups with one name hold the same rows.

        They digest the digests of its sections, and the constants, which a reader takes from the footer.
        """
        return [
            hashlib.sha256(b"".join((digest for _, _, digest in group.sections)) + self._constants).digest()
            for group in self._groups
        ]

    def raw(self) -> npt.NDArray[np.int64]:
        """Return all values of the kind's raw column without the decoder. Costs no more than hashing them."""
        assert self._kind.raw is not None
        number = self._kind.sections.index(self._kind.raw)
        parts = [self._section(group, number)[-8 * rows :] for group, rows in enumerate(self.group_rows)]
        return np.frombuffer(b"".join(parts), np.int64)

    def first_values(self, width: int) -> bytes | None:
        """Return the values of the first column, of this many bytes each, one behind the other, without the decoder.

        None where they do not lie as our writer puts the values of a plain column on one page. All sections of the row
        group are checked. Where the values are is a guess: the caller must prove what it reads by the id.
        """
        if len(self.group_rows) != 1:
            return None
        rows = self.group_rows[0]
        parts = [self._section(0, number) for number in range(len(self._kind.sections))]
        # Parquet puts before each value its length, and before the first of them the header of a page.
        start = parts[0][:_PAGE_HEADER_MAX].tobytes().find(struct.pack("<I", width), len(MAGIC))
        if start < 0 or start + rows * (4 + width) > len(parts[0]):
            return None
        values = np.frombuffer(parts[0], np.uint8, rows * (4 + width), start).reshape(rows, 4 + width)
        if (values[:, :4] != values[0, :4]).any():
            return None
        return values[:, 4:].tobytes()

    def read(
        self,
        columns: Sequence[str] | None = None,
        groups: Sequence[int] | None = None,
        rows: npt.NDArray[np.int64] | None = None,
    ) -> pa.Table:
        """Read columns of row groups (None: all of them), in the order asked for, each in one chunk.

        With `rows`, return only the rows at these positions of the joined groups.
        """
        schema = self._kind.schema if columns is None else _schema_of(self._kind.schema, tuple(columns))
        found = self._decode(columns, range(len(self._groups)) if groups is None else groups)
        if rows is not None:
            found = found.take(pa.array(rows))
        arrays = [
            _repeated(self._constant[name], self._kind.schema.field(name).type, found.num_rows)
            if name in self._constant
            else chunk(found, name)
            for name in schema.names
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def groups_of(self, value: bytes) -> range:
        """Return the row group that holds the first value of the sorted column that is not before this one.

        Each group's last value is in the footer. All groups where a last value is so long that Parquet left it out.
        None of them where all values are smaller.
        """
        column, metadata = self._kind.schema.get_field_index(self._kind.sorted_by), self._decoder.metadata
        for group in range(len(self._groups)):
            statistics = metadata.row_group(group).column(column).statistics
            if statistics is None or not statistics.has_min_max:
                return range(len(self._groups))
            if statistics.max >= value:
                return range(group, group + 1)
        return range(0)

    def values(self, groups: Sequence[int], rows: Sequence[int]) -> list[list[Any]]:
        """Return, for every column in order, the values at these positions in these row groups.

        For a few values this takes half the time of a table.
        """
        found = self._decode(None, groups)
        columns: list[list[Any]] = []
        for name in self._kind.schema.names:
            if name in self._constant:
                columns.append(
                    _repeat(self._constant[name], self._kind.schema.field(name).type, 1).to_pylist() * len(rows)
                )
            else:
                values = chunk(found, name)
                columns.append([values[row].as_py() for row in rows])
        return columns

    def _decode(self, columns: Sequence[str] | None, groups: Sequence[int]) -> pa.Table:
        """Decode the stored columns, in the file's order."""
        needed = range(len(self._kind.sections)) if columns is None else {_section_of(self._kind, n) for n in columns}
        for group in groups:
            for number in needed:
                self._section(group, number)
        names = self._kind.schema.names if columns is None else columns
        stored = [name for name in names if name not in self._constant]
        try:
            found = self._decoder.read_row_groups([*groups], stored, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise self._kind.error(self._id, f"cannot be decoded: {error}") from error
        count = sum([self.group_rows[group] for group in groups])
        if found.num_rows != count:
            raise self._kind.error(self._id, f"{found.num_rows} rows instead of {count}")
        return found

    def _section(self, group: int, number: int) -> memoryview:
        """Return a section's bytes after a check that they are those that were written."""
        start, length, digest = self._groups[group].sections[number]
        section = memoryview(self._data)[start : start + length]
        if (group, number) not in self._checked:
            if hashlib.sha256(section).digest() != digest:
                raise self._kind.error(self._id, f"the bytes from {start} on contradict their digest")
            self._checked.add((group, number))
        return section

    @cached_property
    def _decoder(self) -> pq.ParquetFile:
        try:
            file = pq.ParquetFile(pa.BufferReader(self._data), pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise self._kind.error(self._id, f"not a Parquet file: {error}") from error
        if not file.schema_arrow.equals(self._kind.schema):
            raise self._kind.error(self._id, "its columns are not those of the format")
        return file

    def _read_sections(self, text: bytes, body_bytes: int) -> list[_Group]:
        groups, start = [], 0
        for rows, *facts in _group_layout(self._kind).iter_unpack(base64.b64decode(text)):
            sections = []
            for length, digest in zip(facts[::2], facts[1::2], strict=True):
                sections.append((start, length, digest))
                start += length
            groups.append(_Group(rows, sections))
        if start != body_bytes:
            raise self._kind.error(self._id, f"cut short: {body_bytes} bytes before the footer instead of {start}")
        return groups


@lru_cache(64)
def _schema_of(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _repeated(value: str, type_: pa.DataType, count: int) -> pa.Array:
    return _some(value, type_).slice(0, count) if count <= _SOME else _repeat(value, type_, count)


@lru_cache(16)
def _some(value: str, type_: pa.DataType) -> pa.Array:
    """Return `_SOME` times this value as an array, cached: most reads are small, and of the same few values."""
    return _repeat(value, type_, _SOME)


def _repeat(value: str, type_: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value).cast(type_), count)


def _section_of(kind: Kind, column: str) -> int:
    """Return the number of the section that holds a column."""
    names: list[str] = kind.schema.names
    return sum([names.index(first) <= names.index(column) for first in kind.sections]) - 1


def _group_layout(kind: Kind) -> struct.Struct:
    return struct.Struct("<I" + "I32s" * len(kind.sections))


def _fill(footer: bytearray, name: str, text: bytes) -> None:
    """Replace the text of a fact by one of the same length."""
    mark = fact_mark(name, len(text))
    at = footer.rindex(mark) + len(mark)
    footer[at : at + len(text)] = text


def _start_of(column: pq.ColumnChunkMetaData) -> int:
    start: int = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    return start


def _only_value(array: pa.Array) -> str | None:
    """Return the value that every row holds, or None. It must be text that is short enough for the footer."""
    offsets, data = text_buffers(array)
    length = int(offsets[1] - offsets[0])
    if length * len(array) != offsets[-1] - offsets[0] or length > _CONSTANT_BYTES_MAX:
        return None
    if not length:
        return ""
    values = np.frombuffer(data, np.uint8).reshape(len(array), length)
    # Most columns with several values have different ones at their two ends.
    if (values[0] != values[-1]).any() or (np.diff(offsets) != length).any() or (values != values[0]).any():
        return None
    return bytes(values[0]).decode() if pa.types.is_string(array.type) else None


def _with_dictionaries(table: pa.Table, constant: Mapping[str, str]) -> pa.Table:
    """Return the table with its constant columns as dictionaries of one value, which spares the writer the search."""
    for name in constant:
        place, value = table.schema.get_field_index(name), chunk(table, name).slice(0, 1)
        column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(table.num_rows, np.int8)), value)
        table = table.set_column(place, pa.field(name, column.type, nullable=False), column)
    return table


# Buffers are hashed as they lie in memory.
assert sys.byteorder == "little"


def digest_columns(title: bytes, table: pa.Table) -> str:
    """Digest a table into 64 hex digits. Costs about 0.1 ms for a thousand entries of 140 bytes."""
    # The row count comes first and each column says its own lengths, so no two different tables have the same bytes.
    # Never hash Parquet or Arrow IPC bytes instead: equal tables differ there by history and by library version.
    digest = hashlib.sha256(title)
    digest.update(table.num_rows.to_bytes(8, "little"))
    for name in table.column_names:
        for part in _canonical(chunk(table, name)):
            digest.update(part)
    return digest.hexdigest()


def _canonical(array: pa.Array) -> list[memoryview]:
    assert array.null_count == 0
    if not len(array):
        return []
    if not pa.types.is_binary(array.type) and not pa.types.is_string(array.type):
        width = array.type.bit_width // 8
        return [memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]]
    offsets, data = text_buffers(array)
    # For a short column `np.diff` takes ten times as long.
    return [memoryview((offsets[1:] - offsets[:-1]).tobytes()), data]


def footer_bytes(kind: Kind, id_: str, end: bytes) -> int:
    """Return the size of the footer at the end of the file, from the last 8 bytes or more.

    Raises:
        FileCorrupt: the bytes are not the end of a Parquet file.
    """
    if len(end) < END_BYTES or end[-4:] != MAGIC:
        raise kind.error(id_, f"cut short or not Parquet ({len(end)} bytes)")
    return int.from_bytes(end[-END_BYTES:-4], "little") + END_BYTES


def open_footer(kind: Kind, id_: str, end: bytes) -> bytes:
    """Return the footer, from the whole file or any end that holds the footer, after a check of seal, format and id.

    Raises:
        FileCorrupt: the file is cut short, altered, of another kind, of a later version, or has another id.
    """
    size = footer_bytes(kind, id_, end)
    if size > len(end):
        raise kind.error(id_, f"cut short: {len(end)} bytes of a footer of {size}")
    footer = end[-size:]
    at = footer.rfind(fact_mark(SEAL, _SEAL_DIGITS))
    if at < 0:
        raise kind.error(id_, "no seal")
    at += len(fact_mark(SEAL, _SEAL_DIGITS))
    if seal_of(footer, at) != footer[at : at + _SEAL_DIGITS]:
        raise kind.error(id_, "the bytes contradict the seal")
    _check_facts(kind, id_, footer)
    return footer


def salted(title: bytes, salt: str) -> bytes:
    """Return the title line of an id's canonical bytes. The same content with another salt has another id."""
    return title + f"salt {salt}\n".encode() if salt else title


def salt_facts(salt: str) -> dict[str, str]:
    """Return the facts that a footer holds of a salt."""
    return {SALT: salt} if salt else {}


def seal_of(footer: bytes | bytearray, at: int) -> bytes:
    """Return the seal that a footer must have, where the seal's digits begin at the byte `at`."""
    view = memoryview(footer)
    digest = hashlib.sha256(view[:at])
    digest.update(NO_SEAL.encode())
    digest.update(view[at + _SEAL_DIGITS :])
    return digest.hexdigest().encode()


def fact_of(footer: bytes, name: str) -> bytes:
    """Return the text of a fact; empty where the footer has none."""
    # A parser of Thrift is forty times as slow, and has no defined behaviour on an altered footer.
    mark = name.encode() + b"\x18"
    # Take the last one: only statistics could hold such bytes too, and key-value metadata stands behind them.
    at = footer.rfind(mark) + len(mark)
    if at < len(mark):
        return b""
    length = shift = 0
    for byte in footer[at : at + 5]:
        at += 1
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return footer[at : at + length]


def fact_mark(name: str, length: int) -> bytes:
    """Return the bytes before the text of a fact in Thrift's compact protocol: the name, then field 2 of type binary,
    and its length."""
    digits = []
    while length > 127:
        digits.append(length & 127 | 128)
        length >>= 7
    return name.encode() + b"\x18" + bytes([*digits, length])


def _check_facts(kind: Kind, id_: str, footer: bytes) -> None:
    name, _, version = fact_of(footer, "lakebed.format").decode(errors="replace").partition(" ")
    if name != kind.name or not version.isdigit():
        raise kind.error(id_, f"not a {kind.name} of Lakebed")
    if int(version) != kind.version:
        raise kind.error(id_, f"format {version}, and this release reads {kind.version}", format=int(version))
    found = fact_of(footer, "lakebed.id").decode(errors="replace")
    if found != id_:
        raise kind.error(id_, f"the file was written as {found}", found_id=found)


# Columns that were read


def chunk(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one contiguous array, without a copy where it is one already."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def object_array(column: pa.ChunkedArray) -> ObjectArray:
    """Return a binary column as an array of Python bytes: sortable, searchable, and cheap to index."""
    values: ObjectArray = column.to_numpy()
    return values


def text_buffers(array: pa.Array) -> tuple[npt.NDArray[np.int32], memoryview]:
    """Return offsets and bytes of a column of strings or bytes with at least one row.

    The offsets say where each value starts, and where the last one ends. The first need not be 0.
    """
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets, memoryview(data if data is not None else b"")[int(offsets[0]) : int(offsets[-1])]


COARSE: Final = 32
COARSE_FROM: Final = 64


class KeyColumn(Sequence[bytes]):
    """Read a binary column by position, for `bisect`, in a tenth of the time that Arrow scalars take."""

    __slots__ = ("_coarse", "_data", "_length", "_offsets")

    def __init__(self, array: pa.Array) -> None:
        _, offsets, data = array.buffers()
        self._length = len(array)
        self._offsets = memoryview(offsets).cast("B").cast("i")[array.offset : array.offset + len(array) + 1]
        self._data = memoryview(data).cast("B") if data is not None else memoryview(b"")
        self._coarse: list[bytes] | None = None

    def position(self, key: bytes) -> int:
        """Count the values that are smaller, where they ascend.

        The first call makes objects of every 32nd value, or of all where they are few. Searching among those first
        takes a third of the time.
        """
        step = 1 if self._length <= COARSE_FROM else COARSE
        coarse = self._coarse
        if coarse is None:
            coarse = self._coarse = [self[at] for at in range(0, self._length, step)]
        behind = bisect_left(coarse, key)
        if step == 1 or not behind:
            return behind
        return bisect_left(self, key, (behind - 1) * step + 1, min(behind * step, self._length))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._data[self._offsets[index] : self._offsets[index + 1]].tobytes()
