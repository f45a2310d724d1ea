"""`gc ledger --verify`: planted disagreements between ledger, plans and store are found, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.gc.live import BadContinuation
from lakebed.gc.messages import (
    LEDGER,
    DisagreementPage,
    Disagrees,
    RunKind,
    Service,
    arrow_schema,
    decode_ledger,
    decode_record,
    encode_ledger,
)
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


def recorded_by(lake: Lakeside, run: str) -> Path:
    [file] = lake.files(f"_lakefs/retention/gc/ledger/date=*/{run}-*.parquet")
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


PAGES = "lakebed.gc.live.explain.comparing"


def test_no_record_is_decoded_on_the_event_loop_and_for_a_block_each_once(
    lake: Lakeside, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("a", "b"):
        collected(lake, path)
    threads, decoded = set[int](), list[str]()

    def decode(names: Sequence[str], data: Sequence[bytes]) -> pa.Table:
        threads.add(threading.get_ident())
        decoded.extend(names)
        return decode_record(names, data)

    async def compare(token: str) -> int:
        await lake.service.compare_ledger("", token)
        return threading.get_ident()

    monkeypatch.setattr("lakebed.gc.messages.decode_record", decode)
    loop = lake.wait(compare("twice:::"))

    assert len(decoded) == len(set(decoded)) == 2
    assert loop not in threads


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page compares next to nothing."""
    for name in ("PARTS_MAX", "RECORDS_MAX", "LOOKED_MAX", "BLOCK_ROWS", "LISTED_FROM"):
        monkeypatch.setattr(f"{PAGES}.{name}", 1)


def pages_of(lake: Lakeside, run: str = "") -> list[DisagreementPage]:
    async def read() -> list[DisagreementPage]:
        return [page async for page in Service(lake.service).compared(run)]

    return lake.wait(read())


@pytest.mark.usefixtures("short_pages")
def test_pages_find_together_what_one_finds(lake: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    first, addresses = collected(lake, "a", "b", "c")
    second, _ = collected(lake, "d")
    rows = decode_ledger(recorded_by(lake, first).read_bytes(), name="x").to_pylist()
    there, gone, twice = sorted(addresses)
    [row] = decode_ledger(recorded_by(lake, second).read_bytes(), name="x").to_pylist()
    by_address = {row["address"]: row for row in rows}
    kept = {**by_address[there], "deleted_at": row["deleted_at"].replace(year=2100)}
    change(recorded_by(lake, first), [kept, by_address[twice]])
    change(recorded_by(lake, second), [row, {**by_address[twice], "run_id": second}])
    lake.wait(lake.objectstore.put(there, b"data"))

    short = pages_of(lake)

    assert len(short) > 7
    assert {(one.run_id, one.address, one.what) for page in short for one in page.disagreements} == {
        (first, there, Disagrees.THERE),
        (first, gone, Disagrees.UNRECORDED),
        (second, twice, Disagrees.TWICE),
        (second, twice, Disagrees.UNPLANNED),
    }
    assert set(verified(lake, second)) == {(second, twice, Disagrees.TWICE), (second, twice, Disagrees.UNPLANNED)}
    monkeypatch.undo()
    assert set(verified(lake)) == {(one.run_id, one.address, one.what) for page in short for one in page.disagreements}


@pytest.mark.usefixtures("short_pages")
def test_one_object_in_two_files_of_a_run_is_deleted_twice(lake: Lakeside) -> None:
    run, [address] = collected(lake, "a")
    file = recorded(lake)
    file.with_name(f"{run}-part-99999.000000.parquet").write_bytes(file.read_bytes())

    assert verified(lake) == verified(lake, run) == [(run, address, Disagrees.TWICE)]


@pytest.mark.parametrize("token", ["", "x", "runs", "runs:a", "runs:a:x", "rows:a", "twice:a:b"])
def test_a_token_of_another_kind_is_refused(lake: Lakeside, token: str) -> None:
    with pytest.raises(BadContinuation):
        lake.wait(lake.service.compare_ledger("", token))


def test_a_run_whose_plan_is_gone_is_not_compared_with_it(lake: Lakeside) -> None:
    run, _ = collected(lake, "a")
    for file in lake.files(f"_lakefs/retention/gc/uncommitted/{run}/plan.json"):
        file.unlink()

    assert verified(lake) == []
