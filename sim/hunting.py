"""Look for planted bugs where they are known to show: in small worlds, by tests, else by seeds of swarms."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from .actors import Violation
from .apart import apart, failing_test
from .exploring import Budget, TooManyStates, explore
from .planting import Mutant, read_mutants
from .scheduling import run_seed
from .swarms import SWARM_FAULTS, swarm
from .worlds import World, small_worlds

MUTANTS: Final = read_mutants()
STATES_MAX: Final = 600_000
SEEDS_FIRST: Final = 60
SEEDS_OF_SCENE: Final = 120
TESTS_CPU_S: Final = 60


@dataclass(slots=True)
class Hunt:
    """All that was searched until the mutant was caught, or in vain: then there is no `report`."""

    seeds: int = 0
    states: int = 0
    schedules: int = 0
    steps: int = 0
    faults: int = 0
    where: str = ""
    report: str | None = None
    cpu_s: float = field(default=0.0)


def hunt(mutant: Mutant, *, seeds_max: int) -> Hunt:
    """The mutant's own scenes and tests first; without any, a few seeds, then the quick worlds, then all seeds.

    Most bugs without a scene of their own show in the first seeds. Nothing that was searched is searched again.
    """
    found = Hunt()
    started_s = time.process_time()
    with mutant.planted():
        worlds = [world for name in mutant.scenes for world in small_worlds() if world.scene.name == name]
        for scene in {world.scene.name: world.scene for world in worlds}.values():
            # A few seeds show most bugs of a run sooner than all schedules do.
            if found.report is None and not any(world.budget.alone_max and world.is_quick for world in worlds):
                _by_world(found, [World(scene, Budget(seeds=SEEDS_OF_SCENE), is_quick=False)])
        if found.report is None:
            _by_world(found, worlds)
        if mutant.tests and found.report is None:
            _by_tests(found, mutant.tests)
        if not mutant.scenes and not mutant.tests:
            _by_seed(found, range(min(SEEDS_FIRST, seeds_max)))
            if found.report is None:
                _by_world(found, [world for world in small_worlds() if world.is_quick])
            if found.report is None:
                _by_seed(found, range(SEEDS_FIRST, seeds_max))
    found.cpu_s += time.process_time() - started_s
    return found


def _by_seed(found: Hunt, seeds: range) -> None:
    for seed in seeds:
        found.seeds += 1
        try:
            run = run_seed(swarm(seed), seed, faults=SWARM_FAULTS)
        except Violation as violation:
            found.where, found.report = f"seed {seed}", str(violation)
            return
        found.steps += run.steps
        found.faults += run.faults


def _by_tests(found: Hunt, tests: Sequence[str]) -> None:
    done = apart(lambda: failing_test(tests), ended="the tests end the process", cpu_s_max=TESTS_CPU_S)
    found.cpu_s += done.cpu_s
    if done.answer:
        found.where, found.report = done.answer, done.answer


def _by_world(found: Hunt, worlds: list[World]) -> None:
    """STATES_MAX is for each: a mutant may make one endless."""
    for world in worlds:
        try:
            explored = explore(world.scene, world.budget, states_max=STATES_MAX)
        except TooManyStates:
            found.states += STATES_MAX
            continue
        found.states += explored.states
        found.schedules += explored.schedules
        found.steps += explored.transitions
        found.faults += explored.faults
        if explored.violation is not None:
            found.where, found.report = f"{world.scene.name!r}, {world.budget.name}", explored.violation
            return
