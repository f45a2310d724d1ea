"""docs/design/guards.md names for each guard the planted bugs that take it out, and where each is caught."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import explorer
import sim
from sim.planted.guards import PAGE, filled_in
from sim.planted.hunting import MUTANTS
from sim.worlds.small import small_worlds

ROOT = Path(__file__).parents[2]
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def test_the_page_is_what_the_command_writes() -> None:
    """`python -m sim guards` writes it, once each planted bug has a row."""
    assert filled_in(PAGE.read_text(), MUTANTS) == PAGE.read_text()


def test_each_test_that_catches_a_bug_exists() -> None:
    functions = {
        file: {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, FUNCTIONS)}
        for file in {test.split("::")[0] for bug in MUTANTS for test in bug.tests}
    }

    for bug in MUTANTS:
        for file, name in (test.split("::") for test in bug.tests):
            assert name in functions[file], bug.name


def test_each_scene_that_catches_a_bug_is_walked() -> None:
    assert {scene for bug in MUTANTS for scene in bug.scenes} <= {world.scene.name for world in small_worlds()}


def test_each_invariant_names_checkers_and_a_bug_that_exist() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if re.match(r"\| \d ", line)]
    names = {mutant.name for mutant in MUTANTS}
    folders = (Path(package.__file__ or "").parent for package in (explorer, sim))
    source = "\n".join([file.read_text() for folder in folders for file in sorted(folder.rglob("*.py"))])

    assert [int(row[0].split()[0]) for row in rows] == [*range(1, 9)]
    for words, checkers, bug in rows:
        assert re.findall(r"`([a-z0-9-]+)`", bug)[0] in names, words
        for checker in re.findall(r"`(\w+)`", checkers):
            assert re.search(rf"(def|class) {checker}\b", source), checker
