"""Restore objects that deferred runs hold, or undo a whole run, over HTTP (JSON).

Repeat a restore with its token until there is none, and an undo while `is_done` is false: no step is done twice. Name
a run (all its objects), a path, or both. A restored object gets a fresh address and is staged on a branch, like an
upload; the run still deletes the old address.

Runs may hold several versions of a path. The version seen last returns to the path; the others are counted as
`older`. `all_versions` restores each version to its own path; an address names one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from lakebed.base import RunKind, RunState

__all__ = [
    "FAILURES_SHOWN",
    "RESTORED_FROM",
    "Restore",
    "RestoreFailure",
    "RestorePage",
    "RestoreReport",
    "RestoredFrom",
    "TakesAgain",
    "Undo",
    "Undone",
    "encode_restored_from",
    "restored_from",
]

FAILURES_SHOWN = 100
"""The number of failures that a page lists. It counts all."""
FAILURES_REPORTED = 1000
"""The number of failures that a report lists."""

RESTORED_FROM = "lakebed-restored-from"
"""The metadata name that a restore adds. Its value is JSON, a `RestoredFrom`.

It counts as the user's. So a merge never takes the restored object for the one whose bytes a lifecycle run deletes.
"""


class RestoredFrom(msgspec.Struct, frozen=True, kw_only=True):
    """Name the version of `path` that a restore put there.

    Ignored at another path, because a copy takes its metadata along.
    `restore` names the request, with all its pages, that staged the object.
    `modified_ms`: the date that its entry had; 0 if unknown.
    """

    # A page that finds a newer version replaces the version that an earlier page of the same restore staged.
    path: str
    run: str
    address: str
    seen_ms: int
    restore: str
    modified_ms: int = 0


def encode_restored_from(source: RestoredFrom) -> str:
    return msgspec.json.encode(source).decode()


def restored_from(metadata: Mapping[str, str]) -> RestoredFrom | None:
    """Return the source of a restored object from its entry's metadata, or None."""
    if text := metadata.get(RESTORED_FROM):
        # Any user may write such metadata, and invalid JSON must not stop a reader of all entries.
        with suppress(msgspec.MsgspecError, RecursionError):
            return msgspec.json.decode(text, type=RestoredFrom)
    return None


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for a restore."""

    # The target, or the default branch. Objects return to their own paths; those of uncommitted data to
    # `restored/<run>/<address>`. With `prefix` they return to their path or address below it.
    branch: str = ""
    run_id: str = ""
    # The path of one object, of a folder (with a slash at its end), or an address. `run_id` empty: the latest run that
    # holds the object; for a folder, every run.
    path: str = ""
    prefix: str = ""
    # Replace objects that were there before.
    overwrite: bool = False
    # Restore each version, to `<path>@<run>/<address>`.
    all_versions: bool = False
    continuation_token: str | None = None


class RestoreFailure(msgspec.Struct, frozen=True, kw_only=True):
    """`path`: the path to which the object was to return."""

    address: str
    path: str
    error: str


class RestorePage(msgspec.Struct, frozen=True, kw_only=True):
    """`restored`: objects read back and staged. `present`: objects that were there already, byte for byte."""

    run_id: str
    restored: int = 0
    bytes_restored: int = 0
    present: int = 0
    # Objects whose path has a later version. A page that replaces an object of an earlier page subtracts it, so only
    # the sums of all pages are exact.
    older: int = 0
    # Restored objects whose content type and metadata are not known: no commit's entry was found.
    bare: int = 0
    failed: int = 0
    failures: tuple[RestoreFailure, ...] = ()
    # A page may be empty and have a token: one request reads only a few files. So a later request, not the first, may
    # answer that no run holds the object.
    continuation_token: str | None = None


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """Add up the pages of a restore. `failures`: the first thousand of `failed`."""

    # The first of `runs`.
    run_id: str
    # The runs that took the objects, latest first.
    runs: tuple[str, ...] = ()
    restored: int = 0
    bytes_restored: int = 0
    present: int = 0
    older: int = 0
    bare: int = 0
    failed: int = 0
    failures: tuple[RestoreFailure, ...] = ()

    def plus(self, page: RestorePage) -> RestoreReport:
        """Return the report with this page, which follows the earlier ones."""
        found = page.restored or page.present or page.older or page.failed
        runs = self.runs if page.run_id in self.runs or not found else (*self.runs, page.run_id)
        return RestoreReport(
            run_id=runs[0] if runs else page.run_id,
            runs=runs,
            restored=self.restored + page.restored,
            bytes_restored=self.bytes_restored + page.bytes_restored,
            present=self.present + page.present,
            older=self.older + page.older,
            bare=self.bare + page.bare,
            failed=self.failed + page.failed,
            failures=(self.failures + page.failures)[:FAILURES_REPORTED],
        )


# A run that waits for the end of its window can be undone until its purge begins. Its commits, or the entries that it
# took, become readable again, and its objects are kept. A later run that relies on this run must be undone first.


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
