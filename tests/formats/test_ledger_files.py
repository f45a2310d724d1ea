"""Golden files of the ledger: a record of two files that every later release reads. Never rewritten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from lakebed.gc.messages import decode_ledger, decode_record, ledger_records

HERE = Path(__file__).parent
NAMES = ("ledger-4.000000.parquet", "ledger-4.000001.parquet")
THEN = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


def row(number: int, state: str = "deleted", error: str = "", *, hours: int = 0) -> dict[str, object]:
    return {
        "run_id": "1kcc5ok00t10o3elb0pp",
        "address": f"data/0123456789abc/{number:08d}",
        "size_bytes": 1000 + number,
        "reason": "expired",
        "deleted_at": THEN + timedelta(hours=hours),
        "error": error,
        "path": f"événements/{number}.parquet",
        "rule": "main: 7d",
        "state": state,
        "last_seen_at": THEN - timedelta(days=number),
    }


FIRST = [row(1), row(2, "failed", "503"), row(3, "kept"), row(4, "failed", "held by legal hold case-7")]
LATER = [row(4, "failed", "refused", hours=5), row(2, hours=5)]


def test_the_golden_record_of_the_ledger_is_read() -> None:
    data = [(HERE / name).read_bytes() for name in NAMES]

    assert [decode_ledger(file, name="x").to_pylist() for file in data] == [FIRST, LATER]
    assert ledger_records(reversed(NAMES)) == [NAMES]
    assert decode_record(NAMES, data).to_pylist() == [row(1), LATER[1], row(3, "kept"), LATER[0]]
