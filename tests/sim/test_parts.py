"""A sweep of several parts is simulated with its process dead at every step, and so between two parts, too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from explorer.actors import Ending
from sim import explore
from sim.checkers.ledgers import parts_recorded
from sim.worlds.parts import part_scenes
from sim.worlds.small import A_CRASH

SCENES = {scene.name: scene for scene in part_scenes()}


def test_a_crash_falls_before_the_first_part_between_two_and_after_the_last() -> None:
    dead: Counter[int] = Counter()

    def count(ending: Ending) -> None:
        if "r" in ending.crashed:
            dead[parts_recorded(ending)] += 1

    for name in ("uploader, apply in parts that comes back", "committed run in parts that comes back"):
        scene = SCENES[name]
        once = [replace(actor, restart=None) for actor in scene.actors]
        dead.clear()

        explored = explore(replace(scene, actors=once, checks=(*scene.checks, count), tidy=None), A_CRASH)

        assert explored.violation is None, explored.violation
        assert sorted(dead) == [0, 1, 2], name
