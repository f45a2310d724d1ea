"""Collections of metadata keep their promises in every schedule of small worlds, and every planted bug shows."""

from __future__ import annotations

import pytest

from lakebed.testing.sim import Budget, Scene, explore
from lakebed.testing.sim.metadata import metadata_worlds
from lakebed.testing.sim.mutants_metadata import METADATA_MUTANTS
from lakebed.testing.sim.planting import Mutant

QUICK = [(scene, budget) for scene, budget, is_quick in metadata_worlds() if is_quick]


@pytest.mark.parametrize(("scene", "budget"), QUICK, ids=lambda of: of.name if isinstance(of, Scene) else str(of))
def test_no_schedule_loses_a_file_that_a_commit_names_or_leaves_one_that_none_does(
    scene: Scene, budget: Budget
) -> None:
    explored = explore(scene, budget)

    assert explored.violation is None, explored.violation
    assert explored.endings > 0


@pytest.mark.parametrize("mutant", METADATA_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_planted_bug_is_caught(mutant: Mutant) -> None:
    with mutant.planted():
        assert any(explore(scene, budget).violation for scene, budget in QUICK), mutant.guard
