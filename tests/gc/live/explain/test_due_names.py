"""The answer says when the lifecycle policy lets an object go, path by path, and what keeps it."""

from __future__ import annotations

import json
from typing import Any

from lakebed.gc.live.records.settings import PolicyBook
from lakebed.gc.messages import DueName, Fate, WhyObject
from lakebed.gc.rules import DAY_MS
from tests.gc.conftest import Lake

LOGS = {"logs": {"prefix": "logs/", "days": 10, "branch_days": {"main": 5}}}


async def set_policy(lake: Lake, policy: dict[str, Any]) -> None:
    await PolicyBook(lake.versions).write(json.dumps(policy).encode())


async def only(lake: Lake, path: str, *, ref: str = "main") -> WhyObject:
    (found,) = (await lake.service.why.ask(ref=ref, path=path)).objects
    return found


def midnight_after(lake: Lake, days: int) -> int:
    return (lake.clock.ms // DAY_MS + days + 1) * DAY_MS


async def copied(lake: Lake, path: str, to: str) -> None:
    await lake.versions.copies.copy("main", path.encode(), "main", to.encode(), shallow=True)


def shown(name: DueName) -> tuple[str, int | None, str, tuple[str, ...]]:
    return name.path, name.due_ms, name.keeps.value, name.branches


async def test_an_object_is_due_when_the_last_branch_that_has_it_lets_it_go(lake: Lake) -> None:
    await lake.put("main", "logs/a")
    head = await lake.commit("main")
    await lake.versions.refs.create_branch("dev", "main")
    await set_policy(lake, LOGS)

    found = await only(lake, "logs/a")

    due_ms = midnight_after(lake, 10)
    assert (found.due_ms, found.due_names_count) == (due_ms, 1)
    [name] = found.due_names
    assert shown(name) == ("logs/a", due_ms, "nothing", ("dev", "main"))
    assert (name.rule, name.branch) == ("logs: logs/ 10d, main 5d", "dev")
    assert (name.commit, name.commits_count) == (head.id, 1)


async def test_each_path_of_an_object_is_explained_and_one_without_a_rule_keeps_it_for_ever(lake: Lake) -> None:
    await lake.put("main", "logs/a")
    await copied(lake, "logs/a", "kept/a")
    await lake.commit("main")
    await set_policy(lake, LOGS)

    found = await only(lake, "logs/a")

    assert found.due_ms is None
    assert [shown(name) for name in found.due_names] == [
        ("kept/a", None, "no_rule", ("main",)),
        ("logs/a", midnight_after(lake, 5), "nothing", ("main",)),
    ]


async def test_what_keeps_an_object_for_ever_is_named(lake: Lake) -> None:
    for path in ("audit/a", "own/a", "reports/a", "tagged/a"):
        await lake.put("main", path)
    tagged = await lake.commit("main")
    await lake.versions.refs.create_tag("v1", tagged.id)
    rules = {
        "own": {"prefix": "own/", "branches": {"dev": "2d"}},
        "all": {"path": "**", "period": "2d"},
        "reports": {"prefix": "reports/", "period": "2d", "keep_versions": 1},
    }
    await lake.versions.refs.create_branch("dev", "main")
    await set_policy(lake, {"rules": rules, "pins": {"prefixes": ["audit/"]}})

    kept = {path: (await only(lake, path)).due_names[0] for path in ("audit/a", "own/a", "reports/a", "tagged/a")}
    await set_policy(lake, {"rules": rules, "pins": {"tags": ["v*"]}})
    pinned = await only(lake, "tagged/a")

    assert {path: name.keeps.value for path, name in kept.items()} == {
        "audit/a": "pin",
        "own/a": "branch",
        "reports/a": "versions",
        "tagged/a": "nothing",
    }
    assert kept["own/a"].branch == "main"
    assert (pinned.due_ms, pinned.due_names[0].keeps) == (None, "pin")


async def test_a_version_that_newer_ones_replaced_is_due(lake: Lake) -> None:
    first = await lake.put("main", "reports/a", "one")
    await lake.commit("main")
    lake.days(1)
    await lake.put("main", "reports/a", "two")
    await lake.commit("main")
    policy = {"rules": {"reports": {"prefix": "reports/", "period": "2d", "keep_versions": 1}}}
    await set_policy(lake, policy)

    (old,) = (await lake.service.why.ask(address=first)).objects
    new = await only(lake, "reports/a")

    assert old.due_ms == midnight_after(lake, 1)
    assert [name.keeps for name in new.due_names] == ["versions"]


async def test_a_deleted_branch_counts_while_it_can_come_back(lake: Lake) -> None:
    await lake.versions.refs.create_branch("gone", "main")
    address = await lake.put("gone", "logs/a")
    await lake.commit("gone")
    await lake.versions.refs.delete_branch("gone")
    await set_policy(lake, {"logs": {"prefix": "logs/", "branch_days": {"main": 5}}})

    (found,) = (await lake.service.why.ask(address=address)).objects

    [name] = found.due_names
    assert (name.due_ms, name.keeps) == (None, "branch")
    assert name.branch.startswith("gone@{deleted ")


async def test_without_a_policy_nothing_is_due(lake: Lake) -> None:
    await lake.put("main", "logs/a")
    await lake.commit("main")

    answer = await lake.service.why.ask(ref="main", path="logs/a")

    assert answer.policy_version is None
    assert (answer.objects[0].due_ms, answer.objects[0].due_names) == (None, ())


async def test_what_is_staged_stands_beside_the_date(lake: Lake) -> None:
    await lake.put("main", "logs/a")
    await lake.commit("main")
    await copied(lake, "logs/a", "logs/b")
    await set_policy(lake, LOGS)

    found = await only(lake, "logs/a")

    assert (found.fate, found.due_ms) == (Fate.KEPT, midnight_after(lake, 5))
    assert [(name.source, name.path) for name in found.uncommitted] == [("staging", "logs/b"), ("copy", "")]
