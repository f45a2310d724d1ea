"""Importing what lies elsewhere in the object store, through the routes of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from lakebed.base import OutcomeUnknown
from lakebed.catalog import ImportRecord, ImportState
from lakebed.catalog.objects import imports
from lakebed.catalog.refs.changes import Changes
from lakebed.objectstore import ObjectStore, open_objectstore
from lakebed.quotas import Reservation
from lakebed.server import AppState
from lakebed.server.process.upkeep_loop import clean_imports
from lakebed.versions import Note, decode_record

NOTE = {"message": "import", "metadata": {"job": "7"}}


@pytest.fixture
async def source(namespace: str) -> ObjectStore:
    """A bucket that no repository has, of this test alone."""
    store = open_objectstore(namespace.replace("server", "source"))
    for key in ("logs/a.csv", "logs/b/c.csv", "logs2/no.csv", "one.bin"):
        await store.put(key, key.encode())
    return store


@pytest.fixture
def start(client: httpx.AsyncClient, repo: str) -> Callable[..., Any]:
    async def start(*paths: tuple[str, str, str], branch: str = "main", **more: object) -> httpx.Response:
        body = {"paths": [{"type": t, "path": p, "destination": d} for t, p, d in paths], "commit": NOTE, **more}
        return await client.post(f"{repo}/branches/{branch}/import", json=body)

    return start


async def ended(client: httpx.AsyncClient, repo: str, import_id: str, branch: str = "main") -> dict[str, Any]:
    while True:
        answer = await client.get(f"{repo}/branches/{branch}/import", params={"id": import_id})
        status: dict[str, Any] = answer.json()
        if status["completed"] or "error" in status:
            return status
        await asyncio.sleep(0.01)


async def paths_of(client: httpx.AsyncClient, repo: str, ref: str = "main") -> list[str]:
    return [row["path"] for row in (await client.get(f"{repo}/refs/{ref}/objects/ls")).json()["results"]]


async def test_a_folder_and_an_object_are_one_commit_and_read_without_a_copy(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    answer = await start(
        ("common_prefix", f"{source.uri}/logs/", "raw/logs/"), ("object", f"{source.uri}/one.bin", "raw/1.bin")
    )
    assert answer.status_code == 202, answer.text
    status = await ended(client, repo, answer.json()["id"])

    assert (status["completed"], status["ingested_objects"]) == (True, 3)
    noted = (await client.get(f"{repo}/metadata")).json()
    assert noted == {".lakefs.last.import.timestamp": str(status["commit"]["creation_date"])}
    assert status["commit"]["message"] == "import"
    assert status["commit"]["metadata"]["job"] == "7"
    assert status["metarange_id"] == status["commit"]["meta_range_id"]
    assert await paths_of(client, repo) == ["raw/1.bin", "raw/logs/a.csv", "raw/logs/b/c.csv"]
    read = await client.get(f"{repo}/refs/main/objects", params={"path": "raw/logs/b/c.csv"})
    assert read.content == b"logs/b/c.csv"
    stat = (await client.get(f"{repo}/refs/main/objects/stat", params={"path": "raw/1.bin"})).json()
    assert stat["physical_address"] == f"{source.uri}/one.bin"
    log = (await client.get(f"{repo}/refs/main/commits")).json()["results"]
    assert [commit["message"] for commit in log] == ["import", "Repository created"]
    branches = await client.get(f"{repo}/branches", params={"show_hidden": True})
    assert [branch["id"] for branch in branches.json()["results"]] == ["main"]


@pytest.mark.parametrize("body", [b"longer than before", b"s"])
async def test_a_source_that_was_overwritten_with_another_size_is_not_read(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore, body: bytes
) -> None:
    await ended(client, repo, (await start(("object", f"{source.uri}/one.bin", "1.bin"))).json()["id"])
    await source.put("one.bin", body)

    for headers in ({}, {"range": "bytes=0-1"}):
        read = await client.get(f"{repo}/refs/main/objects", params={"path": "1.bin"}, headers=headers)
        assert read.status_code == 409
        assert "overwritten at its source" in read.json()["message"]


async def test_a_protected_branch_takes_an_import(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    (await client.put(f"{repo}/settings/branch_protection", json=[{"pattern": "*"}])).raise_for_status()

    answer = await start(("common_prefix", f"{source.uri}/logs/", "raw/logs/"))
    assert answer.status_code == 202, answer.text

    assert (await ended(client, repo, answer.json()["id"]))["completed"]
    assert await paths_of(client, repo) == ["raw/logs/a.csv", "raw/logs/b/c.csv"]


async def test_importing_again_changes_only_what_changed(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    whole = ("common_prefix", f"{source.uri}/logs/", "logs")
    first = await ended(client, repo, (await start(whole)).json()["id"])
    again = await ended(client, repo, (await start(whole)).json()["id"])
    await source.put("logs/new.csv", b"new")
    third = await ended(client, repo, (await start(whole)).json()["id"])

    assert again["commit"]["id"] == first["commit"]["id"]
    assert third["commit"]["parents"] == [first["commit"]["id"]]
    diff = await client.get(f"{repo}/refs/{first['commit']['id']}/diff/{third['commit']['id']}")
    assert [row["path"] for row in diff.json()["results"]] == ["logs/new.csv"]


async def test_what_is_imported_wins_over_what_is_there_and_the_rest_stays(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    for path in ("logs/a.csv", "logs/mine.csv"):
        await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=b"mine")
    await client.post(f"{repo}/branches/main/commits", json={"message": "mine"})
    await ended(client, repo, (await start(("common_prefix", f"{source.uri}/logs/", "logs"))).json()["id"])

    assert await paths_of(client, repo) == ["logs/a.csv", "logs/b/c.csv", "logs/mine.csv"]
    assert (await client.get(f"{repo}/refs/main/objects", params={"path": "logs/a.csv"})).content == b"logs/a.csv"


async def test_of_two_locations_with_one_path_the_last_wins_also_where_it_was_there_before(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    await source.put("others/a.csv", b"other")
    logs, others = (("common_prefix", f"{source.uri}/{folder}/", "in") for folder in ("logs", "others"))
    await ended(client, repo, (await start(logs)).json()["id"])

    await ended(client, repo, (await start(others, logs)).json()["id"])

    assert (await client.get(f"{repo}/refs/main/objects", params={"path": "in/a.csv"})).content == b"logs/a.csv"


async def test_what_was_imported_from_beside_a_prefix_stays(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    for location in ("logs/b", "logs/a"):
        await ended(client, repo, (await start(("common_prefix", f"{source.uri}/{location}", "in"))).json()["id"])

    assert await paths_of(client, repo) == ["in/a.csv", "in/b/c.csv"]


async def test_nothing_is_imported_into_a_read_only_repository(
    client: httpx.AsyncClient, repo: str, source: ObjectStore, namespace: str
) -> None:
    made = {"name": "frozen", "storage_namespace": f"{namespace}-frozen", "read_only": True}
    (await client.post("/repositories", json=made)).raise_for_status()
    path = {"type": "object", "path": f"{source.uri}/one.bin", "destination": "a"}

    answer = await client.post("/repositories/frozen/branches/main/import", json={"paths": [path], "commit": NOTE})

    assert (answer.status_code, "read-only" in answer.text) == (403, True), answer.text
    assert repo


async def test_a_merge_without_an_answer_may_be_done_so_its_bytes_count(
    client: httpx.AsyncClient,
    repo: str,
    start: Callable[..., Any],
    source: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_back: list[object] = []

    async def unanswered(*_: object, **__: object) -> None:
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(Changes, "merge", unanswered)
    monkeypatch.setattr(Reservation, "give_back", given_back.append)

    status = await ended(client, repo, (await start(("object", f"{source.uri}/one.bin", "a"))).json()["id"])

    assert "the history of the branch shows it" in status["error"]["message"]
    assert given_back == []


async def test_many_parts_and_a_branch_that_moves_meanwhile(
    client: httpx.AsyncClient,
    repo: str,
    start: Callable[..., Any],
    source: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(imports, "PART_OBJECTS", 1)
    for number in range(30):
        await source.put(f"many/{number:03}", b"x")
    begun = (await start(("common_prefix", f"{source.uri}/many", "many"))).json()["id"]
    await client.post(f"{repo}/branches/main/objects", params={"path": "beside"}, content=b"mine")
    await client.post(f"{repo}/branches/main/commits", json={"message": "beside"})
    status = await ended(client, repo, begun)

    assert status["completed"], status
    assert len(await paths_of(client, repo)) == 31


@pytest.mark.parametrize(
    ("type_", "path", "words"),
    [
        ("common_prefix", "{own}/x", "invalid import source: the folder meets the storage namespace"),
        ("object", "{own}/data/x", "lies inside the storage namespace"),
        ("common_prefix", "gs://bucket/x", "cannot open"),
        ("folder", "{source}/logs", "known are common_prefix and object"),
    ],
)
async def test_a_source_that_cannot_be_imported_is_refused_at_once(
    start: Callable[..., Any], source: ObjectStore, namespace: str, type_: str, path: str, words: str
) -> None:
    answer = await start((type_, path.format(own=namespace, source=source.uri), "x"))

    assert answer.status_code == 400
    assert words in answer.json()["message"]


async def test_an_import_of_no_paths_is_a_commit_that_changes_nothing(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any]
) -> None:
    answer = await start()
    status = await ended(client, repo, answer.json()["id"])

    assert answer.status_code == 202
    assert (status["completed"], status["ingested_objects"]) == (True, 0)
    assert (status["commit"]["message"], status["commit"]["metadata"]["job"]) == ("import", "7")
    assert (await client.get(f"{repo}/branches/main")).json()["commit_id"] == status["commit"]["id"]
    assert await paths_of(client, repo) == []


async def test_a_date_a_missing_branch_and_uncommitted_changes_are_refused(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    one = ("object", f"{source.uri}/one.bin", "1")
    assert (await start(one, commit={"message": "m", "date": 5})).status_code == 400
    assert (await start(one, branch="none")).status_code == 404
    await client.post(f"{repo}/branches/main/objects", params={"path": "a"}, content=b"mine")
    answer = await start(one)
    assert (answer.status_code, "dirty branch" in answer.text) == (400, True)


async def test_an_object_that_is_not_there_fails_the_import_and_changes_nothing(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    answer = await start(("common_prefix", f"{source.uri}/logs", "logs"), ("object", f"{source.uri}/none", "none"))
    status = await ended(client, repo, answer.json()["id"])

    assert "there is no such object" in status["error"]["message"]
    assert not status["completed"]
    assert await paths_of(client, repo) == []


async def test_a_namespace_inside_the_folder_fails_the_import(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    """Of another installation: only its keys show it."""
    await source.put("logs/theirs/_lakefs/dummy", b"marker")
    status = await ended(client, repo, (await start(("common_prefix", f"{source.uri}/logs", "logs"))).json()["id"])

    assert "lies inside the storage namespace" in status["error"]["message"]
    assert await paths_of(client, repo) == []


async def test_a_cancelled_import_stops_and_changes_nothing(
    client: httpx.AsyncClient,
    repo: str,
    start: Callable[..., Any],
    source: ObjectStore,
    state: AppState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(imports, "BEAT_MS", 0)
    monkeypatch.setattr(imports, "PART_OBJECTS", 1)
    for number in range(3_000):
        await source.put(f"many/{number:04}", b"x")
    begun = (await start(("common_prefix", f"{source.uri}/many", "many"))).json()["id"]
    cancelled, again = [await client.delete(f"{repo}/branches/main/import", params={"id": begun}) for _ in range(2)]
    at_once = await ended(client, repo, begun)
    context = (await state.catalog.get("lake")).versions.context
    while True:
        stored = await context.get(imports.IMPORT + begun.encode())
        if stored is not None and decode_record(ImportRecord, stored.value).state is not ImportState.RUNNING:
            break
        await asyncio.sleep(0.01)
    status = await ended(client, repo, begun)

    assert (cancelled.status_code, again.status_code) == (204, 204)
    assert (at_once["error"]["message"], at_once["update_time"]) == ("Canceled", status["update_time"])
    assert (status["error"]["message"], status["completed"]) == ("Canceled", False)
    assert await paths_of(client, repo) == []
    assert (await client.delete(f"{repo}/branches/main/import", params={"id": "none"})).status_code == 404


async def test_an_import_that_begins_its_merge_is_not_cancelled(
    client: httpx.AsyncClient, repo: str, state: AppState
) -> None:
    context = (await state.catalog.get("lake")).versions.context
    now_ms = context.ports.clock.now_ms()
    record = ImportRecord(
        id="merging", branch="main", own_branch="import-merging", started_ms=0, updated_ms=now_ms, is_merging=True
    )
    await context.set(imports.IMPORT + b"merging", record)

    answer = await client.delete(f"{repo}/branches/main/import", params={"id": "merging"})

    assert answer.status_code == 409
    status = (await client.get(f"{repo}/branches/main/import", params={"id": "merging"})).json()
    assert "error" not in status


async def test_an_import_that_was_cancelled_never_merges(client: httpx.AsyncClient, repo: str, state: AppState) -> None:
    """The cancellation came after the last look at it: the write that begins the merge finds it."""
    repository = await state.catalog.get("lake")
    begun = await repository.imports.begin("main", [])
    await repository.imports.cancel("main", begun.id)

    ended = await repository.imports.run(begun, [], Note(message="m", committer="ann"))

    assert (ended.state, ended.error) == (ImportState.CANCELLED, "Canceled")


async def test_an_import_that_seemed_lost_never_merges(
    client: httpx.AsyncClient, repo: str, state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = await state.catalog.get("lake")
    begun = await repository.imports.begin("main", [])
    monkeypatch.setattr(imports, "LOST_AFTER_MS", 0)
    await clean_imports(state)

    ended = await repository.imports.run(begun, [], Note(message="m", committer="ann"))

    assert ended.state is ImportState.CANCELLED
    log = (await client.get(f"{repo}/refs/main/commits")).json()["results"]
    assert [commit["message"] for commit in log] == ["Repository created"]


async def test_an_import_that_beats_is_not_lost_and_is_one_of_its_branch(
    client: httpx.AsyncClient, repo: str, state: AppState
) -> None:
    repository = await state.catalog.get("lake")
    await client.post(f"{repo}/branches", json={"name": "side", "source": "main"})
    context = repository.versions.context
    old = ImportRecord(id="old", branch="main", own_branch="import-old", started_ms=0, updated_ms=0)
    await context.set(imports.IMPORT + b"old", old)

    await repository.imports.beat(old)

    assert (await repository.imports.get("main", "old")).state is ImportState.RUNNING
    silent = replace(old, id="silent", updated_ms=state.ports.clock.now_ms() - imports.LOST_AFTER_MS * 2 // 3)
    await context.set(imports.IMPORT + b"silent", silent)
    assert (await repository.imports.get("main", "silent")).state is ImportState.RUNNING
    url = f"{repo}/branches/side/import"
    assert (await client.get(url, params={"id": "old"})).status_code == 404
    assert (await client.delete(url, params={"id": "old"})).status_code == 404


async def test_an_import_counts_for_the_branch(
    client: httpx.AsyncClient, repo: str, start: Callable[..., Any], source: ObjectStore
) -> None:
    (await client.put(f"{repo}/quotas", params={"branch": "main"}, json={"limit_bytes": 10})).raise_for_status()

    status = await ended(client, repo, (await start(("common_prefix", f"{source.uri}/logs/", "logs"))).json()["id"])

    assert "the quota of branch main has no room" in status["error"]["message"]


async def test_an_import_whose_server_is_gone_is_ended_by_another(
    client: httpx.AsyncClient, repo: str, state: AppState
) -> None:
    repository = await state.catalog.get("lake")
    context = repository.versions.context
    await repository.changes.create_branch("import-lost", "main", hidden=True)
    old = ImportRecord(id="lost", branch="main", own_branch="import-lost", started_ms=0, updated_ms=0)
    done = replace(old, id="old", state=ImportState.COMPLETED)
    for record in (old, done):
        await context.set(imports.IMPORT + record.id.encode(), record)
    answer = await client.get(f"{repo}/branches/main/import", params={"id": "lost"})
    assert "is gone" in answer.json()["error"]["message"]

    await clean_imports(state)

    held = await context.get(imports.IMPORT + b"lost")
    assert held is not None
    assert decode_record(ImportRecord, held.value).state is ImportState.FAILED
    assert await context.get(imports.IMPORT + b"old") is None
    shown = await client.get(f"{repo}/branches", params={"show_hidden": True})
    assert [branch["id"] for branch in shown.json()["results"]] == ["main"]
