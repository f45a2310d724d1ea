"""Undo a deferred run, over HTTP (JSON):

    POST runs/{run}/undone      Undo -> Undone      repeat while `is_done` is false; no step is done twice

below `/api/v1/repositories/{repository}/gc`. A run that waits for the end of its window can be undone until its purge
begins. Its commits, or the entries that it took, become readable again, and its objects are kept. A later run that
relies on this run must be undone first.
"""

from __future__ import annotations

import msgspec

from lakebed.base import RunKind, RunState

__all__ = ["TakesAgain", "Undo", "Undone"]


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """`dry_run`: only list the effect of an undo, or refuse as the undo would."""

    dry_run: bool = False


class TakesAgain(msgspec.Struct, frozen=True, kw_only=True):
    """A rule in force by which the next run would take `commits` or `objects` of the undone run again."""

    rule: str
    commits: int = 0
    objects: int = 0


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """`commits`: commits that are readable again, or would be. `objects`: the objects of the run's table.


    The run is undone once `state` says so. Until `is_done` some of its records must be removed, which cost readers of
    its commits a read each.
    """

    run_id: str
    kind: RunKind
    state: RunState
    commits: int = 0
    objects: int = 0
    # See `TakesAgain`. It is empty for a run of uncommitted data, because the next run takes every object that no entry
    # names.
    again: tuple[TakesAgain, ...] = ()
    is_done: bool = True
