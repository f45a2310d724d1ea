"""The ledger: one row for each object and its outcome in a run. The ledger is never deleted.

    _lakefs/retention/gc/ledger/date=<YYYY-MM-DD>/<run>-<part>.<6 digits>.parquet    of a sweep
    _lakefs/retention/gc/ledger/date=<YYYY-MM-DD>/<run>-restore-<id>.parquet         of a restore
    _lakefs/retention/gc/ledger/date=<YYYY-MM-DD>/hard-delete-<id>.parquet           of hard delete

The files of one part of a plan form one *record*, numbered from 0. Every other file is a record of its own. The first
file has a row for each object of the part; later files have rows of objects with a new outcome. `fold` returns each
object's latest row. A row without an error is final, except that `gone` replaces `deleted`. No manifest names these
files. A file of an older release is refused.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import msgspec

from lakebed.base import AlreadyExists, OutcomeUnknown, RunKind, RunState, np, pa, pc
from lakebed.gc.rules import DAY_MS

from .paths import GC_PREFIX
from .plans import BrokenTable, RunMode
from .tables import LEDGER, BadInput, decode_part, encode_part, group_rows_of, read_json

__all__ = [
    "DELETED_AT_ONCE",
    "LEDGER_PREFIX",
    "Disagreement",
    "DisagreementPage",
    "Disagrees",
    "LedgerPage",
    "LedgerQuery",
    "LedgerRow",
    "LedgerState",
    "PurgeReport",
    "RunReport",
    "StageReport",
    "decode_ledger",
    "decode_record",
    "decode_report",
    "deleted_in",
    "encode_ledger",
    "encode_report",
    "fold",
    "give_way",
    "giving_way",
    "ledger_folder",
    "ledger_groups",
    "ledger_name",
    "ledger_records",
    "next_file",
    "plain_rows",
    "record_of",
    "run_of_record",
]


LEDGER_PREFIX: Final = f"{GC_PREFIX}ledger/"
GROUP_ROWS: Final = 1 << 14
"""Rows that a server decodes at a time to find one: about 5 ms. A whole part takes 80 ms."""


ATTEMPTS_MAX: Final = 8
"""Searches for a second record of the same deletions. After each search but the last, a record gave way."""
DELETED_AT_ONCE: Final = "/hard-delete-"
"""Part of the name of every file that hard delete wrote."""


class LedgerState(enum.StrEnum):
    """Name the outcome for an object.

    `failed`: the object may remain; its error gives the reason. `kept`: it is not the planned object, or an entry names
    it now. `gone`: a row of another run or of hard delete says `deleted`.
    """

    DELETED = "deleted"
    RESTORED = "restored"
    FAILED = "failed"
    KEPT = "kept"
    GONE = "gone"


def ledger_folder(at_ms: int) -> str:
    """Return the folder for rows of this day (UTC), with a slash at its end."""
    return f"{LEDGER_PREFIX}date={np.datetime64(at_ms // DAY_MS, 'D')}/"


_NUMBERED: Final = re.compile(r"(.+)\.(\d{6})\.parquet", re.ASCII)


def ledger_name(part: str, number: int) -> str:
    """Return the end of a ledger file's name: `part-0.000001.parquet` for number 1 of `part-0.parquet`."""
    return f"{part.removesuffix('.parquet')}.{number:06d}.parquet"


def record_of(name: str) -> str:
    """Return the record of a ledger file: `…/r1-part-0.parquet` of `…/r1-part-0.000001.parquet`."""
    numbered = _NUMBERED.fullmatch(name)
    return f"{numbered[1]}.parquet" if numbered else name


def ledger_records(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the ledger's records in the order of names, each as the names of its files from the first on."""
    return [tuple(files) for _, files in groupby(sorted(names), key=record_of)]


def run_of_record(names: Sequence[str]) -> str:
    """Return the id of the run that wrote a record. For hard delete's records it is not a run's id."""
    return names[0].rpartition("/")[2].partition("-")[0]


def next_file(names: Sequence[str]) -> str:
    """Return the name of the file that follows these files of a record."""
    numbers = [int(numbered[2]) for name in names if (numbered := _NUMBERED.fullmatch(name))]
    return ledger_name(record_of(names[0]), 1 + max(numbers, default=0))


def fold(files: Sequence[pa.Table]) -> pa.Table:
    """Return the LEDGER rows of a record, one for each object, given the rows of its files from the first on.

    An object's row is the one that says `gone`, or its first row without an error, or its last row. Objects keep the
    order of their first rows.
    """
    # Files are written once, if absent, and a final row wins, so an overtaken apply cannot replace another's rows.
    files = [rows for rows in files if rows.num_rows] or files[:1]
    if len(files) == 1:
        return files[0]
    rows = pa.concat_tables(files)
    is_final = pc.equal(rows["error"], "").to_pylist()
    is_gone = pc.equal(rows["state"], LedgerState.GONE.value).to_pylist()
    latest: dict[str, int] = {}
    for number, address in enumerate(rows["address"].to_pylist()):
        if (before := latest.get(address)) is None or not is_final[before] or is_gone[number]:
            latest[address] = number
    return rows.take(pa.array(latest.values(), pa.int64()))


def encode_ledger(rows: pa.Table) -> bytes:
    """Return LEDGER rows as one file that can be read a row group at a time."""
    return encode_part(LEDGER, rows, group_rows=GROUP_ROWS)


def ledger_groups(data: bytes, *, name: str) -> list[int]:
    """Return the number of rows in each row group of a file, or raise BadInput."""
    return group_rows_of(data, name=name)


def decode_ledger(data: bytes, *, name: str, group: int | None = None) -> pa.Table:
    """Return the LEDGER rows of one file, or of one of its row groups, or raise BadInput. `name`: the file's name in
    the error.
    """
    return decode_part(LEDGER, data, name=name, group=group)


def decode_record(names: Sequence[str], data: Sequence[bytes]) -> pa.Table:
    """Return the LEDGER rows of a record, given names and bytes of its files from the first on, or raise BadInput."""
    return fold([decode_ledger(bytes_, name=name) for name, bytes_ in zip(names, data, strict=True)])


def giving_way(rows: pa.Table, addresses: Collection[str]) -> pa.Table:
    """Return LEDGER rows that replace `deleted` in these rows by `gone`, for these addresses."""
    rows = rows.filter(pc.equal(rows["state"], LedgerState.DELETED.value))
    rows = rows.filter(pc.is_in(rows["address"], value_set=pa.array(sorted(addresses), pa.string())))
    number = rows.schema.get_field_index("state")
    gone = pa.repeat(pa.scalar(LedgerState.GONE.value, rows.schema.field(number).type), rows.num_rows)
    return rows.set_column(number, rows.schema.field(number), gone)


async def give_way(
    losers: Callable[[], Awaitable[Sequence[tuple[Sequence[str], pa.Table]]]],
    put: Callable[[str, bytes], Awaitable[object]],
) -> None:
    """Let records give way, each by a new file (`next_file`), until no two count one deletion.

    `losers` returns each record that must give way, and its new rows. `put` stores a file if it is absent.

    Raises:
        OutcomeUnknown: each of `ATTEMPTS_MAX` attempts lost its answer or lost to another process.
    """
    for _ in range(ATTEMPTS_MAX):
        giving = await losers()
        for names, rows in giving:
            # A faster process wrote the same rows. The next search shows whether they are stored.
            with suppress(AlreadyExists, OutcomeUnknown):
                await put(next_file(names), encode_ledger(rows))
        if not giving:
            return
    raise OutcomeUnknown("whether each deletion is counted once is not known", key=LEDGER_PREFIX)


def deleted_in(rows: pa.Table) -> set[str]:
    """Return the addresses that these LEDGER rows have as deleted."""
    return set(rows.filter(pc.equal(rows["state"], LedgerState.DELETED.value))["address"].to_pylist())


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerQuery:
    """Select rows of the ledger. Empty fields do not filter.

    `path` with a slash at its end selects all paths below it.
    """

    run_id: str = ""
    path: str = ""
    address: str = ""
    state: LedgerState | None = None
    # The earliest `deleted_at`.
    since_ms: int | None = None

    def matches(self, name: str) -> bool:
        """Return whether a ledger file of this name can have such rows."""
        return name.endswith(".parquet") and (not self.run_id or f"/{self.run_id}-" in name)

    def select(self, rows: pa.Table) -> pa.Table:
        """Return the LEDGER rows that match."""
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

    @property
    def is_erasure(self) -> bool:
        return self.reason == "erasure"


class LedgerPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the selected rows, oldest runs first or, if asked, newest first. With the token, ask for more rows, or to
    search more files.
    """

    rows: tuple[LedgerRow, ...]
    continuation_token: str | None = None


def plain_rows(rows: pa.Table) -> list[LedgerRow]:
    names = [name for name in LedgerRow.__struct_fields__ if name != "deleted_ms"]
    columns = [rows["deleted_at"].cast(pa.int64()).to_pylist(), *(rows[name].to_pylist() for name in names)]
    return [
        LedgerRow(deleted_ms=deleted_ms, **dict(zip(names, row, strict=True)))
        for deleted_ms, *row in zip(*columns, strict=True)
    ]


class Disagrees(enum.StrEnum):
    """Name a difference between the ledger and plans or the store.

    `unplanned`: no plan has the object. `unrecorded`: its run has ended, and the ledger has no row of it. `there`: the
    ledger has it as deleted, and the store has it. `twice`: more than one row counts its deletion.
    """

    UNPLANNED = "unplanned"
    UNRECORDED = "unrecorded"
    THERE = "there"
    TWICE = "twice"


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    address: str
    what: Disagrees


class DisagreementPage(msgspec.Struct, frozen=True, kw_only=True):
    """The disagreements that this page found. One may be repeated. With the token, ask to compare more."""

    disagreements: tuple[Disagreement, ...]
    continuation_token: str | None = None


# The report of a run, `<run folder>/report.json`, is for people: no decision depends on it
# (docs/design/0001-uncommitted-gc.md). The collector writes it before the run ends, and also when it deleted nothing.

REPORT_FORMAT: Final = 1


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of an apply, `recheck` or `sweep`. `rows`: its objects. `size_bytes`: their bytes."""

    name: str
    rows: int
    size_bytes: int
    wall_s: float


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of an apply."""

    format: int = REPORT_FORMAT
    run_id: str
    kind: RunKind
    state: RunState
    repository: str
    namespace: str
    run_start_time_ms: int
    run_end_time_ms: int
    dry_run: bool
    # See the plan.
    mode: RunMode = RunMode.CLEAN
    based_on: str = ""
    token_expiry_ms: int = 0
    slices_skipped: int = 0
    # The newest listed slice (names sort newest first), or empty.
    last_read_slice: str
    slices_listed: int
    # The digest of each input's manifest, by the input's name.
    inputs: dict[str, str]
    garbage_objects: int
    garbage_bytes: int
    objects_deleted: int
    bytes_deleted: int
    objects_failed: int
    objects_held: int = 0
    # Nothing is deleted yet, and the garbage stays until then.
    deferred_until_ms: int | None = None
    # Messages about some of the failed objects. Legal holds keep `objects_held` of the failed objects.
    errors: tuple[str, ...] = ()
    # Objects in no slice that were written again since the plan.
    objects_kept: int = 0
    bytes_kept: int = 0
    # Objects that another run or hard delete had deleted before.
    objects_gone: int = 0
    bytes_gone: int = 0
    commits_expired: int = 0
    # Files of other programs, which are never deleted.
    unknown_files: tuple[str, ...] = ()
    # See the plan.
    tables: tuple[BrokenTable, ...] = ()
    stages: tuple[StageReport, ...] = ()


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a purge. `purged`: the runs whose window is over. `waiting`: the other deferred runs."""

    purged: tuple[str, ...]
    waiting: tuple[str, ...]
    objects_purged: int
    bytes_purged: int
    objects_failed: int
    # Messages about some of the failed objects.
    errors: tuple[str, ...] = ()


def encode_report(report: RunReport) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode_report(data: bytes, *, name: str) -> RunReport:
    """Decode a report, or raise BadInput."""
    report = read_json(data, RunReport, what=f"report {name}", name=name)
    if report.format != REPORT_FORMAT:
        raise BadInput(f"report {name} has the unknown format {report.format}", input=name)
    return report
