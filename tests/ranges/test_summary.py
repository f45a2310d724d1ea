"""Slice summaries, against sets of numbers."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.base import FOREIGN_SLICE, SEQUENCE_MAX
from lakebed.ranges.codec import SliceSummary, decode_summary, encode_summary, summarise

searched = settings(deadline=None, max_examples=80)

slices = st.sampled_from([FOREIGN_SLICE, 0, 7, 2**63 - 1])
sequences = st.one_of(st.integers(0, 200), st.integers(0, SEQUENCE_MAX))
places = st.lists(st.tuples(slices, sequences), max_size=100)


def table_of(rows: list[tuple[int, int]]) -> pa.Table:
    return pa.table(
        {
            "slice": pa.array([slice_ for slice_, _ in rows], pa.int64()),
            "sequence": pa.array([sequence for _, sequence in rows], pa.int32()),
        }
    )


def roundtrip(rows: list[tuple[int, int]]) -> SliceSummary:
    return decode_summary(encode_summary(summarise(table_of(rows))).encode())


@searched
@given(places)
def test_a_summary_says_each_number_once_slice_by_slice(rows: list[tuple[int, int]]) -> None:
    summary = roundtrip(rows)

    said = [(bitmap.slice, number) for bitmap in summary.bitmaps for number in bitmap.sequences().tolist()]
    assert said == sorted({place for place in rows if place[0] != FOREIGN_SLICE})
    assert summary.foreign == sum(slice_ == FOREIGN_SLICE for slice_, _ in rows)


@searched
@given(st.lists(st.tuples(st.just(7), st.integers(0, 5000)), min_size=1, max_size=200), st.integers(0, 3))
def test_bitmaps_add_up(rows: list[tuple[int, int]], room: int) -> None:
    (bitmap,) = roundtrip(rows).bitmaps
    words = np.zeros(bitmap.words_needed + room, dtype=np.uint64)
    words[0] = 1

    bitmap.or_into(words)

    set_bits = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
    assert set_bits == sorted({0, *(number for _, number in rows)})


def test_the_smaller_form_is_taken() -> None:
    (dense,) = roundtrip([(7, 640_000 + number) for number in range(8000)]).bitmaps
    (sparse,) = roundtrip([(7, 1000 * number) for number in range(8000)]).bitmaps

    assert dense.words is not None
    assert (dense.first_word, len(dense.words)) == (10_000, 125)
    assert sparse.numbers is not None
    assert len(sparse.numbers) == 8000


def test_a_later_version_and_no_summary_are_refused() -> None:
    text = encode_summary(summarise(table_of([(7, 1)])))
    later = bytearray(base64.b64decode(text))
    later[0] = 2

    with pytest.raises(ValueError, match="version 2"):
        decode_summary(base64.b64encode(later))
    with pytest.raises(ValueError, match="no slice summary"):
        decode_summary(b"")
