"""Kinds and states of collection runs, and the legal moves: declared here, once.

`RUN_MOVES` is the whole protocol of a run's state: the live side runs it, the tests enumerate it. Each move is one
conditional write, so exactly one of two racing parties makes it; the loser throws its work away.

    uncommitted:  marking ──► marked ──► ended            marking ──► abandoned
    committed:    (planning) ──► expiring ──► sweeping ──► ended      expiring ──► abandoned | ended
                  planning ──► abandoned
    metadata:     as committed
    lifecycle, erasure, deleted: as committed
    deferred:     marked | sweeping ──► undone

A run that plans publishes nothing, and so has an id and a folder but no record; only one of uncommitted data marks from
its start. The record says `planning` only while the list of what it is about to expire is written. That takes nothing
yet, and a process that dies over it leaves a record to be found. `marked` and `sweeping` cannot be abandoned: deletes
may have begun, so such a run is resumed. One that waits for the end of a window has not begun them, and may be undone.
"""

from __future__ import annotations

import enum
from typing import Final


class RunKind(enum.StrEnum):
    UNCOMMITTED = "uncommitted"
    COMMITTED = "committed"
    METADATA = "metadata"
    LIFECYCLE = "lifecycle"
    ERASURE = "erasure"
    DELETED = "deleted"

    @property
    def publishes(self) -> bool:
        """An apply publishes what the plan takes, and looks again. Without that a run is bound to its plan at once."""
        return RunState.SWEEPING in RUN_MOVES[self]

    @property
    def data(self) -> str:
        """Name what it collects, for people."""
        return "metadata" if self is RunKind.METADATA else f"{self.value} data"

    @property
    def takes_objects(self) -> bool:
        """Its plans name users' objects."""
        return self is not RunKind.METADATA

    @property
    def has_readers(self) -> bool:
        """A client may be reading what it takes, and gets a grace. Reads of a deleted repository ended long ago."""
        return self not in {RunKind.METADATA, RunKind.DELETED}

    @property
    def can_wait(self) -> bool:
        """Its deletes may be deferred until the end of a window. What is erased goes for good; a deleted repository
        had its window.
        """
        return self not in {RunKind.METADATA, RunKind.ERASURE, RunKind.DELETED}

    @property
    def takes_committed(self) -> bool:
        """It takes what commits name, and writes down for ever which commits or objects these are."""
        return self is RunKind.COMMITTED or self.takes_named

    @property
    def takes_named(self) -> bool:
        """It takes objects that commits go on naming: readers learn from its records which these are."""
        return self in {RunKind.LIFECYCLE, RunKind.ERASURE}

    @property
    def yields_to_commits(self) -> bool:
        """Return whether an object stays that a commit names after the run decided."""
        return not self.takes_named

    def may_share(self, other: RunKind) -> bool:
        """Runs of these two kinds may hold the same object."""
        return self is other or {self, other} == {RunKind.COMMITTED, RunKind.LIFECYCLE}

    def may_meet(self, other: RunKind) -> bool:
        """Return whether a run of this kind may find that one of the other kind deleted an object of its plan."""
        return self is other or (
            self.takes_objects
            and other.takes_objects
            and (RunKind.ERASURE in {self, other} or (self.takes_committed and other.takes_committed))
        )


class RunState(enum.StrEnum):
    PLANNING = "planning"
    MARKING = "marking"
    MARKED = "marked"
    EXPIRING = "expiring"
    SWEEPING = "sweeping"
    ENDED = "ended"
    ABANDONED = "abandoned"
    UNDONE = "undone"


_PUBLISHED: Final[dict[RunState, frozenset[RunState]]] = {
    RunState.PLANNING: frozenset({RunState.EXPIRING, RunState.ABANDONED}),
    RunState.EXPIRING: frozenset({RunState.SWEEPING, RunState.ENDED, RunState.ABANDONED}),
    RunState.SWEEPING: frozenset({RunState.ENDED}),
    RunState.ENDED: frozenset(),
    RunState.ABANDONED: frozenset(),
}
_DEFERRABLE: Final[dict[RunState, frozenset[RunState]]] = {
    **_PUBLISHED,
    RunState.SWEEPING: frozenset({RunState.ENDED, RunState.UNDONE}),
    RunState.UNDONE: frozenset(),
}

RUN_MOVES: Final[dict[RunKind, dict[RunState, frozenset[RunState]]]] = {
    RunKind.UNCOMMITTED: {
        RunState.MARKING: frozenset({RunState.MARKED, RunState.ABANDONED}),
        RunState.MARKED: frozenset({RunState.ENDED, RunState.UNDONE}),
        RunState.ENDED: frozenset(),
        RunState.ABANDONED: frozenset(),
        RunState.UNDONE: frozenset(),
    },
    RunKind.COMMITTED: _DEFERRABLE,
    RunKind.METADATA: _PUBLISHED,
    RunKind.LIFECYCLE: _DEFERRABLE,
    RunKind.ERASURE: _PUBLISHED,
    RunKind.DELETED: _PUBLISHED,
}
