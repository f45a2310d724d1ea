"""What the gateway reads back of an entry: it may come from another door, another store or an older release."""

from __future__ import annotations

import pytest

from lakebed.base import Entry
from lakebed.server.s3.requests.checksums import part_count
from lakebed.server.s3.stored import part_sizes, stored_checksums

MD5 = "0123456789abcdef" * 2


def entry(checksum: str, size_bytes: int = 10, **stored: str) -> Entry:
    metadata = {f"::s3::{name.replace('_', '-')}": value for name, value in stored.items()}
    return Entry(address="x", size_bytes=size_bytes, checksum=checksum, modified_ms=0, metadata=metadata)


@pytest.mark.parametrize(
    ("etag", "count"),
    [(MD5, None), (f"{MD5}-3", 3), (f"{MD5}-x", None), (f"{MD5}-1700000000", None), ("a-b", None), ("", None)],
)
def test_only_the_etag_of_an_upload_in_parts_says_how_many_there_are(etag: str, count: int | None) -> None:
    assert part_count(etag) == count


def test_an_object_of_unknown_origin_has_one_part() -> None:
    assert part_sizes(entry(f"{MD5}-imported")) == [10]


def test_parts_have_the_sizes_that_were_kept() -> None:
    assert part_sizes(entry(f"{MD5}-3", parts="4*2,2")) == [4, 4, 2]


@pytest.mark.parametrize(
    "layout", ["", "4*2", "10*0,10", "x", "4*-1,14", "0*10001,10", "1*99999999999", "0*9999,0*9999,10"]
)
def test_a_layout_that_is_not_of_the_object_is_none(layout: str) -> None:
    assert part_sizes(entry(f"{MD5}-3", parts=layout)) is None


def test_a_checksum_that_no_header_can_have_is_none() -> None:
    assert stored_checksums(entry(MD5, checksum_crc32="AAAA\r\nx: y", checksum_sha1="AAAA=-2")) == {"SHA1": "AAAA=-2"}
