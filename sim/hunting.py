"""Looking for planted bugs: by seeds of swarms, and in small worlds. Either search alone may miss one."""

from __future__ import annotations

from dataclasses import dataclass

from .actors import Violation
from .exploring import TooManyStates, explore
from .planting import Mutant
from .scheduling import run_seed
from .swarms import SWARM_FAULTS, swarm
from .worlds import small_worlds


@dataclass(frozen=True, slots=True)
class Hunt:
    """What was searched until the mutant was caught, or in vain: then there is no `report`."""

    seeds: int = 0
    states: int = 0
    schedules: int = 0
    steps: int = 0
    faults: int = 0
    world: str = ""
    report: str | None = None


def hunt_by_seed(mutant: Mutant, *, seeds_max: int) -> Hunt:
    """Run swarms until something is violated."""
    steps = faults = 0
    with mutant.planted():
        for seed in range(seeds_max):
            try:
                run = run_seed(swarm(seed), seed, faults=SWARM_FAULTS)
            except Violation as violation:
                return Hunt(seeds=seed + 1, steps=steps, faults=faults, report=str(violation))
            steps, faults = steps + run.steps, faults + run.faults
    return Hunt(seeds=seeds_max, steps=steps, faults=faults)


def hunt_by_world(mutant: Mutant, *, states_max: int) -> Hunt:
    """Walk the quick worlds until something is violated. `states_max` is for each: a mutant may make one endless."""
    states = schedules = steps = faults = 0
    with mutant.planted():
        for world in small_worlds():
            if not (world.scene.name in mutant.scenes if mutant.scenes else world.is_quick):
                continue
            try:
                explored = explore(world.scene, world.budget, states_max=states_max)
            except TooManyStates:
                states += states_max
                continue
            states, schedules = states + explored.states, schedules + explored.schedules
            steps, faults = steps + explored.transitions, faults + explored.faults
            if explored.violation is not None:
                return Hunt(
                    states=states,
                    schedules=schedules,
                    steps=steps,
                    faults=faults,
                    world=world.scene.name,
                    report=explored.violation,
                )
    return Hunt(states=states, schedules=schedules, steps=steps, faults=faults)
