"""The checksums of S3: compute them from a stream, and encode them in base64 for its headers."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

SIZES: Final = {
    "CRC32": 4,
    "CRC32C": 4,
    "CRC64NVME": 8,
    "MD5": 16,
    "SHA1": 20,
    "SHA256": 32,
    "SHA512": 64,
    "XXHASH128": 16,
    "XXHASH3": 8,
    "XXHASH64": 8,
}
ALGORITHMS: Final = tuple(SIZES)
HEADER: Final = "x-amz-checksum-"
FULL_OBJECT: Final = "FULL_OBJECT"
COMPOSITE: Final = "COMPOSITE"
FULL_OBJECT_ALGORITHMS: Final = frozenset({"CRC32", "CRC32C", "CRC64NVME"})
_IN_PARTS: Final = re.compile(r"[0-9a-f]{32}-(\d{1,5})", re.ASCII)
COMPOSITE_ALGORITHMS: Final = frozenset(ALGORITHMS) - {"CRC64NVME"}


class Checksum(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _XxHash:
    def __init__(self, state: Any) -> None:
        self._state = state

    def update(self, data: bytes, /) -> None:
        self._state.update(data)

    def digest(self) -> bytes:
        return bytes(self._state.finalize())


class _Crc:
    def __init__(self, function: Callable[[bytes, int], int], size_bytes: int) -> None:
        self._function = function
        self._size_bytes = size_bytes
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size_bytes, "big")


def new(algorithm: str) -> Checksum:
    """Begin a checksum of one of ALGORITHMS."""
    match algorithm:
        case "CRC32":
            return _Crc(zlib.crc32, 4)
        case "SHA1":
            return hashlib.sha1(usedforsecurity=False)
        case "SHA256":
            return hashlib.sha256()
        case "SHA512":
            return hashlib.sha512()
        case "MD5":
            return hashlib.md5(usedforsecurity=False)
    # Import late: it takes 20 ms, and most servers never need these algorithms.
    from awscrt import checksums

    match algorithm:
        case "CRC32C":
            return _Crc(checksums.crc32c, 4)
        case "CRC64NVME":
            return _Crc(checksums.crc64nvme, 8)
        case "XXHASH64":
            return _XxHash(checksums.XXHash.new_xxhash64())
        case "XXHASH3":
            return _XxHash(checksums.XXHash.new_xxhash3_64())
        case "XXHASH128":
            return _XxHash(checksums.XXHash.new_xxhash3_128())
    raise AssertionError(algorithm)


def spell(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def header_of(algorithm: str) -> str:
    return HEADER + algorithm.lower()


def part_count(etag: str) -> int | None:
    """Return the number of parts in an ETag, or None if it is not that of a multipart upload.

    An entry from another store or client may have an ETag of any form.
    """
    match = _IN_PARTS.fullmatch(etag)
    return None if match is None else int(match[1])
