"""Data that was damaged behind our back: found by its digest, named, and nothing is done on its word."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from lakebed.server import AppState, ServerOptions, create_app, opened, prepare_folder


def flip_a_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def cut_short(data: bytes) -> bytes:
    return data[:-10]


def client_of(state: AppState, auth: httpx.Auth | None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(state), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth)


@asynccontextmanager
async def made(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Set a server up in a folder, with a repository `lake`, and ask it as its first user."""
    prepare_folder(folder)
    async with opened(ServerOptions(data_dir=folder)) as state:
        issued = await state.accounts.set_up("esti")
        async with client_of(state, httpx.BasicAuth(issued.access_key_id, issued.secret_access_key)) as client:
            await client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
            yield client


@asynccontextmanager
async def another(folder: Path, auth: httpx.Auth | None) -> AsyncIterator[httpx.AsyncClient]:
    """Ask a server that starts on a folder in which another one was."""
    async with opened(ServerOptions(data_dir=folder)) as state, client_of(state, auth) as client:
        yield client


async def test_an_object_that_was_cut_short_is_not_read(tmp_path: Path) -> None:
    async with made(tmp_path) as client:
        await client.post("/repositories/lake/branches/main/objects?path=a", content=b"0123456789abcdef")
        (file,) = [one for one in (tmp_path / "objects" / "b" / "lake" / "data").rglob("*") if one.is_file()]
        file.chmod(0o600)
        file.write_bytes(cut_short(file.read_bytes()))

        answer = await client.get("/repositories/lake/refs/main/objects?path=a")

    assert (answer.status_code, answer.json()["message"]) == (
        410,
        "the object's data has 6 bytes where 16 were stored",
    )


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short])
@pytest.mark.parametrize("folder", ["ranges", "metaranges"])
async def test_a_damaged_range_file_is_named_and_kept(
    tmp_path: Path, folder: str, damage: Callable[[bytes], bytes]
) -> None:
    async with made(tmp_path) as client:
        for number in range(100):
            await client.post(f"/repositories/lake/branches/main/objects?path={number:03d}", content=b"x")
        await client.post("/repositories/lake/branches/main/commits", json={"message": "m"})
    (file,) = (tmp_path / "objects" / "b" / "lake" / "_lakefs" / folder).iterdir()
    file.write_bytes(damage(file.read_bytes()))

    # Another process, which has not read the file before.
    async with another(tmp_path, client.auth) as client:
        listed = await client.get("/repositories/lake/refs/main/objects/ls")
        await client.post("/repositories/lake/branches/main/objects?path=050", content=b"y")
        commit = await client.post("/repositories/lake/branches/main/commits", json={"message": "m"})
        log = await client.get("/repositories/lake/refs/main/commits")
        diff = await client.get("/repositories/lake/refs/main/objects/stat?path=050")

    assert listed.status_code == commit.status_code == 500
    assert file.stem in listed.json()["message"]
    assert [found["message"] for found in log.json()["results"]] == ["m", "Repository created"]
    assert diff.status_code == 200, "what is staged is still there"
    assert file.exists()


async def test_branches_are_listed_where_the_tree_of_one_is_lost(tmp_path: Path) -> None:
    async with made(tmp_path) as client:
        await client.post("/repositories/lake/branches", json={"name": "whole", "source": "main"})
        await client.post("/repositories/lake/branches/whole/objects?path=a", content=b"x")
        await client.post("/repositories/lake/branches/main/objects?path=a", content=b"x")
        await client.post("/repositories/lake/branches/main/commits", json={"message": "m"})
        await client.post("/repositories/lake/branches/main/objects?path=a", content=b"y")
    (file,) = (tmp_path / "objects" / "b" / "lake" / "_lakefs" / "metaranges").iterdir()
    file.unlink()

    # Another process, which has not read the file before.
    async with another(tmp_path, client.auth) as client:
        listed = await client.get("/repositories/lake/branches?details=true")

    assert listed.status_code == 200
    found = {branch["id"]: branch for branch in listed.json()["results"]}
    assert (found["main"].get("has_uncommitted"), found["main"]["commit_message"]) == (None, "m")
    assert found["whole"]["has_uncommitted"] is True
