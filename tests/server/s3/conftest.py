"""A repository `lake` with the object `a`, and a client of its gateway."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from lakebed.server import App

from .signing import allow, asked_as, keys_of


@pytest.fixture
async def lake(client: httpx.AsyncClient, repo: str) -> httpx.AsyncClient:
    (await client.post(f"{repo}/branches/main/objects?path=a", content=b"hello")).raise_for_status()
    (await client.post(f"{repo}/branches", json={"name": "gone", "source": "main"})).raise_for_status()
    return client


@pytest.fixture
async def pair(lake: httpx.AsyncClient) -> tuple[str, str]:
    """The key pair of a user who may do everything with objects."""
    return await keys_of(lake, "ann", allow("fs:*"))


@pytest.fixture
def s3(app: App, pair: tuple[str, str]) -> Iterator[httpx.AsyncClient]:
    """A client that signs what it sends."""
    with asked_as(app, pair) as client:
        yield client
