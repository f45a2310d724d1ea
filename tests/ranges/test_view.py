"""A decoded range, read row by row and page by page."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import pytest

from lakebed.base import Entry, to_row
from lakebed.ranges import RangeView, table_from_rows

KEYS = [b"", b"a", b"a\x00", b"b" * 300, b"\xff"]
ROWS = [
    to_row(
        key,
        Entry(
            address="адрес" * number, size_bytes=2**40 + number, checksum="ü", modified_ms=number, metadata={"a": "b"}
        ),
    )
    for number, key in enumerate(KEYS)
]


def test_each_key_is_found_and_others_are_not() -> None:
    view = RangeView(table_from_rows(KEYS, ROWS))

    assert [view.get(key) for key in KEYS] == ROWS
    assert [view.get(key) for key in (b"\x00", b"a\x00\x00", b"b", b"\xff\xff")] == [None] * 4


def test_positions_count_the_keys_before() -> None:
    view = RangeView(table_from_rows(KEYS, ROWS))

    assert [view.position(key) for key in KEYS] == [0, 1, 2, 3, 4]
    assert [view.position_behind(key) for key in KEYS] == [1, 2, 3, 4, 5]
    assert view.position(b"zz") == 4


def test_pages_are_rows_in_order_and_a_slice_of_a_table_will_do() -> None:
    table = table_from_rows(KEYS, ROWS)
    view = RangeView(table.slice(1, 3))

    assert len(view) == 3
    assert view.rows(0, 3) == list(zip(KEYS, ROWS, strict=True))[1:4]
    assert view.rows(2, 1) == []
    assert view.get(b"a\x00") == ROWS[2]
    assert view.get(b"") is None
    assert view.nbytes > 0


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65, 96, 97, 1000])
def test_positions_are_right_however_many_keys_there_are(count: int) -> None:
    keys = [b"%04d" % (2 * number) for number in range(count)]
    view = RangeView(table_from_rows(keys, [ROWS[0]] * count))

    for number in range(-1, 2 * count + 1):
        key = b"%04d" % number if number >= 0 else b""
        assert view.position(key) == bisect_left(keys, key)
        assert view.position_behind(key) == bisect_right(keys, key)
        assert view.find(key) == (at := bisect_left(keys, key), keys[at] if at < count else None)


@pytest.mark.parametrize("step", [1, 3, 50, 999])
def test_several_keys_are_found_close_together_and_far_apart(step: int) -> None:
    keys = [b"%04d" % (2 * number) for number in range(1000)]
    view = RangeView(
        table_from_rows(
            keys, [to_row(key, Entry(address="a", size_bytes=1, checksum="c", modified_ms=1)) for key in keys]
        )
    )
    wanted = [b"%04d" % number for number in range(0, 2100, step)]

    assert view.get_many(wanted) == [(key, row) for key in wanted if (row := view.get(key)) is not None]
