"""The report of a run for people: `<run folder>/report.json`.

No decision depends on a report (docs/design/0001-uncommitted-gc.md): its dates and "last read slice" are for people.
The collector writes it before the run ends, and also when it deleted nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import RunKind, RunState

from .broken import BrokenTable
from .plans import RunMode
from .tables import BadInput

__all__ = ["PurgeReport", "RunReport", "StageReport", "decode_report", "encode_report"]

REPORT_FORMAT: Final = 1


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of an apply, `recheck` or `sweep`. `rows`: its objects. `size_bytes`: their bytes."""

    name: str
    rows: int
    size_bytes: int
    wall_s: float


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of an apply.

    `last_read_slice`: the newest listed slice (names sort newest first), or empty. `inputs`: the digest of each input's
    manifest, by the input's name. `mode`, `based_on`, `token_expiry_ms`, `slices_skipped`: see the plan.
    `deferred_until_ms`: nothing is deleted yet, and the garbage stays until then.
    `objects_kept`: objects in no slice that were written again since the plan.
    `objects_gone`: objects that another run or hard delete had deleted before.
    `errors`: messages about some of the failed objects. Legal holds keep `objects_held` of the failed objects.
    `unknown_files`: files of other programs, which are never deleted. `tables`: see the plan.
    """

    format: int = REPORT_FORMAT
    run_id: str
    kind: RunKind
    state: RunState
    repository: str
    namespace: str
    run_start_time_ms: int
    run_end_time_ms: int
    dry_run: bool
    mode: RunMode = RunMode.CLEAN
    based_on: str = ""
    token_expiry_ms: int = 0
    slices_skipped: int = 0
    last_read_slice: str
    slices_listed: int
    inputs: dict[str, str]
    garbage_objects: int
    garbage_bytes: int
    objects_deleted: int
    bytes_deleted: int
    objects_failed: int
    objects_held: int = 0
    deferred_until_ms: int | None = None
    errors: tuple[str, ...] = ()
    objects_kept: int = 0
    bytes_kept: int = 0
    objects_gone: int = 0
    bytes_gone: int = 0
    commits_expired: int = 0
    unknown_files: tuple[str, ...] = ()
    tables: tuple[BrokenTable, ...] = ()
    stages: tuple[StageReport, ...] = ()


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a purge. `purged`: the runs whose window is over. `waiting`: the other deferred runs.

    `errors`: messages about some of the failed objects.
    """

    purged: tuple[str, ...]
    waiting: tuple[str, ...]
    objects_purged: int
    bytes_purged: int
    objects_failed: int
    errors: tuple[str, ...] = ()


def encode_report(report: RunReport) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode_report(data: bytes, *, name: str) -> RunReport:
    """Decode a report.

    Raises:
        BadInput: the file is not a report, or has an unknown format.
    """
    try:
        report = msgspec.json.decode(data, type=RunReport)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"report {name} is unreadable: {error}", input=name) from error
    if report.format != REPORT_FORMAT:
        raise BadInput(f"report {name} has the unknown format {report.format}", input=name)
    return report
