"""A server process that has not yet noticed that another one deleted a repository and made it again."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from lakebed.catalog import Catalog
from lakebed.objectstore import open_objectstore
from lakebed.server import AppState


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/settings/gc_rules", {"default_retention_days": 7, "branches": []}),
        ("DELETE", "/settings/gc_rules", None),
        ("PUT", "/gc/rules/full", {"default": "7d"}),
        ("PUT", "/settings/branch_protection", [{"pattern": "main"}]),
    ],
)
async def test_settings_are_refused_for_a_repository_that_is_another_one_by_now(
    client: httpx.AsyncClient, state: AppState, repo: str, namespace: str, method: str, path: str, body: Any
) -> None:
    assert (await client.get(repo)).status_code == 200
    elsewhere = Catalog(
        store=state.store,
        ports=state.ports,
        open_namespace=open_objectstore,
        make_versions=state.catalog._make_versions,  # as another process would make them
    )
    await elsewhere.delete("lake")
    await elsewhere.create("lake", storage_namespace=f"{namespace}-again")

    answer = await client.request(method, repo + path, json=body)

    assert answer.status_code == 404, answer.text
