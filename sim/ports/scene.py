"""Scenes whose actors are given simulated ports."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

from explorer import actors
from explorer.disk import Disk
from explorer.memory import know
from lakebed.ranges import RangeList, SublistList
from lakebed.versions import TreeCache

from .ports import Private, SimPorts

# What a cache of trees holds follows from their names. It has no other state.
know(TreeCache, lambda cache: (tuple(cache._values), tuple(cache._flights.items())))  # noqa: SLF001  # as said
for kind in (RangeList, SublistList):
    know(kind, lambda listed: repr(listed.ids), by_value=True)

Program: TypeAlias = Callable[[SimPorts], Coroutine[Any, Any, object]]


class Quick(IntEnum):
    """Say with how many of its budgets the tests walk a small world (worlds/small.py); the command walks them all."""

    NEVER = 0
    NO_FAULT = 1
    NO_LOSS = 2
    ALL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene(actors.Scene):
    whole_batches: bool = True
    private: tuple[str, ...] = ()
    """Keys that begin so are looked at by no other actor (`ports.Private`)."""
    others_look: bool = False
    """But files of runs are: another actor, or another life of one, may go on with a run."""
    quick: Quick = Quick.NEVER

    def ports(self, actor: str, *, seed: int, life: int, before: Disk) -> SimPorts:
        own = Private(self.private, before=before, others_look=self.others_look)
        return SimPorts(actor, seed=seed, life=life, whole_batches=self.whole_batches, own=own)

    def ports_alone(self, name: str, *, seed: int, disk: Disk) -> SimPorts:
        return _alone(name, seed, disk)


def run_alone(program: Program, disk: Disk, *, name: str = "alone", seed: int = 0) -> None:
    """Run one program on this disk, of no scene."""
    actors.run_to_end(program, disk, _alone(name, seed, disk), name=name)


def _alone(name: str, seed: int, disk: Disk) -> SimPorts:
    ports = SimPorts(name, seed=seed, whole_batches=True)
    ports.disk = disk
    return ports
