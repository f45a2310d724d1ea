"""Restore: the server does it, page by page (`lakebed.gc.service`, restoring); here the pages are added up."""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import count_of
from lakebed.gc.protocol import Restore, RestoreFailure

from .context import Progress
from .live_side import LiveSide

FAILURES_SHOWN: Final = 1000


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """`restored` objects were read back and are staged, `present` ones were there already, byte for byte. All that
    `failed` are counted, and the first thousand told. Of the paths of `older` ones a later version is there. `runs`,
    the latest first, are those that took what was found; `run_id` is the first of them.
    """

    run_id: str
    runs: tuple[str, ...] = ()
    restored: int = 0
    bytes_restored: int = 0
    present: int = 0
    older: int = 0
    failed: int = 0
    failures: tuple[RestoreFailure, ...] = ()


def restore(live_side: LiveSide, request: Restore, progress: Progress) -> RestoreReport:
    """
    Raises:
        NotFound: no deferred run holds what was asked for, or there is no such branch; the message says which.
    """
    report = RestoreReport(run_id=request.run_id)
    for page in live_side.restore(request):
        found = page.restored or page.present or page.older or page.failed
        runs = report.runs if page.run_id in report.runs or not found else (*report.runs, page.run_id)
        report = RestoreReport(
            run_id=runs[0] if runs else page.run_id,
            runs=runs,
            restored=report.restored + page.restored,
            bytes_restored=report.bytes_restored + page.bytes_restored,
            present=report.present + page.present,
            older=report.older + page.older,
            failed=report.failed + page.failed,
            failures=(report.failures + page.failures)[:FAILURES_SHOWN],
        )
        if page.continuation_token is not None:
            progress(f"restored {count_of(report.restored, 'object')} so far")
    return report
