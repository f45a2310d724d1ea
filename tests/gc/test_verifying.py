"""`gc ledger --verify`: planted disagreements between ledger, plans and store are found, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.gc.api.verifying import Disagrees
from lakebed.gc.messages import LEDGER, RunKind, arrow_schema, decode_ledger, encode_ledger
from tests.spark.lakeside import Lakeside


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lakeside]:
    with Lakeside(tmp_path) as found:
        yield found


def collected(lake: Lakeside, *paths: str) -> tuple[str, list[str]]:
    """Return an ended run, and the addresses that it deleted."""
    addresses = [lake.upload(path) for path in paths]
    for path in paths:
        lake.delete(path)
    run = lake.collector.plan(None, RunKind.UNCOMMITTED).run_id
    lake.collector.apply(None, run)
    return run, addresses


def verified(lake: Lakeside, run: str = "") -> list[tuple[str, str, Disagrees]]:
    found = lake.collector.on(None).verify_ledger(run_id=run)
    return [(one.run_id, one.address, one.what) for one in found]


def recorded(lake: Lakeside) -> Path:
    [file] = lake.files("_lakefs/retention/gc/ledger/date=*/*.parquet")
    return file


def change(file: Path, rows: list[dict[str, object]], into: Path | None = None) -> None:
    (into or file).write_bytes(encode_ledger(pa.Table.from_pylist(rows, schema=arrow_schema(LEDGER))))


def test_an_undisturbed_ledger_agrees(lake: Lakeside) -> None:
    run, _ = collected(lake, "a", "b")

    assert verified(lake) == verified(lake, run) == []


def test_each_planted_disagreement_is_found(lake: Lakeside) -> None:
    run, addresses = collected(lake, "a", "b", "c")
    gone, there, twice = sorted(addresses)
    file = recorded(lake)
    rows = {row["address"]: row for row in decode_ledger(file.read_bytes(), name="x").to_pylist()}
    stranger = {**rows[gone], "address": "data/0123456789abc/00000001"}
    # As if it had lain there all along.
    kept = {**rows[there], "deleted_at": rows[there]["deleted_at"].replace(year=2100)}
    change(file, [kept, rows[twice], stranger])
    lake.wait(lake.objectstore.put(there, b"data"))
    other = {**rows[twice], "run_id": "hard-delete"}
    change(file, [other], into=file.with_name("hard-delete-000000000000.parquet"))

    found = verified(lake, run)

    assert {(address, what) for _, address, what in found} == {
        (stranger["address"], Disagrees.UNPLANNED),
        (gone, Disagrees.UNRECORDED),
        (there, Disagrees.THERE),
        (twice, Disagrees.TWICE),
    }
    assert {(address, what) for _, address, what in verified(lake)} == {(address, what) for _, address, what in found}


def test_what_was_written_after_it_was_deleted_is_no_disagreement(lake: Lakeside) -> None:
    _, [address] = collected(lake, "a")
    lake.wait(lake.objectstore.put(address, b"late"))

    assert verified(lake) == []


def test_a_run_whose_plan_is_gone_is_not_compared_with_it(lake: Lakeside) -> None:
    run, _ = collected(lake, "a")
    for file in lake.files(f"_lakefs/retention/gc/uncommitted/{run}/plan.json"):
        file.unlink()

    assert verified(lake) == []
