"""Moves over HTTP."""

from __future__ import annotations

import httpx


async def put(client: httpx.AsyncClient, repo: str, path: str, data: bytes) -> str:
    answer = await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=data)
    assert answer.status_code == 201
    return str(answer.json()["physical_address"])


async def test_an_object_moves_with_its_bytes_and_its_metadata(client: httpx.AsyncClient, repo: str) -> None:
    address = await put(client, repo, "a", b"1")

    moved = await client.post(f"{repo}/branches/main/objects/move", params={"dest_path": "b"}, json={"src_path": "a"})

    assert (moved.status_code, moved.json()["path"], moved.json()["physical_address"]) == (201, "b", address)
    assert (await client.get(f"{repo}/refs/main/objects", params={"path": "b"})).content == b"1"
    assert (await client.get(f"{repo}/refs/main/objects", params={"path": "a"})).status_code == 404


async def test_a_move_of_nothing_is_404_and_onto_something_may_be_refused(client: httpx.AsyncClient, repo: str) -> None:
    await put(client, repo, "a", b"1")
    await put(client, repo, "b", b"2")

    nothing = await client.post(f"{repo}/branches/main/objects/move", params={"dest_path": "b"}, json={"src_path": "x"})
    body = {"src_path": "a", "if_absent": True}
    taken = await client.post(f"{repo}/branches/main/objects/move", params={"dest_path": "b"}, json=body)
    url, absent = f"{repo}/branches/main/objects/move?dest_path=b", {"if-none-match": "*"}
    taken_too = await client.post(url, json={"src_path": "a"}, headers=absent)

    assert (nothing.status_code, taken.status_code, taken_too.status_code) == (404, 412, 412)


async def test_an_object_moves_from_another_branch(client: httpx.AsyncClient, repo: str) -> None:
    await client.post(f"{repo}/branches", json={"name": "side", "source": "main"})
    await put(client, repo, "a", b"1")

    body = {"src_path": "a", "src_branch": "main"}
    moved = await client.post(f"{repo}/branches/side/objects/move", params={"dest_path": "a"}, json=body)

    assert moved.status_code == 201
    assert (await client.get(f"{repo}/refs/side/objects", params={"path": "a"})).content == b"1"
