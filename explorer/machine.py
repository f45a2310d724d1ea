"""Number what a step does: disks, actors' nodes, effects, outcomes, orders of operations.

Each question (what does this effect do to this disk, where does this outcome lead this actor) is asked for a million
states at once and answered from a table; real code runs, and a real disk is written to, where the table has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final

import numpy as np

from .actors import Ending, Scene, apply_checked, prepared
from .automata import Automaton, Interned, NotDeterministic, Numbering
from .disk import Disk
from .effects import Effect, Mark
from .footprints import Footprints, LearntMore
from .futures import Futures
from .levels import At
from .operations import Record
from .tables import ABSENT, NumberMap, Numbers

BITS: Final = 24
"""For the number of a disk, an effect, an outcome, a node."""


class Machine:
    def __init__(self, scene: Scene, *, seed: int, merges: bool, footprints: Footprints) -> None:
        self.scene = scene
        self._footprints = footprints
        self.effects: Interned[Effect] = Interned()
        self.outcomes: Interned[Any] = Interned()
        self.unknown = self.outcomes.number(Mark.UNKNOWN)
        self.failed = self.outcomes.number(Mark.FAILED)
        self.not_yet = self.outcomes.number(Mark.NOT_YET)
        self._disks: list[Disk] = []
        self._disk_numbers: dict[Hashable, int] = {}
        self._applied = NumberMap()
        self._orders: Interned[tuple[frozenset[str], tuple[tuple[str, frozenset[str]], ...]]] = Interned()
        self._names: Interned[tuple[str, ...]] = Interned()
        self._names.number(())
        self._next_orders = NumberMap()
        numbering = Numbering(self.effects, self.outcomes, self._names)
        disk, self._prepared = prepared(scene, seed)
        self.futures = Futures(is_used=scene.foresees, keeps_order=scene.keeps_order, edge_bits=BITS + 4)
        self.automata: list[Automaton] = []
        make = partial(Automaton, before=disk, merges=merges, futures=self.futures)
        try:
            for index, actor in enumerate(scene.actors):
                self.automata.append(make(actor, scene, numbering, seed, touch=self._touching(index)))
        except LearntMore:
            self.close()
            raise
        self.first_order = self._orders.number((frozenset(self._prepared), ()))
        self.first_disk = self._disk_number(disk)

    def _touching(self, index: int) -> Callable[[Effect, bool], bool]:
        def touch(effect: Effect, may_be_alone: bool) -> bool:
            self._footprints.note(index, effect)
            return self.scene.shortens and may_be_alone and self._footprints.is_alone(index, effect)

        return touch

    def close(self) -> None:
        for automaton in self.automata:
            automaton.close()

    def check_sizes(self) -> None:
        assert max(len(self._disks), *(len(one.nodes) for one in self.automata)) < 1 << BITS

    def carried_out(
        self, index: int, move: int, nodes: Numbers, disks: Numbers, asking: At | None
    ) -> tuple[Numbers, Numbers]:
        """Return the disk after the pending effect of an actor, and its outcome."""
        effects = self.automata[index].moves[move].effects.take(nodes)
        is_shared = effects >= 0
        if is_shared.all():
            return self.applied(disks, effects, asking)
        after, outcomes = disks.copy(), -1 - effects  # A local move: its outcome instead of its effect.
        if is_shared.any():
            part = None if asking is None else asking.of(is_shared)
            after[is_shared], outcomes[is_shared] = self.applied(disks[is_shared], effects[is_shared], part)
        return after, outcomes

    def applied(self, disks: Numbers, effects: Numbers, asking: At | None) -> tuple[Numbers, Numbers]:
        found = _looked_up(self._applied, disks << BITS | effects, self._apply, asking)
        return found >> BITS, found & (1 << BITS) - 1

    def told(self, index: int, move: int, nodes: Numbers, outcomes: Numbers, asking: At | None) -> Numbers:
        """Return where an actor stands after these outcomes."""
        automaton = self.automata[index]

        def follow(key: int) -> int:
            return automaton.follow(key >> BITS + 4, key >> BITS & 15, key & (1 << BITS) - 1)

        return _looked_up(automaton.edges, (nodes << 4 | move) << BITS | outcomes, follow, asking)

    def crashed(self, index: int, nodes: Numbers) -> Numbers:
        automaton = self.automata[index]
        return _looked_up(automaton.crashes, nodes, automaton.crash, None)

    def ordered(self, index: int, orders: Numbers, nodes: Numbers, targets: Numbers) -> Numbers:
        """Return the order of operations after an actor went from a node to the next."""
        automaton = self.automata[index]
        opened, ended = automaton.opened.take(nodes), automaton.ended_now.take(targets)
        changed = np.flatnonzero((opened != 0) | (ended != 0))
        if len(changed) and self.scene.keeps_order:
            keys = (orders[changed] << 20 | opened[changed]) << 20 | ended[changed]
            orders[changed] = _looked_up(self._next_orders, keys, self._next_order, None)
        return orders

    def ending(self, disk: int, order: int, nodes: list[int]) -> Ending:
        before = dict(self._orders.values[order][1])
        records = dict(self._prepared)
        crashed = set()
        for automaton, number in zip(self.automata, nodes, strict=True):
            node = automaton.nodes[number]
            ended = dict(node.ended)
            for operation in node.asked:
                name = operation.name
                records[name] = Record(operation, ended.get(name), before.get(name))
            if node.is_dead:
                crashed.add(automaton.actor.name)
        return Ending(self._disks[disk], records, frozenset(crashed))

    def _apply(self, key: int) -> int:
        fork = self._disks[key >> BITS].fork()
        raw = apply_checked(fork, self.effects.values[key & (1 << BITS) - 1], self.scene.step_checks)
        return self._disk_number(fork) << BITS | self.outcomes.number(raw)

    def _disk_number(self, disk: Disk) -> int:
        key = disk.frozen()
        number = self._disk_numbers.get(key)
        if number is None:
            number = self._disk_numbers[key] = len(self._disks)
            self._disks.append(disk)
        return number

    def _next_order(self, key: int) -> int:
        small = (1 << 20) - 1
        opened, ended = (self._names.values[number] for number in (key >> 20 & small, key & small))
        past, before = self._orders.values[key >> 40]
        began = dict(before) | dict.fromkeys(opened, past)
        # What began and ended within one step, without an effect, saw what had ended before it.
        began |= {name: past for name in ended if name not in began}
        return self._orders.number((past.union(ended), tuple(sorted(began.items()))))


def _looked_up(
    table: NumberMap,
    keys: Numbers,
    learn: Callable[[int], int],
    asking: At | None,
) -> Numbers:
    """Return the value of each key; what was never asked for is learnt. An error is blamed on the first that asks."""
    values = table.find(keys)
    unknown = np.flatnonzero(values == ABSENT)
    if not len(unknown):
        return values
    fresh, firsts = np.unique(keys[unknown], return_index=True)
    # In the order of the rows, which is that of the search: names and numbers do not depend on hashes.
    for place in np.argsort(firsts):
        key = int(fresh[place])
        try:
            table.put(key, learn(key))
        except NotDeterministic:
            raise
        except Exception as error:
            if asking is None:
                raise
            raise asking.found(int(unknown[firsts[place]]), error) from error
    values[unknown] = table.find(keys[unknown])
    return values
