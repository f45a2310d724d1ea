"""Addresses written in bulk are those that were in the cells, one for one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import SEQUENCE_MAX, Entry, format_address, key_inside, parse_address, to_row
from lakebed.gc.live.reading.inputs import AddressRows, address_texts
from lakebed.gc.messages import UNCOMMITTED, PartWriter, decode_part
from lakebed.ranges import TOMBSTONE_ROW
from lakebed.versions import DOOMED, EXCLUSIVE, TOMBSTONE, encode_cell

SLICES = st.integers(0, 2**63 - 1)
OWN = st.builds(format_address, SLICES, st.integers(0, SEQUENCE_MAX))
ADDRESSES = st.one_of(
    OWN,
    OWN.map("mem://ns/{}".format),
    st.sampled_from(["s3://b/x", "mem://ns/old/layout", "mem://ns2/x", "old/x", "ü"]),
)


@settings(deadline=None)
@given(st.lists(st.tuples(ADDRESSES, st.sampled_from([0, EXCLUSIVE, TOMBSTONE, DOOMED])), max_size=20))
def test_what_is_written_is_every_address_of_a_cell_that_is_no_tombstone(cells: list[tuple[str, int]]) -> None:
    writer = PartWriter(UNCOMMITTED)
    rows = AddressRows(writer, group_rows=3)
    values = [
        encode_cell(flags, TOMBSTONE_ROW if flags == TOMBSTONE else to_row(b"k", entry(address)))
        for address, flags in cells
    ]

    rows.add_values(values, branch="main", namespace="mem://ns")
    rows.flush()

    written = decode_part(UNCOMMITTED, writer.close(), name="p")
    expected = [key_inside(address, "mem://ns") or address for address, flags in cells if flags != TOMBSTONE]
    assert written.column("address").to_pylist() == expected
    places = [parse_address(address) or (-1, 0) for address in expected]
    assert list(zip(written["slice"].to_pylist(), written["sequence"].to_pylist(), strict=True)) == places


def entry(address: str) -> Entry:
    return Entry(address=address, size_bytes=1, checksum="c", modified_ms=1)


def test_no_address_is_no_row() -> None:
    nothing = np.array([], np.int64)

    assert address_texts(nothing, nothing, []).to_pylist() == []
