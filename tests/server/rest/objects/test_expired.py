"""How each door shows objects that a lifecycle run took although commits name them."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
from lakefs_sdk import DiffList, ObjectStats, ObjectStatsList

from lakebed.base import parse_address
from lakebed.gc.live import PolicyBook
from lakebed.objectstore import open_deleter
from lakebed.server import App, AppState
from lakebed.server.operate.backup_check import check_named
from lakebed.versions import TakingRecord
from tests.server.s3.signing import allow, asked_as, keys_of

DAY_S = 86_400
RULE = "logs: logs/ 10d"
EXPIRED = {"policy_version": 3, "rule": RULE, "run": "r1", "date": 10 * DAY_S}
WORDS = "expired by policy version 3, logs: logs/ 10d, run r1, 1970-01-11"


async def write(client: httpx.AsyncClient, repo: str, path: str, data: bytes = b"data") -> None:
    (await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=data)).raise_for_status()


async def commit(client: httpx.AsyncClient, repo: str) -> str:
    answer = await client.post(f"{repo}/branches/main/commits", json={"message": "m"})
    found: str = answer.json()["id"]
    return found


async def take(state: AppState, path: str) -> None:
    """Write down what a run writes before it deletes."""
    versions = (await state.catalog.get("lake")).versions
    await PolicyBook(versions).write(b'{"logs": {"prefix": "logs/", "days": 10}}')
    place = parse_address((await versions.staging.get("main", path.encode())).address)
    assert place is not None
    await versions.taken.begin("r1", TakingRecord(policy_version=3, taken_ms=10 * DAY_S * 1000, rules=("x", RULE)))
    await versions.taken.add("r1", [(1, np.array([place[0]]), np.array([place[1]]), [])])


@pytest.fixture
async def lake(client: httpx.AsyncClient, repo: str, state: AppState) -> str:
    """`logs/old`, which went, beside `logs/new`."""
    await write(client, repo, "logs/old")
    await write(client, repo, "logs/new")
    await commit(client, repo)
    await take(state, "logs/old")
    return repo


@pytest.mark.parametrize("params", [{}, {"presign": "true"}])
async def test_reading_it_answers_410_and_says_who_took_it(
    client: httpx.AsyncClient, lake: str, params: dict[str, str]
) -> None:
    at = f"{lake}/refs/main/objects"

    gone = await client.get(at, params={"path": "logs/old", **params})

    assert (gone.status_code, gone.json()) == (410, {"message": WORDS, "expired": EXPIRED})
    assert (await client.head(at, params={"path": "logs/old"})).status_code == 410
    assert (await client.get(at, params={"path": "logs/new", **params})).status_code == 200


async def test_files_of_symlinks_leave_it_out(client: httpx.AsyncClient, lake: str, state: AppState) -> None:
    """A reader of the table would fail at an object that is gone."""
    store = (await state.catalog.get("lake")).objectstore

    made = (await client.post(f"{lake}/refs/main/symlink")).json()["location"]

    listed = await store.get(f"{made.removeprefix(store.uri)}/logs/symlink.txt".replace("//", "/").lstrip("/"))
    kept = (await client.get(f"{lake}/refs/main/objects/stat", params={"path": "logs/new"})).json()["physical_address"]
    assert listed.decode().split() == [kept]


async def test_stat_and_lists_mark_it_and_nothing_else(client: httpx.AsyncClient, lake: str) -> None:
    at = f"{lake}/refs/main/objects"

    stats = (await client.get(at + "/stat", params={"path": "logs/old", "presign": "true"})).json()
    listed = (await client.get(at + "/ls")).json()

    assert stats["expired"] == EXPIRED
    assert {one["path"]: one.get("expired") for one in listed["results"]} == {"logs/new": None, "logs/old": EXPIRED}
    assert "expired" not in listed["results"][0]


async def test_the_contracts_client_reads_marked_answers(client: httpx.AsyncClient, lake: str) -> None:
    first = (await client.get(f"{lake}/refs/main/commits")).json()["results"][-1]["id"]
    stats = (await client.get(f"{lake}/refs/main/objects/stat", params={"path": "logs/old"})).json()
    listed = (await client.get(f"{lake}/refs/main/objects/ls")).json()
    diff = (await client.get(f"{lake}/refs/{first}/diff/main")).json()

    assert ObjectStats.from_dict(stats).path == "logs/old"
    assert len(ObjectStatsList.from_dict(listed).results) == 2
    assert [one.path for one in DiffList.from_dict(diff).results] == ["logs/new", "logs/old"]


async def test_differences_mark_it(client: httpx.AsyncClient, lake: str) -> None:
    first = (await client.get(f"{lake}/refs/main/commits")).json()["results"][-1]["id"]

    diff = (await client.get(f"{lake}/refs/{first}/diff/main")).json()

    assert {one["path"]: one.get("expired") for one in diff["results"]} == {"logs/new": None, "logs/old": EXPIRED}


async def test_a_copy_of_it_is_refused(client: httpx.AsyncClient, lake: str) -> None:
    body = {"src_path": "logs/old", "src_ref": "main"}

    gone = await client.post(f"{lake}/branches/main/objects/copy", params={"dest_path": "copy"}, json=body)

    assert (gone.status_code, gone.json()["message"]) == (410, WORDS)


async def test_the_path_takes_another_object_or_none(client: httpx.AsyncClient, lake: str) -> None:
    at = f"{lake}/refs/main/objects"
    await write(client, lake, "logs/old", b"new")

    assert (await client.get(at, params={"path": "logs/old"})).content == b"new"
    assert "expired" not in (await client.get(at + "/stat", params={"path": "logs/old"})).json()
    (await client.delete(f"{lake}/branches/main/objects", params={"path": "logs/old"})).raise_for_status()
    assert (await client.get(at, params={"path": "logs/old"})).status_code == 404


async def test_s3_answers_410_with_a_code_of_its_own(app: App, client: httpx.AsyncClient, lake: str) -> None:
    pair = await keys_of(client, "ann", allow("fs:*"))
    with asked_as(app, pair) as s3:
        gone = await s3.get("/lake/main/logs/old")
        copied = await s3.put("/lake/main/copy", headers={"x-amz-copy-source": "/lake/main/logs/old"})
        head = await s3.head("/lake/main/logs/old")

    assert gone.status_code == 410
    assert f"<Code>ObjectExpired</Code><Message>{WORDS}</Message>" in gone.text
    assert (copied.status_code, head.status_code) == (410, 410)


async def test_a_check_of_a_backup_does_not_miss_it(client: httpx.AsyncClient, lake: str, state: AppState) -> None:
    await write(client, lake, "logs/lost")
    await commit(client, lake)
    namespace = (await state.catalog.get("lake")).versions.objectstore
    lost = [await stored_at(state, path) for path in ("logs/old", "logs/lost")]
    assert await open_deleter(namespace.uri).delete(lost) == []

    checked = await check_named(state.store, lambda _: namespace, state.ports)

    assert checked.missing == [f"lake: {lost[1]}: missing"]


async def test_a_check_of_a_backup_counts_a_missing_object_once(
    client: httpx.AsyncClient, lake: str, state: AppState
) -> None:
    await write(client, lake, "logs/lost")
    for number in range(3):
        # Each commit has a range of its own, which names the object.
        await write(client, lake, f"logs/next{number}")
        await commit(client, lake)
    namespace = (await state.catalog.get("lake")).versions.objectstore
    lost = await stored_at(state, "logs/lost")
    assert await open_deleter(namespace.uri).delete([lost]) == []

    checked = await check_named(state.store, lambda _: namespace, state.ports)

    assert (checked.missing_count, checked.missing) == (1, [f"lake: {lost}: missing"])


async def stored_at(state: AppState, path: str) -> str:
    return (await (await state.catalog.get("lake")).versions.staging.get("main", path.encode())).address


class TestBringing:
    """Whoever brings expired entries to a branch may ask how many, and refuse."""

    @pytest.fixture
    async def before(self, client: httpx.AsyncClient, repo: str, state: AppState) -> str:
        """`logs/old` went; `main` has deleted it, and `dev` has it and a file of its own."""
        await write(client, repo, "logs/old")
        first = await commit(client, repo)
        await take(state, "logs/old")
        (await client.delete(f"{repo}/branches/main/objects", params={"path": "logs/old"})).raise_for_status()
        await write(client, repo, "other")
        await commit(client, repo)
        return first

    async def test_a_revert_brings_it_or_is_refused(self, client: httpx.AsyncClient, repo: str, before: str) -> None:
        body = {"ref": "main", "parent_number": 0}

        refused = await client.post(f"{repo}/branches/main/revert", json={**body, "refuse_expired": True})
        (await client.post(f"{repo}/branches/main/revert", json=body)).raise_for_status()

        assert (refused.status_code, refused.json()["message"]) == (
            409,
            "this would bring 1 object that lifecycle runs took: nothing changed",
        )
        assert (await client.get(f"{repo}/refs/main~1/expired/main")).json() == {"objects": 1}

    async def test_a_hard_reset_brings_it_or_is_refused(
        self, client: httpx.AsyncClient, repo: str, before: str
    ) -> None:
        at = f"{repo}/branches/main/hard_reset"

        refused = await client.put(at, params={"ref": before, "refuse_expired": True})

        assert refused.status_code == 409
        assert (await client.get(f"{repo}/refs/main/expired/{before}")).json() == {"objects": 1}
        assert (await client.put(at, params={"ref": before})).status_code == 204

    async def test_a_merge_brings_it_or_is_refused(self, client: httpx.AsyncClient, repo: str, before: str) -> None:
        await client.post(f"{repo}/branches", json={"name": "clean", "source": f"{before}~1"})
        at = f"{repo}/refs/{before}/merge/clean"

        refused = await client.post(at, json={"refuse_expired": True})
        assert (await client.get(f"{repo}/refs/clean/expired/{before}")).json() == {"objects": 1}
        merged = await client.post(at, json={})

        assert (refused.status_code, merged.status_code) == (409, 200)

    async def test_a_cherry_pick_brings_it_or_is_refused(
        self, client: httpx.AsyncClient, repo: str, before: str
    ) -> None:
        await client.post(f"{repo}/branches", json={"name": "clean", "source": f"{before}~1"})
        at = f"{repo}/branches/clean/cherry-pick"

        refused = await client.post(at, json={"ref": before, "refuse_expired": True})
        picked = await client.post(at, json={"ref": before})

        assert (refused.status_code, picked.status_code) == (409, 201)

    async def test_what_brings_none_is_not_refused(self, client: httpx.AsyncClient, repo: str, before: str) -> None:
        merged = await client.post(f"{repo}/refs/main/merge/main", json={"refuse_expired": True, "allow_empty": True})

        assert merged.status_code == 200
