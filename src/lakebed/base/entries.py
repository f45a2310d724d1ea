"""The value of a path: an `Entry`, and the `Row` in which cells and ranges hold it.

A row is a flat tuple, because a commit moves hundreds of thousands of them. A msgpack array decodes into it in a
third of a microsecond, and `zip(*rows)` turns a page of them into columns. An `Entry` has the same facts with names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from .addresses import FOREIGN_SLICE, format_address, parse_address
from .errors import Invalid

SIZE_BYTES_MAX: Final = (1 << 63) - 1
DATE_MS_MIN: Final = -62_135_596_800_000
DATE_MS_MAX: Final = 253_402_300_799_999
"""Allow the years 1 to 9999, which every reader of our files (Arrow, Spark in microseconds, Python) can hold."""


WORDS_BYTES_MAX: Final = 100_000
"""Limit all texts of an entry together, so that every store takes its cell, and a page of cells stays small."""


class InvalidEntry(Invalid):
    """The entry has a number that no range file can hold, or its texts are too long. No commit could take it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Describe an object as users see it. `address` is relative to the storage namespace, or a full URI outside it."""

    address: str
    size_bytes: int
    checksum: str
    modified_ms: int
    content_type: str = "application/octet-stream"
    metadata: dict[str, str] = {}


Row: TypeAlias = tuple[int, int, int, str, int, str, int, str, bytes]
"""(digest, slice, sequence, address, size_bytes, checksum, modified_ms, content_type, metadata).

`digest` is `row_digest`, a signed 64-bit integer. `slice` is FOREIGN_SLICE (-1) and `sequence` 0 where the address is
foreign; `address` is empty where it is not. `metadata` is `encode_metadata`.
"""

ROW_FIELDS: Final = (
    "digest",
    "slice",
    "sequence",
    "address",
    "size_bytes",
    "checksum",
    "modified_ms",
    "content_type",
    "metadata",
)

_encode = msgspec.msgpack.Encoder().encode
_decode_metadata = msgspec.msgpack.Decoder(dict[str, str]).decode


def to_row(key: bytes, entry: Entry) -> Row:
    """Return the row that holds an entry.

    Raises:
        InvalidEntry: its size or its date is out of bounds, or its texts are too long.
    """
    if not 0 <= entry.size_bytes <= SIZE_BYTES_MAX:
        raise InvalidEntry(f"size {entry.size_bytes} is out of bounds", size_bytes=entry.size_bytes)
    if not DATE_MS_MIN <= entry.modified_ms <= DATE_MS_MAX:
        raise InvalidEntry("modification time is outside the years 1 to 9999", modified_ms=entry.modified_ms)
    place = parse_address(entry.address)
    slice_, sequence, address = (*place, "") if place else (FOREIGN_SLICE, 0, entry.address)
    metadata = encode_metadata(entry.metadata)
    # A character has at most four bytes: most entries need no closer look.
    characters = len(address) + len(entry.checksum) + len(entry.content_type) + len(metadata)
    if 4 * characters > WORDS_BYTES_MAX:
        size_bytes = sum([len(text.encode()) for text in (address, entry.checksum, entry.content_type)]) + len(metadata)
        if size_bytes > WORDS_BYTES_MAX:
            raise InvalidEntry(
                f"address, checksum, content type and metadata have at most {WORDS_BYTES_MAX} bytes together",
                size_bytes=size_bytes,
            )
    rest = (
        slice_,
        sequence,
        address,
        entry.size_bytes,
        entry.checksum,
        entry.modified_ms,
        entry.content_type,
        metadata,
    )
    return (row_digest(key, rest), *rest)


def from_row(row: Row) -> Entry:
    _, slice_, sequence, address, size_bytes, checksum, modified_ms, content_type, metadata = row
    return Entry(
        address=address if slice_ == FOREIGN_SLICE else format_address(slice_, sequence),
        size_bytes=size_bytes,
        checksum=checksum,
        modified_ms=modified_ms,
        content_type=content_type,
        metadata=decode_metadata(metadata),
    )


def row_digest(key: bytes, rest: tuple[int, int, str, int, str, int, str, bytes]) -> int:
    """Digest key and identity into 64 bits. Equal digests of one key mean equal content: a diff compares them alone.

    Two entries have one identity when size, checksum, content type and metadata agree. The address and the date of
    the bytes do not count: the same bytes uploaded again are no change (document 002, "Committer flow").

    The digest does not defend against forgery. Range ids do: they hash every column with SHA-256.
    """
    _, _, _, size_bytes, checksum, _, content_type, metadata = rest
    # Two objects without a checksum differ in address and date only. Taking them for one would drop a write, so
    # there the whole row counts.
    identity = (size_bytes, checksum, content_type, metadata) if checksum else rest
    return int.from_bytes(hashlib.blake2b(_encode((key, *identity)), digest_size=8).digest(), "little", signed=True)


def encode_metadata(metadata: Mapping[str, str]) -> bytes:
    """Write metadata in its canonical form: sorted by key, and no bytes for no metadata."""
    return _encode(dict(sorted(metadata.items()))) if metadata else b""


def decode_metadata(data: bytes) -> dict[str, str]:
    return _decode_metadata(data) if data else {}
