"""Deleted repositories and refs over HTTP: listed in pages, asked after by their uid."""

from __future__ import annotations

import httpx
import pytest

from lakebed.operations.deleted import FORGET_TAG
from lakebed.server.rest import deleted
from lakebed.server.state import AppState
from lakebed.versions import RefKind


async def pages(client: httpx.AsyncClient, path: str, **query: str) -> list[list[str]]:
    found, after = [], ""
    while True:
        answer = (await client.get(path, params={**query, "after": after})).json()
        found.append([one["id"] for one in answer["results"]])
        after = answer["pagination"]["next_offset"]
        if not answer["pagination"]["has_more"]:
            return found


async def test_deleted_refs_are_listed_in_pages_by_prefix(client: httpx.AsyncClient, repo: str) -> None:
    for name in ("a1", "a2", "a3", "b1"):
        assert (await client.post(repo + "/branches", json={"name": name, "source": "main"})).status_code == 201
        assert (await client.delete(f"{repo}/branches/{name}")).status_code == 204
        assert (await client.post(repo + "/tags", json={"id": name, "ref": "main"})).status_code == 201
        assert (await client.delete(f"{repo}/tags/{name}")).status_code == 204

    for kind in ("branches", "tags"):
        path = f"{repo}/deleted/{kind}"
        assert await pages(client, path, amount="2") == [["a1", "a2"], ["a3", "b1"]]
        assert await pages(client, path, prefix="a", amount="2") == [["a1", "a2"], ["a3"]]
        assert await pages(client, path, prefix="c") == [[]]


async def test_a_deleted_branch_that_was_hidden_is_listed_only_where_hidden_ones_are(
    client: httpx.AsyncClient, repo: str
) -> None:
    for name, hidden in (("shown", False), ("tx-1", True)):
        body = {"name": name, "source": "main", "hidden": hidden}
        assert (await client.post(repo + "/branches", json=body)).status_code == 201
        assert (await client.delete(f"{repo}/branches/{name}")).status_code == 204

    assert await pages(client, repo + "/deleted/branches") == [["shown"]]
    assert await pages(client, repo + "/deleted/branches", show_hidden="true") == [["shown", "tx-1"]]
    every = (await client.get(repo + "/deleted/branches", params={"show_hidden": "true"})).json()["results"]
    assert [one["hidden"] for one in every] == [False, True]


async def test_a_page_of_deleted_repositories_has_all_of_a_name(client: httpx.AsyncClient) -> None:
    for number, name in enumerate(("one", "two", "two", "two", "zoo")):
        body = {"name": name, "storage_namespace": f"mem://deleted-pages-{number}"}
        assert (await client.post("/repositories", json=body)).status_code == 201
        assert (await client.delete(f"/repositories/{name}")).status_code == 204

    assert await pages(client, "/deleted/repositories", amount="2") == [["one", "two", "two", "two"], ["zoo"]]
    assert await pages(client, "/deleted/repositories", prefix="t", amount="1") == [["two", "two", "two"]]


async def test_steps_of_a_collection_find_a_deleted_repository_and_no_other_step_does(
    client: httpx.AsyncClient, repo: str, namespace: str
) -> None:
    assert (await client.post(repo + "/gc/planning?deleted=only")).status_code == 404
    await client.delete(repo)

    planning = await client.post(repo + "/gc/planning?deleted=only")
    started = await client.post(repo + "/gc/runs?deleted=only", json={"kind": "deleted"})
    other_kind = await client.post(repo + "/gc/runs?deleted=only", json={"kind": "uncommitted"})

    assert (planning.status_code, planning.json()["namespace"]) == (200, namespace)
    assert (started.status_code, started.json()["kind"]) == (201, "deleted")
    assert other_kind.status_code == 400
    assert (await client.post(repo + "/gc/planning?deleted=nonsense")).status_code == 404
    assert (await client.post(repo + "/gc/purging?deleted=only")).json()["namespace"] == namespace


async def test_plans_and_explanations_of_a_deleted_repository_are_asked_after_by_its_uid(
    client: httpx.AsyncClient, repo: str
) -> None:
    put = await client.post(repo + "/branches/main/objects", params={"path": "a"}, content=b"12345")
    address = put.json()["physical_address"]
    await client.delete(repo)
    [deleted] = (await client.get("/deleted/repositories")).json()["results"]

    for uid in ("only", deleted["uid"]):
        assert (await client.get(f"{repo}/gc/plans?deleted={uid}")).json() == {"plans": [], "has_more": False}
        page = (await client.get(f"{repo}/gc/why", params={"deleted": uid, "address": address})).json()
        [one] = page["answer"]["objects"]
        assert (one["fate"], one["goes_ms"] // 1000) == ("deleted", deleted["kept_until"])
        assert (await client.get(f"{repo}/gc/plans/none?deleted={uid}")).status_code == 404
    assert (await client.get(repo + "/gc/plans")).status_code == 404
    assert (await client.get(repo + "/gc/why", params={"address": address})).status_code == 404


async def test_a_repository_in_use_is_not_collected_as_a_deleted_one(client: httpx.AsyncClient, repo: str) -> None:
    answer = await client.post(repo + "/gc/runs", json={"kind": "deleted"})

    assert answer.status_code == 400
    assert "in use" in answer.json()["message"]


async def test_an_operation_on_a_tag_leaves_the_branch_of_its_name(client: httpx.AsyncClient, repo: str) -> None:
    for name in ("back", "gone"):
        for kind, body in (("branches", {"name": name, "source": "main"}), ("tags", {"id": name, "ref": "main"})):
            assert (await client.post(f"{repo}/{kind}", json=body)).status_code == 201
            assert (await client.delete(f"{repo}/{kind}/{name}")).status_code == 204

    assert (await client.post(f"{repo}/tags/back/undelete")).status_code == 201
    assert (await client.delete(f"{repo}/tags/gone/deleted")).status_code == 204

    assert await pages(client, repo + "/deleted/tags") == [[]]
    assert await pages(client, repo + "/deleted/branches") == [["back", "gone"]]


def test_an_operation_is_of_the_kind_that_its_path_names() -> None:
    named = {"branches": RefKind.BRANCH, "tags": RefKind.TAG}

    for operation, kind in deleted._KINDS.items():
        assert [named[segment] for segment in operation.path.split("/") if segment in named] == [kind], operation.id


def test_an_operation_without_a_kind_is_not_served(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(deleted._KINDS, FORGET_TAG)

    with pytest.raises(AssertionError, match="forgetTag: of branches, or of tags"):
        deleted.DeletedRefs(state).routes()
