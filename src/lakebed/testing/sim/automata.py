"""Actors as automata: what an actor does next, by what it was told so far.

An actor's memory is its own, so it is a function of the outcomes handed to it. A `Node` stands for one such history:
it knows the moves that are open there, and an edge for each outcome seen. Real code runs only where an edge is new:
the life that waits at the node goes on, or, if it already went another way, a new one is led there by the recorded
outcomes. If it then asks for anything else than recorded, the core is not deterministic: `NotDeterministic`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from .actors import Actor, Life, Scene, Violation
from .effects import LOCAL, LOSABLE, WRITES, Effect, Fate, Mark
from .operations import Ended, Operation
from .ports import Ports

H = TypeVar("H", bound=Hashable)

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


class Node:
    """One history of one actor. `moves`: (strand name, effect number, is local, is losable, fate) each."""

    __slots__ = (
        "asked",
        "can_crash",
        "edges",
        "ended",
        "ended_now",
        "is_dead",
        "is_stuck",
        "life",
        "life_number",
        "moves",
        "opened",
        "parent",
        "via",
    )

    def __init__(self, parent: int, via: tuple[int, Any]) -> None:
        self.parent = parent
        self.via = via
        """The move taken at the parent, and the raw outcome handed over."""
        self.moves: list[tuple[str, int, bool, bool, Fate]] = []
        self.edges: dict[int, int] = {}
        self.opened: tuple[str, ...] = ()
        self.ended_now: tuple[str, ...] = ()
        self.asked: tuple[Operation, ...] = ()
        self.ended: tuple[tuple[str, Ended], ...] = ()
        self.life: Life | None = None
        self.life_number = 0
        self.can_crash = False
        self.is_stuck = False
        self.is_dead = False


class Automaton:
    """All histories of one actor that were met so far. Node 0 is its start."""

    def __init__(self, actor: Actor, scene: Scene, effects: Interned[Effect], seed: int) -> None:
        self.actor = actor
        self.nodes: list[Node] = []
        self.runs = 0
        """How many times real code was led along a history again."""
        self._scene = scene
        self._effects = effects
        self._seed = seed
        self._silent: dict[Hashable, int] = {}
        self._add(-1, (-1, None), self._begin(0), life_number=0)

    def follow(self, node_number: int, move_number: int, raw: Any) -> int:
        """The node after this outcome (for a local move: its fate). The caller keeps `edges`."""
        node = self.nodes[node_number]
        life = node.life
        node.life = None
        if life is None:
            life = self._lead_to(node_number)
        strand, effect, _, _, fate = node.moves[move_number]
        self._hand_over(life, strand, fate, raw)
        wrote = self._effects.values[effect][0] in WRITES and raw not in _UNCHANGED
        return self._add(node_number, (move_number, raw), life, wrote=wrote)

    def crash(self, node_number: int) -> int:
        """The node after a crash: the start of the next life, or for ever silent."""
        node = self.nodes[node_number]
        if node.life is not None:
            node.life.close()
            node.life = None
        if self.actor.restart is not None and node.life_number == 0:
            return self._add(node_number, (-1, None), self._begin(1), before=node, life_number=1)
        silent = Node(node_number, (-1, None))
        silent.asked, silent.ended = node.asked, node.ended
        silent.is_dead = True
        return self._keep_silent(silent)

    def _keep_silent(self, node: Node) -> int:
        """Who does nothing more is known by what he was told: how it came to that changes nothing any more."""
        key = node.is_dead, node.asked, node.ended, node.ended_now
        known = self._silent.get(key)
        if known is None:
            known = self._silent[key] = len(self.nodes)
            self.nodes.append(node)
        return known

    def close(self) -> None:
        for node in self.nodes:
            if node.life is not None:
                node.life.close()
                node.life = None

    def _begin(self, number: int) -> Life:
        ports = Ports(self.actor.name, seed=self._seed, life=number, whole_batches=self._scene.whole_batches)
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
            strand, effect, _, _, fate = self.nodes[node.parent].moves[move]
            if life.pending[strand].effect != self._effects.values[effect]:
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
        node.ended_now = operations.take_ended()
        opened = operations.take_opened()
        node.opened = tuple(name for name in opened if name not in node.ended_now)
        asked = tuple(operations.asked.values())
        ended = tuple(operations.ended.items())
        if node.life_number == 1:
            past = before if before is not None else self._first_life_of(parent)
            asked, ended = past.asked + asked, past.ended + ended
        node.asked, node.ended = asked, ended
        for strand, fate in life.moves():
            name = strand.effect[0]
            move = (strand.name, self._effects.number(strand.effect), name in LOCAL, name in LOSABLE, fate)
            node.moves.append(move)
        node.is_stuck = bool(life.pending) and not node.moves
        # A crash right after a read leaves the same world as a crash right before it.
        node.can_crash = bool(node.moves) and (wrote or parent < 0 or bool(node.ended_now))
        if not life.pending:
            return self._keep_silent(node)
        node.life = life
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _first_life_of(self, node_number: int) -> Node:
        while self.nodes[node_number].life_number == 1:
            node_number = self.nodes[node_number].parent
        return self.nodes[node_number]
