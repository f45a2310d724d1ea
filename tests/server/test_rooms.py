"""How many files of the package a request enters, cold: what a newcomer has to read to follow it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest

from bench.rooms import entered

Call = Callable[[httpx.AsyncClient, str], Awaitable[httpx.Response]]


async def upload(client: httpx.AsyncClient, repo: str) -> httpx.Response:
    headers = {"content-type": "application/octet-stream"}
    return await client.post(f"{repo}/branches/main/objects?path=a", content=b"x", headers=headers)


async def commit(client: httpx.AsyncClient, repo: str) -> httpx.Response:
    return await client.post(f"{repo}/branches/main/commits", json={"message": "m"})


@pytest.mark.parametrize(("call", "most"), [(upload, 33), (commit, 45)], ids=["upload", "commit"])
async def test_a_request_enters_no_more_files_than_this(
    client: httpx.AsyncClient, repo: str, call: Call, most: int
) -> None:
    if call is commit:
        await upload(client, repo)
    with entered() as files:
        answer = await call(client, repo)

    assert answer.status_code == 201, answer.text
    assert 20 < len(files) <= most, sorted(files)


async def test_a_login_enters_no_more_files_than_this(stranger: httpx.AsyncClient) -> None:
    pair = (await stranger.post("/setup_lakefs", json={"username": "esti"})).json()
    keys = {name: pair[name] for name in ("access_key_id", "secret_access_key")}
    with entered() as files:
        answer = await stranger.post("/auth/login", json=keys)

    assert answer.status_code == 200, answer.text
    assert 10 < len(files) <= 12, sorted(files)
