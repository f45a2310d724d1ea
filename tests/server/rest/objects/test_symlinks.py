"""Files of symlinks, for Hive: what `createSymlinkFile` writes below `_lakefs/symlinks/`."""

from __future__ import annotations

import asyncio

import httpx

from lakebed.gc.mark.inputs.listing import find_unknown_files, written_file
from lakebed.objectstore import ObjectStore, open_objectstore
from tests.gc.garbage import context_of
from tests.server.rest.test_dumps import commit, put


async def lines(store: ObjectStore, location: str) -> dict[str, list[bytes]]:
    """What the objects hold that each `symlink.txt` of a set lists, by its folder. As Hive reads a table."""
    root = location.removeprefix(f"{store.uri}/")
    found: dict[str, list[bytes]] = {}
    async for page in store.list(root):
        for stat in page:
            if stat.key.endswith("/symlink.txt"):
                addresses = (await store.get(stat.key)).decode().splitlines()
                keys = [address.removeprefix(f"{store.uri}/") for address in addresses]
                found[stat.key[len(root) : -len("symlink.txt")]] = [await store.get(key) for key in keys]
    return found


async def made(client: httpx.AsyncClient, repo: str, location: str = "", branch: str = "main") -> httpx.Response:
    return await client.post(f"{repo}/refs/{branch}/symlink", params={"location": location} if location else None)


async def test_each_folder_has_a_file_that_lists_its_objects(
    client: httpx.AsyncClient, repo: str, namespace: str
) -> None:
    paths = ["t/a", "t/d=1/x", "t/d=1/e=2/deep", "t/d=1/z", "t/d=10/w", "t/e", "other", "t.txt"]
    for path in paths:
        await put(client, repo, path, path)
    await commit(client, repo, "all")
    await put(client, repo, "t/staged", "no commit has it")

    answer = await made(client, repo, "t/")

    assert answer.status_code == 201, answer.text
    assert answer.json()["location"].startswith(f"{namespace}/_lakefs/symlinks/")
    assert await lines(open_objectstore(namespace), answer.json()["location"]) == {
        "": [b"t/a", b"t/e"],
        "d=1/": [b"t/d=1/x", b"t/d=1/z"],
        "d=1/e=2/": [b"t/d=1/e=2/deep"],
        "d=10/": [b"t/d=10/w"],
    }


async def test_the_whole_branch_is_the_location_where_none_is_given(
    client: httpx.AsyncClient, repo: str, namespace: str
) -> None:
    await put(client, repo, "a", "a")
    await put(client, repo, "t/b", "b")
    await commit(client, repo, "both")

    location = (await made(client, repo)).json()["location"]

    assert await lines(open_objectstore(namespace), location) == {"": [b"a"], "t/": [b"b"]}


async def test_a_later_set_leaves_the_earlier_one_as_it_is(
    client: httpx.AsyncClient, repo: str, namespace: str
) -> None:
    await put(client, repo, "t/a", "1")
    await commit(client, repo, "one")
    before = (await made(client, repo, "t")).json()["location"]
    await put(client, repo, "t/a", "2")
    await commit(client, repo, "two")
    after = (await made(client, repo, "/t/")).json()["location"]

    store = open_objectstore(namespace)
    assert before.rpartition("/")[0].rpartition("/")[0] == after.rpartition("/")[0].rpartition("/")[0]
    assert (await lines(store, before), await lines(store, after)) == ({"": [b"1"]}, {"": [b"2"]})


async def test_where_nothing_is_there_is_no_file(client: httpx.AsyncClient, repo: str) -> None:
    assert (await made(client, repo, "nothing")).status_code == 404
    assert (await made(client, repo, branch="none")).status_code == 404


async def test_a_folder_that_no_store_takes_is_refused(client: httpx.AsyncClient, repo: str) -> None:
    await put(client, repo, "t//b", "b")
    await commit(client, repo, "odd")

    answer = await made(client, repo, "t")

    assert answer.status_code == 400
    assert "name that the object store does not take" in answer.json()["message"]


async def test_collections_know_the_files(client: httpx.AsyncClient, repo: str, namespace: str) -> None:
    await put(client, repo, "t/d=1/a", "1")
    await commit(client, repo, "one")
    await made(client, repo, "t")
    await client.put(f"{repo}/refs/dump")

    store = open_objectstore(namespace)
    keys = [stat.key async for page in store.list("_lakefs/") for stat in page]
    assert (await find_unknown_files(context_of(store).engine, store)).count == 0
    groups = [found[0].partition("/")[0] for key in keys if (found := written_file(key))]
    assert sorted(groups) == ["refs", "refs", "refs", "symlinks", "symlinks"]


async def test_commits_are_prepared_for_a_collection_as_a_task(
    client: httpx.AsyncClient, repo: str, namespace: str
) -> None:
    await client.put(f"{repo}/settings/gc_rules", json={"default_retention_days": 7, "branches": []})

    begun = await client.post(f"{repo}/gc/prepare_commits/async")
    assert begun.status_code == 202
    while True:
        status = (await client.get(f"{repo}/gc/prepare_commits/status", params={"id": begun.json()["id"]})).json()
        if status["completed"]:
            break
        await asyncio.sleep(0.01)

    assert "error" not in status
    assert status["result"]["gc_commits_location"].startswith(f"{namespace}/_lakefs/retention/gc/committed/")
    unknown = await client.get(f"{repo}/gc/prepare_commits/status", params={"id": "x"})
    assert unknown.status_code == 404
