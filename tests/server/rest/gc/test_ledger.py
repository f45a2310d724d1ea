"""What the server tells of the ledger."""

from __future__ import annotations

from typing import Any

import httpx
import pyarrow as pa
import pytest

from lakebed.gc import messages
from lakebed.gc.messages import LEDGER_PREFIX
from lakebed.server import AppState


def rows_of(run_id: str, addresses: list[str], state: str = "deleted") -> bytes:
    rows = len(addresses)
    columns: dict[str, list[Any]] = {
        "run_id": [run_id] * rows,
        "address": addresses,
        "size_bytes": [10] * rows,
        "reason": ["expired"] * rows,
        "deleted_at": [1_800_000_000_000] * rows,
        "error": ["refused" if state == "failed" else ""] * rows,
        "path": [f"a/{address}" for address in addresses],
        "rule": ["main: 7d"] * rows,
        "state": [state] * rows,
        "last_seen_at": [0] * rows,
    }
    schema = messages.arrow_schema(messages.LEDGER)
    table = pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names}, schema)
    return messages.encode_part(messages.LEDGER, table)


@pytest.fixture
async def ledger(state: AppState, repo: str) -> str:
    objectstore = (await state.catalog.get("lake")).objectstore
    for date, run_id, addresses, what in (
        ("2026-11-20", "r1", ["x", "y", "z"], "deleted"),
        ("2026-11-20", "r2", ["v"], "failed"),
        ("2026-11-21", "r3", ["w"], "deleted"),
    ):
        await objectstore.put(
            f"{LEDGER_PREFIX}date={date}/{run_id}-part-00000.000000.parquet", rows_of(run_id, addresses, what)
        )
    return repo + "/gc/ledger"


async def test_the_ledger_is_compared_page_by_page(
    client: httpx.AsyncClient, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.gc.live.explain.comparing.BLOCK_ROWS", 1)
    found: set[tuple[str, str]] = set()
    token, pages = "", 0
    while token is not None:
        answer = await client.get(f"{ledger}/comparison", params={"continuation_token": token} if token else {})
        found |= {(row["address"], row["what"]) for row in answer.json()["disagreements"]}
        token, pages = answer.json()["continuation_token"], pages + 1

    # The runs, the rows, and two blocks against the later ones: r1 alone, and r3 with r2, of which nothing was deleted.
    assert (found, pages) == (set(), 4)


@pytest.mark.parametrize(
    ("asked", "said"), [({"continuation_token": "x"}, "continuation token"), ({"run_id": "a/b"}, "run")]
)
async def test_a_comparison_refuses_tokens_and_runs_that_are_none(
    client: httpx.AsyncClient, ledger: str, asked: dict[str, str], said: str
) -> None:
    answer = await client.get(f"{ledger}/comparison", params=asked)

    assert answer.status_code == 400
    assert said in answer.json()["message"]


async def test_rows_come_in_pages_oldest_runs_first(client: httpx.AsyncClient, ledger: str) -> None:
    found: list[str] = []
    pages = 0
    token: str | None = ""
    while token is not None:
        answer = await client.get(ledger, params={"amount": 2, "after": token})
        found += [row["address"] for row in answer.json()["rows"]]
        token = answer.json()["continuation_token"]
        pages += 1

    assert (found, pages) == (["x", "y", "z", "v", "w"], 3)


async def test_an_object_that_failed_and_was_deleted_later_has_one_row_in_its_place(
    client: httpx.AsyncClient, ledger: str, state: AppState
) -> None:
    objectstore = (await state.catalog.get("lake")).objectstore
    name = f"{LEDGER_PREFIX}date=2026-11-22/r4-part-00000"
    await objectstore.put(f"{name}.000000.parquet", rows_of("r4", ["a", "b", "c"], "failed"))
    await objectstore.put(f"{name}.000001.parquet", rows_of("r4", ["b", "a"]))

    first = (await client.get(ledger, params={"run_id": "r4", "amount": 2})).json()
    second = (await client.get(ledger, params={"run_id": "r4", "after": first["continuation_token"]})).json()

    rows = [(row["address"], row["state"]) for row in first["rows"] + second["rows"]]
    assert rows == [("a", "deleted"), ("b", "deleted"), ("c", "failed")]
    assert second["continuation_token"] is None
    failed = (await client.get(ledger, params={"run_id": "r4", "state": "failed"})).json()["rows"]
    assert [row["address"] for row in failed] == ["c"]


async def test_a_row_is_told_whole(client: httpx.AsyncClient, ledger: str) -> None:
    answer = await client.get(ledger, params={"address": "v"})

    assert answer.json() == {
        "rows": [
            {
                "run_id": "r2",
                "address": "v",
                "size_bytes": 10,
                "reason": "expired",
                "deleted_ms": 1_800_000_000_000,
                "error": "refused",
                "path": "a/v",
                "rule": "main: 7d",
                "state": "failed",
            }
        ],
        "continuation_token": None,
    }


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"run_id": "r1"}, ["x", "y", "z"]),
        ({"path": "a/w"}, ["w"]),
        ({"path": "a/"}, ["x", "y", "z", "v", "w"]),
        ({"state": "failed"}, ["v"]),
        ({"since_ms": "1800000000001"}, []),
        ({"run_id": "nobodys"}, []),
    ],
)
async def test_rows_are_those_asked_for(
    client: httpx.AsyncClient, ledger: str, asked: dict[str, str], found: list[str]
) -> None:
    answer = await client.get(ledger, params=asked)

    assert [row["address"] for row in answer.json()["rows"]] == found


@pytest.mark.parametrize(
    "asked", [{"state": "lost"}, {"after": "x"}, {"after": "x:-1"}, {"after": "x:" + "9" * 4_400}, {"since_ms": "soon"}]
)
async def test_a_question_that_cannot_be_meant_is_refused(
    client: httpx.AsyncClient, ledger: str, asked: dict[str, str]
) -> None:
    assert (await client.get(ledger, params=asked)).status_code == 400


async def test_a_damaged_file_is_named(client: httpx.AsyncClient, ledger: str, state: AppState) -> None:
    await (await state.catalog.get("lake")).objectstore.put(
        f"{LEDGER_PREFIX}date=2026-11-19/r0-part-00000.parquet", b"x"
    )

    answer = await client.get(ledger)

    assert answer.status_code == 500
    assert "r0-part-00000.parquet" in answer.json()["message"]
