"""Commits of trees that are there: `source_metarange`, and records of commits that no branch has."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from lakebed.base import CommitId, MetarangeId
from lakebed.server import AppState
from lakebed.versions import Commit, SweptRecord, keys
from tests.server.rest.test_dumps import commit, put


@pytest.fixture
async def commits(client: httpx.AsyncClient, repo: str) -> list[dict[str, Any]]:
    """The log: `a` and `b`, then `a`, then the first commit of the repository."""
    for path in "ab":
        await put(client, repo, path, path)
        await commit(client, repo, path)
    found: list[dict[str, Any]] = (await client.get(f"{repo}/refs/main/commits")).json()["results"]
    return found


async def again(client: httpx.AsyncClient, repo: str, tree: str, **more: object) -> httpx.Response:
    path = f"{repo}/branches/main/commits"
    return await client.post(path, params={"source_metarange": tree}, json={"message": "again", **more})


async def paths(client: httpx.AsyncClient, repo: str, ref: str = "main") -> list[str]:
    return [row["path"] for row in (await client.get(f"{repo}/refs/{ref}/objects/ls")).json()["results"]]


async def test_a_tree_of_an_older_commit_is_committed_as_it_is(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    answer = await again(client, repo, commits[1]["meta_range_id"], metadata={"job": "7"}, date=1_700_000_000)

    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["meta_range_id"] == commits[1]["meta_range_id"]
    assert made["parents"] == [commits[0]["id"]]
    assert (made["metadata"], made["creation_date"], made["committer"]) == ({"job": "7"}, 1_700_000_000, "esti")
    assert await paths(client, repo) == ["a"]


async def test_the_tree_of_the_head_is_no_change_unless_that_is_allowed(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    assert (await again(client, repo, commits[0]["meta_range_id"])).json()["message"] == "commit: no changes"
    assert (await again(client, repo, commits[0]["meta_range_id"], allow_empty=True)).status_code == 201


async def test_a_branch_with_uncommitted_changes_takes_no_tree_and_keeps_them(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    await put(client, repo, "staged", "x")

    answer = await again(client, repo, commits[1]["meta_range_id"])

    assert answer.status_code == 400
    assert "uncommitted changes" in answer.json()["message"]
    assert await paths(client, repo) == ["a", "b", "staged"]


async def test_a_tree_that_no_commit_has_is_not_found(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    for tree in ("0" * 64, "../x"):
        assert (await again(client, repo, tree)).status_code == 404
    assert await paths(client, repo) == ["a", "b"]


async def test_a_tree_whose_commit_was_collected_is_refused(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]], state: AppState
) -> None:
    context = (await state.catalog.get("lake")).versions.context
    await context.set(keys.SWEPT + commits[1]["id"].encode(), SweptRecord(run="r1"))

    refused = await again(client, repo, commits[1]["meta_range_id"])
    body = record_of(commits[1], "x")
    record = await client.post(f"{repo}/commits", json=body)

    assert "was taken by collection run r1" in refused.json()["message"]
    assert "was taken by collection run r1" in record.json()["message"]
    assert await paths(client, repo) == ["a", "b"]
    assert await context.get(keys.COMMIT + body["commit_id"].encode()) is None


async def test_a_tree_that_a_run_takes_while_its_record_is_written_is_refused(
    client: httpx.AsyncClient,
    repo: str,
    commits: list[dict[str, Any]],
    state: AppState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = (await state.catalog.get("lake")).versions.context
    writing = type(context.commits).write

    async def write(records: Any, commit: Commit) -> Any:
        await context.set(keys.SWEPT + commits[1]["id"].encode(), SweptRecord(run="r1"))
        return await writing(records, commit)

    monkeypatch.setattr(type(context.commits), "write", write)
    body = record_of(commits[1], "x")

    refused = await client.post(f"{repo}/commits", json=body)

    assert "was taken by collection run r1" in refused.json()["message"]
    assert (await client.get(f"{repo}/commits/{body['commit_id']}")).status_code == 404


async def test_a_protected_branch_takes_no_tree(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    await client.put(f"{repo}/settings/branch_protection", json=[{"pattern": "main"}])

    assert (await again(client, repo, commits[1]["meta_range_id"])).status_code == 403


# Records


def record_of(parent: dict[str, Any], message: str, **more: Any) -> dict[str, Any]:
    """The record of a commit with the tree of its parent, and its id by docs/formats/commit.md."""
    body = {
        "version": 1,
        "committer": "someone",
        "message": message,
        "metarange_id": parent["meta_range_id"],
        "creation_date": 1_700_000_000,
        "parents": [parent["id"]],
        "metadata": {"b": "2", "a": "1"},
        "generation": parent["generation"] + 1,
        **more,
    }
    made = Commit(
        version=body["version"],
        generation=body["generation"],
        message=body["message"],
        committer=body["committer"],
        created_ms=body["creation_date"] * 1000,
        metarange_id=MetarangeId(body["metarange_id"]),
        parents=tuple(CommitId(one) for one in body["parents"]),
        metadata=body["metadata"],
    )
    return {"commit_id": made.id, **body}


async def test_a_record_can_be_read_and_named_and_its_tree_too(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    body = record_of(commits[1], "by hand")

    answers = [await client.post(f"{repo}/commits", json=body) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 204]
    shown = (await client.get(f"{repo}/commits/{body['commit_id']}")).json()
    assert (shown["message"], shown["parents"], shown["creation_date"]) == ("by hand", body["parents"], 1_700_000_000)
    await client.post(f"{repo}/branches", json={"name": "mine", "source": body["commit_id"]})
    assert await paths(client, repo, "mine") == ["a"]
    assert await paths(client, repo) == ["a", "b"]


async def test_a_record_with_another_id_is_refused_and_the_right_one_named(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    body = record_of(commits[1], "by hand")

    answer = await client.post(f"{repo}/commits", json={**body, "message": "altered"})

    assert answer.status_code == 400
    assert record_of(commits[1], "altered")["commit_id"] in answer.json()["message"]
    assert (await client.get(f"{repo}/commits/{body['commit_id']}")).status_code == 404


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"parents": ["0" * 64]}, 404),
        ({"metarange_id": "0" * 64}, 404),
        ({"generation": 7}, 400),
        ({"parents": [f"{number:064x}" for number in range(65)]}, 400),
        ({"version": 2}, 400),
        ({"creation_date": 10**12}, 400),
        ({"message": "x" * 300_000}, 400),
    ],
)
async def test_a_record_that_cannot_be_is_refused(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]], change: dict[str, Any], status: int
) -> None:
    body = record_of(commits[1], **{"message": "m", **change})

    answer = await client.post(f"{repo}/commits", json=body)

    assert answer.status_code == status, answer.text
    assert (await client.get(f"{repo}/commits/{body['commit_id']}")).status_code == 404


async def test_retention_counts_from_when_the_record_was_written(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]], state: AppState
) -> None:
    """An old date would let a collection take it before a branch is made there."""
    body = record_of(commits[1], "by hand")
    await client.post(f"{repo}/commits", json=body)

    versions = (await state.catalog.get("lake")).versions
    [made] = await versions.inventory.commits([CommitId(body["commit_id"])])

    assert made is not None
    assert made.counted_ms > 1_700_000_000_000


async def test_a_record_with_a_generation_beyond_all_is_refused(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    answer = await client.post(f"{repo}/commits", json={**record_of(commits[1], "m"), "generation": 2**70})

    assert answer.status_code == 400, answer.text


async def test_a_record_that_repeats_a_parent_is_refused(
    client: httpx.AsyncClient, repo: str, commits: list[dict[str, Any]]
) -> None:
    parent = commits[1]["id"]

    answer = await client.post(f"{repo}/commits", json=record_of(commits[1], "m", parents=[parent, parent]))

    assert answer.status_code == 400
    assert "repeated" in answer.json()["message"]
