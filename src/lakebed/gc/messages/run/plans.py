"""Files that a run leaves for people and for later steps and runs, as JSON that says itself whether it is whole.

    {"format": 1, "sha256": "<64 hex digits>", "<name>": {…}}

The digest is over the bytes of the value that is sealed. A reader believes all of it or nothing.

- `plan.json` (docs/formats/gc-plan.md): the verdict of a run, and through the manifests in it every file it rests on.
  Written last of all, so a folder that has one holds a complete plan. A plan that was changed is no plan.
- `deferred.json` and `purge.json`: the objects whose deletes wait for the end of a window
  (docs/design/0010-deferred-delete.md). The end stands in the run's record alone, where one conditional write decides
  between a longer window and the deletes.
- `recheck.<recheck>.json`: what a second look lets the run delete. It is not sealed, for the run's record has
  its digest.
- `saved.json` (docs/formats/gc-saved.md): what a run of uncommitted data or by a policy leaves for the next one. It is
  written when every delete of the run was tried. A run that finds anything amiss makes a clean run instead.
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
from .tables import BadInput, Manifest, Part

PLAN_FORMAT: Final = 1
UNKNOWN_FILES_MAX: Final = 1000
"""How many strange keys of a slice are named; the others are only counted."""


class RunMode(enum.StrEnum):
    """Say what a run of uncommitted data looks at: every closed slice; what changed since an earlier run; or what lies
    outside slices.
    """

    CLEAN = "clean"
    OPTIMISED = "optimised"
    OLD_LAYOUT = "old-layout"


class PlanMissing(NotFound):
    """The run has no plan: it is another repository's, it is still planning, or it stopped before it was done."""


AGES: Final = (("<1d", 1), ("1-7d", 7), ("7-30d", 30), ("30-90d", 90), ("90d-1y", 365), (">1y", None))
"""How totals by age are called, the youngest first, and below how many days before the run's now each is: by when an
object was last written or, of committed data, by the newest commit that had it."""


class Total(msgspec.Struct, frozen=True, kw_only=True):
    objects: int = 0
    size_bytes: int = 0

    def plus(self, more: Total) -> Total:
        return Total(objects=self.objects + more.objects, size_bytes=self.size_bytes + more.size_bytes)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The garbage, counted in several ways; each way adds up to `all`. Plans of before had no `by_age`."""

    all: Total = Total()
    by_reason: dict[str, Total] = {}
    by_rule: dict[str, Total] = {}
    by_branch: dict[str, Total] = {}
    by_prefix: dict[str, Total] = {}
    by_slice: dict[str, Total] = {}
    by_age: dict[str, Total] = {}

    def in_order_of_age(self) -> dict[str, Total]:
        """Return the totals by age, the youngest first."""
        return {name: self.by_age[name] for name, _ in AGES if name in self.by_age}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Count the files and rows of a plan beside the table itself."""

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
    """`expired` ranges are those that no kept commit has. Only these were read for candidates."""

    live: int
    expired: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and all it rests on. `expired` and `rules` are for committed runs, `leftovers` (what is wanted) for
    those of metadata, these for uncommitted ones:

    `erasure` is what was asked for, of an erasure, and `outlook` what it would leave. `slices` (collectors' table
    CLOSED) are all that there were when it began, open ones too. `policy` (JSON) is for
    lifecycle runs, whose `rules_version` is the policy's. It takes nothing that legal holds of `holds_version` keep.

    `dues` is what a lifecycle run saves for the next one. `active_only`: commits that the retention rules let go kept
    nothing, and do not when it is applied. Of those and of uncommitted ones:

    `listing`; `mode`, and in `mode_note` why it was this one. It goes on from the saved state of `based_on`, and saves
    `keeps` for the next run. Slices opened within `token_expiry_ms` before the run were not listed (`slices_skipped`).
    It takes no object of the unfinished runs in `beside`. `erasures` were published when the run began to look.

    `unknown_files` are some of `unknown_files_count` keys and folders (which end with /) of others.

    `what_if`: it was made by rules that were not saved, and has no version of them.

    `open_slices` were not closed when the run began: a later run considers their objects.

    `delete_from_ms` is for deleted repositories: a plan whose `now_ms` is before it is never applied.

    `uid` is that of the repository ("" in plans of before): another one of the name does not carry it out.

    `now_ms` is when the run began, `made_ms` when the plan was complete (0 in plans of before).
    """

    run_id: str
    kind: RunKind
    repository: str
    namespace: str
    now_ms: int
    made_ms: int = 0
    closed_slices: int
    open_slices: int = 0
    rules: Rules | None
    rules_version: int
    policy: str = ""
    erasure: ErasureOrder | None = None
    outlook: Outlook | None = None
    slices: Pieces | None = None
    holds_version: int = 0
    commits: Manifest
    refs: Manifest
    uncommitted: Manifest | None = None
    expired: Manifest | None = None
    leftovers: Manifest | None = None
    listing: Found | None = None
    mode: RunMode = RunMode.CLEAN
    mode_note: str = ""
    based_on: str = ""
    beside: tuple[str, ...] = ()
    erasures: tuple[str, ...] = ()
    keeps: Keeps | None = None
    dues: KnownDues | None = None
    active_only: bool = False
    uid: str = ""
    token_expiry_ms: int = 0
    slices_skipped: int = 0
    last_read_slice: str = ""
    commit_counts: CommitCounts
    range_counts: RangeCounts
    garbage: Manifest
    totals: Totals
    unknown_files: tuple[str, ...] = ()
    unknown_files_count: int = 0
    what_if: bool = False
    delete_from_ms: int = 0

    @property
    def folder(self) -> str:
        return run_folder(self.kind, RunId(self.run_id))


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in a list of plans. `planned_by` made it, by the server's record; empty where it has none. `why` is the
    reason of an erasure."""

    run_id: str
    kind: RunKind
    now_ms: int
    rules_version: int
    what_if: bool
    total: Total
    planned_by: str = ""
    why: str = ""


class PlanList(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. With more, the next page is after the last one's id."""

    plans: tuple[PlanSummary, ...]
    has_more: bool


def encode_plan(plan: Plan) -> bytes:
    return seal(plan, name="plan", format_number=PLAN_FORMAT)


def decode_plan(data: bytes, run_id: str) -> Plan:
    """
    Raises:
        BadInput: unreadable, of an unknown format, another run's, or changed.
    """
    return _unseal_of_run(data, Plan, run_id, name="plan", what=f"plan of run {run_id}", format_number=PLAN_FORMAT)


def plan_path(kind: RunKind, run_id: str) -> str:
    return f"{run_folder(kind, RunId(run_id))}plan.json"


DEFERRED_FORMAT: Final = 1


class BadWindow(Invalid):
    """The window has no end."""


class Deferred(msgspec.Struct, frozen=True, kw_only=True):
    """`garbage` (table GARBAGE) names the objects that stay for the window."""

    run_id: str
    kind: RunKind
    garbage: Manifest


def purge_path(kind: RunKind, run_id: str) -> str:
    """Return where an apply lists the objects to delete after the window: those that nothing names by then."""
    return f"{run_folder(kind, RunId(run_id))}purge.json"


def deferred_path(kind: RunKind, run_id: str) -> str:
    return f"{run_folder(kind, RunId(run_id))}deferred.json"


def encode_deferred(deferred: Deferred) -> bytes:
    return seal(deferred, name="deferred", format_number=DEFERRED_FORMAT)


def decode_deferred(data: bytes, run_id: str) -> Deferred:
    """
    Raises:
        BadInput: unreadable, of another format, another run's, or changed.
    """
    what = f"list of what run {run_id} defers"
    return _unseal_of_run(data, Deferred, run_id, name="deferred", what=what, format_number=DEFERRED_FORMAT)


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the objects that may be deleted now, and the table COMMITS of their check: `recheck.<recheck>.json`. The
    objects have `size_bytes`.

    Each recheck has a table and a file of its own, so that two applies at once do not overwrite each other's.
    """

    garbage: Manifest
    commits: Manifest
    expiring: int = 0
    size_bytes: int = 0

    def is_of(self, digest: str) -> bool:
        """Return whether a record with this digest let its run take this table."""
        # The folder of the table, which the digest covers, ends with the digest of the commits.
        is_of_commits = self.garbage.folder.rstrip("/").endswith(f".{self.commits.digest()[:16]}")
        return self.garbage.digest() == digest and is_of_commits


RECHECK: Final = "recheck."
"""The names of such files in a run's folder begin with this."""


def decode_recheck(data: bytes, *, name: str) -> Cleared:
    """
    Raises:
        BadInput: it is unreadable.
    """
    try:
        return msgspec.json.decode(data, type=Cleared)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{name} is unreadable: {error}", input="recheck") from error


def window_end_ms(window: str, begin_ms: int) -> int:
    """Return the first instant after a window that begins at `begin_ms`.

    Raises:
        InvalidDuration, BadWindow: not a duration, or one without an end.
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
    """Name the results of a plan that a later run need not compute again, in the run's own folder.

    `kept`: candidates that stay and that no commit names. `committed`: a bitmap for each slice of what the commits in
    `commits` name that were not swept, or more. `ranges`: the ids of the ranges that these bitmaps were made from.
    `slices`: those that this run or one before it listed. `clean_run` is the run at the beginning of the chain,
    `runs_since_clean` the number of optimised ones since.
    """

    kept: Pieces
    committed: Pieces
    ranges: Pieces
    slices: Pieces
    commits: Manifest
    clean_run: str
    clean_ms: int
    runs_since_clean: int = 0


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` is the digest of the plan's garbage, which the run's record has too. `failed` are those of them
    that could not be deleted.
    """

    run_id: str
    repository: str
    namespace: str
    plan: str
    run_start_time_ms: int
    last_read_slice: str
    keeps: Keeps
    failed: Pieces


class TreePart(msgspec.Struct, frozen=True, kw_only=True):
    """Some metaranges (`trees`) with the ranges that they have, in a folder of a run (docs/formats/gc-saved.md).

    Or wide metaranges with the sublists that they have, or sublists with their ranges.
    """

    folder: str
    trees: Part
    ranges: Part


class KnownDues(msgspec.Struct, frozen=True, kw_only=True):
    """Name the results of a lifecycle run about all objects that commits name, in its own folder.

    `ranges` were read, by `terms`: for each rule the periods of the branches that reach a range, None for never.
    `hours` say from when each object is due. What the runs in `taken` took is marked in them. `clean_run` is the run at
    the beginning of the chain, `runs_since_clean` counts those that went on from it.
    """

    trees: tuple[TreePart, ...]
    wide: tuple[TreePart, ...] = ()
    sublists: tuple[TreePart, ...] = ()
    ranges: Pieces
    hours: Pieces
    terms: tuple[tuple[tuple[str, ...] | None, ...], ...]
    taken: tuple[str, ...] = ()
    clean_run: str
    runs_since_clean: int = 0


class SavedDues(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` is the digest of the table that the run may delete, as in its record. The hours are by `policy`."""

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
    """
    Raises:
        BadInput: unreadable, of another format, another run's, or changed.
    """
    return _unseal_saved(data, Saved, run_id)


def decode_saved_dues(data: bytes, run_id: str) -> SavedDues:
    """Do likewise for a lifecycle run's."""
    return _unseal_saved(data, SavedDues, run_id)


T = TypeVar("T")


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    sha256: str


def seal(value: msgspec.Struct, *, name: str, format_number: int) -> bytes:
    body = msgspec.json.encode(value)
    digest = hashlib.sha256(body).hexdigest()
    return msgspec.json.encode({"format": format_number, "sha256": digest, name: msgspec.Raw(body)})


def unseal(data: bytes, kind: type[T], *, name: str, what: str, format_number: int) -> T:
    """
    Raises:
        BadInput: unreadable, of another format, or changed. Its message says `what`.
    """
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
    """Unseal a file of this run.

    Raises:
        BadInput: as `unseal`, or it is another run's.
    """
    found = unseal(data, kind, name=name, what=what, format_number=format_number)
    if found.run_id != run_id:
        raise BadInput(f"the {what} is that of run {found.run_id}", input=name)
    return found


def _unseal_saved(data: bytes, kind: type[OfRun], run_id: str) -> OfRun:
    what = f"saved state of run {run_id}"
    return _unseal_of_run(data, kind, run_id, name="saved", what=what, format_number=SAVED_FORMAT)
