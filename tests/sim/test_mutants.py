"""A simulation that does not catch planted bugs proves nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakebed
from checks import commit
from lakebed import base
from lakebed.versions import context
from lakebed.versions.commits import committer
from sim.planted.hunting import MUTANTS, Hunt, by_killer, hunt, known_killers
from sim.planted.planting import Mutant, StalePatch, live_function, module_of, parse
from sim.planted.trials import Trials
from sim.worlds.small import small_worlds
from tests.tiers import has_turn

TURN = commit()
ONE_IN = 5
KILLERS = known_killers()
"""Of each bug what caught it last: enough to show that something does. All that may is searched by the command."""

ON_A_LINE = """
[bug] a guard
@ versions/context.py Inventory.next_branches
- page = await self.page(BranchRecord, start, limit)
+ page = await self.page(BranchRecord, start, 2)
"""


def read(text: str) -> Mutant:
    [mutant] = parse(text, "here")
    return mutant


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    with Trials(MUTANTS, KILLERS) as trials:
        yield trials


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_planted_bug_is_caught(mutant: Mutant, trials: Trials) -> None:
    found = hunt(mutant, trials, seeds_max=600, killer=KILLERS.get(mutant.name, ""))

    assert found.report is not None, mutant.guard
    # Caught for what it does, not for a mistake in it.
    assert not re.match(r".*?: (TypeError|AttributeError|NameError|UnboundLocalError): ", found.report), found.report
    print(f"{mutant.name}: {found.where}, {found.seeds} seeds, {found.states} states")


def test_what_caught_a_bug_breaks_nothing_where_none_is_planted() -> None:
    """Each commit tries another share of them."""
    for killer in {killer for killer in KILLERS.values() if has_turn(killer, TURN, ONE_IN)}:
        if not killer.startswith("tests/"):
            found = Hunt()
            by_killer(found, killer)

            assert found.report is None, killer


def test_a_mutant_leaves_nothing_behind() -> None:
    """Each commit plants another share of them here, and all of them above."""
    planted = [mutant for mutant in MUTANTS if has_turn(mutant.name, TURN, ONE_IN)]
    modules = {hunk.file: module_of(hunk.file) for mutant in planted for hunk in mutant.hunks}
    before = {file: _codes(module) for file, module in modules.items()}

    for mutant in planted:
        with mutant.planted():
            assert any(_codes(modules[hunk.file]) != before[hunk.file] for hunk in mutant.hunks)

    assert {file: _codes(module) for file, module in modules.items()} == before


def _codes(module: object) -> list[object]:
    owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
    return [
        getattr(inspect.unwrap(one), "__code__", None)
        for owner in owners
        for one in (getattr(member, "fget", member) for member in vars(owner).values())
        if callable(one)
    ]


def test_every_reference_to_a_patched_function_is_changed() -> None:
    bound = context.Inventory.next_branches  # what an importer would hold
    code = bound.__code__

    with read(ON_A_LINE).planted():
        assert bound.__code__ is not code
        assert bound is live_function(context, "Inventory.next_branches")
    assert bound.__code__ is code


def test_a_constant_is_changed_wherever_it_was_imported() -> None:
    text = "[bug] a guard\n@ base/entries.py\n- DATE_MS_MAX: Final = 253_402_300_799_999\n+ DATE_MS_MAX: Final = 7\n"

    with read(text).planted():
        inside = {vars(module)["DATE_MS_MAX"] for module in (base, committer)}

    assert inside == {7}
    assert 7 not in {vars(module)["DATE_MS_MAX"] for module in (base, committer)}


NEXT = "page = await self.page(BranchRecord, start, limit)"
HEAD = "async def next_branches(self, after: str, limit: int) -> list[tuple[str, BranchRecord]]:"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("- if page.keys:\n+ pass", "found 0 times"),
        (f"- {NEXT}\n+ {NEXT}", "changes nothing"),
        (f"- {HEAD}\n+ {HEAD.replace('after', 'before')}", "is in no function"),
        ("* if page.keys:", "neither a place nor a changed line"),
    ],
)
def test_a_patch_that_does_not_fit_fails(line: str, reason: str) -> None:
    text = f"[bug] a guard\n@ versions/context.py Inventory.next_branches\n{line}\n"

    with pytest.raises(StalePatch, match=reason), read(text).planted():
        pass


def test_every_scene_that_a_mutant_is_hunted_in_exists() -> None:
    known = {world.scene.name for world in small_worlds()}

    assert {scene for mutant in MUTANTS for scene in mutant.scenes} <= known


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


def test_production_code_knows_nothing_of_the_simulator() -> None:
    package = Path(lakebed.__file__).parent

    knowing = [
        file.name
        for file in sorted(package.rglob("*.py"))
        if re.search(r"(?m)^(from|import) (explorer|sim)\b", file.read_text())
    ]

    assert knowing == []
