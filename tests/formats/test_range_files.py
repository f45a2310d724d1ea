"""Golden files of ranges and metaranges: whatever a release writes, every later one reads. Never rewritten.

The bytes of a new file may differ from the golden ones (another version of pyarrow compresses otherwise). Ids may not:
stores share ranges by them.
"""

from __future__ import annotations

from pathlib import Path

from lakebed.base import Entry, MetarangeId, RangeId, Row, to_row
from lakebed.ranges import (
    RangeInfo,
    decode_metarange,
    decode_range,
    encode_metarange,
    encode_range,
    rows_from_table,
    summary_of,
    table_from_rows,
)

HERE = Path(__file__).parent
RANGE_ID = RangeId("51f4f98c46f83f9a49de09010807b085faf78790fffb5287916f1f7603f7ac30")
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


def test_the_golden_range_reads_as_it_was_written() -> None:
    data = (HERE / "range-2.parquet").read_bytes()

    assert rows_from_table(decode_range(RANGE_ID, data)) == ROWS
    summary = summary_of(RANGE_ID, data)
    assert summary.foreign == 1
    assert [bitmap.sequences().tolist() for bitmap in summary.bitmaps] == [[7, 8, 9, 70_000_000]]


def test_the_golden_metarange_reads_as_it_was_written() -> None:
    assert decode_metarange(METARANGE_ID, (HERE / "metarange-1.parquet").read_bytes()) == RANGES


def test_equal_entries_still_have_the_id_they_had() -> None:
    keys, rows = zip(*ROWS, strict=True)

    assert encode_range(table_from_rows(keys, rows))[0].id == RANGE_ID
    assert encode_metarange(RANGES)[0] == METARANGE_ID
