"""Ledger files, and plans of every version that there was."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from lakebed.gc.messages import (
    GARBAGE,
    LEDGER,
    BadInput,
    arrow_schema,
    check_manifest,
    decode_ledger,
    encode_part,
    fold,
    giving_way,
    ledger_records,
    manifest_of,
    next_file,
    part_of,
    read_part,
)

THEN = datetime(2026, 11, 21, tzinfo=UTC)


def parquet(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer)
    return buffer.getvalue()


def ledger(*errors: str) -> pa.Table:
    count = len(errors)
    columns = {
        "run_id": ["r1"] * count,
        "address": [f"data/{number}" for number in range(count)],
        "size_bytes": [4] * count,
        "reason": ["expired"] * count,
        "deleted_at": [THEN] * count,
        "error": list(errors),
        "path": ["a"] * count,
        "rule": ["main: 4d"] * count,
        "state": ["failed" if error else "deleted" for error in errors],
        "last_seen_at": [THEN] * count,
    }
    return pa.table({name: columns[name] for name in LEDGER.names()}, schema=arrow_schema(LEDGER))


def test_a_ledger_file_of_an_older_release_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="ledger/x is no ledger table"):
        decode_ledger(parquet(ledger("").drop_columns(["state"])), name="ledger/x")


def test_a_row_that_says_gone_takes_the_place_of_one_that_says_deleted() -> None:
    rows = ledger("", "")

    folded = fold([rows, giving_way(rows, {"data/1", "data/7"})])

    assert folded["address"].to_pylist() == ["data/0", "data/1"]
    assert folded["state"].to_pylist() == ["deleted", "gone"]


def test_the_files_of_a_record_are_numbered_on() -> None:
    part, page = "date=x/r1-part-0.000004.parquet", "date=x/hard-delete-000000000007.parquet"

    assert next_file([part]) == "date=x/r1-part-0.000005.parquet"
    assert next_file([page]) == "date=x/hard-delete-000000000007.000001.parquet"
    assert ledger_records([page, next_file([page]), part]) == [(next_file([page]), page), (part,)]
    assert next_file([next_file([page]), page]) == "date=x/hard-delete-000000000007.000002.parquet"


def test_a_ledger_file_is_read_as_it_was_written() -> None:
    rows = ledger("", "refused")

    assert decode_ledger(encode_part(LEDGER, rows), name="x").equals(rows)


@pytest.mark.parametrize("data", [b"", b"PAR1 half a file", parquet(pa.table({"state": ["x"]}))])
def test_what_is_no_ledger_file_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(BadInput, match="ledger/x"):
        decode_ledger(data, name="ledger/x")


@pytest.mark.parametrize(("version", "path"), [(1, ""), (2, "known"), (4, "known")])
def test_a_plan_of_an_earlier_version_is_read_without_what_came_since(version: int, path: str) -> None:
    row = {"address": "data/x", "slice": -1, "sequence": 0, "size_bytes": 1, "reason": "r", "rule": ""}
    others: dict[str, list[Any]] = {"other_paths": [["other"]], "other_rules": [None], "seen_in": [7]}
    rows = pa.table({**{name: [value] for name, value in row.items()}, "last_seen_at": [THEN], "path": ["known"]})
    rows = pa.table({**{name: rows[name] for name in rows.column_names}, **others}, schema=arrow_schema(GARBAGE))
    data = parquet(rows.drop_columns([column.name for column in GARBAGE.later_than(version)]))
    part = part_of("part-0.parquet", data, rows=1)
    whole = manifest_of(GARBAGE, "x/", [part])
    manifest = replace(whole, table_version=version)

    assert check_manifest(manifest, name="x") is GARBAGE
    found = read_part(manifest, GARBAGE, part, data)
    assert found["path"].to_pylist() == [path]
    other_paths = [["other"]] if version == 4 else [None]
    assert [found[name].to_pylist() for name in others] == [other_paths, [None], [None]]
    assert read_part(manifest, GARBAGE, part, data, ["address"])["address"].to_pylist() == ["data/x"]


@pytest.mark.parametrize("version", [0, GARBAGE.version + 1])
def test_a_plan_of_a_version_that_never_was_is_refused(version: int) -> None:
    whole = manifest_of(GARBAGE, "x/", [])
    manifest = replace(whole, table_version=version)

    with pytest.raises(BadInput, match="unknown table garbage version"):
        check_manifest(manifest, name="x")


def test_the_next_file_of_a_record_follows_its_last_one() -> None:
    """Hard delete gives its first file no number."""
    for names, following in (
        (("hard-delete-1.parquet",), "hard-delete-1.000001.parquet"),
        (("hard-delete-1.parquet", "hard-delete-1.000001.parquet"), "hard-delete-1.000002.parquet"),
        (("r1-part-0.000000.parquet",), "r1-part-0.000001.parquet"),
    ):
        assert next_file(names) == following
