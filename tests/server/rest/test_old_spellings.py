"""Operations that the contract keeps for old clients."""

from __future__ import annotations

import httpx


async def test_protection_rules_are_added_and_removed_one_by_one(client: httpx.AsyncClient, repo: str) -> None:
    old, new = f"{repo}/branch_protection", f"{repo}/settings/branch_protection"

    for pattern in ("main", "rel-*", "main"):
        assert (await client.post(old, json={"pattern": pattern})).status_code == 204
    added = (await client.get(new)).json()
    removed = await client.request("DELETE", old, json={"pattern": "main"})

    assert added == [{"pattern": "main"}, {"pattern": "rel-*"}]
    assert removed.status_code == 204
    assert (await client.get(old)).json() == [{"pattern": "rel-*"}]
    assert (await client.request("DELETE", old, json={"pattern": "main"})).status_code == 404


async def test_a_user_has_no_other_identities(client: httpx.AsyncClient) -> None:
    answer = await client.get("/auth/users/esti/external/principals/ls")

    assert (answer.status_code, answer.json()["results"]) == (200, [])
    assert (await client.get("/auth/users/nope/external/principals/ls")).status_code == 404
