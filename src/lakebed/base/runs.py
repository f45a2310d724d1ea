"""Kinds and states of collection runs, the legal moves between states, and readers' grace: declared here, once.

`RunKind` is the only list of the kinds: a member has every property of its kind that other parts of Lakebed need. The
folder of a kind in `gc/kinds` has its planning. The moves are the whole protocol of a run's state: the live side runs
them, the tests enumerate them. Each move is one conditional write, so exactly one of two racing processes makes it; the
loser discards its work.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from .errors import Invalid

__all__ = [
    "RUN_MOVES",
    "SERVED_S",
    "SIGNED_S",
    "BadGrace",
    "Basis",
    "RunKind",
    "RunState",
    "grace_s_of",
    "grace_seconds",
]


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
        """Return whether no move leads from this state, whatever the kind."""
        return self in {RunState.ENDED, RunState.ABANDONED, RunState.UNDONE}


# The moves of each kind:
#
#     uncommitted:  marking ──► marked ──► ended            marking ──► abandoned
#     committed:    (planning) ──► expiring ──► sweeping ──► ended      expiring ──► abandoned | ended
#                   planning ──► abandoned
#     metadata, lifecycle, pruning, erasure, deleted: as committed
#     deferred:     marked | sweeping ──► undone
#
# A run that plans publishes nothing, so it has an id and a folder but no record. Only an uncommitted run marks from its
# start. The record is `planning` only while the list of commits or objects to expire is written: nothing is deleted
# yet, and a process that dies meanwhile leaves a record that others find. `marked` and `sweeping` cannot be abandoned:
# deletes may have begun, so such a run is resumed. A run that waits for the end of its window has deleted nothing yet,
# and may be undone.
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
    """The document of users that a run is bound to."""

    RULES = "retention rules"
    POLICY = "lifecycle policy"


class Names(enum.Enum):
    """The names that the objects of a plan may have, and the fate of these names."""

    NONE = "nothing names them"
    EXPIRED = "commits that the run expires"
    STANDING = "commits that stay, and go on naming them"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpec:
    """The properties of a kind. The defaults are those of most kinds."""

    moves: Moves
    names: Names = Names.NONE
    basis: Basis | None = None
    takes_objects: bool = True
    has_readers: bool = True
    of_deleted: bool = False
    """The kind collects a whole repository, which must be deleted. All other kinds collect a repository in use."""
    of_tables: bool = False
    """True where it takes files of tables alone, which only the hidden branch of tables names."""
    by_order: bool = False
    """A user orders each of its plans, and only the recorded plan may be applied."""
    only_if_named: bool = False
    """A request that names no kind excludes this kind."""
    no_window: str = ""
    """Why an apply with a window is refused."""
    command: str = "lakebed gc apply"
    permission: str = ""
    """The permission that an apply needs besides those of every kind."""


_USUAL: Final = KindSpec(moves=_PUBLISHED)


class RunKind(enum.StrEnum):
    """The kinds of collection, in the order in which they run."""

    spec: KindSpec

    def __new__(cls, name: str, spec: KindSpec = _USUAL) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.spec = spec
        return kind

    UNCOMMITTED = "uncommitted", KindSpec(moves=_MARKED)
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
    PRUNING = (
        "pruning",
        KindSpec(moves=_DEFERRABLE, names=Names.STANDING, of_tables=True, only_if_named=True),
    )
    ERASURE = (
        "erasure",
        KindSpec(
            moves=_PUBLISHED,
            names=Names.STANDING,
            by_order=True,
            only_if_named=True,
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
        """Return whether an apply publishes its selection and rechecks it.

        A run of another kind is bound to its plan at once.
        """
        return RunState.SWEEPING in self.spec.moves

    @property
    def data(self) -> str:
        """Name the collected data, for people."""
        return f"{self.value} data" if self.takes_objects else self.value

    @property
    def takes_objects(self) -> bool:
        """Return whether its plans name users' objects."""
        return self.spec.takes_objects

    @property
    def has_readers(self) -> bool:
        """Return whether clients may be reading its objects, and get a grace.

        Reads of a deleted repository ended long ago.
        """
        return self.spec.has_readers

    @property
    def can_wait(self) -> bool:
        """Return whether its deletes may be deferred until the end of a window.

        Erased objects are deleted for good; a deleted repository already had its window.
        """
        return RunState.UNDONE in self.spec.moves

    @property
    def takes_committed(self) -> bool:
        """Return whether it deletes data that commits name, and records permanently which commits or objects."""
        return self.spec.names is not Names.NONE

    @property
    def takes_named(self) -> bool:
        """Return whether it deletes objects that commits continue to name: its records tell readers which objects."""
        return self.spec.names is Names.STANDING

    @property
    def yields_to_commits(self) -> bool:
        """Return whether the run keeps an object that a new commit names after the run decided."""
        return not self.takes_named

    def may_share(self, other: RunKind) -> bool:
        """Return whether runs of these two kinds may select the same object."""
        # An object that the lifecycle policy selects may be named by expired commits alone, so both kinds may select
        # it.
        return self is other or (self.spec.basis is not None and other.spec.basis is not None)

    def may_meet(self, other: RunKind) -> bool:
        """Return whether a run of the other kind may already have deleted an object in the plan of this kind."""
        # A commit that was never published may name what runs of all kinds, and hard delete, take for garbage.
        return self is other or (self.takes_objects and other.takes_objects)


RUN_MOVES: Final[Mapping[RunKind, Moves]] = {kind: kind.spec.moves for kind in RunKind}

SIGNED_S: Final = 15 * 60
"""The readers' grace where clients read by themselves: the lifetime of the URLs that the server signs."""

SERVED_S: Final = 2
"""The readers' grace where all reads pass through the server."""
_GRACE_FORM: Final = re.compile(r"([0-9]{1,9})(s|m|min|h|d)?")
_GRACE_UNITS_S: Final = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class BadGrace(Invalid):
    """The readers' grace is negative, or not a time."""


def grace_seconds(text: str) -> int:
    """Return `900`, `900s`, `15m`, `15min` or `1h` in seconds.

    Raises:
        BadGrace: the text has another form.
    """
    found = _GRACE_FORM.fullmatch(text)
    if found is None:
        raise BadGrace(f"{text!r} is not a time that readers can be given: use 900 (seconds), 15m or 1h")
    return int(found[1]) * _GRACE_UNITS_S[found[2]]


def grace_s_of(uri: str, asked_s: int | None) -> int:
    """Return the readers' grace of this namespace, in seconds.

    Raises:
        BadGrace: the requested grace is negative.
    """
    if asked_s is None:
        return SERVED_S if uri.startswith("local://") else SIGNED_S
    if asked_s < 0:
        raise BadGrace(f"readers cannot be given {asked_s} seconds", seconds=asked_s)
    return asked_s
