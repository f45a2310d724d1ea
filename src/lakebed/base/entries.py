"""The value of a path: an `Entry`, and the `Row` in which cells and ranges store it.

A row is a flat tuple, because a commit moves hundreds of thousands of them. Decoding a msgpack array into it takes a
third of a microsecond, and `zip(*rows)` turns a page of rows into columns. An `Entry` has the same facts with names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from .addresses import FOREIGN_SLICE, format_address, parse_address
from .errors import Invalid

__all__ = [
    "BYTES_MD5",
    "CONTENT_TYPE_DEFAULT",
    "DATE_MS_MAX",
    "DATE_MS_MIN",
    "HIDDEN_METADATA",
    "LAKEBED_METADATA",
    "ROW_FIELDS",
    "S3_HEADERS",
    "S3_METADATA",
    "TABLE_METADATA",
    "Entry",
    "InvalidEntry",
    "Row",
    "decode_metadata",
    "encode_metadata",
    "from_row",
    "row_digest",
    "to_row",
]

SIZE_BYTES_MAX: Final = (1 << 63) - 1
DATE_MS_MIN: Final = -62_135_596_800_000
DATE_MS_MAX: Final = 253_402_300_799_999
"""The years 1 to 9999, which every reader of our files (Arrow, Spark in microseconds, Python) supports."""


WORDS_BYTES_MAX: Final = 100_000
"""The limit for all texts of an entry together: every store accepts its cell, and a page of cells stays small."""


CONTENT_TYPE_DEFAULT: Final = "application/octet-stream"
"""The content type of bytes for which the client names none."""
_UNKNOWN_TYPES: Final = frozenset({"", CONTENT_TYPE_DEFAULT, "binary/octet-stream"})
"""Types that mean an unknown type. S3 and its tools send the last one."""

HIDDEN_METADATA: Final = "::"
"""The prefix of metadata names that are not the user's: a client or a gateway stores them beside the user's."""
S3_METADATA: Final = "::s3::"
"""The prefix of names that only the S3 gateway uses: it answers by their values."""
S3_HEADERS: Final = ("cache-control", "content-disposition", "content-encoding", "content-language", "expires")
"""Headers of an object that the user sets. The S3 gateway stores them under S3_METADATA."""
LAKEBED_METADATA: Final = "::lakebed::"
"""The prefix of names that only the server uses."""
TABLE_METADATA: Final = LAKEBED_METADATA + "table-metadata"
"""The metadata file of a table, kept with the table's record. An entry of that path without it makes no table."""
BYTES_MD5: Final = "::lakebed::md5"
"""The MD5 of the bytes, if `checksum` is another digest: the ETag of an upload in parts."""
_USERS: Final = frozenset({*(S3_METADATA + header for header in S3_HEADERS), "::lakefs::posix-permissions"})
"""Hidden names whose values the user chose: headers of S3, and the owner and mode of a file from `lakectl local`."""
_PROGRAMS: Final = frozenset({"mtime", "md5chksum", "s3cmd-attrs"})
"""Names that rclone and s3cmd add by themselves: the date of the local file, its owner, and its checksum."""


class InvalidEntry(Invalid):
    """The entry has a number that no range file can store, or its texts are too long. No commit could contain it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an object. `address` is relative to the storage namespace, or a full URI outside it."""

    address: str
    size_bytes: int
    checksum: str
    modified_ms: int
    content_type: str = CONTENT_TYPE_DEFAULT
    metadata: dict[str, str] = {}


Row: TypeAlias = tuple[int, int, int, str, int, str, int, str, bytes]
"""(digest, slice, sequence, address, size_bytes, checksum, modified_ms, content_type, metadata).

`digest` is `row_digest`, a signed 64-bit integer. A foreign address has `slice` FOREIGN_SLICE (-1), `sequence` 0 and
its text in `address`; otherwise `address` is empty. `metadata` is `encode_metadata`.
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
    """Return the row of an entry.

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
    # A character has at most four bytes, so most entries need no exact count.
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
    """Digest key and identity into 64 bits. Equal digests of one key mean equal content: a diff compares only digests.

    Two entries have one identity if size, checksum, content type and the user's metadata agree. The address and the
    date of the bytes are ignored: uploading the same bytes again is no change (document 002, "Committer flow"). The
    checksum of an upload in parts depends on its parts, so the MD5 of its bytes replaces it. Metadata that a client or
    a gateway adds is ignored too: it depends on the program, not on the user.

    The digest does not defend against forgery. Range ids do: they hash every column with SHA-256.
    """
    slice_, sequence, address, size_bytes, checksum, modified_ms, content_type, metadata = rest
    if content_type in _UNKNOWN_TYPES:
        content_type = CONTENT_TYPE_DEFAULT
    if metadata:
        known = decode_metadata(metadata)
        checksum = known.get(BYTES_MD5) or checksum
        metadata = encode_metadata(users_metadata(known))
    identity: tuple[int | str | bytes, ...] = (size_bytes, checksum, content_type, metadata)
    if not checksum:
        # Two objects without a checksum differ in address and date only. Treating them as equal would drop a write.
        identity = (slice_, sequence, address, size_bytes, checksum, modified_ms, content_type, metadata)
    return int.from_bytes(hashlib.blake2b(_encode((key, *identity)), digest_size=8).digest(), "little", signed=True)


def users_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the user's metadata, without names that programs and gateways add."""
    return {
        name: value
        for name, value in metadata.items()
        if name in _USERS or not (name.startswith(HIDDEN_METADATA) or name in _PROGRAMS)
    }


def encode_metadata(metadata: Mapping[str, str]) -> bytes:
    """Write metadata in its canonical form: sorted by key; empty bytes for no metadata."""
    return _encode(dict(sorted(metadata.items()))) if metadata else b""


def decode_metadata(data: bytes) -> dict[str, str]:
    return _decode_metadata(data) if data else {}
