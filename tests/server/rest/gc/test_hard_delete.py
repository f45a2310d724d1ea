"""Deleting at once over HTTP: the setting, what waits, and why; and the part of each process that does it."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from lakebed.server import AppState


@pytest.fixture
async def hard(client: httpx.AsyncClient, repo: str) -> str:
    answer = await client.put(f"{repo}/hard_delete", json={"is_on": True, "grace_s": 0})
    assert answer.status_code == 200
    return repo


async def put(client: httpx.AsyncClient, repo: str, data: bytes) -> str:
    answer = await client.post(f"{repo}/branches/main/objects", params={"path": "a"}, content=data)
    assert answer.status_code == 201
    return str(answer.json()["physical_address"])


async def test_it_is_off_until_somebody_turns_it_on(client: httpx.AsyncClient, repo: str) -> None:
    off = (await client.get(f"{repo}/hard_delete")).json()
    on = (await client.put(f"{repo}/hard_delete", json={"is_on": True})).json()

    assert (off["is_on"], off["changed_by"], off["queued"]) == (False, "", 0)
    assert (on["is_on"], on["changed_by"]) == (True, "esti")


async def test_what_is_left_out_stays_as_it_is(client: httpx.AsyncClient, hard: str) -> None:
    paused = (await client.put(f"{hard}/hard_delete", json={"is_paused": True})).json()

    assert (paused["is_on"], paused["is_paused"], paused["grace_s"]) == (True, True, 0)


async def test_what_is_overwritten_waits_and_then_went(client: httpx.AsyncClient, hard: str, state: AppState) -> None:
    await client.put(f"{hard}/hard_delete", json={"grace_s": 3600})
    first = (await put(client, hard, b"1")).rpartition("data/")[2]
    await put(client, hard, b"2")
    await state.hard_deleting.step(0)
    waits = (await client.get(f"{hard}/hard_delete")).json()
    [row] = (await client.get(f"{hard}/hard_delete/why", params={"path": "a"})).json()["results"]

    assert (waits["queued"], waits["queued_bytes"], waits["by"]) == (1, 1, {"overwrite": 1})
    assert (row["address"], row["reason"], row["deleted_ms"]) == (f"data/{first}", "overwritten", 0)
    assert row["due_ms"] == row["since_ms"] + 3_600_000
    await client.put(f"{hard}/hard_delete", json={"is_paused": True})
    assert (await client.get(f"{hard}/hard_delete/why", params={"path": "a"})).json()["is_paused"]
    await client.put(f"{hard}/hard_delete", json={"is_paused": False})


async def test_why_takes_a_path_or_an_address(client: httpx.AsyncClient, hard: str) -> None:
    answer = await client.get(f"{hard}/hard_delete/why")

    assert answer.status_code == 400


async def test_a_process_deletes_what_is_due(client: httpx.AsyncClient, hard: str, state: AppState) -> None:
    await put(client, hard, b"1")
    await put(client, hard, b"2")
    objectstore = (await state.catalog.get("lake")).objectstore
    state.hard_deleting.linger_ms = 0

    now_s = asyncio.get_running_loop().time()
    await state.hard_deleting.step(now_s)
    await asyncio.sleep(0.01)
    await state.hard_deleting.step(now_s + 1000)

    assert len([stat async for page in objectstore.list("data/") for stat in page]) == 1
    figures = {sample.family: sample.value for sample in state.hard_deleting.samples()}
    assert figures["lakebed_hard_deleted_objects_total"] == 1


async def test_a_grace_that_no_reader_needs_is_refused(client: httpx.AsyncClient, repo: str) -> None:
    for grace_s in (1 << 70, 1 << 40, -2):
        answer = await client.put(f"{repo}/hard_delete", json={"grace_s": grace_s})

        assert (answer.status_code, "grace_s" in answer.json()["message"]) == (400, True)
