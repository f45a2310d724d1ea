"""Actors as automata: what an actor does next, by the answers that it got so far.

An actor's memory is its own, so it is a function of the outcomes handed to it. A `Node` stands for one such history:
it knows the moves that are open there, and an edge for each outcome seen. Real code runs only where an edge is new:
the life that waits at the node goes on, or, if it already went another way, a new one is led there by the recorded
outcomes. If it then asks for anything else than recorded, the core is not deterministic: `NotDeterministic`.

Histories that end in one memory (`memory.py`) have one future, so they are one node, known by the first that led there.
The answers that users got on the way, and in which life, are part of it. That leaves out no schedule and no end of one.
(Where one history ends in a write and another in a read, a crash is tried after both.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from .actors import Actor, Life, Scene, Violation
from .disk import Disk
from .effects import ERASE, LOCAL, LOSABLE, WRITES, Effect, Fate, Mark
from .footprints import LearntMore
from .futures import Futures
from .memory import digest_of
from .operations import UNORDERED, Ended, Operation
from .tables import Column, NumberMap

H = TypeVar("H", bound=Hashable)

_MOVES_MAX: Final = 16
_UNCHANGED = frozenset({Mark.FAILED, Mark.EXISTS, Mark.MISSING})


class NotDeterministic(Violation):
    """The same outcomes led to other effects: something besides the ports leaks in."""


class Interned(Generic[H]):
    """Equal values get equal small numbers."""

    __slots__ = ("numbers", "values")

    def __init__(self) -> None:
        self.numbers: dict[H, int] = {}
        self.values: list[H] = []

    def number(self, value: H) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found


@dataclass(frozen=True, slots=True)
class Numbering:
    """Number what all automata of a search share. `names` are of operations, those of one step together."""

    effects: Interned[Effect]
    outcomes: Interned[Any]
    names: Interned[tuple[str, ...]]


class Node:
    """One history of one actor, or all that end in one memory. `moves`: (strand name, effect, fate) each."""

    __slots__ = ("asked", "ended", "is_dead", "life", "life_number", "moves", "parent", "via")

    def __init__(self, parent: int, via: tuple[int, Any]) -> None:
        self.parent = parent
        self.via = via
        """The move taken at the parent, and the raw outcome handed over."""
        self.moves: list[tuple[str, Effect, Fate]] = []
        self.asked: tuple[Operation, ...] = ()
        self.ended: tuple[tuple[str, Ended], ...] = ()
        self.life: Life | None = None
        self.life_number = 0
        self.is_dead = False


class Moves:
    """Of each node's move at one place: its effect, and whether its answer can be lost, it writes, or it erases."""

    __slots__ = ("effects", "erasing", "losable", "writing")

    def __init__(self) -> None:
        self.effects = Column()
        self.losable, self.writing, self.erasing = Column(np.bool_), Column(np.bool_), Column(np.bool_)


class Automaton:
    """All histories of one actor that were met so far. Node 0 is its start.

    The columns have a number for each node: how many moves it has; for each of them its effect, or, where it is the
    actor's own business, -1 - its outcome; and what the search must know of it.
    """

    def __init__(
        self,
        actor: Actor,
        scene: Scene,
        numbering: Numbering,
        seed: int,
        *,
        before: Disk,
        merges: bool,
        touch: Callable[[Effect, bool], bool],
        futures: Futures,
    ) -> None:
        """`touch` notes an effect, and says of one that may be taken alone whether it is (footprints.py)."""
        self.actor = actor
        self.nodes: list[Node] = []
        self.runs = 0
        """How many times real code was led along a history again."""
        self.merges = merges
        self.edges = NumberMap()
        """(node, move, outcome) → node, packed by the search."""
        self.crashes = NumberMap()
        self.move_counts, self.first_moves = Column(), Column()
        self.opened, self.ended_now = Column(), Column()
        self.can_crash, self.is_stuck = Column(np.bool_), Column(np.bool_)
        self.moves: list[Moves] = []
        self._scene = scene
        self._numbering = numbering
        self._seed = seed
        self._before = before
        self._touch = touch
        self._futures = futures
        self.is_quiet = Column(np.bool_)
        self.reads, self.writes = Column(), Column()
        """Numbers of what the moves read, where that is all they do, and of what they write (futures.py)."""
        self._silent: dict[Hashable, int] = {}
        self._known: dict[Hashable, int] = {}
        self._add(-1, (-1, None), self._begin(0), life_number=0)

    def follow(self, node_number: int, move_number: int, outcome: int) -> int:
        """Return the node after this outcome (for a local move: its fate)."""
        node = self.nodes[node_number]
        raw = self._numbering.outcomes.values[outcome]
        life = node.life
        node.life = None
        if life is None:
            life = self._lead_to(node_number)
        strand, effect, fate = node.moves[move_number]
        self._hand_over(life, strand, fate, raw)
        wrote = effect[0] in WRITES and raw not in _UNCHANGED
        return self._add(node_number, (move_number, raw), life, wrote=wrote)

    def crash(self, node_number: int) -> int:
        """Return the node after a crash: the start of the next life, or for ever silent."""
        node = self.nodes[node_number]
        if node.life is not None:
            node.life.close()
            node.life = None
        if self.actor.restart is not None and node.life_number == 0:
            return self._add(node_number, (-1, None), self._begin(1), before=node, life_number=1)
        silent = Node(node_number, (-1, None))
        silent.asked, silent.ended = node.asked, node.ended
        silent.is_dead = True
        return self._keep_silent(silent, ())

    def _keep_silent(self, node: Node, ended_now: tuple[str, ...]) -> int:
        """Know an actor that does nothing more by its last outcomes: the way there changes nothing any more."""
        key = node.is_dead, node.asked, node.ended, ended_now
        known = self._silent.get(key)
        if known is None:
            known = self._silent[key] = self._keep(node, ended_now=ended_now)
        return known

    def _keep(
        self,
        node: Node,
        *,
        opened: tuple[str, ...] = (),
        ended_now: tuple[str, ...] = (),
        is_stuck: bool = False,
        is_quiet: bool = False,
    ) -> int:
        number = len(self.nodes)
        self.nodes.append(node)
        self.move_counts.append(len(node.moves))
        self.first_moves.append(next((place for place, move in enumerate(node.moves) if move[2] is Fate.DONE), 0))
        self.opened.append(self._numbering.names.number(opened))
        self.ended_now.append(self._numbering.names.number(ended_now))
        self.can_crash.append(False)
        self.is_stuck.append(is_stuck)
        self.is_quiet.append(is_quiet)
        self.reads.append(self._futures.number_of_reads(node.moves, begins=bool(opened)))
        self.writes.append(self._futures.number_of_writes(node.moves))
        assert len(node.moves) <= _MOVES_MAX, f"{self.actor.name} does {len(node.moves)} things at once"
        while len(self.moves) < max(1, len(node.moves)):
            self.moves.append(Moves())
        for place, columns in enumerate(self.moves):
            _, effect, fate = node.moves[place] if place < len(node.moves) else ("", ("",), Fate.DONE)
            is_local, effects, outcomes = effect[0] in LOCAL, self._numbering.effects, self._numbering.outcomes
            numbered = -1 - outcomes.number(fate) if is_local else effects.number(effect) if effect[0] else 0
            columns.effects.set(number, numbered)
            columns.losable.set(number, effect[0] in LOSABLE)
            columns.writing.set(number, effect[0] in WRITES)
            columns.erasing.set(number, effect[0] == ERASE)
        return number

    def _is_quiet(self, node: Node, opened: tuple[str, ...]) -> bool:
        ended = {name for name, _ in node.ended}
        is_ordered = bool(opened) or any(one.name not in ended and one.kind not in UNORDERED for one in node.asked)
        found = [self._touch(effect, len(node.moves) == 1 and not is_ordered) for _, effect, _ in node.moves]
        return found == [True]

    def close(self) -> None:
        for node in self.nodes:
            if node.life is not None:
                node.life.close()
                node.life = None

    def _begin(self, number: int) -> Life:
        ports = self._scene.ports(self.actor.name, seed=self._seed, life=number, before=self._before)
        program = self.actor.program if number == 0 or self.actor.restart is None else self.actor.restart
        return Life(self.actor.name, program, ports)

    def _lead_to(self, node_number: int) -> Life:
        self.runs += 1
        history: list[Node] = []
        node = self.nodes[node_number]
        while node.via[0] >= 0:
            history.append(node)
            node = self.nodes[node.parent]
        life = self._begin(node.life_number)
        for node in reversed(history):
            move, raw = node.via
            strand, effect, fate = self.nodes[node.parent].moves[move]
            if life.pending[strand].effect != effect:
                asked = life.pending[strand].effect
                life.close()
                raise NotDeterministic(f"{self.actor.name} asked for {asked}")
            self._hand_over(life, strand, fate, raw)
        life.ports.operations.take_opened()
        life.ports.operations.take_ended()
        return life

    @staticmethod
    def _hand_over(life: Life, strand_name: str, fate: Fate, raw: Any) -> None:
        strand = life.pending[strand_name]
        if strand.effect[0] in LOCAL:
            raw = life.local(strand.effect, fate)
        life.resume(strand, raw)

    def _add(
        self,
        parent: int,
        via: tuple[int, Any],
        life: Life,
        *,
        before: Node | None = None,
        life_number: int | None = None,
        wrote: bool = False,
    ) -> int:
        node = Node(parent, via)
        operations = life.ports.operations
        node.life_number = self.nodes[parent].life_number if life_number is None else life_number
        ended_now = operations.take_ended()
        opened = tuple(name for name in operations.take_opened() if name not in ended_now)
        asked = tuple(operations.asked.values())
        ended = tuple(operations.ended.items())
        if node.life_number == 1:
            past = before if before is not None else self._first_life_of(parent)
            asked, ended = past.asked + asked, past.ended + ended
        node.asked, node.ended = asked, ended
        node.moves = [(strand.name, strand.effect, fate) for strand, fate in life.moves()]
        if not life.pending:
            return self._keep_silent(node, ended_now)
        try:
            is_quiet = self._is_quiet(node, opened)
        except LearntMore:
            life.close()  # No node keeps it.
            raise
        number = self._merged(node, life, opened, ended_now, is_quiet=is_quiet)
        # A crash right after a read leaves the same world as a crash right before it.
        if node.moves and (wrote or parent < 0 or ended_now):
            self.can_crash.set(number, True)
        return number

    def _merged(
        self,
        node: Node,
        life: Life,
        opened: tuple[str, ...],
        ended_now: tuple[str, ...],
        *,
        is_quiet: bool,
    ) -> int:
        """Return the node of another history that ends in the same memory, or this as a new one."""
        digest = digest_of(life) if self.merges else None
        key = digest, node.asked, node.ended, node.life_number, opened, ended_now
        if digest is not None:
            known = self._known.get(key)
            if known is not None:
                life.close()
                return known
            self._known[key] = len(self.nodes)
        node.life = life
        return self._keep(node, opened=opened, ended_now=ended_now, is_stuck=not node.moves, is_quiet=is_quiet)

    def _first_life_of(self, node_number: int) -> Node:
        while self.nodes[node_number].life_number == 1:
            node_number = self.nodes[node_number].parent
        return self.nodes[node_number]
