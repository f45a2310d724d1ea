"""Decode files in Avro that any writer of a table may have made: manifests, and lists of manifests.

Each step takes a byte of the decompressed file, and no step leaves it. `Budget` limits these bytes and the records by
the size of the file as it is stored. So time and memory follow that size, whatever the file says of its records. The
library's decoder has no such rule: it reads memory behind the end, and counts to 2^60 where items have no bytes. It
gets a file only after `checked` walked all of it.

    fields without bytes (null, an empty record, fixed of size 0)   take no step
    arrays of such items, and schemas that nest deeply              are refused
    a named record that is used again                               is refused: a short schema could be endless
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec

from lakebed.base import name_in_words

from .metadata import InvalidTable, refusing

DECODED_BYTES_MAX: Final = 256 << 20
"""The size of a file when it is decompressed."""
RATIO_MAX: Final = 128
"""Decompressed bytes for each byte of a file.

Manifests have up to 20 where files differ in size and rows, and 100 where only the paths differ."""
FREE_BYTES: Final = 1 << 20
FREE_RECORDS: Final = 10_000
"""Decompressed bytes and records that files may have beyond what their sizes allow, once for all of them together."""
HEADER_ENTRIES_MAX: Final = 100
"""Engines write up to ten."""
DEPTH_MAX: Final = 32
SCHEMA_BYTES_MAX: Final = 1 << 20
"""Engines write one for each table, of some KiB."""
_KEPT_SCHEMA_BYTES_MAX: Final = 64 << 10
_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_ONE_BYTE_MAX: Final = 0x7F
"""A number of one byte is at most this. Others go on where the highest bit is set."""
_LAST_SHIFT: Final = 63
"""The place of the last bit of a number: its tenth byte has no other."""
_AT_ONCE: Final = 1024
"""Numbers that one match skips, at most."""

Skip: TypeAlias = Callable[[bytes, int], int]
"""Return the place behind the value at a place. Where the value does not end in the data, it raises an error."""
Load: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Return the value at a place, and the place behind it."""


class Malformed(ValueError):
    """The file breaks a rule of this module, or one of Avro. The message says which, and nothing of the file."""


def words_of(error: Exception) -> str:
    """Return what is wrong with a file. Errors of other classes may have any of its bytes in their messages."""
    return str(error) if isinstance(error, Malformed) else name_in_words(type(error))


class Budget:
    """Count what files decode to, of all that one operation reads. A file gives as much as its size allows.

    Each may have RATIO_MAX bytes, decompressed, and one record for each of its bytes: a path alone takes more.
    """

    def __init__(self) -> None:
        self.left_bytes = FREE_BYTES
        self._records = FREE_RECORDS

    def add(self, file_bytes: int) -> None:
        self.left_bytes += RATIO_MAX * file_bytes
        self._records += file_bytes

    def take(self, uri: str, block_bytes: int, records: int) -> None:
        """
        Raises:
            InvalidTable: that is more than is left.
        """
        self.left_bytes -= block_bytes
        self._records -= records
        if min(self.left_bytes, self._records) < 0:
            raise InvalidTable(f"{uri} decompresses to far more than its size", uri=uri)


def rows(
    uri: str, data: bytes, fields: Sequence[int] = (), *, within: int = -1, budget: Budget | None = None
) -> Iterator[list[Any]]:
    """Yield the values that records have in these fields, named by their ids. None: the file or the record has none.

    They are fields of the record, or of the record in its field `within`. `budget`: of several files together.

    Raises:
        InvalidTable: the file has more than DECODED_BYTES_MAX, decompressed, or than the budget.
        Exception: the file is malformed.
    """
    header = _header(data)
    of = _record if len(header.schema) <= _KEPT_SCHEMA_BYTES_MAX else _record.__wrapped__
    record = of(header.schema, tuple(fields), within)
    for count, block in _blocks(uri, data, header, budget or Budget()):
        at = 0
        for _ in range(count):
            values: list[Any] = [None] * len(fields)
            at = record(block, at, values)
            yield values
        _check(at == len(block), "a block is longer than its records")


def checked(uri: str, data: bytes) -> bytes:
    """Return the same records as a file that the library can decode: not compressed, and each value ends inside.

    Raises:
        InvalidTable: it has more than DECODED_BYTES_MAX or its budget, or is malformed, or the library would read
            another number of bytes than Avro has for a type.
    """
    with refusing(f"{uri} cannot be read", words=words_of, uri=uri):
        header = _header(data)
        skip_records = _many(_Schema(is_for_library=True).skip(msgspec.json.decode(header.schema)))
        settings = (b"avro.schema", header.schema, b"avro.codec", b"null")
        found = [_MAGIC, _long(2), *map(_text, settings), _long(0), header.sync]
        for count, block in _blocks(uri, data, header, Budget()):
            _check(skip_records(block, 0, count) == len(block), "a block is longer than its records")
            found += [_long(count), _text(block), header.sync]
        return b"".join(found)


# The frame of a file


@dataclass(frozen=True, slots=True)
class _Header:
    schema: bytes
    codec: bytes
    sync: bytes
    end: int


def _header(data: bytes) -> _Header:
    _check(data.startswith(_MAGIC), "this is no file in Avro")
    at, found, entries = len(_MAGIC), {}, 0
    count, at = _read_long(data, at)
    while count:
        if count < 0:
            count, (_, at) = -count, _read_long(data, at)
        entries += count
        _check(entries <= HEADER_ENTRIES_MAX, "the header has too many entries")
        for _ in range(count):
            name, at = _read_bytes(data, at)
            found[name], at = _read_bytes(data, at)
        count, at = _read_long(data, at)
    end = at + _SYNC_BYTES
    _check(end <= len(data), "the file ends in its header")
    _check(len(found[b"avro.schema"]) <= SCHEMA_BYTES_MAX, "the schema is too large")
    return _Header(found[b"avro.schema"], found.get(b"avro.codec", b"null"), data[at:end], end)


def _blocks(uri: str, data: bytes, header: _Header, budget: Budget) -> Iterator[tuple[int, bytes]]:
    """Yield the number of records and the decompressed bytes of each block."""
    at, left = header.end, DECODED_BYTES_MAX
    budget.add(len(data))
    while at < len(data):
        count, at = _read_long(data, at)
        packed, at = _read_bytes(data, at)
        block = _decompressed(header.codec, packed, min(left, budget.left_bytes))
        left -= len(block)
        if left < 0:
            raise InvalidTable(f"{uri} has more than {DECODED_BYTES_MAX:,} bytes, decompressed", uri=uri)
        budget.take(uri, len(block), min(count, len(block)))
        _check(0 <= count <= len(block), "a block has more records than bytes")
        _check(data[at : at + _SYNC_BYTES] == header.sync, "a block does not end with the file's mark")
        at += _SYNC_BYTES
        yield count, block


def _decompressed(codec: bytes, data: bytes, size_bytes: int) -> bytes:
    """Return the bytes of a block; of more than `size_bytes`, only the first ones, and at least one too many."""
    if codec == b"null":
        return data
    if codec == b"deflate":
        return _inflated(data, size_bytes)
    if codec == b"zstandard":
        from zstandard import ZstdDecompressor

        with ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            return reader.read(size_bytes + 1)
    raise Malformed("the codec is none of null, deflate and zstandard")


def _inflated(data: bytes, size_bytes: int) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    block = inflater.decompress(data, size_bytes + 1)
    if len(block) <= size_bytes:
        _check(inflater.eof, "a block ends before its data")
        # PyIceberg and Avro's own package for Python cut only the last byte of the checksum that zlib adds.
        checksum = zlib.adler32(block).to_bytes(4, "big")
        _check(inflater.unused_data in {b"", checksum[:3], checksum}, "a block goes on behind its data")
    return block


# Values


def _check(holds: bool, words: str) -> None:
    if not holds:
        raise Malformed(words)


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    number = data[at]
    at += 1
    if number > _ONE_BYTE_MAX:
        number, shift = number & 0x7F, 7
        while True:
            byte = data[at]
            at += 1
            _check(shift < _LAST_SHIFT or byte <= 1, "a number has more than 64 bits")
            number |= (byte & 0x7F) << shift
            if byte <= _ONE_BYTE_MAX:
                break
            shift += 7
    return (number >> 1) ^ -(number & 1), at


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_long(data, at)
    if not 0 <= size <= len(data) - at:
        raise Malformed("a value does not end in the file")
    return data[at : at + size], at + size


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    text, at = _read_bytes(data, at)
    return text.decode(), at


def _long(number: int) -> bytes:
    number, found = number << 1, bytearray()
    while number > _ONE_BYTE_MAX:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _text(data: bytes) -> bytes:
    return _long(len(data)) + data


# Schemas


@dataclass(frozen=True, slots=True)
class _Longs:
    """Skip values that are this many numbers, whatever they mean."""

    count: int

    def __call__(self, data: bytes, at: int) -> int:
        return skip_longs(data, at, self.count)


def skip_longs(data: bytes, at: int, count: int) -> int:
    while count:
        step = min(count, _AT_ONCE)
        match = _numbers(step).match(data, at)
        if match is None:
            raise Malformed("a number does not end in the file")
        at, count = match.end(), count - step
    return at


@lru_cache(maxsize=2 * _AT_ONCE)
def _numbers(count: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?>(?:[\x80-\xff]{0,9}+[\x00-\x7f]){%d})" % count, re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Skip values of this many bytes."""

    size: int

    def __call__(self, data: bytes, at: int) -> int:
        _check(self.size <= len(data) - at, "a value does not end in the file")
        return at + self.size


def _skip_bytes(data: bytes, at: int) -> int:
    return _read_bytes(data, at)[1]


def _skip_pairs(data: bytes, at: int, count: int) -> int:
    """Skip numbers that are followed by bytes, as the bounds of columns: most of a manifest."""
    for _ in range(count):
        while data[at] > _ONE_BYTE_MAX:
            at += 1
        twice = data[at + 1]
        at = _skip_bytes(data, at + 1) if twice > _ONE_BYTE_MAX or twice & 1 else at + 2 + (twice >> 1)
    return at


@dataclass(frozen=True, slots=True)
class _Joined:
    """Skip values in a row."""

    steps: tuple[Skip, ...]

    def __call__(self, data: bytes, at: int) -> int:
        for step in self.steps:
            at = step(data, at)
        return at


_SKIPS: Final[dict[str, Skip | None]] = {
    "null": None,
    "boolean": _Fixed(1),
    "int": _Longs(1),
    "long": _Longs(1),
    "float": _Fixed(4),
    "double": _Fixed(8),
    "bytes": _skip_bytes,
    "string": _skip_bytes,
}
_LOADS: Final[dict[str, Load]] = {"int": _read_long, "long": _read_long, "string": _read_text}


class _Schema:
    """Make functions from a schema. `is_for_library`: refuse what the library decodes in another way."""

    def __init__(self, *, is_for_library: bool) -> None:
        self._is_for_library = is_for_library
        self._fixed: dict[str, int] = {}

    def skip(self, schema: Any, depth: int = 0) -> Skip | None:
        """Return the function that skips a value; None if values have no bytes."""
        _check(depth < DEPTH_MAX, "the schema nests too deeply")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            _check(schema in self._fixed or schema in _SKIPS, "the schema uses a name that it does not define")
            return _sized(self._fixed[schema]) if schema in self._fixed else _SKIPS[schema]
        kind = schema["type"]
        if self._is_for_library:
            _check_library(schema)
        if not isinstance(kind, str):
            return self.skip(kind, depth + 1)
        if kind == "record":
            return _joined([self.skip(field["type"], depth + 1) for field in schema["fields"]])
        if kind == "array":
            return _items(self.skip(schema["items"], depth + 1))
        if kind == "map":
            return _items(_joined([_skip_bytes, self.skip(schema["values"], depth + 1)]))
        if kind == "fixed":
            return _sized(self._named(schema))
        return _SKIPS["int" if kind == "enum" else kind]

    def _named(self, schema: dict[str, Any]) -> int:
        """Note the size of a fixed type: the schema may use it again, by the name that it has here."""
        name, size = schema["name"], int(schema["size"])
        names = (name, f"{schema['namespace']}.{name}") if schema.get("namespace") else (name,)
        for each in names:
            _check(each not in _SKIPS and self._fixed.setdefault(each, size) == size, "two types have the same name")
        return size

    def _union(self, branches: list[Any], depth: int) -> Skip:
        _check(not self._is_for_library or (len(branches) == 2 and branches[0] == "null"), "no optional value")
        skips = [self.skip(branch, depth + 1) for branch in branches]

        def skip(data: bytes, at: int) -> int:
            twice = data[at]
            if twice & 1 or twice >= 2 * len(skips) or twice > _ONE_BYTE_MAX:
                raise Malformed("a union has no such branch")
            branch = skips[twice >> 1]
            return at + 1 if branch is None else branch(data, at + 1)

        return skip

    def load(self, schema: Any) -> Load:
        """Return the function that reads a value: a number, a text, or an optional one."""
        if isinstance(schema, list):
            loads = [None if branch == "null" else self.load(branch) for branch in schema]

            def load(data: bytes, at: int) -> tuple[Any, int]:
                number, at = _read_long(data, at)
                _check(0 <= number < len(loads), "a union has no such branch")
                branch = loads[number]
                return (None, at) if branch is None else branch(data, at)

            return load
        return _LOADS[schema if isinstance(schema, str) else schema["type"]]


def _sized(size: int) -> Skip | None:
    _check(size >= 0, "a size is negative")
    return _Fixed(size) if size else None


def _joined(skips: Sequence[Skip | None]) -> Skip | None:
    """Return one function for values in a row. Numbers in a row become one step, and so do values of a known size."""
    steps: list[Skip] = []
    for skip in skips:
        last = steps[-1] if steps else None
        if isinstance(skip, _Longs) and isinstance(last, _Longs):
            steps[-1] = _Longs(last.count + skip.count)
        elif isinstance(skip, _Fixed) and isinstance(last, _Fixed):
            steps[-1] = _Fixed(last.size + skip.size)
        elif skip is not None:
            steps.append(skip)
    if len(steps) < 2:
        return steps[0] if steps else None
    return _Joined(tuple(steps))


def _many(item: Skip | None) -> Callable[[bytes, int, int], int]:
    """Return a function that skips a number of values. The number costs nothing to write, so each must have a byte."""
    if item is None:
        raise Malformed("values without bytes are counted")
    if isinstance(item, _Longs):
        return lambda data, at, count: skip_longs(data, at, count * item.count)
    if isinstance(item, _Joined) and item.steps == (_Longs(1), _skip_bytes):
        return _skip_pairs

    def skip(data: bytes, at: int, count: int) -> int:
        for _ in range(count):
            at = item(data, at)
        return at

    return skip


def _items(item: Skip | None) -> Skip:
    """Return a function for arrays."""
    skip_items = _many(item)

    def skip(data: bytes, at: int) -> int:
        while count := data[at]:
            count, at = _read_long(data, at)
            size, start = -1, at
            if count < 0:
                count, (size, start) = -count, _read_long(data, at)
            at = start
            if count > len(data) - at:
                raise Malformed("an array has more items than bytes")
            at = skip_items(data, at, count)
            if size >= 0 and at != start + size:
                raise Malformed("the items of an array have another size")
        return at + 1

    return skip


def _check_library(schema: dict[str, Any]) -> None:
    """Refuse types of which the library takes another number of bytes."""
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "map":
        names = [field["name"] for field in schema["items"]["fields"]]
        _check(kind == "array" and names == ["key", "value"], "no map")
    elif logical == "uuid":
        _check(kind == "fixed" and schema["size"] == 16, "no uuid")
    elif logical == "decimal":
        from pyiceberg.utils.decimal import decimal_required_bytes

        _check(kind == "fixed" and schema["size"] == decimal_required_bytes(schema["precision"]), "no decimal")
    elif logical is not None:
        _check(kind in {"int", "long"}, "no date or time")


@lru_cache(maxsize=64)
def _record(schema: bytes, fields: tuple[int, ...], within: int) -> Callable[[bytes, int, list[Any]], int]:
    """Return a function that fills in the values of fields. To make one takes as long as to read a hundred records."""
    of = _Schema(is_for_library=False)
    places = {field: place for place, field in enumerate(fields)}

    def fields_of(record: dict[str, Any], *, is_inner: bool = False) -> Iterator[tuple[int, Any]]:
        """Yield the place and the type of each field, or those in the field `within`. Below 0: it is not wanted."""
        _check(record["type"] == "record", "the schema is no record")
        for field in record["fields"]:
            kind, id_ = field["type"], field.get("field-id")
            if id_ == within and isinstance(kind, dict) and not is_inner:
                yield from fields_of(kind, is_inner=True)
            else:
                yield places.get(id_, -1), kind

    steps: list[tuple[int, Any]] = []
    for place, group in groupby(fields_of(msgspec.json.decode(schema)), key=itemgetter(0)):
        if place >= 0:
            steps += [(place, of.load(kind)) for _, kind in group]
        elif skip := _joined([of.skip(kind, 1) for _, kind in group]):
            steps.append((-1, skip))
    _check(bool(steps), "the records have no bytes")

    def read(data: bytes, at: int, values: list[Any]) -> int:
        for place, step in steps:
            if place < 0:
                at = step(data, at)
            else:
                values[place], at = step(data, at)
        return at

    return read
