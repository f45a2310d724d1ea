"""Look for planted bugs where they are known to show: by what caught each last, in small worlds, by tests, by seeds.

`killers.txt` holds what caught each bug: a line with its name, and a seed, a schedule of a scene, or a test. That is
tried first, and mostly is enough; where the source has moved on since, all is searched. A schedule is written as the
actors that move, each with how often (`c*5 r*12`), or with the fault of a step (`c!crashed`); `~` is a late write.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

from explorer.actors import Violation, prepared
from explorer.effects import Fate, Step
from explorer.exploring import Budget, TooManyStates, explore, sample
from explorer.footprints import Footprints
from explorer.scheduling import Bursts, Following, Schedule, run_seed
from sim.ports.scene import Scene
from sim.scenes.swarms import SWARM_FAULTS, swarm
from sim.worlds.small import World, small_worlds

from .planting import Mutant, read_mutants
from .trials import Trials

MUTANTS: Final = read_mutants()
STATES_MAX: Final = 600_000
SEEDS_FIRST: Final = 60
SEEDS_OF_SCENE: Final = 40
BURSTS_FIRST: Final = 30
BURSTS: Final = 60
WIDTHS: Final = (16, 64, 256)
WIDTHS_FAULTY: Final = (64,)
KILLERS: Final = Path(__file__).parent / "killers.txt"
_SWARM: Final = "swarm"
_TESTS: Final = "tests/"


@dataclass(slots=True)
class Hunt:
    """All that was searched until the mutant was caught, or in vain: then there is no `report`.

    `killer`: what caught it, to be tried first the next time.
    """

    seeds: int = 0
    states: int = 0
    schedules: int = 0
    steps: int = 0
    faults: int = 0
    where: str = ""
    killer: str = ""
    report: str | None = None
    cpu_s: float = field(default=0.0)


def hunt(mutant: Mutant, trials: Trials, *, seeds_max: int, killer: str = "") -> Hunt:
    """Try what caught it last; then its own scenes and tests; without any, seeds, the quick worlds, more seeds."""
    found = Hunt()
    started_s = time.process_time()
    if killer.startswith(_TESTS):
        _by_tests(found, mutant, trials, [killer])
    if found.report is None:
        with mutant.planted():
            by_killer(found, killer)
            if found.report is None:
                _by_scenes(found, mutant)
    if mutant.tests and found.report is None:
        _by_tests(found, mutant, trials, mutant.tests)
    if not mutant.scenes and not mutant.tests and found.report is None:
        with mutant.planted():
            _by_swarms(found, seeds_max)
    found.cpu_s += time.process_time() - started_s
    return found


def known_killers() -> dict[str, str]:
    """Read what caught each bug when it was last written down."""
    lines = KILLERS.read_text().splitlines() if KILLERS.exists() else []
    return dict(line.split(": ", 1) for line in lines)


def write_killers(killers: Mapping[str, str]) -> None:
    """Write down what caught each; those that no bug has any more are left out."""
    names = sorted(killers.keys() & {mutant.name for mutant in MUTANTS})
    KILLERS.write_text("".join(f"{name}: {killers[name]}\n" for name in names))


def _by_scenes(found: Hunt, mutant: Mutant) -> None:
    worlds = [world for name in mutant.scenes for world in small_worlds() if world.scene.name == name]
    # The other scenes without a fault cost less than the first with each.
    walked = sorted((world for world in worlds if not world.budget.seeds), key=_cost)
    scenes = {world.scene.name: world.scene for world in worlds}.values()
    # What shows most bugs soonest comes first, and all schedules last.
    _by_bursts(found, scenes, range(BURSTS_FIRST))
    if found.report is None:
        _by_world(found, [world for world in walked if _cost(world)[0] == 0], widths=WIDTHS)
    if found.report is None:
        _by_bursts(found, scenes, range(BURSTS_FIRST, BURSTS))
    if found.report is None:
        _by_world(found, [world for world in walked if _cost(world)[0]], widths=WIDTHS_FAULTY)
    for scene in scenes:
        if found.report is None and not any(world.budget.alone_max and world.is_quick for world in worlds):
            _by_world(found, [World(scene, Budget(seeds=SEEDS_OF_SCENE), is_quick=False)])
    if found.report is None:
        _by_world(found, walked)


def _by_swarms(found: Hunt, seeds_max: int) -> None:
    _by_seed(found, range(min(SEEDS_FIRST, seeds_max)))
    if found.report is None:
        _by_world(found, [world for world in small_worlds() if world.is_quick])
    if found.report is None:
        _by_seed(found, range(SEEDS_FIRST, seeds_max))


def _cost(world: World) -> tuple[int, int]:
    """Order by faults: one that may be a lost answer at any write costs most states."""
    budget = world.budget
    return budget.crashes + budget.losses + budget.late, budget.losses


def by_killer(found: Hunt, killer: str) -> None:
    """Try the seed or schedule that caught a bug before."""
    place, _, how = killer.partition(": ")
    if place == _SWARM:
        _by_seed(found, [int(how)])
    elif scene := next((world.scene for world in small_worlds() if world.scene.name == place), None):
        try:
            _follow(scene, how)
        except Violation as violation:
            found.where, found.killer, found.report = f"{place!r}, as last", killer, str(violation)


def _follow(scene: Scene, how: str) -> None:
    if how.startswith("seed "):
        sample(scene, int(how.removeprefix("seed ")))
    elif budget := next(
        (one for one in small_worlds() if (one.scene.name, one.budget.name) == (scene.name, how)), None
    ):
        # Found where an actor is run alone: no schedule of all of them shows it.
        if (violation := explore(scene, budget.budget, states_max=STATES_MAX).violation) is not None:
            raise Violation(violation)
    else:
        Following(scene, read_schedule(how)).play()


def _by_seed(found: Hunt, seeds: Iterable[int]) -> None:
    for seed in seeds:
        found.seeds += 1
        try:
            run = run_seed(swarm(seed), seed, faults=SWARM_FAULTS)
        except Violation as violation:
            found.where, found.killer, found.report = f"seed {seed}", f"{_SWARM}: {seed}", str(violation)
            return
        found.steps += run.steps
        found.faults += run.faults


def _by_tests(found: Hunt, mutant: Mutant, trials: Trials, tests: Sequence[str]) -> None:
    done = trials.failing(mutant, tests)
    found.cpu_s += done.cpu_s
    if done.answer:
        found.where, found.killer, found.report = done.answer, done.answer, done.answer


def _by_bursts(found: Hunt, scenes: Iterable[Scene], seeds: range) -> None:
    """Draw runs in which actors seldom take turns: many bugs of a run need one actor to sleep at one place for long."""
    for scene in scenes:
        if found.report is None:
            _by_bursts_of(found, scene, seeds)


def _by_bursts_of(found: Hunt, scene: Scene, seeds: range) -> None:
    start, footprints = prepared(scene, 0), Footprints(scene)
    for seed in seeds:
        # In one of four each step counts. In one of four there are faults, too.
        noticed = footprints if seed % 4 else None
        run = Bursts(scene, seed, footprints=noticed, faults_max=2 if seed % 4 == 3 else 0, start=start)
        found.schedules += 1
        try:
            found.steps += run.play().steps
        except Violation as violation:
            how = _written(scene, run.trace or [])
            found.killer = f"{scene.name}: {how}" if how else ""
            found.where, found.report = f"{scene.name!r}, in bursts", str(violation)
            return


def _by_world(found: Hunt, worlds: list[World], *, widths: Sequence[int] = ()) -> None:
    """Walk worlds until one shows the bug; with `widths`, as many states of each level as it says.

    STATES_MAX is for each: a mutant may make one endless.
    """
    for world in worlds:
        try:
            explored = explore(world.scene, world.budget, states_max=STATES_MAX, widths=widths, is_whole=not widths)
        except TooManyStates:
            found.states += STATES_MAX
            continue
        found.states += explored.states
        found.schedules += explored.schedules
        found.steps += explored.transitions
        found.faults += explored.faults
        if explored.violation is not None:
            name = "a narrow walk" if widths else world.budget.name
            found.where, found.report = f"{world.scene.name!r}, {name}", explored.violation
            # A budget's name stands for a search of all its schedules.
            how = f"seed {explored.seed}" if world.budget.seeds else _written(world.scene, explored.trace)
            found.killer = f"{world.scene.name}: {how or world.budget.name}"
            return


# Schedules as text


def _written(scene: Scene, trace: Sequence[Step]) -> str:
    """Return the schedule, if it shows the bug by itself; else nothing."""
    moves = groupby((f"{actor}{strand}" or "~", fate) for actor, strand, _, fate in trace)
    words = [(name, fate, len(list(steps))) for (name, fate), steps in moves]
    how = " ".join(
        f"{name}*{count}" if fate in (Fate.DONE, Fate.LATE) else " ".join([f"{name}!{fate.name.lower()}"] * count)
        for name, fate, count in words
    )
    try:
        _follow(scene, how)
    except Violation:
        return how
    return ""


_WORD: Final = re.compile(r"(~|[a-z0-9.]+)(?:\*(\d+)|!(\w+))?")


def read_schedule(text: str) -> Schedule:
    """
    Raises:
        ValueError: a word is none of a schedule.
    """
    found: list[tuple[str, Fate]] = []
    for word in text.split():
        parsed = _WORD.fullmatch(word)
        if parsed is None:
            raise ValueError(f"{word!r} is no step of a schedule")
        name, count, fate = parsed.groups()
        found += [("" if name == "~" else name, Fate[fate.upper()] if fate else Fate.DONE)] * int(count or 1)
    return found
