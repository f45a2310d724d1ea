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

import sys
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from .actors import Scene, Violation
from .alone import Alone
from .effects import CRASH, Fate, Step, format_trace
from .footprints import Footprints, LearntMore
from .levels import (
    CRASHES,
    DISK,
    LATE,
    LOSSES,
    NOBODY,
    NODES,
    ORDER,
    UNDER_WAY,
    At,
    Found,
    Label,
    Level,
    Rows,
    Steps,
    merged,
)
from .machine import Machine
from .scheduling import NO_FAULTS, Endings, Faults, Run, Seeded, Simulation, run_seed
from .tables import Numbers

_ROWS_AT_ONCE: Final = 1 << 20
_LEVELS_NARROW: Final = 500
"""Schedules of small worlds are shorter than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Faults allowed in one schedule, each at any step.

    `crashes` are of any actors. `losses` are of answers (the operation is done) or of requests (it is not, and the
    caller cannot tell). `late` is a crash while a write is under way, which is done at any later moment. Or it is a
    delete of objects that is done, and at any later moment done again.

    With `alone_max`, each actor must end within this number of steps of its own from every state, if all others stop
    there for ever (`alone.py`).

    With `seeds` the scene is too large to walk: this number of its schedules is drawn, one in two with faults of any
    kind.
    """

    crashes: int = 0
    losses: int = 0
    late: int = 0
    alone_max: int = 0
    seeds: int = 0

    @property
    def name(self) -> str:
        if self.seeds:
            return f"{self.seeds} seeds"
        faults = (("crash", self.crashes), ("lost", self.losses), ("late", self.late))
        return ", ".join(f"{count} {kind}" for kind, count in faults if count) or "no fault"


NO_BUDGET = Budget()


@dataclass(slots=True)
class Explored:
    """`faults` counts the transitions that are one, `alone` the steps that an actor needed at most to end alone.
    `violation` is the first one met, which by the order of the search has a shortest schedule."""

    scene: str
    states: int = 0
    transitions: int = 0
    schedules: int = 0
    endings: int = 0
    depth: int = 0
    faults: int = 0
    alone: int = 0
    violation: str | None = None
    seed: int = 0
    """That of the violation, where seeds were drawn."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How many transitions are a fault of each kind."""
    trace: list[Step] = field(default_factory=list)
    """The schedule of the violation, where one was walked to."""


def explore(
    scene: Scene,
    budget: Budget = NO_BUDGET,
    *,
    states_max: int | None = None,
    merges: bool = True,
    widths: Sequence[int] = (),
    is_whole: bool = True,
) -> Explored:
    """Walk every state of the scene; stop at the first violation, and describe it with its schedule.

    `merges`: histories after which an actor remembers the same are one node (`memory.py`). Costs about 1 µs a state,
    0.2 ms a node, and memory for two levels of states besides the automata.

    `widths`: first walk at most that number of states of each level, drawn at random. That reaches ends of schedules
    soon, and what it learns is not learnt again. Where it `is_whole`, all is walked after them.

    Raises:
        TooManyStates: more than `states_max`.
        NotDeterministic: an actor's effects follow from more than the outcomes it was given.
    """
    # An event loop that happens to run here is nothing to the generators of actors.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    if budget.seeds:
        return _sampled(scene, budget.seeds)
    footprints = learnt(scene) if scene.shortens else Footprints(scene)
    try:
        while True:
            try:
                explorer = Explorer(scene, budget, merges=merges, footprints=footprints)
                return _explore(explorer, states_max, widths, is_whole=is_whole)
            except LearntMore:
                continue
    finally:
        sys.set_asyncgen_hooks(*hooks)


def _explore(explorer: Explorer, states_max: int | None, widths: Sequence[int], *, is_whole: bool) -> Explored:
    explored = Explored(explorer.scene.name)
    try:
        for seed, width in enumerate(widths):
            explored = explorer.walk_narrowly(width, seed=seed)
            if explored.violation is not None:
                return explored
        if not is_whole:
            return explored
        explored = explorer.walk(states_max)
        if explored.violation is not None:
            # Once more, this time remembering where each state came from.
            again = explorer.walk(None, path=[])
            explored.violation, explored.trace = again.violation, again.trace
            assert explored.violation is not None
        return explored
    finally:
        explorer.close()


def _sampled(scene: Scene, seeds: int) -> Explored:
    found = Explored(scene.name)
    for seed in range(seeds):
        found.schedules += 1
        try:
            run = sample(scene, seed)
        except Violation as violation:
            found.violation, found.seed = str(violation), seed
            break
        found.transitions += run.steps
        found.faults += run.faults
        found.kinds += run.kinds
        found.endings += 1
    return found


def sample(scene: Scene, seed: int) -> Run:
    """Draw one schedule: one in two with faults of any kind.

    Raises:
        Violation: with seed and trace.
    """
    return run_seed(scene, seed, faults=_FAULTS if seed % 2 else NO_FAULTS)


_FAULTS: Final = Faults(refuse=0.002, lose_answer=0.005, lose_request=0.003, crash=0.005, late=0.004, echo=0.2)


def learnt(scene: Scene) -> Footprints:
    """Return what actors touch in a few seeds."""
    footprints = Footprints(scene)
    places = {actor.name: index for index, actor in enumerate(scene.actors)}
    for seed in range(_SEEDS_LEARNT):
        for actor, _, effect, _ in Simulation(scene, Seeded(seed)).run_unchecked():
            if actor:
                footprints.note(places[actor], effect)
    return footprints


_SEEDS_LEARNT: Final = 6


class TooManyStates(RuntimeError):
    """The scene has more states than its limit allows."""


class Explorer:
    def __init__(
        self, scene: Scene, budget: Budget, *, footprints: Footprints, seed: int = 0, merges: bool = True
    ) -> None:
        self.scene = scene
        self.budget = budget
        self.machine = Machine(scene, seed=seed, merges=merges, footprints=footprints)
        self._may_fail = [self._is_first_of_its_kind(actor.name) for actor in scene.actors]
        start = [self.machine.first_disk, self.machine.first_order, budget.crashes, budget.losses, budget.late, 0]
        self._initial = np.array([start + [0] * len(scene.actors)], np.int32)
        self._alone = Alone(self.machine, budget.alone_max) if budget.alone_max else None
        self._endings = Endings(scene)
        self._checked: set[Hashable] = set()

    def close(self) -> None:
        self.machine.close()

    def _is_first_of_its_kind(self, name: str) -> bool:
        """Return whether a single fault is tried on this one of the actors that are alike."""
        is_single = self.budget.crashes + self.budget.losses + self.budget.late == 1
        return not is_single or all(name not in kind or name == kind[0] for kind in self.scene.alike)

    def walk(self, states_max: int | None = None, *, path: list[Level] | None = None) -> Explored:
        """Walk until nothing was believed of the future that is not so. A violation is one all the same."""
        while True:
            if path is None:
                self.machine.futures.begin(self.machine.automata)
            result = self._walk(states_max, path=path)
            if result.violation is not None or not self.machine.futures.were_wrong(self.machine.automata):
                return result

    def walk_narrowly(self, width: int, *, seed: int) -> Explored:
        """Walk at most `width` states of each level, drawn from the seed, and run no actor alone. A violation is one,
        whatever was believed of the future.
        """
        self.machine.futures.begin(self.machine.automata)
        try:
            result = self._walk(width * _LEVELS_NARROW, path=[], width=width, seed=seed)
        except TooManyStates:
            # An actor that waits for another one may try again for ever.
            return Explored(self.scene.name)
        self.machine.futures.were_wrong(self.machine.automata)
        return result

    def _walk(self, states_max: int | None, *, path: list[Level] | None, width: int = 0, seed: int = 0) -> Explored:
        random = np.random.default_rng(seed)
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
                if self._alone is not None and not width:
                    self._alone.check(level.rows)
                ended, level = self._walk_level(level, result)
                ways += ended
                if width and len(level.rows) > width:
                    chosen = np.sort(random.choice(len(level.rows), width, replace=False))
                    level = Level(level.rows[chosen], level.ways[chosen], level.sources[chosen])
                self.machine.check_sizes()
                result.depth += bool(len(level.rows))
        except Found as found:
            result.violation = f"{self.scene.name}: {found}"
            if path is not None:
                result.trace = self._trace(found, path)
                result.violation += "\n" + format_trace(result.trace)
        result.schedules = int(ways)
        result.alone = 0 if self._alone is None else self._alone.longest
        return result

    def _walk_level(self, level: Level, result: Explored) -> tuple[float, Level]:
        found: list[Level] = []
        ended = 0.0
        for start in range(0, len(level.rows), _ROWS_AT_ONCE):
            ways = level.ways[start : start + _ROWS_AT_ONCE]
            steps = self._steps(level.rows[start : start + _ROWS_AT_ONCE])
            over = np.ones(len(ways), bool)
            for source in steps.sources:
                over[source] = False
            result.faults += steps.faults
            for label, after in zip(steps.labels, steps.rows, strict=True):
                if label.fate is not Fate.DONE:
                    result.kinds[label.fate.value] += len(after)
            result.transitions += steps.count
            result.endings += int(over.sum())
            ended += float(ways[over].sum())
            for row in steps.rows_from[over]:
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

    def _steps(self, rows: Rows) -> Steps:
        steps = Steps(rows)
        quiet = self._quiet(steps)
        for index in range(len(self.scene.actors)):
            self._steps_of(index, steps, (quiet == NOBODY) | (quiet == index))
        self._land(steps)
        return steps

    def _quiet(self, steps: Steps) -> Numbers:
        """Return in each state the actor whose step no other one can notice, if there is one."""
        rows = steps.rows_from
        found = np.full(len(rows), NOBODY, np.int64)
        is_free = rows[:, UNDER_WAY] == 0
        for index, automaton in enumerate(self.machine.automata):
            is_quiet = automaton.is_quiet.take(rows[:, NODES + index].astype(np.int64)).astype(bool)
            found[is_free & is_quiet & (found == NOBODY)] = index
        if self.machine.futures.is_used:
            for index in range(len(self.machine.automata)):
                self._foresee(index, steps, found, np.flatnonzero(is_free & (found == NOBODY)))
        return found

    def _foresee(self, index: int, steps: Steps, found: Numbers, places: Numbers) -> None:
        """Note where this actor is about to read what no other one will write."""
        futures, automata = self.machine.futures, self.machine.automata
        nodes = steps.rows_from[places, NODES:].astype(np.int64)
        reads = automata[index].reads.take(nodes[:, index])
        others = [other for other in range(len(automata)) if other != index]
        free = futures.is_free(reads, [(other, nodes[:, other]) for other in others])
        if free.any():
            futures.believe(reads[free], [(other, nodes[free, other]) for other in others])
            found[places[free]] = index
            steps.foreseen[places[free]] = True

    def _steps_of(self, index: int, steps: Steps, where: npt.NDArray[np.bool_]) -> None:
        automaton = self.machine.automata[index]
        nodes = steps.rows_from[:, NODES + index].astype(np.int64)
        stuck = automaton.is_stuck.take(nodes)
        if stuck.any():
            row = steps.rows_from[int(np.flatnonzero(stuck)[0])]
            raise Found(row, None, Violation(f"{automaton.actor.name} waits for ever"))
        counts = automaton.move_counts.take(nodes)
        for move in range(int(counts.max(initial=0))):
            sources = np.flatnonzero((counts > move) & where)
            self._move(index, move, sources, nodes[sources], steps)
        can_crash = where & automaton.can_crash.take(nodes) & (steps.rows_from[:, CRASHES] > 0)
        if self._may_fail[index] and can_crash.any():
            sources = np.flatnonzero(can_crash)
            rows = steps.rows_from[sources]
            rows[:, NODES + index] = self.machine.crashed(index, nodes[sources])
            rows[:, CRASHES] -= 1
            steps.add(sources, rows, Label(index, 0, Fate.CRASHED))

    def _move(self, index: int, move: int, sources: Numbers, nodes: Numbers, steps: Steps) -> None:
        """Move one actor in all the states that have it: done; or a write, its answer or itself lost or late."""
        disks = steps.rows_from[sources, DISK].astype(np.int64)
        asking = At(steps, sources, Label(index, move, Fate.DONE))
        after, outcomes = self.machine.carried_out(index, move, nodes, disks, asking)
        can = outcomes != self.machine.not_yet
        self._arrive(sources[can], nodes[can], outcomes[can], after[can], steps, asking.label)
        if not self._may_fail[index]:
            return
        moves = self.machine.automata[index].moves[move]
        can_lose = moves.losable.take(nodes).astype(bool) & (steps.rows_from[sources, LOSSES] > 0)
        for fate, disk, where in ((Fate.LOST, after, can_lose), (Fate.VAIN, disks, can_lose & (after != disks))):
            unknown = np.full(int(where.sum()), self.machine.unknown, np.int64)
            self._arrive(sources[where], nodes[where], unknown, disk[where], steps, Label(index, move, fate))
        late = moves.writing.take(nodes).astype(bool) & (steps.rows_from[sources, LATE] > 0)
        if late.any():
            rows = steps.rows_from[sources[late]]
            rows[:, NODES + index] = self.machine.crashed(index, nodes[late])
            rows[:, LATE] -= 1
            rows[:, UNDER_WAY] = 1 + moves.effects.take(nodes[late])
            steps.add(sources[late], rows, Label(index, move, Fate.LATE_WRITE))
        echoed = moves.erasing.take(nodes).astype(bool) & (steps.rows_from[sources, LATE] > 0)
        label = Label(index, move, Fate.ECHO)
        self._arrive(sources[echoed], nodes[echoed], outcomes[echoed], after[echoed], steps, label)

    def _arrive(
        self, sources: Numbers, nodes: Numbers, outcomes: Numbers, disks: Numbers, steps: Steps, label: Label
    ) -> None:
        """Return the states after these outcomes."""
        if not len(sources):
            return
        index = label.actor
        targets = self.machine.told(index, label.move, nodes, outcomes, At(steps, sources, label))
        rows = steps.rows_from[sources]
        rows[:, DISK] = disks
        rows[:, NODES + index] = targets
        rows[:, LOSSES] -= label.fate in (Fate.LOST, Fate.VAIN)
        if label.fate is Fate.ECHO:
            rows[:, LATE] -= 1
            rows[:, UNDER_WAY] = 1 + self.machine.automata[index].moves[label.move].effects.take(nodes)
        rows[:, ORDER] = self.machine.ordered(index, rows[:, ORDER].astype(np.int64), nodes, targets)
        if self.machine.futures.is_used:
            self.machine.futures.note_ends(self.machine.automata[index], nodes, targets, steps.foreseen[sources])
        steps.add(sources, rows, label)

    def _land(self, steps: Steps) -> None:
        """Do a write now that was under way when its sender died."""
        sources = np.flatnonzero(steps.rows_from[:, UNDER_WAY])
        if len(sources):
            rows = steps.rows_from[sources]
            effects = rows[:, UNDER_WAY].astype(np.int64) - 1
            label = Label(NOBODY, 0, Fate.DONE)
            disks = rows[:, DISK].astype(np.int64)
            rows[:, DISK] = self.machine.applied(disks, effects, At(steps, sources, label))[0]
            rows[:, UNDER_WAY] = 0
            steps.add(sources, rows, label)

    # Ends

    def _end(self, row: Rows) -> None:
        ending = self.machine.ending(int(row[DISK]), int(row[ORDER]), row[NODES:].tolist())
        key = int(row[DISK]), tuple(ending.records.values()), ending.crashed
        if key in self._checked:
            return
        self._checked.add(key)
        try:
            self._endings.check(ending)
        except Exception as error:
            raise Found(row, None, error) from error

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
        steps = self._steps(row[None, :])
        labels = [label for found, label in zip(steps.rows, steps.labels, strict=True) if (found[0] == after).all()]
        return self._described(row, labels[0])

    def _described(self, row: Rows, label: Label) -> Step:
        if label.actor == NOBODY:
            return Step("", "", self.machine.effects.values[row[UNDER_WAY] - 1], Fate.DONE)
        automaton = self.machine.automata[label.actor]
        if label.fate is Fate.CRASHED:
            return Step(automaton.actor.name, "", CRASH, Fate.CRASHED)
        strand, effect, fate = automaton.nodes[row[NODES + label.actor]].moves[label.move]
        return Step(automaton.actor.name, strand, effect, fate if label.fate is Fate.DONE else label.fate)
