"""Packing, bitmaps and the subtraction of one bucket, without Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.base import FOREIGN_SLICE, SEQUENCE_MAX, format_address, slice_number
from lakebed.gc.engines.engine import CANDIDATES, LIVE
from lakebed.gc.mark.inputs.named import LiveSet
from lakebed.gc.mark.sets.packing import Cause, bitmap_of, foreign_bucket, is_set, pack_foreign, pack_numbered, subtract
from lakebed.gc.mark.sets.places import Namespace, may_be_deleted
from lakebed.gc.messages import BadInput

SLICE = slice_number(opened_at_ms=1_790_000_000_000, random_bits=7)
NOTHING = LIVE.schema.empty_table()
OLD = Cause(reason="expired", rule="main: 7 days", branch="main")
sequences = st.sets(st.integers(0, 200), max_size=30)


def numbered(
    *numbers: int,
    seen_ms: int = 1,
    cause: Cause = OLD,
    size: int = 10,
    paths: list[str] | None = None,
    seen_in: int | None = None,
) -> pa.Table:
    count = len(numbers)
    return pack_numbered(
        np.full(count, SLICE),
        np.array(numbers, np.int64),
        np.full(count, size),
        np.full(count, seen_ms),
        cause,
        paths=None if paths is None else pa.array(paths),
        seen_in=None if seen_in is None else np.full(count, seen_in),
    )


def live(*numbers: int) -> pa.Table:
    found = LiveSet()
    found.add_numbers(np.full(len(numbers), SLICE), np.array(numbers, np.int64))
    return found.rows()


def addresses(table: pa.Table) -> list[str]:
    return sorted(table["address"].to_pylist())


@given(sequences, sequences, sequences)
def test_what_is_left_is_what_no_live_row_names(candidates: set[int], some: set[int], others: set[int]) -> None:
    left = subtract(numbered(*candidates), pa.concat_tables([live(*some), live(*others)]))

    assert addresses(left) == sorted(format_address(SLICE, number) for number in candidates - some - others)


def test_the_last_address_of_a_slice_is_written_as_any_other() -> None:
    assert addresses(subtract(numbered(SEQUENCE_MAX), NOTHING)) == [format_address(SLICE, SEQUENCE_MAX)]


@given(sequences, st.integers(0, 300))
def test_a_bitmap_answers_for_every_number(numbers: set[int], asked: int) -> None:
    bitmap = bitmap_of(np.array(sorted(numbers), np.int64))

    assert bool(is_set(bitmap, np.array([asked]))[0]) is (asked in numbers)


def test_a_live_set_grows_and_keeps_what_it_had() -> None:
    found = LiveSet()
    for number in (3, 5000, 64, 70_000, 3):
        found.add_numbers(np.array([SLICE]), np.array([number]))

    left = subtract(numbered(2, 3, 64, 5000, 70_000, 70_001), found.rows())

    assert left["sequence"].to_pylist() == [2, 70_001]


def test_an_object_that_is_named_twice_goes_once_and_by_what_saw_it_last() -> None:
    other = Cause(reason="dangling", rule="default: 4 days")
    twice = pa.concat_tables([numbered(1, seen_ms=5), numbered(1, seen_ms=9, cause=other), numbered(1, seen_ms=2)])

    left = subtract(twice, NOTHING)

    assert left.num_rows == 1
    row = left.to_pylist()[0]
    assert (row["reason"], row["rule"], row["branch"]) == ("dangling", "default: 4 days", "")
    assert row["last_seen_at"].timestamp() * 1000 == 9


def test_a_foreign_key_is_compared_as_a_whole_string() -> None:
    key = "data/old/part-1"
    bucket = foreign_bucket(key)
    alike = next(f"data/old/{n}" for n in range(10_000) if foreign_bucket(f"data/old/{n}") == bucket)
    found = LiveSet()
    found.add_addresses(pa.array([alike]), Namespace("mem://lake"))

    left = subtract(pack_foreign([key, alike], [1, 2], [3, 4], OLD), found.rows())

    assert left.select(["address", "slice", "sequence", "size_bytes"]).to_pylist() == [
        {"address": key, "slice": FOREIGN_SLICE, "sequence": 0, "size_bytes": 1}
    ]


RULES = [Cause(reason="lifecycle", rule=name, branch=branch) for name in "ab" for branch in ("main", "dev")]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("xyz"), st.sampled_from(RULES), st.integers(0, 2))))
def test_all_paths_and_rules_of_an_object_are_kept_where_they_are_asked_for(
    rows: list[tuple[int, str, Cause, int]],
) -> None:
    packed = [numbered(n, seen_ms=at, cause=cause, paths=[path]) for n, path, cause, at in rows]
    foreign = [pack_foreign([f"k{n}"], [1], [at], cause, paths=pa.array([path])) for n, path, cause, at in rows]
    candidates = pa.concat_tables([CANDIDATES.schema.empty_table(), *packed, *foreign])

    found = subtract(candidates, NOTHING, all_names=True).to_pylist()
    plain = subtract(candidates, NOTHING).to_pylist()

    nothing = {"other_paths": None, "other_rules": None}
    assert [row | nothing for row in found] == plain
    wanted = {n: ({p for m, p, _, _ in rows if m == n}, {c.rule for m, _, c, _ in rows if m == n}) for n, *_ in rows}
    assert len(found) == 2 * len(wanted)
    for row in found:
        paths, rules = [row["path"], *(row["other_paths"] or [])], [row["rule"], *(row["other_rules"] or [])]
        number = row["sequence"] if row["slice"] != FOREIGN_SLICE else int(row["address"][1:])
        assert (set(paths), set(rules)) == wanted[number]
        assert len(paths) + len(rules) == len(set(paths)) + len(set(rules))


RANGES = [("x", 9), ("y", 7), ("y", -3)]


@given(st.permutations([(n, seen, path, at) for n in (1, 2) for seen in (5, 8) for path, at in RANGES]))
def test_the_range_of_an_object_is_one_that_had_the_path_it_goes_under_whatever_the_order(
    rows: list[tuple[int, int, str, int]],
) -> None:
    packed = [numbered(n, seen_ms=seen, paths=[path], seen_in=at) for n, seen, path, at in rows]
    foreign = pack_foreign(["k", "k"], [1, 1], [1, 1], OLD, paths=pa.array(["a", "b"]), seen_in=np.array([2, 1]))

    found = subtract(pa.concat_tables([numbered(3), *packed, foreign]), NOTHING, all_names=True).to_pylist()

    ranges = {row["sequence"] or row["address"]: (row["path"], row["seen_in"]) for row in found}
    assert ranges == {1: ("y", 7), 2: ("y", 7), 3: ("", None), "k": ("b", 1)}


@pytest.mark.parametrize("ranges", [(7, -3), (-3, 7)])
def test_of_equal_rows_in_several_ranges_the_greatest_is_named_whatever_the_order(ranges: tuple[int, int]) -> None:
    same = [numbered(1, paths=["a"], seen_in=number) for number in ranges]

    assert subtract(pa.concat_tables(same), NOTHING)["seen_in"].to_pylist() == [7]


def test_an_object_goes_under_the_path_that_the_commit_seen_last_had_it_under() -> None:
    older = numbered(3, 1, seen_ms=5, paths=["old/3", "old/1"])
    newer = numbered(1, 2, seen_ms=9, paths=["new/1", "new/2"])

    left = subtract(pa.concat_tables([newer, numbered(4), older]), NOTHING)

    found = dict(zip(left["sequence"].to_pylist(), left["path"].to_pylist(), strict=True))
    assert found == {1: "new/1", 2: "new/2", 3: "old/3", 4: ""}


@pytest.mark.parametrize("paths", [["a", "b"], ["b", "a"]])
def test_an_object_that_one_commit_had_twice_goes_under_the_same_path_whatever_the_order(paths: list[str]) -> None:
    left = subtract(numbered(7, 7, paths=paths), NOTHING)

    assert left["path"].to_pylist() == ["b"]


def test_a_foreign_key_goes_under_its_path() -> None:
    packed = pack_foreign(["data/x", "data/y"], [1, 2], [3, 4], OLD, paths=pa.array(["a/x", "a/y"]))

    left = subtract(pa.concat_tables([packed, pack_foreign(["data/z"], [1], [1], OLD)]), NOTHING)

    found = dict(zip(left["address"].to_pylist(), left["path"].to_pylist(), strict=True))
    assert found == {"data/x": "a/x", "data/y": "a/y", "data/z": ""}


def test_no_candidate_is_no_verdict() -> None:
    assert subtract(CANDIDATES.schema.empty_table(), live(1)).num_rows == 0


@pytest.mark.parametrize("column", ["sequences", "sizes", "seen_ms", "reason", "bucket"])
def test_a_null_candidate_stops_the_run(column: str) -> None:
    table = numbered(1)
    place = table.schema.get_field_index(column)
    broken = table.set_column(place, column, pa.nulls(1, table.schema.field(column).type))

    with pytest.raises(BadInput, match=column):
        subtract(broken, NOTHING)


@pytest.mark.parametrize("column", ["bitmap", "addresses", "bucket"])
def test_a_null_live_row_stops_the_run_instead_of_taking_what_it_named(column: str) -> None:
    table = live(1)
    place = table.schema.get_field_index(column)
    broken = table.set_column(place, column, pa.nulls(1, table.schema.field(column).type))

    with pytest.raises(BadInput, match=column):
        subtract(numbered(1), broken)


def test_arrays_that_do_not_run_in_parallel_stop_the_run() -> None:
    table = numbered(1, 2)
    place = table.schema.get_field_index("sizes")
    broken = table.set_column(place, "sizes", pa.array([b"\0" * 8], pa.binary()))

    with pytest.raises(BadInput, match="sizes"):
        subtract(broken, NOTHING)


def test_paths_that_do_not_run_in_parallel_stop_the_run() -> None:
    table = numbered(1, 2, paths=["a", "b"])
    place = table.schema.get_field_index("paths")
    broken = table.set_column(place, "paths", pa.array([["a"]], table.schema.field("paths").type))

    with pytest.raises(BadInput, match="paths"):
        subtract(broken, NOTHING)


def test_ranges_that_do_not_run_in_parallel_stop_the_run() -> None:
    table = numbered(1, 2, seen_in=7)
    place = table.schema.get_field_index("seen_in")
    broken = table.set_column(place, "seen_in", pa.array([b"\0" * 8], pa.binary()))

    with pytest.raises(BadInput, match="seen_in"):
        subtract(broken, NOTHING)


def test_a_number_that_no_address_has_stops_the_run() -> None:
    with pytest.raises(BadInput, match="100000000"):
        subtract(numbered(100_000_000), NOTHING)


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (format_address(SLICE, 5), (SLICE, 5)),
        (f"s3://lake/repo/{format_address(SLICE, 5)}", (SLICE, 5)),
        (f"s3a://lake/repo/{format_address(SLICE, 5)}", (SLICE, 5)),
        (f"S3://lake/repo/{format_address(SLICE, 5)}", (SLICE, 5)),
        ("s3://lake/repo/data/x", "data/x"),
        ("data/x", "data/x"),
        (f"{format_address(SLICE, 5)}0", f"{format_address(SLICE, 5)}0"),
        ("s3://lake/repository/data/x", None),
        ("s3://other/repo/data/x", None),
        ("gs://lake/repo/data/x", None),
    ],
)
@pytest.mark.parametrize("namespace", ["s3://lake/repo", "s3://lake/repo/"])
def test_every_spelling_of_an_address_is_brought_to_one_place(namespace: str, address: str, place: object) -> None:
    assert Namespace(namespace).place_of(address) == place


@pytest.mark.parametrize(
    "address",
    [
        f"az://lake/repo/{format_address(SLICE, 5)}",
        f"abfss://lake@account.dfs.core.windows.net/repo/{format_address(SLICE, 5)}",
        f"wasbs://lake@account.blob.core.windows.net/repo/{format_address(SLICE, 5)}",
        f"https://account.blob.core.windows.net/lake/repo/{format_address(SLICE, 5)}",
    ],
)
def test_every_spelling_of_a_blob_of_azure_is_brought_to_one_place(address: str) -> None:
    assert Namespace("az://lake/repo").place_of(address) == (SLICE, 5)
    assert Namespace("az://lake/other").place_of(address) is None


@pytest.mark.parametrize("key", ["_lakefs/dummy", "x", "data", "data/", "data//x", "data/../x", "data/./x", "data/\0"])
def test_special_and_crooked_keys_may_never_be_deleted(key: str) -> None:
    assert not may_be_deleted(key)
