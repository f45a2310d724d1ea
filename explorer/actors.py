"""Actors: coroutines run by hand, one effect at a time, with strands where they gather; crashed and started again.

A `Scene` says who acts on what, and what must hold at the end. Each life of an actor is given fresh ports; the
scene alone remembers the answers that it got before it crashed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self, TypeAlias

from lakebed.base import LakebedError

from .disk import Disk
from .effects import LOCAL, LOSABLE, Effect, Fate
from .operations import Operations, Record

Program: TypeAlias = Callable[[Any], Coroutine[Any, Any, object]]
"""It is given ports (`Ports`), and whatever else the scene's ports have."""
Check: TypeAlias = "Callable[[Ending], None]"
StepCheck: TypeAlias = Callable[[Disk, bytes, bytes, bytes | None, bytes | None], None]
"""Looks at each change of a stored value: the disk after it, partition, key, value before and value after. And at each
delete of an object, as if it were in the partition BLOCKS: the disk before it, and nothing after. And at each put of
one, with its content after."""

BLOCKS: Final = b"(object store)"


class Violation(AssertionError):
    """A promise was broken. Found by a checker, by an assertion of the core, or because no actor can move any more."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A process. `restart` is what its second life runs after a crash; without one, or after another, it stays dead.
    `collecting`: how many of its lives collect.
    """

    name: str
    program: Program
    restart: Program | None = None
    collecting: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """Hold what a schedule led to."""

    disk: Disk
    records: Mapping[str, Record]
    crashed: frozenset[str]

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records.values() if record.operation.kind == kind]

    def acknowledged(self, kind: str) -> list[Record]:
        return [record for record in self.of(kind) if record.is_acknowledged]


class _Clock(Protocol):
    ms: int


class _Event(Protocol):
    def is_set(self) -> bool: ...


class _Tasks(Protocol):
    @property
    def events(self) -> Sequence[_Event]: ...


class Ports(Protocol):
    """What the explorer has to know of the ports that one life of an actor is given."""

    @property
    def life(self) -> int: ...

    @property
    def clock(self) -> _Clock: ...

    @property
    def tasks(self) -> _Tasks: ...

    @property
    def operations(self) -> Operations: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`prepare` runs alone to its end, then all actors at once; `tidy` runs alone at the end, then `check`s look.

    A scene of a kind of its own says which ports its actors are given.
    """

    name: str
    actors: Sequence[Actor]
    prepare: Program | None = None
    tidy: Program | None = None
    checks: Sequence[Check] = ()
    tidy_checks: Sequence[Check] = ()
    """Looked at after tidying only."""
    step_checks: Sequence[StepCheck] = ()
    versioned: bool = False
    clocks_agree: bool = True
    """Clocks do not jump. Where they may, ages mean nothing, and what only ages protect (from leaking) may leak."""
    keeps_order: bool = True
    """Whether checks look at `Record.before`."""
    runs_in: bytes = b""
    """The partition that has the records of runs."""
    shortens: bool = False
    """Steps of runs that no other actor can notice are tried in one order (footprints.py): schedules are counted so."""
    foresees: bool = False
    """Reads of what no other actor will still write are tried in one order (futures.py): schedules are counted so."""
    is_lock_free: bool = True
    """Each actor ends alone, from every state (alone.py)."""
    alike: Sequence[tuple[str, ...]] = ()
    """Actors that do the same, but for their names and the values they write: what one of them can meet, so can the
    other, and the checks do not tell them apart."""

    def ports(self, actor: str, *, seed: int, life: int, before: Disk) -> Ports:
        """Return fresh ports for one life of an actor. The scene began with this disk."""
        raise NotImplementedError

    def ports_alone(self, name: str, *, seed: int, disk: Disk) -> Ports:
        """Return ports for a program that runs alone: it may look at the whole disk."""
        raise NotImplementedError

    def also(
        self, *checks: Check, tidied: Sequence[Check] = (), steps: Sequence[StepCheck] = (), **changes: Any
    ) -> Self:
        """Check this, too: at the end, once it is tidied, and at each step. Other fields change to what is given."""
        checks, tidied = (*self.checks, *checks), (*self.tidy_checks, *tidied)
        return replace(self, checks=checks, tidy_checks=tidied, step_checks=(*self.step_checks, *steps), **changes)

    def instead(self, check: Check, *others: Check) -> Self:
        """Check the others where the scene has this check."""
        kept = [others if one is check else (one,) for one in self.checks]
        return replace(self, checks=tuple(one for ones in kept for one in ones))

    def tidied_by(self, *, first: Program | None = None, then: Program | None = None) -> Self:
        """Tidy up by more programs: before its own, and after it."""
        programs = [program for program in (first, self.tidy, then) if program is not None]

        async def tidy(ports: Ports) -> None:
            for program in programs:
                await program(ports)

        return replace(self, tidy=tidy)


def apply_checked(disk: Disk, what: Effect, checks: Sequence[StepCheck]) -> Any:
    """Carry out an effect and have each change of a stored value looked at."""
    if what[0] == "erase":
        for key in what[1]:
            for check in checks:
                check(disk, BLOCKS, key.encode(), b"", None)
    if what[0] in ("put", "copy"):
        key = what[1] if what[0] == "put" else what[2]
        for check in checks:
            check(disk, BLOCKS, key.encode(), None, b"put")
    if what[0] not in LOSABLE:
        return disk.apply(what)
    partition = what[1]
    keys: Sequence[bytes] = (what[2],)
    if what[0].endswith("_many"):
        keys = [item if isinstance(item, bytes) else item[0] for item in what[2]]
    before = [disk.value(partition, key) for key in keys]
    raw = disk.apply(what)
    for key, old in zip(keys, before, strict=True):
        new = disk.value(partition, key)
        if old != new:
            for check in checks:
                check(disk, partition, key, old, new)
    return raw


class Strand:
    __slots__ = ("coroutine", "effect", "index", "missing", "name", "outcomes", "parent")

    def __init__(
        self, name: str, coroutine: Coroutine[Any, Any, Any], parent: Strand | None = None, index: int = 0
    ) -> None:
        self.name = name
        self.coroutine = coroutine
        self.parent = parent
        self.index = index
        self.effect: Effect = ()
        self.missing = 0
        self.outcomes: list[Any] = []


class Life:
    """One life of an actor: its strands, of which `pending` wait for their effects to be carried out."""

    __slots__ = ("error", "name", "pending", "ports")

    def __init__(self, name: str, program: Program, ports: Ports) -> None:
        self.name = name
        self.ports = ports
        self.pending: dict[str, Strand] = {}
        self.error: LakebedError | None = None
        self.resume(Strand("", program(ports)), None)

    def resume(self, strand: Strand, raw: Any) -> None:
        """Hand over an outcome and run on to the next effect. Errors that are not Lakebed's pass through."""
        self.pending.pop(strand.name, None)
        try:
            what = strand.coroutine.send(raw)
        except StopIteration as stop:
            self._end(strand, None, stop.value)
        except LakebedError as error:
            self._end(strand, error, None)
        else:
            if what[0] == "gather":
                self._gather(strand, what[1])
            else:
                strand.effect = what
                self.pending[strand.name] = strand

    def _gather(self, parent: Strand, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> None:
        parent.missing = len(coroutines)
        parent.outcomes = [None] * len(coroutines)
        for index, coroutine in enumerate(coroutines):
            self.resume(Strand(f"{parent.name}.{index}", coroutine, parent, index), None)

    def _end(self, strand: Strand, error: LakebedError | None, value: Any) -> None:
        parent = strand.parent
        if parent is None:
            self.error = error
            return
        parent.outcomes[strand.index] = (error, value)
        parent.missing -= 1
        if not parent.missing:
            self.resume(parent, parent.outcomes)

    def moves(self) -> list[tuple[Strand, Fate]]:
        """List what can happen next, but for faults: an effect carried out, or a wait that times out."""
        found = []
        for strand in self.pending.values():
            what = strand.effect
            if what[0] != "wait" or self.ports.tasks.events[what[1]].is_set():
                found.append((strand, Fate.DONE))
            elif what[2] is not None:
                found.append((strand, Fate.LATE))
        return found

    def is_until_others(self) -> bool:
        return all(strand.effect[0] == "until" for strand in self.pending.values())

    def local(self, what: Effect, fate: Fate) -> Any:
        """Return the raw outcome of an effect that is this life's own business."""
        assert what[0] in LOCAL, what
        if what[0] == "sleep":
            self.ports.clock.ms += what[1]
        elif fate is Fate.LATE:
            self.ports.clock.ms += what[2]
        return fate is Fate.DONE if what[0] == "wait" else None

    def close(self) -> None:
        """Crash the life: no code runs that could have an effect; what is in memory is gone."""
        strands = set(self.pending.values())
        self.pending.clear()
        for strand in sorted(strands, key=lambda one: one.name):
            line: Strand | None = strand
            while line is not None:
                _drop(line.coroutine)
                line = line.parent


def _drop(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close it, and close it again for each effect it asks for on its way out."""
    for _ in range(_CLEANUPS_MAX):
        try:
            coroutine.close()
        except RuntimeError:
            continue
        except LakebedError:
            return
        return


_CLEANUPS_MAX = 100


def run_to_end(program: Program, disk: Disk, ports: Ports, *, name: str) -> Ports:
    """Run one program on this disk with no other actor, all effects carried out. For preparing and for tidying."""
    life = Life(name, program, ports)
    while moves := life.moves():
        strand, fate = moves[0]
        what = strand.effect
        life.resume(strand, life.local(what, fate) if what[0] in LOCAL else disk.apply(what))
    if life.pending:
        raise Violation(f"{name} waits for ever")
    if life.error is not None:
        raise life.error
    return ports


def prepared(scene: Scene, seed: int) -> tuple[Disk, dict[str, Record]]:
    """Return the disk as the actors find it, and what was done to get there, one operation after the other."""
    disk = Disk(versioned=scene.versioned)
    if scene.prepare is None:
        return disk, {}
    ports = scene.ports_alone("prepare", seed=seed, disk=disk)
    operations = run_to_end(scene.prepare, disk, ports, name="prepare").operations
    records: dict[str, Record] = {}
    for name, operation in operations.asked.items():
        records[name] = Record(operation, operations.ended[name], frozenset(records))
    return disk, records
