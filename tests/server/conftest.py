"""The application over memory drivers, asked through ASGI: no socket, no file but the data folder's."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from lakebed.server import App, AppState, ServerOptions, create_app, opened

_names = itertools.count()


@pytest.fixture
async def state(tmp_path: Path) -> AsyncIterator[AppState]:
    async with opened(ServerOptions(data_dir=tmp_path, blockstore="mem", store_uri="mem://")) as state:
        yield state


@pytest.fixture
def app(state: AppState) -> App:
    return create_app(state)


@pytest.fixture
async def stranger(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody without credentials."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
        yield client


@pytest.fixture
async def client(app: App, stranger: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """The first user, `esti`."""
    pair = (await stranger.post("/setup_lakefs", json={"username": "esti"})).json()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    auth = (pair["access_key_id"], pair["secret_access_key"])
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth) as client:
        yield client


@pytest.fixture
def namespace() -> str:
    """A storage namespace that nobody used before."""
    return f"mem://server-{next(_names)}"


@pytest.fixture
async def repo(client: httpx.AsyncClient, namespace: str) -> str:
    """The path of an empty repository."""
    answer = await client.post("/repositories", json={"name": "lake", "storage_namespace": namespace})
    assert answer.status_code == 201, answer.text
    return "/repositories/lake"
