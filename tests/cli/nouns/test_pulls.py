"""`lakebed pulls`: from the wish to the merge."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def dev(shell: Shell, lake: str, put: Callable[[str, str], None]) -> str:
    """A branch with a commit that `main` has not."""
    shell.ok("branch", "create", f"{lake}/dev", "--source", f"{lake}/main")
    put(f"{lake}/dev/a.txt", "a")
    shell.ok("commit", f"{lake}/dev", "-m", "a")
    return f"{lake}/dev"


def test_a_pull_request_goes_from_the_wish_to_the_merge(shell: Shell, lake: str, dev: str) -> None:
    pull = shell.ok("pulls", "create", dev, f"{lake}/main", "-t", "bring a", "-d", "needed", "-o", "json").json["id"]

    listed = shell.ok("pulls", "list", lake).out
    unasked = shell("pulls", "merge", lake, pull)
    merged = shell.ok("pulls", "merge", lake, pull, "--yes")
    shown = shell.ok("pulls", "show", lake, pull).out

    assert pull in listed
    assert "bring a" in listed
    assert unasked.code == 2
    assert "merged dev into main" in merged.out
    assert "merged" in shown
    assert "needed" in shown
    assert shell.ok("object", "cat", f"{lake}/main/a.txt").out == "a"
    assert shell.ok("pulls", "list", lake, "-o", "json").json == []
    assert [one["id"] for one in shell.ok("pulls", "list", lake, "--status", "all", "-o", "json").json] == [pull]
    assert shell("pulls", "merge", lake, pull, "--yes").code == 4


def test_a_pull_request_is_edited_closed_and_reopened(shell: Shell, lake: str, dev: str) -> None:
    pull = shell.ok("pulls", "create", dev, f"{lake}/main", "-t", "one", "-o", "json").json["id"]

    shell.ok("pulls", "edit", lake, pull, "--title", "two")
    closed = shell.ok("pulls", "close", lake, pull, "-o", "json").json
    reopened = shell.ok("pulls", "reopen", lake, pull).out

    assert (closed["title"], closed["status"]) == ("two", "closed")
    assert "open, two" in reopened


def test_a_pull_request_that_conflicts_names_the_paths_and_stays_open(
    shell: Shell, lake: str, dev: str, put: Callable[[str, str], None]
) -> None:
    put(f"{lake}/main/a.txt", "other")
    shell.ok("commit", f"{lake}/main", "-m", "other")
    pull = shell.ok("pulls", "create", dev, f"{lake}/main", "-t", "a", "-q").out.strip()

    outcome = shell("pulls", "merge", lake, pull, "--yes")

    assert (outcome.code, "both sides changed a.txt" in outcome.err) == (4, True)
    assert pull in shell.ok("pulls", "list", lake).out


def test_a_pull_request_that_brings_nothing_says_how_to_end_it(shell: Shell, lake: str, dev: str) -> None:
    pull = shell.ok("pulls", "create", dev, f"{lake}/main", "-t", "a", "-q").out.strip()
    shell.ok("merge", dev, f"{lake}/main")

    outcome = shell("pulls", "merge", lake, pull, "--yes")

    assert (outcome.code, f"lakebed pulls close {lake} {pull}" in outcome.err) == (4, True)


def test_the_page_about_pull_requests_runs_as_it_stands(shell: Shell, lake: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guide" / "pulls.md").read_text()
    steps = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).replace("lakefs://lake", lake)
    lakebed = f'lakebed() {{ "{sys.executable}" -m lakebed "$@"; }}'

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{lakebed}\n{steps}"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **shell.environment},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "merged fix-march into main" in done.stdout
    assert shell.ok("object", "cat", f"{lake}/main/tables/march.csv").out == "carrier,flights\n"


def test_branches_of_two_repositories_and_unknown_ids_are_refused(shell: Shell, lake: str, dev: str) -> None:
    assert shell("pulls", "create", dev, "lakefs://other/main", "-t", "x").code == 2
    assert shell("pulls", "create", dev, f"{lake}/nothing", "-t", "x").code == 3
    assert shell("pulls", "show", lake, "nope").code == 3
