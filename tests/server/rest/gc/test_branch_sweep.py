"""Sweeps of branches over HTTP: what a plan shows, who may delete, and what a branch was made to last."""

from __future__ import annotations

from typing import Any

import httpx
from msgspec.structs import replace

from lakebed.server import AppState
from lakebed.versions import keys

DAY_MS = 86_400_000


async def aged(state: AppState, name: str, days: int) -> None:
    """Let a branch be as if it had been made so many days earlier."""
    context = (await state.catalog.get("lake")).versions.context
    seen = await context.branches.fresh(name)
    assert seen.record.moved is not None
    by_ms = days * DAY_MS
    moved = replace(seen.record.moved, at_ms=seen.record.moved.at_ms - by_ms)
    expires_ms = seen.record.expires_ms and seen.record.expires_ms - by_ms
    older = replace(seen.record, created_ms=seen.record.created_ms - by_ms, moved=moved, expires_ms=expires_ms)
    await context.set(keys.BRANCH + name.encode(), older)


async def branch(client: httpx.AsyncClient, repo: str, name: str, **more: str) -> httpx.Response:
    return await client.post(repo + "/branches", json={"name": name, "source": "main", **more})


async def planned(client: httpx.AsyncClient, repo: str, **query: str) -> dict[str, Any]:
    answer = await client.get(repo + "/lifecycle/branches", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def sweep(client: httpx.AsyncClient, repo: str, plan: dict[str, Any], version: int = 1) -> httpx.Response:
    wanted = [{"branch": one["branch"], "state": one["state"]} for one in plan["branches"] if one["goes"]]
    body = {"policy_version": version, "branches": wanted}
    return await client.post(repo + "/lifecycle/branches/sweep", json=body)


async def test_a_plan_is_swept_and_its_branches_come_back(
    client: httpx.AsyncClient, state: AppState, repo: str
) -> None:
    await branch(client, repo, "old")
    await branch(client, repo, "new")
    await aged(state, "old", 31)
    policy = {"policy": {"branches": {"*": {"idle": "30d"}}}}
    assert (await client.put(repo + "/lifecycle/policy", json=policy)).status_code == 200

    plan = await planned(client, repo)
    stale = await sweep(client, repo, plan, version=7)
    swept = await sweep(client, repo, plan)
    again = await sweep(client, repo, plan)

    assert [(one["branch"], one["goes"], one["why"]) for one in plan["branches"]] == [
        ("main", False, "default branch"),
        ("new", False, "not idle for long enough"),
        ("old", True, "idle"),
    ]
    assert stale.status_code == 412
    assert swept.json() == {"branches": [{"branch": "old", "is_deleted": True, "why": ""}]}
    assert again.json()["branches"][0]["why"] == "there is no such branch"
    assert (await client.get(repo + "/branches/old")).status_code == 404
    assert (await client.post(repo + "/branches/old/undelete")).status_code == 201
    log = (await client.get(repo + "/branches/old/reflog")).json()["results"]
    assert [move["operation"] for move in log][:2] == ["undelete", "delete"]


async def test_a_plan_comes_in_pages(client: httpx.AsyncClient, repo: str) -> None:
    for name in ("a1", "a2", "b1"):
        await branch(client, repo, name)

    first = await planned(client, repo, prefix="a", amount="1")
    last = await planned(client, repo, prefix="a", after=first["next_after"])

    assert [one["branch"] for one in first["branches"]] == ["a1"]
    assert ([one["branch"] for one in last["branches"]], last["next_after"]) == (["a2"], "")


async def test_a_branch_says_until_when_it_was_made_to_last(
    client: httpx.AsyncClient, state: AppState, repo: str
) -> None:
    before_s = state.ports.clock.now_ms() // 1000
    assert (await branch(client, repo, "short", ttl="7d")).status_code == 201
    after_s = state.ports.clock.now_ms() // 1000
    assert (await branch(client, repo, "long", ttl="forever")).status_code == 201
    refused = await branch(client, repo, "wrong", ttl="7 days")

    short = (await client.get(repo + "/branches/short")).json()
    listed = (await client.get(repo + "/branches")).json()["results"]

    assert refused.status_code == 400
    assert "is not a duration" in refused.json()["message"]
    assert before_s <= short["expiration_date"] - 7 * 86_400 <= after_s
    assert [sorted(one) for one in listed] == [
        ["commit_id", "id"],
        ["commit_id", "id"],
        ["commit_id", "expiration_date", "id"],
    ]
    await aged(state, "short", 8)
    swept = await sweep(client, repo, await planned(client, repo), version=0)
    assert swept.json()["branches"] == [{"branch": "short", "is_deleted": True, "why": ""}]


async def test_who_may_not_delete_a_branch_may_not_sweep_it(
    client: httpx.AsyncClient, state: AppState, app: object, repo: str
) -> None:
    await branch(client, repo, "short", ttl="1h")
    await aged(state, "short", 1)
    plan = await planned(client, repo)
    await client.post("/auth/users", json={"id": "operator"})
    statements = [
        {"effect": "allow", "action": ["gc:*", "fs:ReadRepository", "fs:ListBranches"], "resource": "*"},
        {"effect": "allow", "action": ["fs:DeleteBranch"], "resource": "arn:lakefs:fs:::repository/lake/branch/other"},
    ]
    await client.post("/auth/policies", json={"id": "Sweeping", "statement": statements})
    await client.put("/auth/users/operator/policies/Sweeping")
    pair = (await client.post("/auth/users/operator/credentials")).json()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)  # type: ignore[arg-type]  # an ASGI application
    auth = (pair["access_key_id"], pair["secret_access_key"])
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth) as operator:
        seen = await planned(operator, repo)
        refused = await sweep(operator, repo, plan, version=0)

    assert [one["branch"] for one in seen["branches"] if one["goes"]] == ["short"]
    assert refused.status_code == 403
    assert (await client.get(repo + "/branches/short")).status_code == 200


async def test_too_many_branches_or_an_unknown_field_are_refused(client: httpx.AsyncClient, repo: str) -> None:
    url = repo + "/lifecycle/branches/sweep"
    many = {"policy_version": 0, "branches": [{"branch": "b", "state": ""}] * 101}

    assert (await client.post(url, json=many)).status_code == 400
    assert (await client.post(url, json={"policy_version": 0, "branches": [], "force": True})).status_code == 400


async def test_metrics_count_the_branches_of_sweeps(client: httpx.AsyncClient, state: AppState, repo: str) -> None:
    await branch(client, repo, "short", ttl="1h")
    await branch(client, repo, "used", ttl="1h")
    for name in ("short", "used"):
        await aged(state, name, 1)
    plan = await planned(client, repo)
    await client.post(repo + "/branches/used/objects", params={"path": "a"}, content=b"1")

    await sweep(client, repo, plan, version=0)

    assert dict(state.metrics.swept_branches) == {"deleted": 1, "kept": 1}
