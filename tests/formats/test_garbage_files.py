"""Golden files of the table of a plan, of versions 4 and 5, that every later release reads. Never rewritten."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.gc.messages import GARBAGE, arrow_schema, decode_part, encode_part

HERE = Path(__file__).parent
SLICE, NUMBER = 7_000_000_000_000_000_001, -(1 << 63) + 5


def row(number: int, **others: Any) -> dict[str, object]:
    row = {
        "address": f"data/64d4j4u6k2001/{number:08d}",
        "slice": SLICE,
        "sequence": number,
        "size_bytes": 1000 + number,
        "reason": "expired",
        "rule": "main: 7d",
        "last_seen_at": datetime(2026, 11, 21, 12, 30, number, tzinfo=UTC),
        "path": f"événements/{number}.parquet",
        "other_paths": None,
        "other_rules": None,
        "seen_in": None,
    }
    return row | others


BEFORE = [row(1), row(2, other_paths=["a", "b"], other_rules=["default: 1d"])]
ROWS = [row(1, seen_in=NUMBER), row(2, other_paths=["a", "b"], other_rules=["default: 1d"], seen_in=9), row(3)]


@pytest.mark.parametrize(("version", "rows"), [(4, BEFORE), (5, ROWS)])
def test_the_golden_table_of_each_version_is_read(version: int, rows: list[dict[str, object]]) -> None:
    name = f"garbage-{version}.parquet"
    data = (HERE / name).read_bytes()

    assert ("seen_in" in pq.read_schema(io.BytesIO(data)).names) is (version == 5)
    assert decode_part(GARBAGE, data, name=name, version=version).to_pylist() == rows


@pytest.mark.parametrize(("ranges", "bytes_more"), [(1, 0.02), (20, 0.05), (100, 1.1), (10_000, 10)])
def test_the_range_of_an_object_takes_little_room(ranges: int, bytes_more: float) -> None:
    """Held for docs/design/0010-deferred-delete.md, "Costs": parts of 10,000 rows, as a plan has them."""
    count, random = 10_000, np.random.default_rng(1)
    names = random.integers(-(1 << 63), (1 << 63) - 1, ranges)
    places = np.arange(count) if ranges == count else random.integers(0, ranges, count)
    places = np.sort(places) if ranges <= 20 else places
    facts = {name: pa.repeat(value, count) for name, value in row(0).items() if value is not None}
    facts |= {name: pa.nulls(count) for name in ("other_paths", "other_rules")}
    facts |= {"address": pa.array([f"data/64d4j4u6k2001/{number:08d}" for number in range(count)])}
    without, within = (
        len(encode_part(GARBAGE, pa.table(facts | {"seen_in": column}).select(GARBAGE.names())))
        for column in (pa.nulls(count, pa.int64()), pa.array(names[places]))
    )

    assert (within - without) / count <= bytes_more
    assert arrow_schema(GARBAGE).field("seen_in").nullable
