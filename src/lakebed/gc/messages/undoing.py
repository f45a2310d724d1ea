"""Undoing a deferred run, over HTTP (JSON):

    POST runs/{run}/undone      Undo -> Undone      again while `is_done` is false; nothing is done twice

below `/api/v1/repositories/{repository}/gc`. Until its purge begins, a run that waits for the end of its window can be
undone: its commits, or the entries that it took, can be read again, and its objects are not due any more. A run that
counts on what it took must be undone first.
"""

from __future__ import annotations

import msgspec

from lakebed.base import RunKind, RunState


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """`dry_run`: only say what would be undone, or refuse as an undo would."""

    dry_run: bool = False


class TakesAgain(msgspec.Struct, frozen=True, kw_only=True):
    """A rule in force by which the next run would take `commits` or `objects` of the undone run again."""

    rule: str
    commits: int = 0
    objects: int = 0


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """`commits` can be read again, or could; `objects` are those of the run's table. `again`: see `TakesAgain`; of a
    run of uncommitted data none is there, because the next run takes all that nothing names.

    The run is undone as soon as `state` says so. Until `is_done` some of its records are left to be removed, which
    costs readers of its commits a look.
    """

    run_id: str
    kind: RunKind
    state: RunState
    commits: int = 0
    objects: int = 0
    again: tuple[TakesAgain, ...] = ()
    is_done: bool = True
