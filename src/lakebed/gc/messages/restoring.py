"""Restoring what deferred runs hold, over HTTP (JSON):

    POST restore      Restore -> RestorePage      again with its token until it has none; nothing is done twice

below `/api/v1/repositories/{repository}/gc`. Named is a run (all that it holds), a path, or both. What was
taken stays taken: a restored object gets a fresh address and is staged on a branch, like an upload.

Runs may hold several versions of a path, which is what retention takes. The one seen last returns to the path, in
whatever order they are found. The metadata of an object that a restore put there says which version it is, so a page
that has a newer one replaces what an earlier page of the same restore staged. The others are counted as `older`;
`all_versions` gives each a path of its own, and an address names just one.

A page may be empty and have a token all the same: one request looks into a few files alone. So a later request than
the first may answer that no run holds what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

FAILURES_SHOWN = 100
"""A page lists at most this many failures, and counts all."""
FAILURES_REPORTED = 1000
"""A report lists at most this many."""

RESTORED_FROM = "lakebed-restored-from"
"""The metadata of a restored object: JSON, a `RestoredFrom`."""


class RestoredFrom(msgspec.Struct, frozen=True, kw_only=True):
    """Say which version of `path` it is: nothing where it lies at another path, for metadata goes along with a copy.
    `restore` names the request, with all its pages, that staged it.
    """

    path: str
    run: str
    address: str
    seen_ms: int
    restore: str


def restored_from(metadata: Mapping[str, str]) -> RestoredFrom | None:
    """Return what an entry's metadata says of the object from which a restore copied it; None where it says nothing."""
    if text := metadata.get(RESTORED_FROM):
        # Anybody may write such metadata, and what is no JSON of ours may not stop who reads all entries.
        with suppress(msgspec.MsgspecError, RecursionError):
            return msgspec.json.decode(text, type=RestoredFrom)
    return None


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is that of one object, of a folder (with a slash at its end), or an address; without `run_id` the latest
    run that holds it is meant, and for a folder every run. Objects return to their own paths, those of uncommitted data
    to `restored/<run>/<address>`, on the default branch if no other is named; with `prefix` to theirs, or their
    address, below it. Without `overwrite` nothing is replaced that was there before. With `all_versions` each version
    returns, to `<path>@<run>/<address>`.
    """

    branch: str = ""
    run_id: str = ""
    path: str = ""
    prefix: str = ""
    overwrite: bool = False
    all_versions: bool = False
    continuation_token: str | None = None


class RestoreFailure(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is where the object was to be."""

    address: str
    path: str
    error: str


class RestorePage(msgspec.Struct, frozen=True, kw_only=True):
    """`restored` objects were read back and are staged; `present` ones were there already, byte for byte; of the paths
    of `older` ones a later version is there, or now is. So one that an earlier page staged and this one replaced makes
    this page's sums smaller by itself: those of all pages are right.
    """

    run_id: str
    restored: int = 0
    bytes_restored: int = 0
    present: int = 0
    older: int = 0
    failed: int = 0
    failures: tuple[RestoreFailure, ...] = ()
    continuation_token: str | None = None


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """Add up the pages of a restore. `failures` are the first thousand of `failed`. `runs` are those that took what was
    found, the latest first; `run_id` is the first of them.
    """

    run_id: str
    runs: tuple[str, ...] = ()
    restored: int = 0
    bytes_restored: int = 0
    present: int = 0
    older: int = 0
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
            failed=self.failed + page.failed,
            failures=(self.failures + page.failures)[:FAILURES_REPORTED],
        )
