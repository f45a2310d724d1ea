"""Effects: what simulated ports ask for, as plain tuples, and what becomes of them.

A port method yields one tuple and is resumed with the raw outcome; it does nothing by itself. So an effect is *data*:
it can be carried out on any copy of a disk, compared, counted, and kept in a trace that is not formatted until it is
read. The first item names the operation. Store and block operations work on the disk that all actors share; the others
(LOCAL) are moments at which one actor's own clock, event or breathing space is due. One operation has to wait: `until`
some keys are gone; while they are there its outcome is NOT_YET, which means that it cannot be carried out now.

A fate is what the network and the machine add:

- `DONE`, and `REFUSED`: not done, and answered so;
- `LOST`: done, but the answer is an OutcomeUnknown;
- `VAIN`: not done, with the same answer. The caller cannot tell the two apart;
- `LATE`: a wait that timed out;
- `CRASHED`: the actor's memory is gone, and nothing of the effect was done;
- `LATE_WRITE`: the same, but the write is under way. It is done later, when its sender may long be another life;
- `ECHO`: a delete of objects that was sent twice. It is done, and done once more later.
"""

from __future__ import annotations

import types
from collections.abc import Generator
from enum import Enum
from typing import Any, Final, TypeAlias

Effect: TypeAlias = tuple[Any, ...]
"""(operation, argument, …), hashable throughout."""


class Fate(Enum):
    DONE = "done"
    LOST = "lost answer"
    VAIN = "lost request"
    REFUSED = "refused"
    LATE = "timed out"
    CRASHED = "crashed"
    LATE_WRITE = "crashed, and this is done later"
    ECHO = "done, and done again later"


class Riders(tuple[Effect, ...]):
    """Writes of an actor's own files, done in the same step as the effect whose last item this is (`ports.Private`)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Riders({hash(self)})"


class Mark(Enum):
    """Raw outcomes that are not values. SimPorts turn them into the errors of their contracts."""

    FAILED = "predicate failed"
    EXISTS = "exists"
    MISSING = "missing"
    UNKNOWN = "outcome unknown"
    REFUSED = "unavailable"
    NOT_YET = "not yet"


CRASH: Final[Effect] = ("crash",)
PAUSE: Final[Effect] = ("pause",)

LOCAL: Final = frozenset({"pause", "sleep", "wait", "crash"})
WRITES: Final = frozenset({"set", "set_many", "set_if", "delete", "delete_many", "delete_if", "put", "copy", "erase"})
LOSABLE: Final = frozenset({"set", "set_many", "set_if", "delete", "delete_many", "delete_if"})
"""Only the key-value store has an OutcomeUnknown: a put of immutable bytes can simply be sent again. Any of WRITES can
be under way when its sender dies: a bulk delete too may be done long after, when its run is forgotten."""
ERASE: Final = "erase"


@types.coroutine
def effect(what: Effect) -> Generator[Effect, Any, Any]:
    """Suspend until the scheduler has carried this out; return the raw outcome."""
    return (yield what)


class Step(tuple[str, str, Effect, Fate]):
    """One item of a trace: (actor, strand, effect, fate). `str` formats it for people."""

    __slots__ = ()

    def __new__(cls, actor: str, strand: str, what: Effect, fate: Fate) -> Step:
        return super().__new__(cls, (actor, strand, what, fate))

    def __getnewargs__(self) -> tuple[str, str, Effect, Fate]:
        # A walk in a process of its own sends its trace home.
        actor, strand, what, fate = self
        return actor, strand, what, fate

    def __str__(self) -> str:
        actor, strand, what, fate = self
        name = f"{actor}{strand}"
        ending = "" if fate is Fate.DONE else f"   ** {fate.value}"
        return f"{name:<12} {format_effect(what)}{ending}"


def format_trace(trace: list[Step]) -> str:
    return "\n".join(f"{number:>4}  {step}" for number, step in enumerate(trace, 1))


def format_effect(what: Effect) -> str:
    return " ".join((str(what[0]), *(_shown(argument) for argument in what[1:] if not isinstance(argument, Riders))))


def _shown(argument: object) -> str:
    if isinstance(argument, bytes):
        text = repr(argument)[2:-1]
    elif isinstance(argument, tuple):
        text = "(" + ", ".join(_shown(item) for item in argument) + ")"
    else:
        text = str(argument)
    return text if len(text) <= 90 else f"{text[:60]}…({len(text)})"
