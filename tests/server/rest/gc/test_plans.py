"""Plans as the server shows them: from the namespace, without Spark."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from lakebed.gc import messages
from lakebed.gc.live.explain import trees
from lakebed.gc.messages import Plan, RunKind, Total, Totals
from lakebed.objectstore import ObjectStore, open_deleter
from lakebed.server import AppState


def garbage(addresses: list[str]) -> pa.Table:
    rows = len(addresses)
    columns = {
        "address": addresses,
        "slice": [-1] * rows,
        "sequence": [0] * rows,
        "size_bytes": [10] * rows,
        "reason": ["expired"] * rows,
        "rule": ["main: 7d"] * rows,
        "last_seen_at": [0] * rows,
        "path": ["a/b"] * rows,
        "other_paths": [None] * rows,
        "other_rules": [None] * rows,
        "seen_in": [None] * rows,
    }
    schema = messages.arrow_schema(messages.GARBAGE)
    return pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names}, schema)


async def write_plan(objectstore: ObjectStore, run_id: str, addresses: list[str], kind: RunKind, **fields: Any) -> str:
    """Write a plan into a namespace, as a collector does, and return its folder."""
    folder = messages.input_folder(kind, messages.check_run_id(run_id), "garbage")
    data = messages.encode_part(messages.GARBAGE, garbage(addresses))
    part = messages.part_of("part-00000.parquet", data, rows=len(addresses))
    await objectstore.put(folder + part.name, data)
    nothing = messages.manifest_of(messages.COMMITS, folder, [])
    plan = Plan(
        run_id=run_id,
        kind=kind,
        repository="lake",
        namespace=objectstore.uri,
        now_ms=1,
        closed_slices=0,
        rules=None,
        rules_version=3,
        commits=nothing,
        refs=nothing,
        commit_counts=messages.CommitCounts(all=0, kept=0, expired=0, swept=0),
        range_counts=messages.RangeCounts(live=0, expired=0),
        garbage=messages.manifest_of(messages.GARBAGE, folder, [part]),
        totals=Totals(all=Total(objects=len(addresses), size_bytes=10 * len(addresses))),
    )
    plan = msgspec.structs.replace(plan, **fields)
    await objectstore.put(messages.plan_path(kind, run_id), messages.encode_plan(plan))
    return folder


@pytest.fixture
def write(state: AppState, repo: str) -> Any:
    """Writes a plan of the repository, and returns its folder."""

    async def write(run_id: str, addresses: list[str], kind: RunKind = RunKind.COMMITTED, **fields: Any) -> str:
        objectstore = (await state.catalog.get(repo.rpartition("/")[2])).objectstore
        return await write_plan(objectstore, run_id, addresses, kind, **fields)

    return write


async def test_plans_are_listed_newest_first_in_pages(client: httpx.AsyncClient, repo: str, write: Any) -> None:
    await write("r1", ["x"])
    await write("r3", [])
    await write("r2", ["x", "y"], RunKind.UNCOMMITTED)

    first = (await client.get(repo + "/gc/plans", params={"amount": 2})).json()
    second = (await client.get(repo + "/gc/plans", params={"after": first["plans"][-1]["run_id"]})).json()

    assert [plan["run_id"] for plan in first["plans"] + second["plans"]] == ["r3", "r2", "r1"]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert first["plans"][1]["total"] == {"objects": 2, "size_bytes": 20}


async def test_a_plan_is_shown_as_it_was_written(client: httpx.AsyncClient, repo: str, write: Any) -> None:
    await write("r1", ["x", "y"])

    shown = (await client.get(repo + "/gc/plans/r1")).json()

    assert (shown["run_id"], shown["kind"], shown["rules_version"]) == ("r1", "committed", 3)
    assert shown["totals"]["all"] == {"objects": 2, "size_bytes": 20}


async def test_what_differs_between_two_plans_is_told_object_by_object(
    client: httpx.AsyncClient, repo: str, write: Any
) -> None:
    await write("r1", ["x", "y"])
    await write("r2", ["y", "z"])

    diff = (await client.get(repo + "/gc/plans/r1/diff/r2")).json()

    assert [(row["side"], row["address"]) for row in diff["objects"]] == [("a", "x"), ("b", "z")]
    assert diff["both"] == {"objects": 1, "size_bytes": 10}


async def test_a_plan_with_a_missing_or_changed_part_is_not_compared(
    client: httpx.AsyncClient, repo: str, write: Any, state: AppState
) -> None:
    await write("r1", ["x"])
    folder = await write("r2", ["y"])
    objectstore = (await state.catalog.get("lake")).objectstore
    data = await objectstore.get(folder + "part-00000.parquet")

    await open_deleter(objectstore.uri).delete([folder + "part-00000.parquet"])
    missing = await client.get(repo + "/gc/plans/r1/diff/r2")
    await objectstore.put(folder + "part-00000.parquet", data[:-1] + b"x")
    changed = await client.get(repo + "/gc/plans/r1/diff/r2")

    for answer in (missing, changed):
        assert answer.status_code == 500
        assert "part-00000.parquet" in answer.json()["message"]


async def test_unknown_plans_and_kinds_that_cannot_be_compared(
    client: httpx.AsyncClient, repo: str, write: Any
) -> None:
    await write("r1", [])
    await write("u1", [], RunKind.UNCOMMITTED)

    assert (await client.get(repo + "/gc/plans/r2")).status_code == 404
    assert (await client.get(repo + "/gc/plans/r1/diff/r2")).status_code == 404
    assert (await client.get(repo + "/gc/plans/A")).status_code == 400
    assert (await client.get(repo + "/gc/plans/r1/diff/u1")).status_code == 400
    assert (await client.get(repo + "/gc/plans", params={"kind": "nonsense"})).status_code == 400
    assert (await client.get(repo + "/gc/plans")).json()["has_more"] is False


async def test_the_objects_of_a_plan_come_in_pages(client: httpx.AsyncClient, repo: str, write: Any) -> None:
    await write("r1", ["x/1", "x/2", "y/3"])

    async def page(**params: Any) -> Any:
        return (await client.get(repo + "/gc/plans/r1/objects", params=params)).json()

    first = await page(amount=2)
    second = await page(amount=2, after=first["continuation_token"])
    below = await page(prefix="y/")

    assert [one["address"] for one in first["objects"] + second["objects"]] == ["x/1", "x/2", "y/3"]
    assert second["continuation_token"] is None
    assert [one["address"] for one in below["objects"]] == ["y/3"]
    assert first["objects"][0] == {
        "address": "x/1",
        "size_bytes": 10,
        "reason": "expired",
        "rule": "main: 7d",
        "last_seen_ms": 0,
        "path": "a/b",
    }


@pytest.mark.parametrize("token", ["1:0", "0", "x", "0:-1", "9" * 5000])
async def test_a_token_of_no_page_of_objects_is_refused(
    client: httpx.AsyncClient, repo: str, write: Any, token: str
) -> None:
    await write("r1", ["x"])

    assert (await client.get(repo + "/gc/plans/r1/objects", params={"after": token})).status_code == 400


async def test_storage_of_branches_tags_and_history_is_counted_where_asked_for(
    client: httpx.AsyncClient, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(branch: str, path: str, data: bytes) -> None:
        await client.post(f"{repo}/branches/{branch}/objects", params={"path": path}, content=data)
        await client.post(f"{repo}/branches/{branch}/commits", json={"message": path})

    await write("main", "a", b"1")
    await write("main", "b", b"22")
    await client.post(f"{repo}/tags", json={"id": "v1", "ref": "main"})
    await write("main", "b", b"333")
    await client.post(f"{repo}/branches", json={"name": "side", "source": "main"})
    await write("side", "c", b"4444")
    await write("side", "c", b"55555")

    plain = (await client.get(f"{repo}/gc/storage")).json()
    counted = (await client.get(f"{repo}/gc/storage", params={"committed": "true"})).json()
    params: dict[str, Any] = {"committed": "true", "files": 1}
    page, pages = (await client.get(f"{repo}/gc/storage", params=params)).json(), 1
    while token := page.get("continuation_token"):
        assert (page["listed"], page["parts"]) == (None, [])
        page = (await client.get(f"{repo}/gc/storage", params={**params, "continuation_token": token})).json()
        pages += 1
    monkeypatch.setattr(trees, "TREES_MAX", 1)
    many = (await client.get(f"{repo}/gc/storage", params={"committed": "true"})).json()

    def parts(storage: Any) -> list[tuple[str, int, int]]:
        return [(part["keeper"], part["total"]["objects"], part["total"]["size_bytes"]) for part in storage["parts"]]

    assert parts(plain) == [("head", 2, 4)]
    assert parts(counted) == [("head", 2, 4), ("branches", 1, 5), ("tags", 1, 2), ("history", 1, 4)]
    assert counted["uncounted"] == []
    assert (pages > 3, parts(page)) == (True, parts(counted))
    assert many["uncounted"] == ["branches", "tags", "history"]


async def test_storage_is_added_up_from_what_runs_recorded(
    client: httpx.AsyncClient, repo: str, write: Any, state: AppState
) -> None:
    for path in ("a", "b/c"):
        await client.post(f"{repo}/branches/main/objects", params={"path": path}, content=b"12345")
    await client.post(f"{repo}/branches/main/commits", json={"message": "m"})
    await client.post(f"{repo}/branches/main/objects", params={"path": "d"}, content=b"not committed")

    def parts(answer: httpx.Response) -> list[tuple[str, str, int, int]]:
        assert answer.status_code == 200, answer.text
        return [
            (part["keeper"], part.get("run_id", ""), part["total"]["objects"], part["total"]["size_bytes"])
            for part in answer.json()["parts"]
        ]

    first = await client.get(f"{repo}/gc/storage")
    await write("r1", ["x"])
    await write("r2", ["x", "y"])
    objectstore = (await state.catalog.get("lake")).objectstore
    folder = await write("u1", [], RunKind.UNCOMMITTED)
    path = messages.plan_path(RunKind.UNCOMMITTED, "u1")
    plan = messages.decode_plan(await objectstore.get(path), "u1")
    listing = messages.Found(objects=9, size_bytes=90, slices=1)
    await objectstore.put(path, messages.encode_plan(msgspec.structs.replace(plan, listing=listing)))
    second = await client.get(f"{repo}/gc/storage")

    assert folder
    assert parts(first) == [("head", "", 2, 10)]
    assert (first.json()["listed"], first.json()["rest"]) == (None, None)
    assert sorted(parts(second)) == [("head", "", 2, 10), ("waiting", "r2", 2, 20), ("waiting", "u1", 0, 0)]
    assert second.json()["listed"] == {"objects": 9, "size_bytes": 90}
    assert second.json()["rest"] == {"objects": 5, "size_bytes": 60}
