"""A simulation that does not catch planted bugs proves nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lakebed
from sim import explore, run_seed
from sim.hunting import hunt_by_seed, hunt_by_world
from sim.mutants import MUTANTS
from sim.planting import Mutant
from sim.swarms import SWARM_FAULTS, swarm
from sim.worlds import small_worlds


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_planted_bug_is_caught(mutant: Mutant) -> None:
    found = hunt_by_world(mutant, states_max=500_000) if mutant.scenes else hunt_by_seed(mutant, seeds_max=600)
    if found.report is None:
        found = hunt_by_world(mutant, states_max=60_000)

    assert found.report is not None, mutant.guard
    # Caught for what it does, not for a mistake in it.
    assert not re.match(r".*?: (TypeError|AttributeError|NameError|UnboundLocalError): ", found.report), found.report
    print(f"{mutant.name}: {found.seeds} seeds, {found.states} states")


def test_a_mutant_leaves_nothing_behind() -> None:
    owners = {owner for mutant in MUTANTS for owner, _, _ in mutant.patches}
    before = {owner: dict(vars(owner)) for owner in owners}

    for mutant in MUTANTS:
        with mutant.planted():
            pass

    assert {owner: dict(vars(owner)) for owner in owners} == before
    assert explore(next(iter(small_worlds())).scene).violation is None
    run_seed(swarm(1), 1, faults=SWARM_FAULTS)


def test_every_scene_that_a_mutant_is_hunted_in_exists() -> None:
    known = {world.scene.name for world in small_worlds()}

    assert {scene for mutant in MUTANTS for scene in mutant.scenes} <= known


def test_mutants_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


def test_production_code_knows_nothing_of_the_simulator() -> None:
    package = Path(lakebed.__file__).parent
    inside = package / "testing"

    knowing = [
        file.name
        for file in sorted(package.rglob("*.py"))
        if inside not in file.parents and "lakebed.testing" in file.read_text()
    ]

    assert [name for name in knowing if name != "ports.py"] == []
