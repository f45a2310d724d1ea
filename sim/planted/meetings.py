"""Count who truly met whom: a pair that was drawn into one schedule, and never touched the same thing, proves nothing.

Two operations *met* where both were under way, and one wrote what the other had read or written by then. Files that
only their run looks at are no steps, so no one meets there. Of a process that serves several clients at once it is not
known whose step one is: such steps are left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from explorer.actors import Life, Strand
from explorer.effects import Effect, Fate, Riders
from explorer.futures import Key, meets, read_by, written_by
from explorer.operations import Operation
from explorer.scheduling import Faults, Run, Seeded, Simulation
from sim.ports.scene import Scene

BETWEEN: Final = " × "


@dataclass(slots=True)
class Meetings:
    """`pairs`: in how many schedules two operations of these labels met. `faults`: how often each fault struck one of
    this label."""

    pairs: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def run_seed(self, scene: Scene, seed: int, *, faults: Faults) -> Run:
        """Run a seed as `scheduling.run_seed` does, and count.

        Raises:
            Violation: with seed and trace.
        """
        watched = _Watched(scene, Seeded(seed, faults), faults=faults, seed=seed)
        try:
            return watched.play()
        finally:
            self.pairs.update(watched.pairs)
            self.faults += watched.struck


def pair_of(one: str, other: str) -> str:
    return BETWEEN.join(sorted((one, other)))


@dataclass(slots=True)
class _Touched:
    """Keep what an operation that is under way read and wrote."""

    label: str
    reads: set[tuple[Key, bool]] = field(default_factory=set)
    writes: set[Key] = field(default_factory=set)

    def met(self, reads: set[tuple[Key, bool]], writes: set[Key]) -> bool:
        return (
            not writes.isdisjoint(self.writes)
            or any(meets(place, key) for place in self.reads for key in writes)
            or any(meets(place, key) for place in reads for key in self.writes)
        )


class _Watched(Simulation):
    def __init__(self, scene: Scene, chooser: Seeded, *, faults: Faults, seed: int) -> None:
        super().__init__(scene, chooser, faults=faults, seed=seed)
        self.pairs: set[str] = set()
        self.struck: Counter[str] = Counter()
        self._touched: dict[tuple[str, str], _Touched] = {}
        """By actor and name of the operation."""

    def _step(self, life: Life, strand: Strand, fate: Fate) -> None:
        operation, before = _under_way(life), self.faults_met.copy()
        super()._step(life, strand, fate)
        if operation is not None:
            for fault in self.faults_met - before:
                self.struck[f"{operation.label}{BETWEEN}{fault}"] += 1

    def _carry_out(self, life: Life, strand: Strand, what: Effect, fate: Fate) -> None:
        operation = _under_way(life)
        if operation is not None:
            self._note(life.name, operation, what)
        super()._carry_out(life, strand, what, fate)
        live = {(name, one.name) for name, other in self._lives.items() if (one := _under_way(other)) is not None}
        self._touched = {key: touched for key, touched in self._touched.items() if key in live}

    def _note(self, actor: str, operation: Operation, what: Effect) -> None:
        reads = read_by(what[:-1] if type(what[-1]) is Riders else what) or set()
        writes = set(written_by(what))
        for (name, _), other in self._touched.items():
            pair = pair_of(operation.label, other.label)
            if name != actor and pair not in self.pairs and other.met(reads, writes):
                self.pairs.add(pair)
        mine = self._touched.setdefault((actor, operation.name), _Touched(operation.label))
        mine.reads |= reads
        mine.writes |= writes


def _under_way(life: Life) -> Operation | None:
    """Return what a process is doing, if it is one thing."""
    operations = life.ports.operations
    names = operations.asked.keys() - operations.ended.keys()
    return operations.asked[next(iter(names))] if len(names) == 1 and life.pending else None
