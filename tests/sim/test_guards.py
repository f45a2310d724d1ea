"""docs/design/guards.md says for each guard which planted bug takes it out, and where that is caught: and it is so."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import sim
from sim.planted.hunting import MUTANTS
from sim.planted.planting import Mutant
from sim.worlds.small import small_worlds

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/design/guards.md").read_text()
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
ANYWHERE = "seeds, or any quick world"


@dataclass(frozen=True, slots=True)
class Guard:
    words: str
    bugs: tuple[str, ...]
    places: tuple[str, ...]

    @property
    def tests(self) -> list[str]:
        return [place.strip("`") for place in self.places if place.startswith("`")]


def guards() -> list[Guard]:
    tables = PAGE[PAGE.index("## Write") :]
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.splitlines() if line.startswith("| ")]
    return [
        Guard(words, tuple(re.findall(r"`([a-z0-9-]+)`", bugs)), tuple(places.split("; ")))
        for words, bugs, places in found
        if words not in ("guard", "---")
    ]


def places_of(bug: Mutant) -> set[str]:
    return {f'"{name}"' for name in bug.scenes} | {f"`{test}`" for test in bug.tests} or {ANYWHERE}


def test_each_planted_bug_takes_out_one_guard() -> None:
    named = [bug for guard in guards() for bug in guard.bugs]

    assert sorted(named) == sorted(BY_NAME)


def test_each_guard_says_where_its_bugs_are_hunted() -> None:
    for guard in guards():
        places = {place for bug in guard.bugs for place in places_of(BY_NAME[bug])}

        assert {place for place in guard.places if place in places or not place.startswith("`")} == places, guard.words


def test_every_guard_has_a_planted_bug_and_every_test_named_exists() -> None:
    for guard in guards():
        assert guard.bugs, guard.words
        for test in guard.tests:
            file, name = test.split("::")
            tree = ast.parse((ROOT / file).read_text())
            functions = {
                node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert name in functions, test


def test_every_world_named_is_one_that_is_walked() -> None:
    known = {world.scene.name for world in small_worlds()}

    assert {place.strip('"') for guard in guards() for place in guard.places if place.startswith('"')} <= known


def test_each_invariant_names_checkers_and_a_bug_that_exist() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE[: PAGE.index("## Write")].splitlines() if re.match(r"\| \d ", line)]
    folder = Path(sim.__file__).parent
    source = "\n".join([file.read_text() for file in sorted(folder.rglob("*.py"))])

    assert [int(row[0].split()[0]) for row in rows] == [*range(1, 9)]
    for words, checkers, bug in rows:
        assert re.findall(r"`([a-z0-9-]+)`", bug)[0] in BY_NAME, words
        for checker in re.findall(r"`(\w+)`", checkers):
            assert re.search(rf"(def|class) {checker}\b", source), checker
