"""Compare the ranges of a history with those that a run before has read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakebed.gc.kinds.lifecycle.hours import WHOLE, Group, ReadRange, to_read, with_due
from lakebed.gc.kinds.lifecycle.reaching import DUE_RANGES, Periods, Ranges, Terms

_IDS = st.integers(0, 9)
_PERIODS: st.SearchStrategy[tuple[Periods, ...]] = st.sampled_from([(None,), (("1d",),), (("1d", "7d"),), (("7d",),)])


@st.composite
def a_read_range(draw: st.DrawFn) -> ReadRange:
    slices = tuple(sorted(draw(st.sets(st.integers(0, 3)))))
    return ReadRange(periods=draw(st.none() | _PERIODS), has_foreign=False, slices=slices, groups=())


def ranges_of(now: Mapping[int, tuple[Periods, ...] | None]) -> Ranges:
    """Return ranges of which each has its number as its count, and its terms; None: nothing in it is ever due."""
    kinds = sorted({periods for periods in now.values() if periods is not None}, key=str)

    def rows(ids: list[int], terms: list[int]) -> pa.Table:
        facts = {"range_id": [f"r{id_}" for id_ in ids], "count": ids, "file_bytes": [7] * len(ids)}
        return DUE_RANGES.rows({**facts, "terms": terms})

    due = {id_: kinds.index(periods) for id_, periods in now.items() if periods is not None}
    whole = [id_ for id_, periods in now.items() if periods is None]
    return Ranges(
        due=rows([*due], [*due.values()]),
        terms=[Terms(periods, ("main",)) for periods in kinds],
        whole=rows(whole, [0] * len(whole)),
    )


@given(st.dictionaries(_IDS, st.none() | _PERIODS), st.dictionaries(_IDS, a_read_range()))
def test_what_is_new_or_shares_a_slice_with_what_lets_more_go_is_read(
    now: dict[int, tuple[Periods, ...] | None], before: dict[int, ReadRange]
) -> None:
    ranges = ranges_of(now)

    found = to_read(
        ranges, {f"r{id_}": read for id_, read in before.items()}, lambda ids: np.full(len(ids), 5, np.int32)
    )

    over = {id_ for id_, read in before.items() if id_ not in now or not read.keeps_less_than(now[id_])}
    anew = {slice_ for id_ in over for slice_ in before[id_].slices}
    stays = {
        id_: read
        for id_, read in before.items()
        if id_ in now and now[id_] == read.periods and anew.isdisjoint(read.slices)
    }
    assert found.anew == anew
    assert found.known == {f"r{id_}": read for id_, read in stays.items()}
    rows = {row["count"]: row for row in found.ranges.to_pylist()}
    assert rows.keys() == now.keys() - stays.keys()
    assert found.ranges.num_rows == len(rows)
    for id_, row in rows.items():
        assert (row["range_id"], row["file_bytes"], row["rule"]) == (f"r{id_}", 7, 5)
        assert (None if row["terms"] == WHOLE else ranges.terms[row["terms"]].periods) == now[id_]


def test_of_equal_row_groups_one_is_read_of_those_that_have_due_rows() -> None:
    """The same rows are due at other hours in a range that branches with other periods reach."""

    def read(hour: int) -> ReadRange:
        return ReadRange(periods=(("1d",),), has_foreign=False, slices=(3,), groups=(Group(b"g" * 32, (hour,)),))

    due = {3: np.array([9], np.int32)}

    assert with_due({"early": read(5), "late": read(9)}, due) == {"late": [0]}
    assert with_due({"one": read(9), "another": read(9)}, due) == {"one": [0]}
