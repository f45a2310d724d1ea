"""Cuts by content: history leaves no trace, changes stay where they are, no range is too large."""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import Entry, to_row
from lakebed.ranges import CUT_RULE, CutRule, Cutter, cut, table_from_rows

SMALL = CutRule(strong=8, weak=3, weak_from=12, rows_max=20)
searched = settings(deadline=None, max_examples=80)
key_sets = st.sets(st.integers(0, 400).map(lambda number: b"k%03d" % number), max_size=200)


def table_of(keys: list[bytes]) -> pa.Table:
    row = to_row(b"", Entry(address="", size_bytes=0, checksum="", modified_ms=0))
    return table_from_rows(keys, [row] * len(keys))


def keys_of(pieces: list[pa.Table]) -> list[list[bytes]]:
    return [piece.column("key").to_pylist() for piece in pieces]


def cut_plainly(keys: list[bytes], rule: CutRule) -> list[list[bytes]]:
    """The rule as it is written."""
    pieces: list[list[bytes]] = [[]]
    for key in keys:
        pieces[-1].append(key)
        hashed, count = crc32(key), len(pieces[-1])
        if hashed % rule.strong == 0 or (hashed % rule.weak == 0 and count >= rule.weak_from) or count == rule.rows_max:
            pieces.append([])
    return [piece for piece in pieces if piece]


@searched
@given(key_sets, st.lists(st.integers(0, 200), max_size=5))
def test_cuts_are_where_the_rule_says_however_the_stream_comes_in(keys: set[bytes], breaks: list[int]) -> None:
    ordered = sorted(keys)
    expected = cut_plainly(ordered, SMALL)
    assert keys_of(cut(table_of(ordered), SMALL)) == expected

    cutter, pieces = Cutter(SMALL), []
    edges = [0, *sorted(min(edge, len(ordered)) for edge in breaks), len(ordered)]
    for start, stop in pairwise(edges):
        pieces += list(cutter.feed(table_of(ordered[start:stop])))
    rest = cutter.finish()
    assert keys_of(pieces if rest is None else [*pieces, rest]) == expected


@searched
@given(key_sets)
def test_every_range_but_the_last_is_complete_and_none_is_too_large(keys: set[bytes]) -> None:
    pieces = keys_of(cut(table_of(sorted(keys)), SMALL))

    assert all(SMALL.is_complete(piece[-1], len(piece)) for piece in pieces[:-1])
    assert all(len(piece) <= SMALL.rows_max for piece in pieces)


def test_ranges_have_some_thousands_of_rows() -> None:
    pieces = keys_of(cut(table_of([b"lake/part-%07d" % number for number in range(300_000)])))

    assert 5000 < 300_000 / len(pieces) < 10_000
    assert max(map(len, pieces)) <= CUT_RULE.rows_max


def test_one_key_more_touches_one_range_and_at_most_a_neighbour() -> None:
    keys = [b"lake/part-%07d" % number for number in range(100_000)]
    before = {tuple(piece) for piece in keys_of(cut(table_of(keys)))}

    for number in range(0, 100_000, 9973):
        more = sorted([*keys, b"lake/part-%07d-more" % number])
        after = {tuple(piece) for piece in keys_of(cut(table_of(more)))}
        assert len(after - before) <= 2


def test_keys_chosen_to_miss_every_cut_are_cut_by_force() -> None:
    unlucky = [key for key in (b"%06d" % number for number in range(70_000)) if crc32(key) % CUT_RULE.weak][:66_000]

    pieces = keys_of(cut(table_of(unlucky)))

    assert [len(piece) for piece in pieces] == [32_768, 32_768, 464]
