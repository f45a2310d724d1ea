"""Dumps of refs, bare repositories, and the way back, through the routes of the contract."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from lakebed.base import EMPTY_METARANGE
from lakebed.objectstore import ObjectStore, open_objectstore
from lakebed.server import App, AppState
from lakebed.versions import Commit, encode_record, keys
from tests.server.s3.signing import allow, keys_of


async def copied(source: str, *, without: str = "?") -> ObjectStore:
    """A copy of a namespace, with all that lies in it but keys that contain `without`."""
    target = open_objectstore(source + "-copy")
    store = open_objectstore(source)
    async for page in store.list():
        for stat in page:
            if without not in stat.key:
                await target.put(stat.key, await store.get(stat.key))
    return target


async def put(client: httpx.AsyncClient, repo: str, path: str, text: str, branch: str = "main") -> None:
    answer = await client.post(
        f"{repo}/branches/{branch}/objects",
        params={"path": path},
        content=text.encode(),
        headers={"content-type": "application/octet-stream"},
    )
    assert answer.status_code == 201, answer.text


async def commit(client: httpx.AsyncClient, repo: str, message: str, branch: str = "main") -> str:
    answer = await client.post(f"{repo}/branches/{branch}/commits", json={"message": message})
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["id"]
    return made


@pytest.fixture
async def lake(client: httpx.AsyncClient, repo: str) -> str:
    """Two branches that were merged once, a tag, a hidden branch, and a change that is not committed."""
    await put(client, repo, "a", "one")
    await commit(client, repo, "one")
    await client.post(f"{repo}/branches", json={"name": "dev", "source": "main"})
    await put(client, repo, "b", "two", "dev")
    await commit(client, repo, "two", "dev")
    await client.post(f"{repo}/refs/dev/merge/main", json={})
    await client.post(f"{repo}/tags", json={"id": "v1.0", "ref": "main"})
    await client.post(f"{repo}/branches", json={"name": "secret", "source": "main~1", "hidden": True})
    await put(client, repo, "staged", "not in a dump")
    return repo


async def bare(client: httpx.AsyncClient, namespace: str, **more: Any) -> httpx.Response:
    body = {"name": "copy", "storage_namespace": namespace, **more}
    return await client.post("/repositories", json=body, params={"bare": True})


async def shown(client: httpx.AsyncClient, repo: str) -> dict[str, Any]:
    """Branches, tags, and the log of each branch, with all that a commit shows."""
    branches = (await client.get(f"{repo}/branches", params={"show_hidden": True})).json()["results"]
    logs = [(await client.get(f"{repo}/refs/{one['id']}/commits")).json()["results"] for one in branches]
    visible = [one["id"] for one in (await client.get(f"{repo}/branches")).json()["results"]]
    return {
        "branches": branches,
        "visible": visible,
        "tags": (await client.get(f"{repo}/tags")).json()["results"],
        "logs": logs,
    }


async def done(client: httpx.AsyncClient, path: str, task: str) -> dict[str, Any]:
    while True:
        status: dict[str, Any] = (await client.get(path, params={"task_id": task})).json()
        if status["done"]:
            return status
        await asyncio.sleep(0.01)


async def test_a_dump_restored_over_a_copy_of_the_namespace_has_every_ref_commit_and_object(
    client: httpx.AsyncClient, lake: str, namespace: str
) -> None:
    dumped = await client.put(f"{lake}/refs/dump")
    assert dumped.status_code == 201
    store = await copied(namespace)
    assert (await bare(client, store.uri)).status_code == 201
    assert (await shown(client, "/repositories/copy"))["branches"] == []

    answer = await client.put("/repositories/copy/refs/restore", json=dumped.json())

    assert answer.status_code == 200, answer.text
    assert await shown(client, "/repositories/copy") == await shown(client, lake)
    for path, text in (("a", "one"), ("b", "two")):
        read = await client.get("/repositories/copy/refs/main/objects", params={"path": path})
        assert read.text == text
    assert (await client.get("/repositories/copy/branches/main/diff")).json()["results"] == []


async def test_work_goes_on_after_a_restore(client: httpx.AsyncClient, lake: str, namespace: str) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace)).uri)
    await client.put("/repositories/copy/refs/restore", json=dumped)

    await put(client, "/repositories/copy", "c", "three")
    await commit(client, "/repositories/copy", "three")

    rows = (await client.get("/repositories/copy/refs/main/objects/ls")).json()["results"]
    assert [row["path"] for row in rows] == ["a", "b", "c"]


async def test_a_dump_and_a_restore_can_be_tasks(client: httpx.AsyncClient, lake: str, namespace: str) -> None:
    begun = await client.post(f"{lake}/dump")
    assert begun.status_code == 202
    dump = await done(client, f"{lake}/dump", begun.json()["id"])
    await bare(client, (await copied(namespace)).uri)
    begun = await client.post("/repositories/copy/restore", json=dump["refs"])
    assert begun.status_code == 202
    restored = await done(client, "/repositories/copy/restore", begun.json()["id"])

    assert "error" not in dump
    assert "error" not in restored
    assert await shown(client, "/repositories/copy") == await shown(client, lake)
    # A task of one kind is none of another.
    other = await client.get("/repositories/copy/dump", params={"task_id": restored["id"]})
    assert other.status_code == 404


async def test_a_user_begins_so_many_dumps_an_hour_and_another_user_still_may(
    client: httpx.AsyncClient, app: App, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.server.rest.dumps.DUMPS_AN_HOUR", 2)
    statuses = [
        (await client.put(f"{repo}/refs/dump")).status_code,
        (await client.post(f"{repo}/dump")).status_code,
        (await client.put(f"{repo}/refs/dump")).status_code,
    ]
    refused = await client.post(f"{repo}/dump")
    pair = await keys_of(client, "ann", allow("fs:*"))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost/api/v1", auth=httpx.BasicAuth(*pair)
    ) as ann:
        other = await ann.put(f"{repo}/refs/dump")

    assert statuses == [201, 202, 429]
    assert refused.status_code == 429
    assert "at most 2 dumps an hour of one user: the next one may begin in" in refused.json()["message"]
    assert other.status_code == 201


async def test_a_restore_that_cannot_be_done_says_why_in_its_status(client: httpx.AsyncClient, lake: str) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await put(client, lake, "c", "three")
    await commit(client, lake, "three")

    task = (await client.post(f"{lake}/restore", json=dumped)).json()["id"]

    status = await done(client, f"{lake}/restore", task)
    assert "not bare" in status["error"]


async def test_a_repository_with_other_refs_is_refused_and_keeps_them(client: httpx.AsyncClient, lake: str) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await put(client, lake, "c", "three")
    await commit(client, lake, "three")
    before = await shown(client, lake)

    answer = await client.put(f"{lake}/refs/restore", json=dumped)

    assert answer.status_code == 409
    assert "not bare" in answer.json()["message"]
    assert await shown(client, lake) == before


async def test_a_restore_done_twice_changes_nothing(client: httpx.AsyncClient, lake: str, namespace: str) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace)).uri)
    await client.put("/repositories/copy/refs/restore", json=dumped)

    again = await client.put("/repositories/copy/refs/restore", json=dumped)

    assert again.status_code == 200
    assert await shown(client, "/repositories/copy") == await shown(client, lake)


@pytest.mark.parametrize("field", ["branches", "tags", "commits"])
async def test_ids_that_are_not_there_are_refused(
    client: httpx.AsyncClient, lake: str, namespace: str, field: str
) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace)).uri)
    name = f"{field}_meta_range_id"

    unknown = await client.put(
        "/repositories/copy/refs/restore",
        json={**dumped, name: dumped[name][:-1] + ("0" if dumped[name][-1] != "0" else "1")},
    )
    no_id = await client.put("/repositories/copy/refs/restore", json={**dumped, name: "../../x"})

    assert (unknown.status_code, no_id.status_code) == (404, 404)
    assert (await shown(client, "/repositories/copy"))["branches"] == []


async def test_swapped_ids_are_refused(client: httpx.AsyncClient, lake: str, namespace: str) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace)).uri)
    tags, commits = dumped["tags_meta_range_id"], dumped["commits_meta_range_id"]

    answer = await client.put(
        "/repositories/copy/refs/restore",
        json={**dumped, "tags_meta_range_id": commits, "commits_meta_range_id": tags},
    )

    assert answer.status_code == 400
    assert "not a file of tags" in answer.json()["message"]


@pytest.mark.parametrize("folder", ["_lakefs/ranges/", "_lakefs/metaranges/"])
async def test_a_namespace_that_lacks_files_of_a_tree_is_refused(
    client: httpx.AsyncClient, lake: str, namespace: str, folder: str
) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace, without=folder)).uri)

    answer = await client.put("/repositories/copy/refs/restore", json=dumped)

    assert answer.status_code == 400
    assert "lack files of their trees" in answer.json()["message"]
    assert (await shown(client, "/repositories/copy"))["branches"] == []


async def test_objects_are_looked_for_where_that_is_asked_for(
    client: httpx.AsyncClient, lake: str, namespace: str
) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    listed = await client.get(f"{lake}/refs/main/objects/ls", params={"prefix": "b"})
    address = listed.json()["results"][0]["physical_address"].partition("/data/")[2]
    await bare(client, (await copied(namespace, without=address)).uri)
    restore = "/repositories/copy/refs/restore"

    refused = await client.put(restore, json={**dumped, "check_objects": True})

    assert refused.status_code == 400
    assert f"1 object that commits of the dump name, not in this namespace: b (data/{address})" in refused.text
    assert (await shown(client, "/repositories/copy"))["branches"] == []
    assert (await client.put(restore, json=dumped)).status_code == 200


async def test_a_restore_that_looks_for_objects_goes_through_where_they_are(
    client: httpx.AsyncClient, lake: str, namespace: str
) -> None:
    outside = {"physical_address": "mem://elsewhere/x", "checksum": "x", "size_bytes": 1, "content_type": "x"}
    staged = await client.put(f"{lake}/branches/main/objects", params={"path": "outside"}, json=outside)
    assert staged.status_code == 201, staged.text
    await commit(client, lake, "an object outside the namespace")
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace)).uri)

    answer = await client.put("/repositories/copy/refs/restore", json={**dumped, "check_objects": True})

    assert answer.status_code == 200, answer.text
    assert await shown(client, "/repositories/copy") == await shown(client, lake)


async def test_a_dump_whose_bytes_were_altered_is_refused(client: httpx.AsyncClient, lake: str, namespace: str) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    store = await copied(namespace)
    dump, _, digest = dumped["branches_meta_range_id"].partition("-")
    key = f"_lakefs/refs/{dump}/{digest}.parquet"
    data = bytearray(await store.get(key))
    data[len(data) // 2] ^= 1
    await store.put(key, bytes(data))
    await bare(client, store.uri)

    answer = await client.put("/repositories/copy/refs/restore", json=dumped)

    assert answer.status_code == 500
    assert "contradict" in answer.json()["message"]


async def test_a_commit_that_contradicts_its_id_is_refused(
    client: httpx.AsyncClient, lake: str, namespace: str, state: AppState
) -> None:
    """As a dump that a person made would have."""
    versions = (await state.catalog.get("lake")).versions
    head = (await versions.refs.get_branch("main")).commit_id
    forged = Commit(generation=7, message="x", committer="x", created_ms=1, metarange_id=EMPTY_METARANGE, parents=())
    await versions.context.set_all([(keys.COMMIT + head.encode(), encode_record(forged))])
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace)).uri)

    answer = await client.put("/repositories/copy/refs/restore", json=dumped)

    assert answer.status_code == 400
    assert "contradicts its id" in answer.json()["message"]


async def test_a_dump_without_the_default_branch_is_refused(
    client: httpx.AsyncClient, lake: str, namespace: str
) -> None:
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace)).uri, default_branch="trunk")

    answer = await client.put("/repositories/copy/refs/restore", json=dumped)

    assert answer.status_code == 400
    assert "no branch trunk" in answer.json()["message"]


async def test_nothing_is_collected_over_anothers_namespace_until_a_person_chose(
    client: httpx.AsyncClient, lake: str, namespace: str
) -> None:
    """The marker does not say whether another installation is alive there."""
    dumped = (await client.put(f"{lake}/refs/dump")).json()
    await bare(client, (await copied(namespace)).uri)
    await client.put("/repositories/copy/refs/restore", json=dumped)

    before = await client.post("/repositories/copy/gc/runs", json={"kind": "uncommitted"})
    adopted = await client.post("/repositories/copy/gc/adopting")
    after = await client.post("/repositories/copy/gc/runs", json={"kind": "uncommitted"})

    assert before.status_code == 409, before.text
    assert "gc adopt" in before.json()["message"]
    assert adopted.status_code == 200
    assert after.is_success, after.text


async def test_a_bare_repository_is_refused_over_a_namespace_of_this_installation(
    client: httpx.AsyncClient, lake: str, namespace: str
) -> None:
    assert (await bare(client, namespace)).status_code == 400
    await client.delete(lake)
    # It can be undeleted.
    assert (await bare(client, namespace)).status_code == 400


async def test_a_bare_repository_answers_and_takes_no_write(client: httpx.AsyncClient, namespace: str) -> None:
    assert (await bare(client, namespace)).status_code == 201

    assert (await client.get("/repositories/copy/branches/main")).status_code == 404
    assert (await client.get("/repositories/copy/refs/main/objects/ls")).status_code == 404
    write = await client.post("/repositories/copy/branches/main/objects", params={"path": "a"}, content=b"x")
    assert write.status_code == 404
    assert (await client.delete("/repositories/copy")).status_code == 204
