"""Pull requests, through the routes of the contract."""

from __future__ import annotations

from typing import Any

import httpx
import pytest


@pytest.fixture
async def pulls(client: httpx.AsyncClient, repo: str) -> str:
    """The path of the pull requests of a repository whose branch `dev` has a commit more than `main`."""
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    await client.post(f"{repo}/branches/dev/objects", params={"path": "a"}, content=b"x")
    assert (await client.post(f"{repo}/branches/dev/commits", json={"message": "m"})).status_code == 201
    return f"{repo}/pulls"


async def opened(client: httpx.AsyncClient, pulls: str, **more: str) -> str:
    body = {"title": "t", "source_branch": "dev", "destination_branch": "main", **more}
    answer = await client.post(pulls, json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def listed(client: httpx.AsyncClient, pulls: str, **query: Any) -> list[str]:
    answer = await client.get(pulls, params=query)
    assert answer.status_code == 200, answer.text
    return [pull["title"] for pull in answer.json()["results"]]


async def test_a_pull_request_is_merged_once_and_says_by_which_commit(
    client: httpx.AsyncClient, repo: str, pulls: str
) -> None:
    pull = await opened(client, pulls, description="why")

    before = (await client.get(f"{pulls}/{pull}")).json()
    merged = await client.put(f"{pulls}/{pull}/merge")
    after = (await client.get(f"{pulls}/{pull}")).json()

    assert (before["status"], before["author"], before["description"]) == ("open", "esti", "why")
    assert "merged_commit_id" not in before
    assert merged.status_code == 200, merged.text
    assert (after["status"], after["merged_commit_id"]) == ("merged", merged.json()["reference"])
    assert after["closed_date"]
    head = (await client.get(f"{repo}/branches/main")).json()["commit_id"]
    assert head == merged.json()["reference"]
    assert (await client.put(f"{pulls}/{pull}/merge")).status_code == 409
    assert (await client.patch(f"{pulls}/{pull}", json={"status": "open"})).status_code == 409


async def test_a_pull_request_is_changed_closed_and_opened_again(client: httpx.AsyncClient, pulls: str) -> None:
    pull = await opened(client, pulls)

    assert (await client.patch(f"{pulls}/{pull}", json={"title": "new", "status": "closed"})).status_code == 204
    closed = (await client.get(f"{pulls}/{pull}")).json()
    refused = await client.put(f"{pulls}/{pull}/merge")
    await client.patch(f"{pulls}/{pull}", json={"status": "open"})

    assert (closed["title"], closed["status"], bool(closed["closed_date"])) == ("new", "closed", True)
    assert refused.status_code == 409
    assert "closed_date" not in (await client.get(f"{pulls}/{pull}")).json()
    assert (await client.patch(f"{pulls}/{pull}", json={"status": "merged"})).status_code == 400


async def test_a_pull_request_that_was_changed_too_often_can_still_be_closed(
    client: httpx.AsyncClient, pulls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.catalog.refs.pulls.CHANGES_MAX", 2)
    pull = await opened(client, pulls)

    changed = [await client.patch(f"{pulls}/{pull}", json={"title": title}) for title in ("one", "two")]
    closed = await client.patch(f"{pulls}/{pull}", json={"status": "closed"})
    again = await client.patch(f"{pulls}/{pull}", json={"status": "open"})

    assert [one.status_code for one in (*changed, closed, again)] == [204, 400, 204, 400]


async def test_pull_requests_are_listed_newest_first_by_status_and_in_pages(
    client: httpx.AsyncClient, pulls: str
) -> None:
    for title in ("one", "two", "three"):
        last = await opened(client, pulls, title=title)
    await client.put(f"{pulls}/{last}/merge")

    assert await listed(client, pulls) == ["three", "two", "one"]
    assert await listed(client, pulls, status="open") == ["two", "one"]
    assert await listed(client, pulls, status="closed") == ["three"]
    assert await listed(client, pulls, amount=1, after=last) == ["two"]
    assert (await client.get(pulls, params={"status": "odd"})).status_code == 400


async def test_a_merge_that_conflicts_leaves_the_pull_request_open(
    client: httpx.AsyncClient, repo: str, pulls: str
) -> None:
    pull = await opened(client, pulls)
    await client.post(f"{repo}/branches/main/objects", params={"path": "a"}, content=b"other")
    await client.post(f"{repo}/branches/main/commits", json={"message": "m"})

    assert (await client.put(f"{pulls}/{pull}/merge")).status_code == 409

    assert (await client.get(f"{pulls}/{pull}")).json()["status"] == "open"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"source_branch": "nope"}, 404),
        ({"destination_branch": "nope"}, 404),
        ({"source_branch": "main"}, 400),
        ({"title": " "}, 400),
    ],
)
async def test_a_pull_request_needs_two_branches_and_a_title(
    client: httpx.AsyncClient, pulls: str, change: dict[str, str], status: int
) -> None:
    body = {"title": "t", "source_branch": "dev", "destination_branch": "main", **change}

    assert (await client.post(pulls, json=body)).status_code == status
    assert (await client.get(f"{pulls}/nope")).status_code == 404


async def test_who_may_write_pull_requests_may_not_merge_without_the_right_to_commit(
    client: httpx.AsyncClient, pulls: str, app: Any
) -> None:
    pull = await opened(client, pulls)
    statement = {"effect": "allow", "action": ["pr:WritePullRequest"], "resource": "*"}
    await client.post("/auth/policies", json={"id": "pulls", "statement": [statement]})
    await client.post("/auth/users", json={"id": "joe"})
    await client.put("/auth/users/joe/policies/pulls")
    pair = (await client.post("/auth/users/joe/credentials")).json()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    auth = (pair["access_key_id"], pair["secret_access_key"])
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", auth=auth) as joe:
        assert (await joe.put(f"{pulls}/{pull}/merge")).status_code == 401

    assert (await client.get(f"{pulls}/{pull}")).json()["status"] == "open"
