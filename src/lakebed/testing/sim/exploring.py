"""Every schedule of a small scene, with faults up to a budget, at the cost of its distinct states.

A state is the disk, where each actor stands in its automaton (`automata.py`), the order in which operations began and
ended, and the faults still allowed. Two schedules that lead to one state have one future, so the search walks states,
not schedules: level by level (each step takes one level, and only two are kept), counting for each state the schedules
that lead to it. Nothing is left out: the count is exact up to 2^53, and equals what one-by-one enumeration finds
(tested); above, it is rounded.

A crash is tried at the start, after each write and after each answer to a user: elsewhere it leaves the same world as a
crash one read earlier.

A level is one array with a row a state. What a step does depends on two or three numbers of a row, so a level is walked
by looking these up for all rows at once (`tables.py`); real code runs only for what was never looked up before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from .actors import Ending, Scene, Violation, apply_checked, prepared
from .automata import Automaton, Interned, NotDeterministic, Numbering
from .disk import Disk
from .effects import CRASH, Effect, Fate, Mark, Step, format_trace
from .levels import CRASHES, DISK, LOSSES, NODES, ORDER, At, Found, Label, Level, Rows, Steps, merged
from .operations import Record
from .scheduling import Endings
from .tables import ABSENT, NumberMap, Numbers

_BITS: Final = 24
_ROWS_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Faults allowed in one schedule, each at any step: `crashes` of any actors, `losses` of answers (the operation
    done) or of requests (not done; the caller cannot tell)."""

    crashes: int = 0
    losses: int = 0


NO_BUDGET = Budget()


@dataclass(slots=True)
class Explored:
    """`faults` counts the transitions that are one. `violation` is the first one met, which by the order of the search
    has a shortest schedule."""

    scene: str
    states: int = 0
    transitions: int = 0
    schedules: int = 0
    endings: int = 0
    depth: int = 0
    faults: int = 0
    violation: str | None = None


def explore(
    scene: Scene, budget: Budget = NO_BUDGET, *, states_max: int | None = None, merges: bool = True
) -> Explored:
    """Walk every state of the scene; stop at the first violation, and describe it with its schedule.

    `merges`: histories after which an actor remembers the same are one node (`memory.py`). Costs about 1 µs a state,
    0.2 ms a node, and memory for two levels of states besides the automata.

    Raises:
        TooManyStates: more than `states_max`.
        NotDeterministic: an actor's effects follow from more than the outcomes it was given.
    """
    explorer = Explorer(scene, budget, merges=merges)
    try:
        explored = explorer.walk(states_max)
        if explored.violation is not None:
            # Once more, this time remembering where each state came from.
            explored.violation = explorer.walk(None, path=[]).violation
            assert explored.violation is not None
        return explored
    finally:
        explorer.close()


class TooManyStates(RuntimeError):
    """The scene is larger than it was said to be."""


class Explorer:
    def __init__(self, scene: Scene, budget: Budget, *, seed: int = 0, merges: bool = True) -> None:
        self.scene = scene
        self.budget = budget
        self.effects: Interned[Effect] = Interned()
        self._outcomes: Interned[Any] = Interned()
        self._unknown = self._outcomes.number(Mark.UNKNOWN)
        self._seed = seed
        self._disks: list[Disk] = []
        self._disk_numbers: dict[Hashable, int] = {}
        self._applied = NumberMap()
        self._orders: Interned[tuple[frozenset[str], tuple[tuple[str, frozenset[str]], ...]]] = Interned()
        self._names: Interned[tuple[str, ...]] = Interned()
        self._names.number(())
        self._next_orders = NumberMap()
        self.automata = [
            Automaton(actor, scene, Numbering(self.effects, self._outcomes, self._names), seed, merges=merges)
            for actor in scene.actors
        ]
        self._may_fail = [self._is_first_of_its_kind(actor.name) for actor in scene.actors]
        self._initial = self._first_state()
        self._endings = Endings(scene)
        self._checked: set[Hashable] = set()

    def close(self) -> None:
        for automaton in self.automata:
            automaton.close()

    def _is_first_of_its_kind(self, name: str) -> bool:
        """With a single fault it is enough to try it on one of those who are alike."""
        is_single = self.budget.crashes + self.budget.losses == 1
        return not is_single or all(name not in kind or name == kind[0] for kind in self.scene.alike)

    def walk(self, states_max: int | None = None, *, path: list[Level] | None = None) -> Explored:
        result = Explored(self.scene.name)
        self._checked.clear()
        ways = 0.0
        level = Level(self._initial, np.ones(1), np.zeros(1, np.int64))
        try:
            while len(level.rows):
                if path is not None:
                    path.append(level)
                result.states += len(level.rows)
                if states_max is not None and result.states > states_max:
                    raise TooManyStates(f"{self.scene.name}: more than {states_max} states")
                ended, level = self._walk_level(level, result)
                ways += ended
                assert max(len(self._disks), *(len(one.nodes) for one in self.automata)) < 1 << _BITS
                result.depth += bool(len(level.rows))
        except Found as found:
            result.violation = f"{self.scene.name}: {found}"
            if path is not None:
                result.violation += "\n" + format_trace(self._trace(found, path))
        result.schedules = int(ways)
        return result

    def _walk_level(self, level: Level, result: Explored) -> tuple[float, Level]:
        found: list[Level] = []
        ended = 0.0
        for start in range(0, len(level.rows), _ROWS_AT_ONCE):
            rows = level.rows[start : start + _ROWS_AT_ONCE]
            ways = level.ways[start : start + _ROWS_AT_ONCE]
            steps = Steps(rows)
            for index in range(len(self.automata)):
                self._steps_of(index, steps)
            over = np.ones(len(rows), bool)
            for source in steps.sources:
                over[source] = False
            result.faults += steps.faults
            result.transitions += steps.count
            result.endings += int(over.sum())
            ended += float(ways[over].sum())
            for row in rows[over]:
                self._end(row)
            if steps.count:
                sources = np.concatenate(steps.sources)
                found.append(merged(np.concatenate(steps.rows), ways[sources], sources + start))
        if not found:
            return ended, Level(self._initial[:0], np.ones(0), np.zeros(0, np.int64))
        if len(found) == 1:
            return ended, found[0]
        parts = [[getattr(one, name) for one in found] for name in ("rows", "ways", "sources")]
        return ended, merged(*(np.concatenate(part) for part in parts))

    # Steps

    def _steps_of(self, index: int, steps: Steps) -> None:
        automaton = self.automata[index]
        nodes = steps.rows_from[:, NODES + index].astype(np.int64)
        stuck = automaton.is_stuck.take(nodes)
        if stuck.any():
            row = steps.rows_from[int(np.flatnonzero(stuck)[0])]
            raise Found(row, None, Violation(f"{automaton.actor.name} waits for ever"))
        counts = automaton.move_counts.take(nodes)
        for move in range(int(counts.max(initial=0))):
            sources = np.flatnonzero(counts > move)
            self._move(index, move, sources, nodes[sources], steps)
        if not self._may_fail[index]:
            return
        can_crash = automaton.can_crash.take(nodes) & (steps.rows_from[:, CRASHES] > 0)
        sources = np.flatnonzero(can_crash)
        if len(sources):
            rows = steps.rows_from[sources]
            targets = self._looked_up(automaton.crashes, nodes[sources], automaton.crash)
            rows[:, NODES + index] = targets
            rows[:, CRASHES] -= 1
            steps.add(sources, rows, Label(index, 0, Fate.CRASHED))

    def _move(self, index: int, move: int, sources: Numbers, nodes: Numbers, steps: Steps) -> None:
        """One move of one actor in all the states that have it: done; or a write, its answer or itself lost."""
        automaton = self.automata[index]
        effects = automaton.move_effect(move).take(nodes)
        disks = steps.rows_from[sources, DISK].astype(np.int64)
        is_shared = effects >= 0
        after, outcomes = disks.copy(), -1 - effects  # A local move: its outcome instead of its effect.
        if is_shared.any():
            keys = disks[is_shared] << _BITS | effects[is_shared]
            applied = self._looked_up(self._applied, keys, self._apply, At(steps, sources[is_shared], index, move))
            after[is_shared] = applied >> _BITS
            outcomes[is_shared] = applied & (1 << _BITS) - 1
        self._arrive(index, move, sources, nodes, outcomes, after, steps, Fate.DONE)
        can_lose = automaton.is_losable(move).take(nodes).astype(bool) & (steps.rows_from[sources, LOSSES] > 0)
        if self._may_fail[index] and can_lose.any():
            unknown = np.full(len(sources), self._unknown, np.int64)
            for fate, disk, where in ((Fate.LOST, after, can_lose), (Fate.VAIN, disks, can_lose & (after != disks))):
                self._arrive(index, move, sources[where], nodes[where], unknown[where], disk[where], steps, fate)

    def _arrive(
        self,
        index: int,
        move: int,
        sources: Numbers,
        nodes: Numbers,
        outcomes: Numbers,
        disks: Numbers,
        steps: Steps,
        fate: Fate,
    ) -> None:
        """The states after these outcomes."""
        if not len(sources):
            return
        automaton = self.automata[index]

        def follow(key: int) -> int:
            return automaton.follow(key >> _BITS + 4, key >> _BITS & 15, key & (1 << _BITS) - 1)

        keys = (nodes << 4 | move) << _BITS | outcomes
        targets = self._looked_up(automaton.edges, keys, follow, At(steps, sources, index, move, fate))
        rows = steps.rows_from[sources]
        rows[:, DISK] = disks
        rows[:, NODES + index] = targets
        if fate is not Fate.DONE:
            rows[:, LOSSES] -= 1
        if self.scene.keeps_order:
            opened, ended = automaton.opened.take(nodes), automaton.ended_now.take(targets)
            changed = np.flatnonzero((opened != 0) | (ended != 0))
            if len(changed):
                keys = (rows[changed, ORDER].astype(np.int64) << 20 | opened[changed]) << 20 | ended[changed]
                rows[changed, ORDER] = self._looked_up(self._next_orders, keys, self._next_order)
        steps.add(sources, rows, Label(index, move, fate))

    def _looked_up(
        self,
        table: NumberMap,
        keys: Numbers,
        learn: Callable[[int], int],
        asking: At | None = None,
    ) -> Numbers:
        """The value of each key; what was never asked for is learnt. An error is blamed on the first that asks."""
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

    def _apply(self, key: int) -> int:
        fork = self._disks[key >> _BITS].fork()
        raw = apply_checked(fork, self.effects.values[key & (1 << _BITS) - 1], self.scene.step_checks)
        return self._disk_number(fork) << _BITS | self._outcomes.number(raw)

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

    def _first_state(self) -> Rows:
        disk, self._prepared = prepared(self.scene, self._seed)
        order = self._orders.number((frozenset(self._prepared), ()))
        start = [self._disk_number(disk), order, self.budget.crashes, self.budget.losses]
        return np.array([start + [0] * len(self.automata)], np.int32)

    # Ends

    def _end(self, row: Rows) -> None:
        ending = self._ending(row)
        key = int(row[DISK]), tuple(ending.records.values()), ending.crashed
        if key in self._checked:
            return
        self._checked.add(key)
        try:
            self._endings.check(ending)
        except Exception as error:
            raise Found(row, None, error) from error

    def _ending(self, row: Rows) -> Ending:
        before = dict(self._orders.values[row[ORDER]][1])
        records = dict(self._prepared)
        crashed = set()
        for automaton, number in zip(self.automata, row[NODES:], strict=True):
            node = automaton.nodes[number]
            ended = dict(node.ended)
            for operation in node.asked:
                name = operation.name
                records[name] = Record(operation, ended.get(name), before.get(name))
            if node.is_dead:
                crashed.add(automaton.actor.name)
        return Ending(self._disks[row[DISK]], records, frozenset(crashed))

    def _trace(self, found: Found, path: list[Level]) -> list[Step]:
        place = int(np.flatnonzero((path[-1].rows == found.row).all(axis=1))[0])
        rows = [found.row]
        for before, after in zip(path[-2::-1], path[:0:-1], strict=True):
            place = int(after.sources[place])
            rows.append(before.rows[place])
        rows.reverse()
        steps = [self._step_between(*pair) for pair in pairwise(rows)]
        if found.label is not None:
            steps.append(self._described(found.row, found.label))
        return steps

    def _step_between(self, row: Rows, after: Rows) -> Step:
        steps = Steps(row[None, :])
        for index in range(len(self.automata)):
            self._steps_of(index, steps)
        labels = [label for found, label in zip(steps.rows, steps.labels, strict=True) if (found[0] == after).all()]
        return self._described(row, labels[0])

    def _described(self, row: Rows, label: Label) -> Step:
        automaton = self.automata[label.actor]
        if label.fate is Fate.CRASHED:
            return Step(automaton.actor.name, "", CRASH, Fate.CRASHED)
        strand, effect, fate = automaton.nodes[row[NODES + label.actor]].moves[label.move]
        return Step(automaton.actor.name, strand, effect, fate if label.fate is Fate.DONE else label.fate)
