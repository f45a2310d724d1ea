"""Checksums against values that their own documents state, of the bytes `123456789` and of none."""

from __future__ import annotations

import hashlib

import pytest

from lakebed.server.http.fields import read_digest
from lakebed.server.s3.requests import checksums

CHECK = b"123456789"


@pytest.mark.parametrize(
    ("algorithm", "data", "expected"),
    [
        ("CRC32", CHECK, "cbf43926"),
        ("CRC32C", CHECK, "e3069283"),
        ("CRC64NVME", CHECK, "ae8b14860a799888"),
        ("XXHASH64", b"", "ef46db3751d8e999"),
        ("XXHASH3", b"", "2d06800538d394c2"),
        ("XXHASH128", b"", "99aa06d3014798d86001c324468d497f"),
        ("SHA1", CHECK, hashlib.sha1(CHECK, usedforsecurity=False).hexdigest()),
        ("SHA256", CHECK, hashlib.sha256(CHECK).hexdigest()),
        ("SHA512", CHECK, hashlib.sha512(CHECK).hexdigest()),
        ("MD5", CHECK, hashlib.md5(CHECK, usedforsecurity=False).hexdigest()),
    ],
)
def test_each_algorithm_has_its_published_value_however_the_bytes_arrive(
    algorithm: str, data: bytes, expected: str
) -> None:
    whole, in_pieces = checksums.new(algorithm), checksums.new(algorithm)
    whole.update(data)
    for start in range(len(data)):
        in_pieces.update(data[start : start + 1])

    digest = whole.digest()

    assert (digest.hex(), in_pieces.digest().hex()) == (expected, expected)
    assert len(digest) == checksums.SIZES[algorithm]
    assert read_digest(checksums.spell(digest), len(digest)) == digest


@pytest.mark.parametrize("text", ["", "x", "AAAA", "AAAAAA=", "!AAAAA==", "é"])
def test_what_spells_no_digest_of_the_size_is_none(text: str) -> None:
    assert read_digest(text, 4) is None
