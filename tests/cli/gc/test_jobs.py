"""Collections on the server, watched from the command line. What runs there is tested in tests/server and spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.cli.gc.jobs import _new_lines
from lakebed.cli.gc.options import Working, asked
from tests.cli.conftest import Shell


@pytest.mark.parametrize(
    ("told", "lines", "new"),
    [
        ((), (), ()),
        ((), ("a",), ("a",)),
        (("a",), ("a",), ()),
        (("a",), ("a", "b"), ("b",)),
        (("a", "b", "c"), ("b", "c", "d"), ("d",)),
        (("a", "b"), ("x", "y"), ("x", "y")),
        (("a", "a"), ("a", "a", "a"), ("a",)),
    ],
)
def test_each_line_of_progress_is_told_once(
    told: tuple[str, ...], lines: tuple[str, ...], new: tuple[str, ...]
) -> None:
    assert _new_lines(told, lines) == new


def test_no_jobs_are_an_empty_list(shell: Shell, lake: str) -> None:
    assert shell.ok("gc", "job", "list", lake, "-o", "json").json == []
    assert shell.ok("gc", "job", "list", lake).out == ""
    assert shell("gc", "job", "show", lake, "x").code == 3
    assert shell("gc", "job", "stop", lake, "x").code == 3


def test_what_cannot_be_meant_is_told_before_anything_starts(shell: Shell, lake: str) -> None:
    assert "use plan, apply, run, purge" in shell("gc", "job", "start", lake, "sweep").err
    assert shell("gc", "job", "start", lake, "plan", "--engine", "x").code == 2
    assert "--yes" in shell("gc", "job", "start", lake, "run").err
    assert "needs the id of a run" in shell("gc", "job", "start", lake, "apply").err
    assert shell("gc", "job", "start", lake, "plan", "r1").code == 2
    assert shell.ok("gc", "job", "list", lake, "-o", "json").json == []


def test_a_number_of_tasks_goes_with_the_request_and_zero_is_refused(shell: Shell, lake: str, data: Path) -> None:
    here = ("--engine", "local", "--data", str(data))

    refused = shell("gc", "plan", lake, "--tasks", "0", *here)

    assert (refused.code, "--tasks" in refused.err) == (2, True)
    shell.ok("gc", "plan", lake, "--tasks", "3", *here)
    assert asked("plan", Working(tasks=3)).tasks == 3
    assert asked("apply", Working(tasks=3), run_id="r1").tasks == 3
