"""Kinds and states of collection runs, and the legal moves: declared here, once.

`RunKind` is the only list of the kinds: a member says all that the parts below and beside `gc/kinds` ask of it. How it
plans lies in its folder there. The moves are the whole protocol of a run's state: the live side runs them, the tests
enumerate them. Each move is one conditional write, so exactly one of two racing parties makes it; the loser throws its
work away.

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self


class RunState(enum.StrEnum):
    PLANNING = "planning"
    MARKING = "marking"
    MARKED = "marked"
    EXPIRING = "expiring"
    SWEEPING = "sweeping"
    ENDED = "ended"
    ABANDONED = "abandoned"
    UNDONE = "undone"

    @property
    def is_over(self) -> bool:
        """No move leads out of it, whatever the kind."""
        return self in {RunState.ENDED, RunState.ABANDONED, RunState.UNDONE}


Moves = Mapping[RunState, frozenset[RunState]]

_MARKED: Final[Moves] = {
    RunState.MARKING: frozenset({RunState.MARKED, RunState.ABANDONED}),
    RunState.MARKED: frozenset({RunState.ENDED, RunState.UNDONE}),
    RunState.ENDED: frozenset(),
    RunState.ABANDONED: frozenset(),
    RunState.UNDONE: frozenset(),
}
_PUBLISHED: Final[Moves] = {
    RunState.PLANNING: frozenset({RunState.EXPIRING, RunState.ABANDONED}),
    RunState.EXPIRING: frozenset({RunState.SWEEPING, RunState.ENDED, RunState.ABANDONED}),
    RunState.SWEEPING: frozenset({RunState.ENDED}),
    RunState.ENDED: frozenset(),
    RunState.ABANDONED: frozenset(),
}
_DEFERRABLE: Final[Moves] = {
    **_PUBLISHED,
    RunState.SWEEPING: frozenset({RunState.ENDED, RunState.UNDONE}),
    RunState.UNDONE: frozenset(),
}


class Basis(enum.Enum):
    """Name the document of users that a run is bound to."""

    RULES = "retention rules"
    POLICY = "lifecycle policy"


class Names(enum.Enum):
    """Say what may name the objects of a plan, and what becomes of these names."""

    NONE = "nothing names them"
    EXPIRED = "commits that the run expires"
    STANDING = "commits that stay, and go on naming them"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpec:
    """State what is special about a kind. The defaults are those of most kinds."""

    moves: Moves
    names: Names = Names.NONE
    basis: Basis | None = None
    takes_objects: bool = True
    has_readers: bool = True
    of_deleted: bool = False
    """It collects a repository as a whole, which must be deleted. All other kinds collect one that is in use."""
    by_order: bool = False
    """A user orders each of its plans, and only the plan on record may be applied."""
    only_if_named: bool = False
    """A request that names no kind leaves this one out."""
    meets_hard_delete: bool = False
    """Hard delete may have deleted an object of its plan."""
    no_window: str = ""
    """Why an apply with a window is refused."""
    command: str = "lakebed gc apply"
    permission: str = ""
    """The permission that an apply needs besides those of every kind."""


_USUAL: Final = KindSpec(moves=_PUBLISHED)


class RunKind(enum.StrEnum):
    """The kinds of collection, in the order in which they are done."""

    spec: KindSpec

    def __new__(cls, name: str, spec: KindSpec = _USUAL) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.spec = spec
        return kind

    UNCOMMITTED = "uncommitted", KindSpec(moves=_MARKED, meets_hard_delete=True)
    COMMITTED = "committed", KindSpec(moves=_DEFERRABLE, names=Names.EXPIRED, basis=Basis.RULES)
    METADATA = "metadata", KindSpec(moves=_PUBLISHED, takes_objects=False, has_readers=False)
    LIFECYCLE = (
        "lifecycle",
        KindSpec(
            moves=_DEFERRABLE,
            names=Names.STANDING,
            basis=Basis.POLICY,
            only_if_named=True,
            command="lakebed lifecycle apply",
        ),
    )
    ERASURE = (
        "erasure",
        KindSpec(
            moves=_PUBLISHED,
            names=Names.STANDING,
            by_order=True,
            only_if_named=True,
            meets_hard_delete=True,
            no_window="what is erased cannot be kept for a window: apply without one",
            command="lakebed erase apply",
            permission="gc:Erase",
        ),
    )
    DELETED = (
        "deleted",
        KindSpec(
            moves=_PUBLISHED,
            has_readers=False,
            of_deleted=True,
            only_if_named=True,
            no_window="a deleted repository had its window: apply without one",
            command="lakebed gc deleted apply",
            permission="gc:CollectDeleted",
        ),
    )

    @property
    def publishes(self) -> bool:
        """An apply publishes what the plan takes, and looks again. Without that a run is bound to its plan at once."""
        return RunState.SWEEPING in self.spec.moves

    @property
    def data(self) -> str:
        """Name what it collects, for people."""
        return f"{self.value} data" if self.takes_objects else self.value

    @property
    def takes_objects(self) -> bool:
        """Its plans name users' objects."""
        return self.spec.takes_objects

    @property
    def has_readers(self) -> bool:
        """A client may be reading what it takes, and gets a grace. Reads of a deleted repository ended long ago."""
        return self.spec.has_readers

    @property
    def can_wait(self) -> bool:
        """Its deletes may be deferred until the end of a window. What is erased goes for good; a deleted repository
        had its window.
        """
        return RunState.UNDONE in self.spec.moves

    @property
    def takes_committed(self) -> bool:
        """It takes what commits name, and writes down for ever which commits or objects these are."""
        return self.spec.names is not Names.NONE

    @property
    def takes_named(self) -> bool:
        """It takes objects that commits go on naming: readers learn from its records which these are."""
        return self.spec.names is Names.STANDING

    @property
    def yields_to_commits(self) -> bool:
        """Return whether an object stays that a commit names after the run decided."""
        return not self.takes_named

    def may_share(self, other: RunKind) -> bool:
        """Runs of these two kinds may hold the same object."""
        # What is due by the policy may be named by expired commits alone, so these two kinds may want one object.
        return self is other or (self.spec.basis is not None and other.spec.basis is not None)

    def may_meet(self, other: RunKind) -> bool:
        """Return whether a run of this kind may find that one of the other kind deleted an object of its plan."""
        return self is other or (
            self.takes_objects
            and other.takes_objects
            and (self.spec.by_order or other.spec.by_order or (self.takes_committed and other.takes_committed))
        )


RUN_MOVES: Final[Mapping[RunKind, Moves]] = {kind: kind.spec.moves for kind in RunKind}
