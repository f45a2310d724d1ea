"""The JSON files that a run leaves for people, later steps and later runs, sealed with a digest of their value.

    {"format": 1, "sha256": "<64 hex digits>", "<name>": {…}}

- `plan.json` (docs/formats/gc-plan.md): the run's verdict, and the manifests of all its inputs. Written last, so a
  folder with a plan is complete.
- `deferred.json`, `purge.json`: the objects whose deletes wait for a window (docs/design/0010-deferred-delete.md)
- `recheck.<recheck>.json`: the objects that a recheck lets the run delete
- `saved.json` (docs/formats/gc-saved.md): the state for the next run of uncommitted data, or by a policy. Written after
  every delete was tried. A run that cannot trust the state makes a clean run.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final, Protocol, TypeVar

import msgspec

from lakebed.base import Invalid, NotFound, RunId, RunKind
from lakebed.gc.messages.erasures import ErasureOrder, Outlook
from lakebed.gc.rules import Rules, parse_duration

from .paths import run_folder
from .tables import BadInput, Manifest, Part, read_json

__all__ = [
    "AGES",
    "NAMED_MAX",
    "RECHECK",
    "UNKNOWN_FILES_MAX",
    "BadWindow",
    "BrokenTable",
    "BrokenTables",
    "Cleared",
    "CommitCounts",
    "Deferred",
    "FindTables",
    "Found",
    "Keeps",
    "KnownDues",
    "Pieces",
    "Plan",
    "PlanList",
    "PlanMissing",
    "PlanSummary",
    "RangeCounts",
    "RunMode",
    "Saved",
    "SavedDues",
    "Total",
    "Totals",
    "TreePart",
    "decode_deferred",
    "decode_plan",
    "decode_recheck",
    "decode_saved",
    "decode_saved_dues",
    "deferred_path",
    "encode_deferred",
    "encode_plan",
    "encode_saved",
    "plan_path",
    "purge_path",
    "saved_path",
    "window_end_ms",
]

NAMED_MAX = 100
"""The number of refs, and of snapshots, that are named of a table. All are counted."""


PLAN_FORMAT: Final = 1
UNKNOWN_FILES_MAX: Final = 1000
"""The number of unknown keys of a slice that are named. All are counted."""


class RunMode(enum.StrEnum):
    """Choose the objects that a run of uncommitted data considers.

    Clean: every closed slice. Optimised: the changes since an earlier run. Old layout: the objects outside slices.
    """

    CLEAN = "clean"
    OPTIMISED = "optimised"
    OLD_LAYOUT = "old-layout"


class PlanMissing(NotFound):
    """The namespace has no plan of the run: the run is another repository's, still planning, or stopped early."""


AGES: Final = (("<1d", 1), ("1-7d", 7), ("7-30d", 30), ("30-90d", 90), ("90d-1y", 365), (">1y", None))
"""Names of totals by age, youngest first, each with its upper bound in days before the run's now.

The age is from the object's last write or, for committed data, from the newest commit that had it.
"""


class Total(msgspec.Struct, frozen=True, kw_only=True):
    objects: int = 0
    size_bytes: int = 0

    def plus(self, more: Total) -> Total:
        return Total(objects=self.objects + more.objects, size_bytes=self.size_bytes + more.size_bytes)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The garbage, counted in several ways; each way adds up to `all`. Plans of earlier releases have no `by_age`."""

    all: Total = Total()
    by_reason: dict[str, Total] = {}
    by_rule: dict[str, Total] = {}
    by_branch: dict[str, Total] = {}
    by_prefix: dict[str, Total] = {}
    by_slice: dict[str, Total] = {}
    by_age: dict[str, Total] = {}

    def in_order_of_age(self) -> dict[str, Total]:
        """Return the totals by age, youngest first."""
        return {name: self.by_age[name] for name, _ in AGES if name in self.by_age}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Count the files that the plan's listing saw."""

    objects: int = 0
    size_bytes: int = 0
    slices: int = 0
    unknown_files: tuple[str, ...] = ()
    unknown_files_count: int = 0

    def plus(self, more: Found) -> Found:
        return Found(
            objects=self.objects + more.objects,
            size_bytes=self.size_bytes + more.size_bytes,
            slices=self.slices + more.slices,
            unknown_files=(self.unknown_files + more.unknown_files)[:UNKNOWN_FILES_MAX],
            unknown_files_count=self.unknown_files_count + more.unknown_files_count,
        )


class CommitCounts(msgspec.Struct, frozen=True, kw_only=True):
    all: int
    kept: int
    expired: int
    swept: int


class RangeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Count ranges. `expired`: ranges that no kept commit has. Only these were read for candidates."""

    live: int
    expired: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a run and all its inputs.

    `expired`, `rules`: for committed runs.

    For uncommitted and lifecycle runs: `mode`, with its reason in `mode_note`. The run continues from the saved state
    of the run `based_on`. For uncommitted runs: `listing`, and `keeps`, the state for the next run. Slices opened
    within `token_expiry_ms` before the run were not listed (`slices_skipped`). The plan has no object of the unfinished
    runs in `beside`. `erasures` were published when the run began to read.

    """

    run_id: str
    kind: RunKind
    repository: str
    namespace: str
    # The start of the run, and the plan's completion (0 in plans of earlier releases).
    now_ms: int
    made_ms: int = 0
    closed_slices: int
    # Slices open when the run began; a later run considers their objects.
    open_slices: int = 0
    rules: Rules | None
    rules_version: int
    # For lifecycle runs, whose `rules_version` is the policy's version (JSON).
    policy: str = ""
    # The order of an erasure, and the content that it would leave.
    erasure: ErasureOrder | None = None
    outlook: Outlook | None = None
    # All slices at the start, open ones too (collectors' table CLOSED).
    slices: Pieces | None = None
    # The version of the legal holds that the plan respects.
    holds_version: int = 0
    commits: Manifest
    refs: Manifest
    uncommitted: Manifest | None = None
    expired: Manifest | None = None
    # The metadata to delete, for metadata runs.
    leftovers: Manifest | None = None
    listing: Found | None = None
    mode: RunMode = RunMode.CLEAN
    mode_note: str = ""
    based_on: str = ""
    beside: tuple[str, ...] = ()
    erasures: tuple[str, ...] = ()
    keeps: Keeps | None = None
    # The state that a lifecycle run saves for the next run.
    dues: KnownDues | None = None
    # Commits that the retention rules let expire keep no objects, now and when the plan is applied.
    active_only: bool = False
    # The repository's uid ("" in plans of earlier releases). Another repository of this name refuses the plan.
    uid: str = ""
    token_expiry_ms: int = 0
    slices_skipped: int = 0
    last_read_slice: str = ""
    commit_counts: CommitCounts
    range_counts: RangeCounts
    garbage: Manifest
    totals: Totals
    # Some of `unknown_files_count` keys and folders (with a slash at the end) of other programs.
    unknown_files: tuple[str, ...] = ()
    unknown_files_count: int = 0
    # The repository has Iceberg tables.
    has_tables: bool = False
    # Those that could not be read any more.
    tables: tuple[BrokenTable, ...] = ()
    # The plan's rules were not saved, and have no version.
    what_if: bool = False
    # For deleted repositories; a plan whose `now_ms` is earlier is never applied.
    delete_from_ms: int = 0

    @property
    def leaves_state(self) -> bool:
        """Return whether the next run may go on from this one."""
        return self.dues is not None or self.keeps is not None

    @property
    def folder(self) -> str:
        return run_folder(self.kind, RunId(self.run_id))

    def by_branch(self) -> dict[str, Total]:
        """Return the objects by branch, each once. Of an erasure, an object of several branches is in each."""
        if self.outlook is None:
            return self.totals.by_branch
        return {
            row.branch or "(no branch: history or tags)": Total(objects=row.objects, size_bytes=row.size_bytes)
            for row in self.outlook.by_branch or ()
        }


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in a list of plans. `planned_by`: the author in the server's record, or empty. `why`: of an erasure."""

    run_id: str
    kind: RunKind
    now_ms: int
    rules_version: int
    what_if: bool
    total: Total
    planned_by: str = ""
    why: str = ""


class PlanList(msgspec.Struct, frozen=True, kw_only=True):
    """Plans, newest first. If `has_more`, ask for the next page after the last plan's id."""

    plans: tuple[PlanSummary, ...]
    has_more: bool


def encode_plan(plan: Plan) -> bytes:
    return seal(plan, name="plan", format_number=PLAN_FORMAT)


def decode_plan(data: bytes, run_id: str) -> Plan:
    """Decode a plan, or raise BadInput."""
    return _unseal_of_run(data, Plan, run_id, name="plan", what=f"plan of run {run_id}", format_number=PLAN_FORMAT)


def plan_path(kind: RunKind, run_id: str) -> str:
    return f"{run_folder(kind, RunId(run_id))}plan.json"


DEFERRED_FORMAT: Final = 1


class BadWindow(Invalid):
    """The window has no end."""


class Deferred(msgspec.Struct, frozen=True, kw_only=True):
    """`garbage` (table GARBAGE): the objects that stay for the window."""

    run_id: str
    # The end of the window is only in the run's record: one conditional write decides between a longer window and
    # deletes.
    kind: RunKind
    garbage: Manifest


def purge_path(kind: RunKind, run_id: str) -> str:
    """Return the path of the list of objects to delete after the window, from which named objects are left out."""
    return f"{run_folder(kind, RunId(run_id))}purge.json"


def deferred_path(kind: RunKind, run_id: str) -> str:
    return f"{run_folder(kind, RunId(run_id))}deferred.json"


def encode_deferred(deferred: Deferred) -> bytes:
    return seal(deferred, name="deferred", format_number=DEFERRED_FORMAT)


def decode_deferred(data: bytes, run_id: str) -> Deferred:
    """Decode a list of deferred objects, or raise BadInput."""
    what = f"list of what run {run_id} defers"
    return _unseal_of_run(data, Deferred, run_id, name="deferred", what=what, format_number=DEFERRED_FORMAT)


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """`recheck.<recheck>.json`: the objects to delete (`size_bytes` in all), and the table COMMITS of their check."""

    # Each recheck has its own table and file, so that two applies at once do not overwrite each other's.
    # The file is not sealed: the run's record has its digest.
    garbage: Manifest
    commits: Manifest
    expiring: int = 0
    size_bytes: int = 0

    def is_of(self, digest: str) -> bool:
        """Return whether a record with this digest lets its run delete this table."""
        # The table's folder is part of the digest, and ends with the digest of the commits.
        is_of_commits = self.garbage.folder.rstrip("/").endswith(f".{self.commits.digest()[:16]}")
        return self.garbage.digest() == digest and is_of_commits


RECHECK: Final = "recheck."
"""The prefix of these files in a run's folder."""


def decode_recheck(data: bytes, *, name: str) -> Cleared:
    """Decode a recheck, or raise BadInput."""
    return read_json(data, Cleared, what=name, name="recheck")


def window_end_ms(window: str, begin_ms: int) -> int:
    """Return the first instant after a window that begins at `begin_ms`.

    Raises:
        InvalidDuration, BadWindow: the window is not a duration, or has no end.
    """
    until_ms = parse_duration(window).over_ms(begin_ms, begin_ms)
    if until_ms is None:
        raise BadWindow("a window has an end: use 7d, 36h or 2w", window=window)
    return until_ms


SAVED_FORMAT: Final = 1


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a collector's own table. `folder` is relative to the namespace and ends with a slash."""

    folder: str
    parts: tuple[Part, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class Keeps(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a plan that a later run need not compute again, in the run's folder."""

    # Candidates that stay although no commit names them.
    kept: Pieces
    # A bitmap for each slice, with at least the objects that the unswept commits in `commits` name.
    committed: Pieces
    # The ids of the ranges behind these bitmaps.
    ranges: Pieces
    # The slices that this run or an earlier one listed.
    slices: Pieces
    commits: Manifest
    # The first run of the chain.
    clean_run: str
    clean_ms: int
    # The number of optimised runs since.
    runs_since_clean: int = 0


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`: the digest of the plan's garbage, as in the run's record. `failed`: its objects whose delete failed."""

    run_id: str
    repository: str
    namespace: str
    plan: str
    run_start_time_ms: int
    last_read_slice: str
    keeps: Keeps
    failed: Pieces


class TreePart(msgspec.Struct, frozen=True, kw_only=True):
    """Some metaranges (`trees`) with their ranges, in a folder of a run (docs/formats/gc-saved.md).

    The pair may also be wide metaranges with their sublists, or sublists with their ranges.
    """

    folder: str
    trees: Part
    ranges: Part


class KnownDues(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a lifecycle run for all objects that commits name, in the run's folder.

    `ranges` were read by `terms`: for each rule the periods of the branches that reach a range, or None for never.
    """

    trees: tuple[TreePart, ...]
    wide: tuple[TreePart, ...] = ()
    sublists: tuple[TreePart, ...] = ()
    ranges: Pieces
    # The time from which each object is due. The objects that the runs in `taken` took are marked in `hours`.
    hours: Pieces
    terms: tuple[tuple[tuple[str, ...] | None, ...], ...]
    taken: tuple[str, ...] = ()
    # The first run of the chain.
    clean_run: str
    # The number of runs that continued from it.
    runs_since_clean: int = 0


class SavedDues(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`: the digest of the table that the run may delete, as in its record. The `hours` are by `policy`."""

    run_id: str
    repository: str
    namespace: str
    plan: str
    policy: str
    dues: KnownDues


def saved_path(run_id: str, kind: RunKind) -> str:
    return f"{run_folder(kind, RunId(run_id))}saved.json"


def encode_saved(saved: Saved | SavedDues) -> bytes:
    return seal(saved, name="saved", format_number=SAVED_FORMAT)


def decode_saved(data: bytes, run_id: str) -> Saved:
    """Decode the saved state of a run of uncommitted data, or raise BadInput."""
    return _unseal_saved(data, Saved, run_id)


def decode_saved_dues(data: bytes, run_id: str) -> SavedDues:
    """Decode the saved state of a lifecycle run. See `decode_saved`."""
    return _unseal_saved(data, SavedDues, run_id)


T = TypeVar("T")


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    sha256: str


def seal(value: msgspec.Struct, *, name: str, format_number: int) -> bytes:
    # The digest covers the bytes of the value, so a reader accepts all of the value or nothing.
    body = msgspec.json.encode(value)
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode({"format": format_number, "sha256": digest, name: msgspec.Raw(body)})


def unseal(data: bytes, kind: type[T], *, name: str, what: str, format_number: int) -> T:
    """Decode a sealed value, or raise BadInput. `what` names it in the error."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format != format_number:
            raise BadInput(f"the {what} has the format {envelope.format}, not {format_number}", input=name)
        body = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get(name, msgspec.Raw())
        if hashlib.sha256(bytes(body)).hexdigest() != envelope.sha256:
            raise BadInput(f"the {what} contradicts its digest", input=name)
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"the {what} is unreadable: {error}", input=name) from error


class _OfRun(Protocol):
    @property
    def run_id(self) -> str: ...


OfRun = TypeVar("OfRun", bound=_OfRun)


def _unseal_of_run(data: bytes, kind: type[OfRun], run_id: str, *, name: str, what: str, format_number: int) -> OfRun:
    """Decode a sealed file of this run."""
    found = unseal(data, kind, name=name, what=what, format_number=format_number)
    if found.run_id != run_id:
        raise BadInput(f"the {what} is that of run {found.run_id}", input=name)
    return found


def _unseal_saved(data: bytes, kind: type[OfRun], run_id: str) -> OfRun:
    what = f"saved state of run {run_id}"
    return _unseal_of_run(data, kind, run_id, name="saved", what=what, format_number=SAVED_FORMAT)


# Iceberg tables that a plan would break: a file that their metadata reaches is among its objects


class FindTables(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: the table `table_files` of a plan."""

    kind: RunKind
    files: Manifest


class BrokenTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of some branches or tags, and its files that the plan takes.

    `refs`, `snapshots`: some of `refs_count` and `snapshots_count`.
    """

    table: str
    uuid: str
    refs: tuple[str, ...]
    refs_count: int
    files: int
    snapshots: tuple[int, ...] = ()
    snapshots_count: int = 0
    # The current snapshot, or the metadata itself, is among those that cannot be read any more.
    is_current: bool = False
    # False where the metadata cannot be read, or the server has no catalog of tables; then the snapshots are not known.
    is_known: bool = True


class BrokenTables(msgspec.Struct, frozen=True, kw_only=True):
    tables: tuple[BrokenTable, ...]
