"""Golden files of ranges and metaranges: whatever a release writes, every later one reads. Never rewritten.

The bytes of a new file may differ from the golden ones (another version of pyarrow compresses otherwise). Ids may not:
stores share ranges by them.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from lakebed.base import Entry, MetarangeId, RangeId, Row, SublistId, to_row
from lakebed.ranges import (
    RangeInfo,
    SublistInfo,
    SublistList,
    decode_metarange,
    decode_range,
    decode_sublist,
    encode_metarange,
    encode_range,
    encode_sublist,
    rows_from_table,
    summary_of,
    table_from_rows,
)

HERE = Path(__file__).parent
RANGE_ID = RangeId("51f4f98c46f83f9a49de09010807b085faf78790fffb5287916f1f7603f7ac30")
NOTES_ID = RangeId("e546dac86330e88b26e4b505c327cdad72167a6c84268da02437648ec16f9af7")
METARANGE_ID = MetarangeId("eacd1689d22fd5f230a56a6ebf1a1aae2466c80dd26ed5e09619c91efc6cdeea")


def entry(number: int) -> Entry:
    return Entry(
        address=f"data/0123456789abc/{number:08d}",
        size_bytes=1000 + number,
        checksum=f"{number:032x}",
        modified_ms=1_790_000_000_000 + number,
    )


ENTRIES = {
    b"events/2026/01.parquet": entry(7),
    b"events/2026/02.parquet": entry(8),
    b"events/2026/03.parquet": Entry(
        address="s3://elsewhere/events/03.parquet",
        size_bytes=2**40,
        checksum="",
        modified_ms=0,
        content_type="application/vnd.apache.parquet",
        metadata={"owner": "café", "stage": ""},
    ),
    "événements/été.csv".encode(): entry(70_000_000),
    b"\xff": entry(9),
}
NOTES = {
    b"added": replace(entry(1), metadata={"::s3::checksum-crc32": "qlBD0g==", "mtime": "1790000000.5"}),
    b"parts": replace(entry(2), checksum="e-2", metadata={"::s3::parts": "5,3", "::lakebed::md5": f"{2:032x}"}),
    b"users": replace(entry(3), metadata={"::s3::cache-control": "no-store", "team": "red"}),
}
"""Metadata that count and metadata that do not."""
ROWS: list[tuple[bytes, Row]] = [(key, to_row(key, ENTRIES[key])) for key in sorted(ENTRIES)]
RANGES = [
    RangeInfo(
        id=RangeId(f"{number:02x}" * 32),
        min_key=b"k%d" % number,
        max_key=b"k%d\xff" % number,
        count=number + 1,
        size_bytes=number << 40,
        file_bytes=2000 + number,
    )
    for number in range(3)
]

SUBLIST = SublistInfo(
    id=SublistId("582b380a4cb233925fea234c2ebf941538a46d25825f06a6c6ba9b7ff1148bcf"),
    min_key=b"k0",
    max_key=b"k2\xff",
    count=6,
    size_bytes=3 << 40,
    file_bytes=1160,
)
WIDE_ID = MetarangeId("cfdddbf347e2aa3f53690bb8609472fc43d9d48ed684bbc165f4999f9b91fc49")


def test_the_golden_range_reads_as_it_was_written() -> None:
    data = (HERE / "range-2.parquet").read_bytes()

    assert rows_from_table(decode_range(RANGE_ID, data)) == ROWS
    summary = summary_of(RANGE_ID, data)
    assert summary.foreign == 1
    assert [bitmap.sequences().tolist() for bitmap in summary.bitmaps] == [[7, 8, 9, 70_000_000]]


def test_the_golden_range_of_added_metadata_reads_as_it_was_written() -> None:
    rows = dict(rows_from_table(decode_range(NOTES_ID, (HERE / "range-2-metadata.parquet").read_bytes())))

    assert rows == {key: to_row(key, NOTES[key]) for key in NOTES}
    assert rows[b"added"][0] == to_row(b"added", entry(1))[0]
    assert rows[b"parts"][0] == to_row(b"parts", entry(2))[0]
    assert rows[b"users"][0] != to_row(b"users", entry(3))[0]


def test_the_golden_metarange_reads_as_it_was_written() -> None:
    assert [*decode_metarange(METARANGE_ID, (HERE / "metarange-1.parquet").read_bytes())] == RANGES


def test_the_golden_files_of_a_wide_tree_read_as_they_were_written() -> None:
    lists = decode_metarange(WIDE_ID, (HERE / "metarange-2.parquet").read_bytes())
    ranges = decode_sublist(SUBLIST.id, (HERE / "sublist-1.parquet").read_bytes())

    assert isinstance(lists, SublistList)
    assert [*lists] == [SUBLIST]
    assert [*ranges] == RANGES


def test_equal_entries_still_have_the_id_they_had() -> None:
    keys, rows = zip(*ROWS, strict=True)

    assert encode_range(table_from_rows(keys, rows))[0].id == RANGE_ID
    assert encode_metarange(RANGES)[0] == METARANGE_ID
    assert encode_sublist(RANGES)[0].id == SUBLIST.id
    assert encode_metarange([SUBLIST])[0] == WIDE_ID
