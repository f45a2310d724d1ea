"""What a run did, for people: its report, `<run folder>/report.json`.

Nothing rests on a report (docs/design/0001-uncommitted-gc.md): dates and "last read slice" are for reading. The
collector writes it when it has ended, whether it deleted anything or not.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import RunKind, RunState

from .plans import RunMode
from .tables import BadInput

REPORT_FORMAT: Final = 1


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of an apply, `recheck` or `sweep`: `rows` are objects, `size_bytes` theirs."""

    name: str
    rows: int
    size_bytes: int
    wall_s: float


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """`last_read_slice` is the newest slice listed (names sort newest first), or empty. `inputs` maps an input's name
    to its manifest's digest. `deferred_until_ms`: nothing is deleted yet, and what is garbage stays until then. What
    lies in no slice and was written again since is kept. `gone`: another run or hard delete had deleted it before.
    `errors` are some of the objects that failed, of which legal holds keep `objects_held`. `unknown_files` are
    reported, never deleted. `mode`, `based_on`, `token_expiry_ms` and `slices_skipped` are those of the plan.
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
    stages: tuple[StageReport, ...] = ()


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report a purge. `purged` are the runs whose window is over, `waiting` the deferred ones whose window is not.
    `errors` are some of those of objects that failed.
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
    """
    Raises:
        BadInput: not a report, or of a format this program does not know.
    """
    try:
        report = msgspec.json.decode(data, type=RunReport)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"report {name} is unreadable: {error}", input=name) from error
    if report.format != REPORT_FORMAT:
        raise BadInput(f"report {name} has the unknown format {report.format}", input=name)
    return report
