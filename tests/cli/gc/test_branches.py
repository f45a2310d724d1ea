"""`lakebed lifecycle branches` and `branch create --ttl` against a real server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from lakebed.catalog.records import RepositoryRecord
from lakebed.kv import open_store
from lakebed.versions import BranchRecord, decode_record, encode_record, keys
from tests.cli.conftest import Shell

DAY_MS = 86_400_000


def aged(data: Path, lake: str, name: str, days: int) -> None:
    """Let a branch be as if it had been made, and last been used, so many days earlier."""

    async def write() -> None:
        store = open_store(f"sqlite://{data}/metadata.db")
        held = await store.get(keys.REPOSITORIES, lake.removeprefix("lakefs://").encode())
        assert held is not None
        partition = keys.repository_partition(decode_record(RepositoryRecord, held.value).uid)
        found = await store.get(partition, keys.BRANCH + name.encode())
        assert found is not None
        record = decode_record(BranchRecord, found.value)
        assert record.moved is not None
        moved = replace(record.moved, at_ms=record.moved.at_ms - days * DAY_MS)
        expires_ms = record.expires_ms - days * DAY_MS if record.expires_ms else 0
        older = replace(record, created_ms=record.created_ms - days * DAY_MS, moved=moved, expires_ms=expires_ms)
        await store.set(partition, keys.BRANCH + name.encode(), encode_record(older))
        await store.close()

    asyncio.run(write())


def set_policy(shell: Shell, lake: str, folder: Path, **branches: object) -> None:
    file = folder / "policy.json"
    file.write_text(json.dumps({"branches": branches}))
    shell.ok("lifecycle", "policy", "set", lake, str(file))


def test_idle_branches_are_planned_deleted_and_brought_back(
    shell: Shell, lake: str, data: Path, tmp_path: Path
) -> None:
    for name in ("old-1", "old-2", "kept", "young"):
        shell.ok("branch", "create", f"{lake}/{name}")
    for name in ("old-1", "old-2", "kept"):
        aged(data, lake, name, 31)
    set_policy(shell, lake, tmp_path, **{"*": {"idle": "30d"}, "kept": {"idle": "forever"}})

    planned = shell.ok("lifecycle", "branches", "plan", lake)
    text = planned.out
    every = shell.ok("lifecycle", "branches", "plan", lake, "--all").out
    unasked = shell("lifecycle", "branches", "apply", lake)
    swept = shell.ok("lifecycle", "branches", "apply", lake, "--yes")

    assert [line.split()[0] for line in text.splitlines()] == ["BRANCH", "old-1", "old-2", "2"]
    assert text.splitlines()[-1].startswith("2 branches to go; 3 stay (")
    assert "kept for ever" in every
    assert "not idle for long enough" in every
    assert unasked.code == 2
    assert swept.out.splitlines()[-1] == "2 branches deleted; `lakebed branch undelete` brings one back"
    assert "old-1" in unasked.err
    assert f"to delete them: lakebed lifecycle branches apply {lake}" in planned.err
    shell.ok("branch", "undelete", f"{lake}/old-1")
    names = [one["id"] for one in shell.ok("branch", "list", lake, "-o", "json").json]
    assert names == ["kept", "main", "old-1", "young"]
    assert "0 branches to go" in shell.ok("lifecycle", "branches", "plan", lake).out


def test_a_plan_in_a_file_is_applied_as_far_as_it_still_may_be(
    shell: Shell, lake: str, data: Path, tmp_path: Path, put: Callable[[str, str], None]
) -> None:
    for name in ("idle", "used"):
        shell.ok("branch", "create", f"{lake}/{name}")
        aged(data, lake, name, 31)
    set_policy(shell, lake, tmp_path, **{"*": {"idle": "30d"}})
    plan = tmp_path / "plan.json"
    plan.write_text(shell.ok("lifecycle", "branches", "plan", lake, "-o", "json").out)
    put(f"{lake}/used/a", "1")

    outcome = shell("lifecycle", "branches", "apply", lake, str(plan), "--yes", "-o", "json")

    assert outcome.code == 1
    assert outcome.json["branches"] == [
        {"branch": "idle", "is_deleted": True, "why": ""},
        {"branch": "used", "is_deleted": False, "why": "uncommitted changes"},
    ]


def test_a_plan_that_is_applied_again_finds_its_branches_gone(
    shell: Shell, lake: str, data: Path, tmp_path: Path
) -> None:
    shell.ok("branch", "create", f"{lake}/idle")
    aged(data, lake, "idle", 31)
    set_policy(shell, lake, tmp_path, **{"*": {"idle": "30d"}})
    plan = tmp_path / "plan.json"
    plan.write_text(shell.ok("lifecycle", "branches", "plan", lake, "-o", "json").out)
    shell.ok("lifecycle", "branches", "apply", lake, str(plan), "--yes")

    again = shell.ok("lifecycle", "branches", "apply", lake, str(plan), "--yes")

    assert again.out.splitlines()[1].split(maxsplit=1) == ["idle", "there is no such branch"]


def test_a_plan_that_says_more_than_the_policy_deletes_nothing(shell: Shell, lake: str, tmp_path: Path) -> None:
    shell.ok("branch", "create", f"{lake}/young")
    set_policy(shell, lake, tmp_path, **{"*": {"idle": "30d"}})
    found = shell.ok("lifecycle", "branches", "plan", lake, "--all", "-o", "json").json
    for one in found["branches"]:
        one["goes"] = True
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(found))

    outcome = shell("lifecycle", "branches", "apply", lake, str(plan), "--yes")

    assert outcome.code == 1
    assert "stays: not idle for long enough" in outcome.out
    assert "stays: cannot delete repository default branch" in outcome.out
    assert len(shell.ok("branch", "list", lake, "-o", "json").json) == 2


def test_what_is_no_plan_is_refused(shell: Shell, lake: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("{}")

    assert "is not a plan of branches" in shell("lifecycle", "branches", "apply", lake, str(file), "--yes").err
    assert shell("lifecycle", "branches", "apply", lake, str(tmp_path / "none"), "--yes").code == 2
    assert shell("lifecycle", "branches", "apply", lake, str(file), "--prefix", "a", "--yes").code == 2


def test_a_branch_is_made_to_last_for_a_while(shell: Shell, lake: str) -> None:
    made = shell.ok("branch", "create", f"{lake}/short", "--ttl", "2w")
    wrong = shell("branch", "create", f"{lake}/wrong", "--ttl", "2 weeks")

    assert ", to last until 20" in made.out
    assert "expiration_date" in shell.ok("branch", "show", f"{lake}/short", "-o", "json").json
    assert wrong.code == 2
    assert "is not a duration" in wrong.err
    [short] = [
        one
        for one in shell.ok("lifecycle", "branches", "plan", lake, "--all", "-o", "json").json["branches"]
        if one["branch"] == "short"
    ]
    assert short["expires_ms"] == short["due_ms"]
    assert "lifecycle branches apply" in made.err
    date = made.out.partition("until ")[2].strip()
    assert date in shell.ok("branch", "list", lake).out
    shown = shell.ok("branch", "show", f"{lake}/short")
    assert len(shown.out.split()) == 1, "scripts read the commit"
    assert date in shown.err
    assert f"lasts until {date}" in shell.ok("lifecycle", "branches", "plan", lake, "--all").out


def test_a_plan_and_its_question_say_which_branches_lose_uncommitted_changes(
    shell: Shell, lake: str, data: Path, tmp_path: Path, put: Callable[[str, str], None]
) -> None:
    put(f"{lake}/main/a", "1")
    shell.ok("commit", f"{lake}/main", "-m", "a")
    shell.ok("branch", "create", f"{lake}/clean")
    # It goes although it was used just now.
    shell.ok("branch", "create", f"{lake}/dirty", "--ttl", "7d")
    shell.ok("object", "rm", f"{lake}/dirty/a", "--yes")
    for name in ("dirty", "clean"):
        aged(data, lake, name, 31)
    set_policy(shell, lake, tmp_path, **{"*": {"idle": "30d", "uncommitted": "drop"}})

    text = shell.ok("lifecycle", "branches", "plan", lake).out
    unasked = shell("lifecycle", "branches", "apply", lake)

    rows = {line.split()[0]: line for line in text.splitlines()}
    assert "older than it was made to last, with uncommitted changes" in rows["dirty"]
    assert "uncommitted" not in rows["clean"]
    assert f"delete 2 branches of {lake}, 1 of them with uncommitted changes that cannot come back" in unasked.err


def test_a_plan_shows_no_date_for_a_branch_that_something_else_keeps(
    shell: Shell, lake: str, data: Path, tmp_path: Path, put: Callable[[str, str], None]
) -> None:
    for name in ("dirty", "young"):
        shell.ok("branch", "create", f"{lake}/{name}")
        put(f"{lake}/{name}/a", "1")
    aged(data, lake, "dirty", 31)
    set_policy(shell, lake, tmp_path, **{"*": {"idle": "30d"}})

    text = shell.ok("lifecycle", "branches", "plan", lake, "--all").out

    rows = {line.split()[0]: line for line in text.splitlines()}
    dates = {name: re.findall(r"\b20\d\d-", row) for name, row in rows.items()}
    assert "uncommitted changes" in rows["dirty"]
    assert "not idle for long enough, with uncommitted changes" in rows["young"]
    assert rows["young"].endswith("Z; uncommitted as it is, it stays then")
    assert (len(dates["main"]), len(dates["dirty"]), len(dates["young"])) == (1, 1, 2), "when it was last used; and due"


def test_the_plan_of_another_repository_is_refused(shell: Shell, lake: str, data: Path, tmp_path: Path) -> None:
    other = f"{lake}-2"
    shell.ok("repo", "create", other, other.replace("lakefs", "local"))
    shell.ok("branch", "create", f"{lake}/old")
    aged(data, lake, "old", 31)
    set_policy(shell, lake, tmp_path, **{"*": {"idle": "30d"}})
    plan = tmp_path / "plan.json"
    plan.write_text(shell.ok("lifecycle", "branches", "plan", lake, "-o", "json").out)

    refused = shell("lifecycle", "branches", "apply", other, str(plan), "--yes")

    assert refused.code == 2
    assert f"is a plan of {lake}, not of {other}" in refused.err


def test_a_plan_says_when_there_is_nothing_to_delete(shell: Shell, lake: str) -> None:
    none = shell.ok("lifecycle", "branches", "apply", lake, "--yes")
    unmatched = shell.ok("lifecycle", "branches", "plan", lake, "--prefix", "zzz")
    going = shell.ok("lifecycle", "branches", "plan", lake, "-o", "json").json
    every = shell.ok("lifecycle", "branches", "plan", lake, "-o", "json", "--all").json

    assert none.out == "no branch goes: nothing was deleted\n"
    assert "no branch begins with zzz" in unmatched.err
    assert going["branches"] == []
    assert [one["branch"] for one in every["branches"]] == ["main"]


def test_a_run_deletes_idle_branches_before_it_collects_also_as_a_job_of_the_server(
    shell: Shell, lake: str, data: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        shell.ok("branch", "create", f"{lake}/{name}")
    aged(data, lake, "one", 31)
    set_policy(shell, lake, tmp_path, **{"*": {"idle": "30d"}})
    how = ("--branches", "--uncommitted", "--engine", "local", "--yes")

    ran = shell.ok("gc", "run", lake, *how, "--readers-grace", "0", "--data", str(data))
    aged(data, lake, "two", 31)
    job = shell.ok("gc", "job", "start", lake, "run", *how, "--readers-grace", "0", "-o", "json").json

    assert "1 branch deleted; `lakebed branch undelete` brings one back" in ran.err
    assert (job["state"], job["request"]["branches"]) == ("done", True)
    assert [one["deed"] for one in job["results"]] == ["swept", "applied", "purged"]
    assert (job["results"][0]["objects"], job["results"][0]["objects_failed"]) == (1, 0)
    assert "swept: 1 branch deleted" in shell.ok("gc", "job", "show", lake, job["id"]).out
    assert [one["id"] for one in shell.ok("branch", "list", lake, "-o", "json").json] == ["main"]


def test_branches_are_an_option_of_runs_alone(shell: Shell, lake: str) -> None:
    assert "'branches' is not an option of plan" in shell("gc", "job", "start", lake, "plan", "--branches").err
