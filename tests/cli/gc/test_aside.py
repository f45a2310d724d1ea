"""`lakebed gc restore` and `ledger`, on what a run moved aside, without Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakebed.gc.protocol import Quarantine, encode_quarantine, quarantine_path
from lakebed.gc.recording import Ledger
from lakebed.objectstore import ObjectStoreOptions, open_deleter, open_objectstore
from tests.cli.conftest import Shell
from tests.gc.doomed import PART, plan_of, sweep_part

LATER = datetime(2100, 1, 1, tzinfo=UTC)
RUN = "06gvsk16dis1i19se31f"
Put = Callable[[str, str], None]


@pytest.fixture
def taken(lake: str, data: Path) -> str:
    """A repository of which a run took `events/0` and `events/1`, and moved them aside."""
    asyncio.run(take(lake, data, ["data/abcd", "data/efgh"]))
    return lake


async def take(
    lake: str, data: Path, keys: list[str], part: str = PART, seen: datetime | None = None, *, run: str = RUN
) -> None:
    name = lake.removeprefix("lakefs://")
    options = ObjectStoreOptions(local_root=data / "objects", local_durable=False)
    store, deleter = open_objectstore(f"local://{name}", options), open_deleter(f"local://{name}", options)
    for key in keys:
        await store.put(key, key[-4:].encode())
    aside = Quarantine(run_id=run, ledger_date="2026-11-21", since_ms=1, until_ms=2, window="7d")
    plan = await plan_of(store, keys, part=part, seen=seen)
    await sweep_part(store, deleter, plan, plan.parts[0], Ledger(run_id=run, date="2026-11-21"), aside)
    await store.put(quarantine_path(run), encode_quarantine(aside))
    await store.close()


def test_a_path_is_restored_to_the_default_branch_at_its_own_place(shell: Shell, taken: str) -> None:
    done = shell.ok("gc", "restore", taken, "events/0")

    assert done.out == f"restored 1 object, 4 B, from run {RUN}\n"
    assert shell.ok("object", "cat", f"{taken}/main/events/0").out == "abcd"
    assert shell("object", "cat", f"{taken}/main/events/1").code != 0


def test_a_folder_is_restored_below_a_prefix_of_another_branch(shell: Shell, taken: str) -> None:
    shell.ok("branch", "create", f"{taken}/back", "--source", "main")

    done = shell.ok("gc", "restore", taken, "events/", "--run", RUN, "--to", f"{taken}/back/found", "-o", "json").json

    assert (done["run_id"], done["restored"], done["failed"]) == (RUN, 2, 0)
    assert shell.ok("object", "cat", f"{taken}/back/found/events/1").out == "efgh"


def test_what_cannot_be_restored_is_named_and_ends_the_command_with_a_code_of_its_own(
    shell: Shell, taken: str, put: Put
) -> None:
    put(f"{taken}/main/events/0", "mine")

    failed = shell("gc", "restore", taken, "events/")
    again = shell.ok("gc", "restore", taken, "events/", "--overwrite")

    assert failed.code == 1
    assert "1 object could not be restored:\n  events/0: another object is there (--overwrite, or" in failed.out
    assert again.out == f"restored 1 object, 4 B, from run {RUN}; 1 was there already\n"
    assert shell.ok("object", "cat", f"{taken}/main/events/0").out == "abcd"


def test_older_versions_are_told_with_how_to_get_them(shell: Shell, taken: str, data: Path) -> None:
    asyncio.run(take(taken, data, ["data/newer"], "part-00001.parquet", LATER))

    done = shell.ok("gc", "restore", taken, "events/", "--run", RUN, "--to", f"{taken}/main/back", "--overwrite")
    each = shell.ok("gc", "restore", taken, "events/0", "--all-versions")

    assert done.out.startswith(f"restored 2 objects, 8 B, from run {RUN}\n1 older version of these paths stayed in")
    assert "--all-versions restores each to PATH@RUN/ADDRESS" in done.out
    assert shell.ok("object", "cat", f"{taken}/main/back/events/0").out == "ewer"
    assert each.out == f"restored 2 objects, 8 B, from run {RUN}\n"
    assert shell.ok("object", "cat", f"{taken}/main/events/0@{RUN}/data/abcd").out == "abcd"


def test_a_folder_of_several_runs_names_them(shell: Shell, taken: str, data: Path) -> None:
    later = RUN[:-1] + "g"
    asyncio.run(take(taken, data, ["data/ijkl"], run=later))

    done = shell.ok("gc", "restore", taken, "events/")

    assert done.out.startswith(f"restored 2 objects, 8 B, from 2 runs, {later} {RUN}\n")


def test_what_does_not_lie_there_is_an_error_that_says_why(shell: Shell, taken: str) -> None:
    unknown = shell("gc", "restore", taken, "nowhere/x")
    elsewhere = shell("gc", "restore", taken, "events/0", "--to", "lakefs://other/main")

    assert (unknown.code, unknown.out) == (3, "")
    assert "nowhere/x does not lie in quarantine" in unknown.err
    assert (elsewhere.code, "is in another repository" in elsewhere.err) == (2, True)


def test_the_ledger_is_asked_by_run_path_address_state_and_date(shell: Shell, taken: str, data: Path) -> None:
    def asked(*options: str) -> list[tuple[str, str]]:
        out = shell.ok("gc", "ledger", taken, "--data", str(data), "-o", "json", *options).out
        return [(row["path"], row["state"]) for row in json.loads(out)]

    shell.ok("gc", "restore", taken, "events/0")
    both = [("events/0", "quarantined"), ("events/1", "quarantined")]

    newest = ("events/0", "restored")
    assert asked() in ([newest, *both[::-1]], [*both[::-1], newest]), "a file of a day before or after midnight"
    assert asked("--run", RUN, "--state", "quarantined") == both[::-1]
    assert asked("--path", "events/1") == asked("--address", "data/efgh") == both[1:]
    assert asked("--state", "quarantined", "--limit", "1") == both[1:]
    assert asked("--since", "2999-01-01") == []
    assert len(asked("--since", "2000-01-01T00:00:00Z")) == 3


def test_the_ledger_is_shown_as_a_table(shell: Shell, taken: str, data: Path) -> None:
    lines = shell.ok("gc", "ledger", taken, "--data", str(data)).out.splitlines()

    assert lines[0].split() == ["WHEN", "STATE", "SIZE", "OBJECT", "RUN", "WHY"]
    assert lines[1].split()[2:] == ["quarantined", "4", "B", "events/1", RUN, "main:", "1", "days"]


def test_the_ledger_says_that_there_is_more_and_knows_no_run_that_never_was(
    shell: Shell, taken: str, data: Path
) -> None:
    some = shell.ok("gc", "ledger", taken, "--data", str(data), "--limit", "1")
    all_of_it = shell.ok("gc", "ledger", taken, "--data", str(data), "--limit", "2")
    unknown = shell("gc", "ledger", taken, "--data", str(data), "--run", "06gvsk16dis1i19se31g")
    nothing_such = shell.ok("gc", "ledger", taken, "--data", str(data), "--run", RUN, "--state", "purged")

    assert "the newest 1 row of more" in some.err
    assert "of more" not in all_of_it.err
    assert (unknown.code, unknown.err) == (3, f"error: {taken} has no run 06gvsk16dis1i19se31g\n")
    assert nothing_such.out == ""


@pytest.mark.parametrize("option", [("--state", "gone"), ("--since", "yesterday")])
def test_a_question_that_means_nothing_is_refused(shell: Shell, lake: str, option: tuple[str, str]) -> None:
    refused = shell("gc", "ledger", lake, *option)

    assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize("window", ["forever", "7", "0d"])
@pytest.mark.parametrize("action", [("apply", RUN), ("run",)])
def test_a_window_that_means_nothing_is_refused_before_anything_begins(
    shell: Shell, lake: str, window: str, action: tuple[str, ...]
) -> None:
    refused = shell("gc", action[0], lake, *action[1:], "--quarantine", window, "--yes")

    assert (refused.code, refused.out) == (2, "")
