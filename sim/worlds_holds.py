"""Worlds of legal holds: a hold that is added beside the shipped plan and apply, or the worker of hard delete.

The answer names the runs that had begun to take data. If it names none, nothing at the path may go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from lakebed.gc.protocol import NewHold, RunKind
from lakebed.gc.service import HoldBook
from lakebed.versions import Versions

from .actors import Actor, Ending, Scene, Violation
from .deeds import collect, set_rules
from .operations import Operation
from .ports import SimPorts
from .scenes import Do, client, commit, scene, upload
from .worlds_hard_delete import hard, turn_on, work
from .worlds_lifecycle import set_policy

_WRITTEN: Final = [upload("w1", "a", "1"), commit("p1"), upload("w2", "a", "2"), commit("p2")]
_PAST: Final = [*_WRITTEN, set_policy("q0"), set_rules("q1", "1d")]


def add_hold(name: str) -> Do:
    async def act(repo: Versions) -> str:
        hold = NewHold(name="case", globs=("a",), why="simulated")
        told = (await HoldBook(repo).add(hold))[1]
        # A run that ended before may have taken the object: then there is nothing to hold.
        there = [stat.key async for page in repo.objectstore.list("data/") for stat in page]
        return "" if told else " ".join(there)

    return Do(Operation(name, "hold"), act)


def what_is_held_stays(ending: Ending) -> None:
    """
    Raises:
        Violation: an object at the path went, and the hold named no run for which it came too late.
    """
    for record in ending.acknowledged("hold"):
        assert record.ended is not None
        if gone := set(str(record.ended.value).split()) - ending.disk.objectstore.keys():
            raise Violation(f"{record.operation.name} was acknowledged and named no run, and {sorted(gone)} went")


def hold_scenes() -> Iterator[Scene]:
    replaced = [turn_on("q0"), upload("w1", "a", "1"), hard(upload("w2", "a", "2"))]
    yield _scene("holder, worker", client("h", add_hold("h1")), client("x", work("x1")), before=replaced)
    for kind in (RunKind.COMMITTED, RunKind.LIFECYCLE):
        run = client("r", collect("r1", kind))
        yield _scene(f"holder, {kind} run", client("h", add_hold("h1")), run)


def _scene(name: str, *actors: Actor, before: Sequence[Do] = _PAST) -> Scene:
    made = scene(name, *actors, before=before)
    # What is held is no leak, and no run that tidies up may begin.
    return replace(made, checks=(what_is_held_stays,), tidy=_leave, tidy_checks=())


async def _leave(ports: SimPorts) -> None:
    await ports.pause()
