"""The README's test command stays short: its parts, what they cost, and how a run ends that takes too long."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.tiers import (
    BESIDE,
    BUDGET_S,
    COLLECTING,
    DEAR_ONE_IN,
    PARTS,
    ROTATING,
    ROTATING_TOGETHER,
    fits,
    is_taken,
    part_of,
    recorded,
    resting,
    scope_of,
)

ROOT = Path(__file__).parents[2]
SLEEPER = """
import time

def test_ends() -> None: pass
def test_waits() -> None: time.sleep(3600)
def test_comes_later() -> None: pass
"""


def test_the_budgets_of_all_parts_fit_into_eight_minutes_of_two_cores() -> None:
    assert sum(part.budget_s for part in (COLLECTING, BESIDE, *PARTS)) <= BUDGET_S


def test_no_part_cost_more_than_its_budget_when_it_was_recorded() -> None:
    budgets = {part.name: part.budget_s for part in (COLLECTING, BESIDE, *PARTS)}
    if not (costs := recorded("parts")):
        pytest.skip("no costs are recorded yet: --costs writes them on a quiet machine")

    assert costs.keys() <= budgets.keys()
    assert {name: cost for name, cost in costs.items() if cost > budgets[name]} == {}


def test_every_pattern_of_a_file_names_one_that_there_is() -> None:
    files = [f"{file.relative_to(ROOT)}" for file in sorted((ROOT / "tests").rglob("test_*.py"))]
    together = [f"{case.partition('::')[0]}::" for cases in ROTATING_TOGETHER for case in cases]
    patterns = [*ROTATING, *together, *(pattern for part in PARTS for pattern in part.patterns if ".py::" in pattern)]

    assert [
        each for each in patterns if not any(fits(f"{each.partition('::')[0]}*", file, set()) for file in files)
    ] == []


@pytest.mark.parametrize(
    ("nodeid", "markers", "name"),
    [
        ("tests/sim/test_mutants.py::test_every_planted_bug_is_caught[x]", set(), "planted bugs"),
        ("tests/spark/test_due.py::test_x[spark-1]", {"spark"}, "Spark, the second engine"),
        ("tests/spark/test_due.py::test_x[local-1]", set(), "collections on the local engine"),
        ("tests/gc/live/test_races.py::test_x", set(), "collections"),
        ("tests/cli/test_commands.py::test_x", set(), "server and commands"),
        ("tests/spark/test_end_to_end.py::test_x", {"spark"}, "Spark"),
        ("tests/kv/drivers/test_postgres.py::TestPostgres::test_x", set(), "database servers"),
        ("tests/compat/test_databases.py::test_x[redis]", {"slow"}, "kills, storms, clusters"),
        ("tests/compat/test_databases.py::test_x[hbase]", set(), "database servers"),
        ("tests/compat/test_databases.py::test_x[consul]", set(), "clients"),
        ("tests/kv/drivers/sqlite/test_driver.py::test_x", set(), "databases"),
        ("tests/auth/test_keys.py::test_x", set(), "all else"),
    ],
)
def test_each_test_belongs_to_one_part(nodeid: str, markers: set[str], name: str) -> None:
    assert part_of(nodeid, markers).name == name


def test_what_rotates_has_its_turn_at_some_commit() -> None:
    for part in PARTS:
        if part.one_in > 1:
            turns = Counter(
                nodeid for turn in range(200) for nodeid in "abcdefgh" if is_taken(part, nodeid, f"{turn:08x}")
            )

            assert turns.keys() == set("abcdefgh")
            assert 200 * 8 / part.one_in / 2 < turns.total() < 200 * 8 / part.one_in * 2


def test_a_dear_test_is_taken_more_seldom_than_others_of_its_part_and_every_commit_takes_another_share() -> None:
    dear = set("abcdefgh")
    for part in PARTS:
        turns = Counter(nodeid for turn in range(400) for nodeid in dear if is_taken(part, nodeid, f"{turn:08x}", dear))

        assert turns.keys() == (dear if part.one_in else set())
        seldom = max(part.one_in, DEAR_ONE_IN)
        assert turns.total() < 400 * 8 / seldom * 2


def test_of_the_cases_of_a_test_each_has_its_turn_and_some_case_runs_at_every_commit() -> None:
    file = "tests/compat/test_databases.py"
    stories, backup = {f"{file}::test_story[{name}]" for name in "abcde"}, f"{file}::test_backup[a]"
    storms = {f"tests/outside/test_storm.py::test_a_storm_{name}" for name in "xyz"}
    other = "tests/auth/test_keys.py::test_x[a]"
    asked = [*sorted(stories), backup, *sorted(storms), other]
    rests = [resting(asked, f"{turn:08x}") for turn in range(60)]

    assert all(rest < stories | storms and stories - rest and storms - rest for rest in rests)
    assert set.intersection(*rests) == set()
    assert sum(len(rest & stories) for rest in rests) / 60 < 4
    assert sum(len(rest & storms) for rest in rests) / 60 == 2


def test_files_and_classes_that_rotate_together_run_as_a_whole_or_not_at_all() -> None:
    cases = [{f"{case}::test_{name}" for name in "ab"} for together in ROTATING_TOGETHER for case in together]
    rests = [resting(sorted(set.union(*cases)), f"{turn:08x}") for turn in range(60)]

    assert all(case <= rest or not case & rest for rest in rests for case in cases)
    assert set.union(*rests) == set.union(*cases)
    assert set.intersection(*rests) == set()


def test_only_what_shares_the_session_of_spark_is_in_one_scope() -> None:
    assert (
        scope_of("tests/spark/test_due.py::test_x[spark-1]")
        == scope_of("tests/spark/test_session.py::test_y")
        == "spark"
    )
    assert scope_of("tests/spark/test_due.py::test_x[local-1]") == "tests/spark/test_due.py"
    assert scope_of("tests/sim/test_parts.py::test_x") == "tests/sim/test_parts.py::test_x"


def test_a_failure_is_named_at_once() -> None:
    """The end of a long run, which names them again, may be cut off."""
    file = Path(__file__).with_name("test_of_a_failure.py")  # below the conftest that names it
    file.write_text("def test_fails() -> None: raise AssertionError('a wrong sum')")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses=0", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    finally:
        file.unlink()

    assert done.returncode == 1, done.stdout
    at_once, _, _ = done.stdout.partition("= FAILURES =")
    assert f"call failed: tests/tidy/{file.name}::test_fails: AssertionError: a wrong sum" in at_once


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_that_reaches_its_limit_says_which_tests_are_left(processes: str) -> None:
    """A test that never ends is stopped, and the last line is still the runner's closing line."""
    file = Path(__file__).with_name("test_of_a_limit.py")  # below the conftest that brings the limit
    file.write_text(SLEEPER)
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
        done = subprocess.run(
            [*command, f"--numprocesses={processes}", "--stop-after=0.1"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
    finally:
        file.unlink()

    assert done.returncode == 1, done.stdout
    assert "STOPPED: the run reached its limit." in done.stdout
    assert " in " in done.stdout.splitlines()[-1]
