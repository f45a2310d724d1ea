"""What a path stands for: an `Entry`, and the `Row` in which cells and ranges hold it.

A row is a flat tuple, because a commit moves hundreds of thousands of them: a msgpack array decodes into it in a
third of a microsecond, and `zip(*rows)` turns a page of them into columns. `Entry` is the same for people.
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
"""The years 1 to 9999: what every reader of our files (Arrow, Spark in microseconds, Python) can hold."""


WORDS_BYTES_MAX: Final = 100_000
"""All texts of an entry together: its cell must stay a value that every store takes, and a page of cells small."""


class InvalidEntry(Invalid):
    """A number of it fits into no range file, so that a branch that staged it could not be committed; or its texts are
    too long.
    """


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An object as users see it. `address` is relative to the storage namespace, or a full URI outside it."""

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
    """
    Raises:
        InvalidEntry: its size or its date is out of bounds, or it has too many words.
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
    """64 bits over key and identity. Equal digests of one key mean the same content: a diff compares digests only.

    Two entries have one identity when size, checksum, content type and metadata agree. Where the bytes lie and when
    they were written does not count: the same bytes uploaded again are no change (document 002, "Committer flow").

    It is no defence against forgery; range ids, which are, hash every column with SHA-256.
    """
    _, _, _, size_bytes, checksum, _, content_type, metadata = rest
    # Nothing tells two objects without a checksum apart but their address and date. To take them for one would drop a
    # write, so there all of the row counts.
    identity = (size_bytes, checksum, content_type, metadata) if checksum else rest
    return int.from_bytes(hashlib.blake2b(_encode((key, *identity)), digest_size=8).digest(), "little", signed=True)


def encode_metadata(metadata: Mapping[str, str]) -> bytes:
    """Canonical: sorted by key; nothing at all for no metadata."""
    return _encode(dict(sorted(metadata.items()))) if metadata else b""


def decode_metadata(data: bytes) -> dict[str, str]:
    return _decode_metadata(data) if data else {}
