"""What a collection run is called, which states it passes, and which moves are legal.

A run has an id that sorts by the time it began, one `now`, and a record in the store from the moment on at which
writers must see it (docs/design/protocols.md, "Records"). The table `MOVES` is the whole protocol of its state: the
live side runs it, the tests enumerate it. Each move is one conditional write, so exactly one of two racing parties
makes it; who loses throws its work away.

    uncommitted:  marking ──► marked ──► ended            marking ──► abandoned
    committed:    (planning) ──► condemning ──► sweeping ──► ended      condemning ──► abandoned | ended
                  planning ──► abandoned
    metadata:     as committed

Planning of committed data or of metadata publishes nothing, so such a run has an id and a folder but no record. The
record says `planning` only while the list of what it is about to condemn is written: that takes nothing yet, and
whoever dies over it leaves a record to be found. `marked` and `sweeping` cannot be abandoned: deletes may have begun,
so such a run is resumed.
"""

from __future__ import annotations

import enum
from typing import Final

from lakebed.base import Invalid, RunId


class RunKind(enum.StrEnum):
    UNCOMMITTED = "uncommitted"
    COMMITTED = "committed"
    METADATA = "metadata"

    @property
    def publishes(self) -> bool:
        """An apply publishes what the plan takes, and looks again. Without that a run is bound to its plan at once."""
        return RunState.SWEEPING in MOVES[self]

    @property
    def takes_objects(self) -> bool:
        """Its plans name users' objects: readers get a grace, and a quarantine can hold what goes."""
        return self is not RunKind.METADATA


class RunState(enum.StrEnum):
    PLANNING = "planning"
    MARKING = "marking"
    MARKED = "marked"
    CONDEMNING = "condemning"
    SWEEPING = "sweeping"
    ENDED = "ended"
    ABANDONED = "abandoned"


class InvalidRunId(Invalid):
    """Not a name that a run of ours can have."""


_PUBLISHED: Final = {
    RunState.PLANNING: frozenset({RunState.CONDEMNING, RunState.ABANDONED}),
    RunState.CONDEMNING: frozenset({RunState.SWEEPING, RunState.ENDED, RunState.ABANDONED}),
    RunState.SWEEPING: frozenset({RunState.ENDED}),
    RunState.ENDED: frozenset(),
    RunState.ABANDONED: frozenset(),
}

MOVES: Final[dict[RunKind, dict[RunState, frozenset[RunState]]]] = {
    RunKind.UNCOMMITTED: {
        RunState.MARKING: frozenset({RunState.MARKED, RunState.ABANDONED}),
        RunState.MARKED: frozenset({RunState.ENDED}),
        RunState.ENDED: frozenset(),
        RunState.ABANDONED: frozenset(),
    },
    RunKind.COMMITTED: _PUBLISHED,
    RunKind.METADATA: _PUBLISHED,
}

DELETES_ALLOWED: Final = frozenset({RunState.MARKED, RunState.SWEEPING})
"""The states in which a sweep may delete what the run's plan names."""

_DIGITS: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyz-")


def check_run_id(text: str) -> RunId:
    """A run id names a folder: lower-case letters, digits and hyphens, 1 to 64 of them, not starting with a hyphen.

    Raises:
        InvalidRunId: anything else.
    """
    if not 0 < len(text) <= 64 or not _DIGITS.issuperset(text) or text.startswith("-"):
        raise InvalidRunId(f"{text!r} is not a run id", run_id=text)
    return RunId(text)
