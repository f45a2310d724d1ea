"""What a run did, for people: its report, and a row of the ledger for each object.

    <run folder>/report.json
    _lakefs/retention/gc/ledger/date=<YYYY-MM-DD>/<run>-<part>.parquet

Nothing rests on a report (docs/design/0001-uncommitted-gc.md): dates and "last read slice" are for reading. The
collector writes it when it has ended, whether it deleted anything or not.

The ledger stays for ever. No manifest names its files; each stands for itself. A file of an older release is refused.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from lakebed.base import Later, RunKind, RunState
from lakebed.gc.rules import DAY_MS

from .paths import GC_PREFIX
from .plans import RunMode
from .tables import LEDGER, BadInput, decode_part, encode_part, group_rows_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
else:  # only where they are used: a plain install has neither, and most of what is here needs none
    np = Later("numpy")
    pa = Later("pyarrow")
    pc = Later("pyarrow.compute")

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
    lies in no slice and was written again since is kept. `errors` are some of the objects that failed, of which
    legal holds keep `objects_held`. `unknown_files`
    are reported, never deleted. `mode`, `based_on`, `token_expiry_ms` and `slices_skipped` are those of
    the plan.
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


LEDGER_PREFIX: Final = f"{GC_PREFIX}ledger/"
GROUP_ROWS: Final = 1 << 14
"""Rows that a server decodes at a time to find one: in about 5 ms, where the whole of a part takes 80."""


class LedgerState(enum.StrEnum):
    """Say what became of the object. `failed`: nothing, and its error says why. `kept`: it is not the one that was
    planned for, or it came to be named, and stays.
    """

    DELETED = "deleted"
    RESTORED = "restored"
    FAILED = "failed"
    KEPT = "kept"


def ledger_folder(at_ms: int) -> str:
    """Return the folder for rows of that day, in UTC. Ends with a slash."""
    return f"{LEDGER_PREFIX}date={np.datetime64(at_ms // DAY_MS, 'D')}/"


def encode_ledger(rows: pa.Table) -> bytes:
    """Return LEDGER rows as one file, which can be read a row group at a time."""
    return encode_part(LEDGER, rows, group_rows=GROUP_ROWS)


def ledger_groups(data: bytes, *, name: str) -> list[int]:
    """Return how many rows each row group of a file has.

    Raises:
        BadInput: it is no ledger file.
    """
    return group_rows_of(data, name=name)


def decode_ledger(data: bytes, *, name: str, group: int | None = None) -> pa.Table:
    """Return the LEDGER rows of one file, or of one of its row groups.

    Raises:
        BadInput: it is no ledger file, or one of an older release. `name` is what the error calls it.
    """
    return decode_part(LEDGER, data, name=name, group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerQuery:
    """Say what is asked for; a field that is left out does not count. `path` with a slash at its end is all that is
    below it; `since_ms` is when the row's deed was done.
    """

    run_id: str = ""
    path: str = ""
    address: str = ""
    state: LedgerState | None = None
    since_ms: int | None = None

    def matches(self, name: str) -> bool:
        """Return whether a ledger file of this name can hold such rows."""
        return name.endswith(".parquet") and (not self.run_id or f"/{self.run_id}-" in name)

    def select(self, rows: pa.Table) -> pa.Table:
        """Return those of these LEDGER rows that are asked for."""
        kept = pc.is_valid(rows["address"])
        if self.run_id:
            kept = pc.and_(kept, pc.equal(rows["run_id"], self.run_id))
        if self.path.endswith("/"):
            kept = pc.and_(kept, pc.starts_with(rows["path"], self.path))
        elif self.path:
            kept = pc.and_(kept, pc.equal(rows["path"], self.path))
        if self.address:
            kept = pc.and_(kept, pc.equal(rows["address"], self.address))
        if self.state is not None:
            kept = pc.and_(kept, pc.equal(rows["state"], self.state.value))
        if self.since_ms is not None:
            since = pa.scalar(self.since_ms, rows.schema.field("deleted_at").type)
            kept = pc.and_(kept, pc.greater_equal(rows["deleted_at"], since))
        return rows.filter(kept)


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `ledger`, with times in milliseconds."""

    run_id: str
    address: str
    size_bytes: int
    reason: str
    deleted_ms: int
    error: str
    path: str
    rule: str
    state: LedgerState


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the rows that were asked for, oldest runs first. More, or a look into more files, with the token."""

    rows: tuple[LedgerRow, ...]
    continuation_token: str | None = None


def plain_rows(rows: pa.Table) -> list[LedgerRow]:
    names = [name for name in LedgerRow.__struct_fields__ if name != "deleted_ms"]
    columns = [rows["deleted_at"].cast(pa.int64()).to_pylist(), *(rows[name].to_pylist() for name in names)]
    return [
        LedgerRow(deleted_ms=deleted_ms, **dict(zip(names, row, strict=True)))
        for deleted_ms, *row in zip(*columns, strict=True)
    ]
