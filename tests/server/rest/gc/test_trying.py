"""Rules that are tried: the verdict is that of the rules in force, and the objects are at most these."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from lakebed.gc.live import read_snapshot
from lakebed.gc.rules import days_rules
from lakebed.server import AppState


async def commit(
    client: httpx.AsyncClient, repo: str, objects: dict[str, bytes], *, days: int, branch: str = "main"
) -> str:
    for path, content in objects.items():
        await client.post(f"{repo}/branches/{branch}/objects", params={"path": path}, content=content)
    date = int((datetime.now(UTC) - timedelta(days=days)).timestamp())
    made = await client.post(f"{repo}/branches/{branch}/commits", json={"message": f"of {days}", "date": date})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def tried(client: httpx.AsyncClient, repo: str, rules: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(f"{repo}/gc/rules/try", json=rules)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_rules_that_are_not_saved_say_what_would_expire_and_why(
    client: httpx.AsyncClient, repo: str, state: AppState
) -> None:
    first = await commit(client, repo, {"a": b"1" * 100, "b": b"2" * 10}, days=90)
    await commit(client, repo, {"a": b"3" * 1000}, days=60)
    await client.post(f"{repo}/branches", json={"name": "etl-1", "source": "main"})
    await commit(client, repo, {"a": b"4" * 7}, days=40)
    etl = await commit(client, repo, {"b": b"5" * 5}, days=20, branch="etl-1")

    found = await tried(client, repo, {"default": "30d", "branches": [{"pattern": "etl-*", "period": "1d"}]})

    # The head of main is older than 30 days, so its parent is lost; that of etl-1 is a head, and keeps only itself.
    assert [row["id"] for row in found["commits"]][-1] != etl
    assert first in [row["id"] for row in found["commits"]]
    assert {row["rule"] for row in found["commits"]} <= {"default: 30d", "etl-*: 1d"}
    assert sum(row["expired"] for row in found["branches"]) == found["expired"]
    assert sum(row["commits"] for row in found["branches"]) == found["expired"] + found["kept"]
    # `a` of 1,000 bytes is named by etl-1, too; that of 100 is lost, and nothing else.
    assert found["at_most"] == {"objects": 1, "size_bytes": 100}
    assert found["in_force"] == []
    assert [day["days"] for day in found["days"]] == [1, 2, 7, 14, 30, 60]
    versions = (await state.catalog.get("lake")).versions
    snapshot = await read_snapshot(versions)
    kept = snapshot.kept(days_rules(30, {"etl-*": 1}), now_ms=found["now_ms"])
    assert found["kept"] == len(kept)
    assert (await client.get(f"{repo}/gc/rules/full")).json()["version"] == 0


async def test_nothing_expires_by_long_rules_and_more_days_never_keep_more(
    client: httpx.AsyncClient, repo: str
) -> None:
    for days in (50, 30, 10):
        await commit(client, repo, {f"of-{days}": b"x", "same": b"y" * days}, days=days)
    await client.put(f"{repo}/gc/rules/full", json={"default": "1h"})

    long = await tried(client, repo, {"default": "forever"})
    short = await tried(client, repo, {"default": "20d"})

    assert (long["expired"], long["at_most"]) == (0, {"objects": 0, "size_bytes": 0})
    assert [day["days"] for day in long["in_force"]] == [0, 1, 2, 7, 14, 30, 60]
    assert long["in_force"][0] == {"days": 0, "expired": 2, "at_most": {"objects": 2, "size_bytes": 80}}
    assert long["in_force"] == short["in_force"]
    counts = [short["expired"], *(day["expired"] for day in short["days"])]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    # `same` of the commit before the period stays as long as a commit of the period follows it.
    sizes = [short["at_most"]["size_bytes"], *(day["at_most"]["size_bytes"] for day in short["days"])]
    assert sizes == [50, 50, 50, 50, 80, 80, 80]


async def test_rules_that_are_tried_page_by_page_have_the_answer_of_one_request(
    client: httpx.AsyncClient, repo: str
) -> None:
    for days in (50, 30, 10):
        await commit(client, repo, {f"of-{days}": b"x", "same": b"y" * days}, days=days)
    await client.put(f"{repo}/gc/rules/full", json={"default": "1h", "keep_last": [{"pattern": "main", "commits": 2}]})
    rules = {"default": "20d", "branches": [{"pattern": "etl-*", "period": "1mo"}]}
    whole = await tried(client, repo, rules)

    pages = [(await client.post(f"{repo}/gc/rules/try", params={"files": 1}, json=rules)).json()]
    while token := pages[-1].get("continuation_token"):
        asked = {"files": 1, "continuation_token": token}
        pages.append((await client.post(f"{repo}/gc/rules/try", params=asked, json=rules)).json())
    *others, last = pages

    assert last | {"now_ms": 0} == whole | {"now_ms": 0}
    assert len({page["continuation_token"] for page in others}) == 1
    assert {page["progress"]["stage"] for page in others} == {"commits", "rules", "trees", "ranges"}
    # No number of a page that is not the last could be taken for an answer.
    assert {(page["expired"], page["kept"], page["at_most"]) for page in others} == {(0, 0, None)}
    repeated = await client.post(f"{repo}/gc/rules/try", params=asked, json=rules)
    assert repeated.json() == last
    asked = {"files": 1000, "continuation_token": "0" * 20}  # It began in a process that is gone.
    again = await client.post(f"{repo}/gc/rules/try", params=asked, json=rules)
    assert again.json()["expired"] == last["expired"]
    bad = await client.post(f"{repo}/gc/rules/try", params={"files": 1, "continuation_token": "-"}, json=rules)
    assert bad.status_code == 400


async def test_holds_and_tags_keep_commits_and_holds_on_paths_are_named(client: httpx.AsyncClient, repo: str) -> None:
    first = await commit(client, repo, {"a": b"1"}, days=90)
    second = await commit(client, repo, {"a": b"22"}, days=80)
    await commit(client, repo, {"a": b"333"}, days=70)
    rules = {"default": "1h"}
    before = await tried(client, repo, rules)
    await client.post(f"{repo}/tags", json={"id": "v1", "ref": second})
    await client.post(f"{repo}/holds", json={"name": "case-7", "commits": [first], "why": "court"})
    await client.post(f"{repo}/holds", json={"name": "case-8", "globs": ["b/*"], "why": "court"})

    after = await tried(client, repo, rules)
    unpinned = await tried(client, repo, {**rules, "tags_pin": False})

    def ids(found: dict[str, Any]) -> set[str]:
        return {row["id"] for row in found["commits"]}

    assert {first, second} <= ids(before)
    assert ids(before) - ids(after) == {first, second}
    assert ids(before) - ids(unpinned) == {first}
    assert after["path_holds"] == ["case-8"]


async def test_bad_rules_are_refused_and_a_bare_repository_has_nothing_to_lose(
    client: httpx.AsyncClient, namespace: str
) -> None:
    await client.post("/repositories?bare=true", json={"name": "bare", "storage_namespace": namespace})
    bare = "/repositories/bare"

    assert (await client.post(f"{bare}/gc/rules/try", json={"default": "soon"})).status_code == 400
    assert (await client.post(f"{bare}/gc/rules/try", json={})).status_code == 400
    found = await tried(client, bare, {"default": "1h"})

    assert (found["kept"], found["expired"], found["branches"], found["at_most"]["objects"]) == (0, 0, [], 0)
