"""Every schedule of a small scene, with faults up to a budget, at the cost of its distinct states.

A state is the disk, where each actor stands in its automaton (`automata.py`), the order in which operations began and
ended, and the faults still allowed. Two schedules that lead to one state have one future, so the search walks states,
not schedules: level by level (each step takes one level, and only two are kept), counting for each state the schedules
that lead to it. Nothing is left out: the count is exact, and equals what one-by-one enumeration finds (tested).

A crash is tried at the start, after each write and after each answer to a user: elsewhere it leaves the same world as a
crash one read earlier.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .actors import Ending, Scene, Violation, apply_checked, prepared
from .automata import Automaton, Interned, NotDeterministic
from .disk import Disk
from .effects import CRASH, Effect, Fate, Mark, Step, format_trace
from .operations import Record
from .scheduling import finish

_BITS = 24
_MASK = (1 << _BITS) - 1
_ORDER, _CRASHES, _LOSSES, _NODES = _BITS, 2 * _BITS, 2 * _BITS + 4, 2 * _BITS + 8
_FEW = 15
"""A state is one integer: 24 bits of disk, 24 of order, 4 each of crashes and losses left, 24 of each actor's node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Faults allowed in one schedule, each at any step: `crashes` of any actors, `losses` of answers (the operation
    done) or of requests (not done; the caller cannot tell). At most 15 of each."""

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


def explore(scene: Scene, budget: Budget = NO_BUDGET, *, states_max: int | None = None) -> Explored:
    """Walk every state of the scene; stop at the first violation, and describe it with its schedule.

    Costs 5 to 20 µs a state, and memory for two levels of states besides the automata.

    Raises:
        TooManyStates: more than `states_max`.
        NotDeterministic: an actor's effects follow from more than the outcomes it was given.
    """
    explorer = Explorer(scene, budget)
    try:
        explored = explorer.walk(states_max)
        if explored.violation is not None:
            # Once more, this time remembering where each state came from.
            explored.violation = explorer.walk(None, parents=[]).violation
            assert explored.violation is not None
        return explored
    finally:
        explorer.close()


class TooManyStates(RuntimeError):
    """The scene is larger than it was said to be."""


class _Found(Exception):
    """A violation at this state, or at the step with this label from it."""

    def __init__(self, state: int, label: int | None, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.state = state
        self.label = label
        self.error = error


class Explorer:
    def __init__(self, scene: Scene, budget: Budget, *, seed: int = 0) -> None:
        self.scene = scene
        self.budget = budget
        self.effects: Interned[Effect] = Interned()
        self._outcomes: Interned[Any] = Interned()
        self._unknown = self._outcomes.number(Mark.UNKNOWN)
        self._seed = seed
        self._disks: list[Disk] = []
        self._disk_numbers: dict[Hashable, int] = {}
        self._applied: dict[int, tuple[int, int]] = {}
        self._orders: Interned[tuple[frozenset[str], tuple[tuple[str, frozenset[str]], ...]]] = Interned()
        self._next_orders: dict[tuple[int, tuple[str, ...], tuple[str, ...]], int] = {}
        self._automata = [Automaton(actor, scene, self.effects, seed) for actor in scene.actors]
        self._initial = self._first_state()
        self._checked: set[tuple[int, Hashable]] = set()

    def close(self) -> None:
        for automaton in self._automata:
            automaton.close()

    def walk(self, states_max: int | None = None, *, parents: list[dict[int, int]] | None = None) -> Explored:
        result = Explored(self.scene.name)
        self._checked.clear()
        level = {self._initial: 1}
        try:
            while level:
                result.states += len(level)
                if states_max is not None and result.states > states_max:
                    raise TooManyStates(f"{self.scene.name}: more than {states_max} states")
                level = self._walk_level(level, result, parents)
                assert max(len(self._disks), *(len(one.nodes) for one in self._automata)) <= _MASK
                result.depth += bool(level)
        except _Found as found:
            result.violation = f"{self.scene.name}: {found}"
            if parents is not None:
                result.violation += "\n" + format_trace(self._trace(found, parents))
        return result

    def _walk_level(
        self, level: dict[int, int], result: Explored, parents: list[dict[int, int]] | None
    ) -> dict[int, int]:
        following: dict[int, int] = {}
        found: list[int] = []
        labels: list[int] = []
        came_from: dict[int, int] = {}
        if parents is not None:
            parents.append(came_from)
        for state, ways in level.items():
            found.clear()
            labels.clear()
            result.faults += self._successors(state, found, labels)
            if not found:
                result.endings += 1
                result.schedules += ways
                self._end(state)
                continue
            result.transitions += len(found)
            for successor in found:
                following[successor] = following.get(successor, 0) + ways
                if parents is not None:
                    came_from.setdefault(successor, state)
        return following

    # Steps

    def _successors(self, state: int, found: list[int], labels: list[int]) -> int:
        """Append every state one step on, and for each a label; return how many of the steps are faults."""
        return sum([self._steps_of(index, state, found, labels) for index in range(len(self._automata))])

    def _steps_of(self, index: int, state: int, found: list[int], labels: list[int]) -> int:
        automaton = self._automata[index]
        shift = _NODES + _BITS * index
        number = state >> shift & _MASK
        node = automaton.nodes[number]
        disk = state & _MASK
        faults = 0
        if node.is_stuck:
            raise _Found(state, None, Violation(f"{automaton.actor.name} waits for ever"))
        for move, (_, effect, is_local, is_losable, fate) in enumerate(node.moves):
            label = index << 8 | move << 2
            if is_local:
                after, outcome = disk, self._outcomes.number(fate)
            else:
                applied = self._applied.get(disk << _BITS | effect)
                after, outcome = applied if applied is not None else self._apply(state, label, disk, effect)
            self._step(state, index, number, move, outcome, after, label, found, labels)
            if is_losable and state >> _LOSSES & _FEW:
                spent = state - (1 << _LOSSES)
                for what_is, which in ((after, 1), (disk, 2))[: 1 + (after != disk)]:
                    faults += 1
                    self._step(spent, index, number, move, self._unknown, what_is, label | which, found, labels)
        if node.can_crash and state >> _CRASHES & _FEW:
            faults += 1
            target = node.edges.get(-1)
            if target is None:
                target = node.edges[-1] = automaton.crash(number)
            found.append(state - (1 << _CRASHES) + (target - number << shift))
            labels.append(index << 8 | 3)
        return faults

    def _step(
        self,
        state: int,
        index: int,
        number: int,
        move: int,
        outcome: int,
        disk: int,
        label: int,
        found: list[int],
        labels: list[int],
    ) -> None:
        """Append the state after this outcome, and its label."""
        automaton = self._automata[index]
        node = automaton.nodes[number]
        target = node.edges.get(move << _BITS | outcome)
        if target is None:
            try:
                target = automaton.follow(number, move, self._outcomes.values[outcome])
            except NotDeterministic:
                raise
            except Exception as error:
                raise _Found(state, label, error) from error
            node.edges[move << _BITS | outcome] = target
        after = state + (target - number << _NODES + _BITS * index) + disk - (state & _MASK)
        ended = automaton.nodes[target].ended_now
        if (node.opened or ended) and self.scene.keeps_order:
            order = state >> _ORDER & _MASK
            after += self._next_order(order, node.opened, ended) - order << _ORDER
        found.append(after)
        labels.append(label)

    def _apply(self, state: int, label: int, disk: int, effect: int) -> tuple[int, int]:
        what = self.effects.values[effect]
        fork = self._disks[disk].fork()
        try:
            raw = apply_checked(fork, what, self.scene.step_checks)
        except Exception as error:
            raise _Found(state, label, error) from error
        after = self._disk_number(fork)
        applied = self._applied[disk << _BITS | effect] = after, self._outcomes.number(raw)
        return applied

    def _disk_number(self, disk: Disk) -> int:
        key = disk.frozen()
        number = self._disk_numbers.get(key)
        if number is None:
            number = self._disk_numbers[key] = len(self._disks)
            self._disks.append(disk)
        return number

    def _next_order(self, order: int, opened: tuple[str, ...], ended: tuple[str, ...]) -> int:
        key = order, opened, ended
        number = self._next_orders.get(key)
        if number is None:
            past, before = self._orders.values[order]
            began = dict(before) | dict.fromkeys(opened, past)
            # What began and ended within one step, without an effect, saw what had ended before it.
            began |= {name: past for name in ended if name not in began}
            after = past.union(ended), tuple(sorted(began.items()))
            number = self._next_orders[key] = self._orders.number(after)
        return number

    def _first_state(self) -> int:
        disk, self._prepared = prepared(self.scene, self._seed)
        order = self._orders.number((frozenset(self._prepared), ()))
        faults = self.budget.crashes << _CRASHES | self.budget.losses << _LOSSES
        return self._disk_number(disk) | order << _ORDER | faults

    # Ends

    def _end(self, state: int) -> None:
        ending = self._ending(state)
        key = state & _MASK, (tuple(ending.records.values()), ending.crashed)
        if key in self._checked:
            return
        self._checked.add(key)
        try:
            finish(self.scene, ending)
        except Exception as error:
            raise _Found(state, None, error) from error

    def _ending(self, state: int) -> Ending:
        before = dict(self._orders.values[state >> _ORDER & _MASK][1])
        records = dict(self._prepared)
        crashed = set()
        for index, automaton in enumerate(self._automata):
            node = automaton.nodes[state >> _NODES + _BITS * index & _MASK]
            ended = dict(node.ended)
            for operation in node.asked:
                name = operation.name
                records[name] = Record(operation, ended.get(name), before.get(name))
            if node.is_dead:
                crashed.add(automaton.actor.name)
        return Ending(self._disks[state & _MASK], records, frozenset(crashed))

    def _trace(self, found: _Found, parents: list[dict[int, int]]) -> list[Step]:
        path = [found.state]
        for came_from in reversed(parents[:-1]):  # The last are the sons of its own level.
            path.append(came_from[path[-1]])
        path.reverse()
        steps = [self._step_between(state, after) for state, after in pairwise(path)]
        if found.label is not None:
            steps.append(self._described(found.state, found.label))
        return steps

    def _step_between(self, state: int, after: int) -> Step:
        states: list[int] = []
        labels: list[int] = []
        self._successors(state, states, labels)
        return self._described(state, labels[states.index(after)])

    def _described(self, state: int, label: int) -> Step:
        index, move, kind = label >> 8, label >> 2 & 63, label & 3
        automaton = self._automata[index]
        if kind == 3:
            return Step(automaton.actor.name, "", CRASH, Fate.CRASHED)
        strand, effect, _, _, fate = automaton.nodes[state >> _NODES + _BITS * index & _MASK].moves[move]
        return Step(automaton.actor.name, strand, self.effects.values[effect], (fate, Fate.LOST, Fate.VAIN)[kind])
