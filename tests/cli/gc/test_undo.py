"""`lakebed gc restore --undo` of what a deferred run took, from the command line to the server. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.cli.gc.test_aside import Held, Put, collect, lay


@pytest.fixture
def held(shell: Shell, lake: str, data: Path, put: Put) -> Held:
    shell.ok("gc", "rules", "set-default", lake, "1d")
    lay(shell, lake, put, "abcd", "efgh")
    return Held(lake=lake, run=collect(shell, lake, data, "--window", "7d"))


def test_a_dry_run_says_what_would_come_back_and_changes_nothing(shell: Shell, held: Held) -> None:
    shown = shell.ok("gc", "restore", held.lake, held.run, "--undo", "--dry-run").out

    assert shown.startswith(f"run {held.run} can be undone: 1 commit can be read again, and 2 objects stay\n")
    assert "the next run takes this again, by the rules in force" in shown
    assert shell("object", "cat", f"{held.lake}/main~1/events/0").code != 0


def test_the_commits_of_an_undone_run_are_read_again(shell: Shell, held: Held) -> None:
    undone = shell.ok("gc", "restore", held.lake, held.run[:12], "--undo", "--yes")

    assert undone.out == f"run {held.run} is undone: 1 commit can be read again, and 2 objects stay\n"
    assert undone.err.count("WARNING: the next run takes this again") == 1
    assert shell.ok("object", "cat", f"{held.lake}/main~1/events/0").out == "abcd"


def test_why_gives_the_command_that_undoes_the_run_of_an_object(shell: Shell, held: Held) -> None:
    shown = shell.ok("gc", "why", f"{held.lake}/main~1/events/0").out

    [line] = [line for line in shown.splitlines() if line.startswith("undo:")]
    command = line.partition(" (")[0].split()[2:]
    assert shell.ok(*command, "--yes").out.startswith(f"run {held.run} is undone")
    assert "undo:" not in shell.ok("gc", "why", f"{held.lake}/main~1/events/0").out


def test_an_undone_run_is_not_purged_and_undone_again_without_harm(shell: Shell, held: Held, data: Path) -> None:
    shell.ok("gc", "restore", held.lake, held.run, "--undo", "--yes")
    purged = shell.ok("gc", "purge", held.lake, "--yes", "--engine", "local", "--data", str(data), "-o", "json").json
    again = shell.ok("gc", "restore", held.lake, held.run, "--undo", "--yes", "-o", "json").json

    assert (purged["purged"], purged["waiting"]) == ([], [])
    assert again["state"] == "undone"


def test_a_run_that_was_not_deferred_is_not_undone(shell: Shell, lake: str, data: Path, put: Put) -> None:
    shell.ok("gc", "rules", "set-default", lake, "1d")
    lay(shell, lake, put, "abcd")
    run = collect(shell, lake, data)

    refused = shell("gc", "restore", lake, run, "--undo", "--yes")

    assert refused.code != 0
    assert f"run {run} has ended, and cannot be undone: `gc ledger --run {run}` lists what it deleted" in refused.err


@pytest.mark.parametrize("options", [("--undo", "--overwrite"), ("--undo", "--all-versions"), ("--dry-run",)])
def test_an_undo_takes_no_option_of_a_restore(shell: Shell, lake: str, options: tuple[str, ...]) -> None:
    refused = shell("gc", "restore", lake, "06gvsk16dis1i19se31g", *options)

    assert refused.code != 0
    assert "--undo" in refused.err
