"""The verdict of a run, and all it rests on: a plan and its bytes (docs/formats/gc-plan.md).

Collectors write plans; they, the command line and the server show them. `plan.json` is written last of all, so a folder
that has one holds a complete plan; it carries a digest of itself and, through the manifests in it, of every file the
plan rests on. A plan that was changed is no plan.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import NotFound, RunId, RunKind
from lakebed.gc.rules import Rules

from .erasures import ErasureOrder, Outlook
from .manifests import BadInput, Manifest
from .paths import run_folder
from .sealed import Keeps, KnownDues, RunMode, seal, unseal

PLAN_FORMAT: Final = 1
UNKNOWN_FILES_MAX: Final = 1000
"""How many strange keys of a slice are named; the others are only counted."""


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


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Count what was found beside the rows themselves."""

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
    """`expired` ranges are those that no kept commit has: the only ones that were read for what may go."""

    live: int
    expired: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict and all it rests on. `expired` and `rules` are for committed runs, `leftovers` (what is wanted) for
    those of metadata, these for uncommitted ones:

    `erasure` is what was asked for, of an erasure, and `outlook` what it would leave. `policy` (JSON) is for
    lifecycle runs, whose `rules_version` is the policy's. It takes nothing that legal holds of `holds_version` keep.

    `dues` is what a lifecycle run saves for the next one. `active_only`: commits that the retention rules let go kept
    nothing, and do not when it is applied. Of those and of uncommitted ones:

    `listing`; `mode`, with `mode_note` saying why it was this one, and `based_on` the run whose saved state it goes on
    from; `keeps`, what will be saved for the next run, and `token_expiry_ms`: slices opened within so long before the
    run were not listed (`slices_skipped`); `beside`, unfinished runs of whose objects it takes none.

    `unknown_files` are some of `unknown_files_count` keys and folders (which end with /) of others.

    `what_if`: it was made by rules that were not saved, and has no version of them.

    `open_slices` were not closed when the run began: what lies in them is left to a later run.

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
    """A plan in a list of plans."""

    run_id: str
    kind: RunKind
    now_ms: int
    rules_version: int
    what_if: bool
    total: Total


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
    what = f"plan of run {run_id}"
    plan = unseal(data, Plan, name="plan", what=what, format_number=PLAN_FORMAT)
    if plan.run_id != run_id:
        raise BadInput(f"the {what} is that of run {plan.run_id}", input="plan")
    return plan


def plan_path(kind: RunKind, run_id: str) -> str:
    return f"{run_folder(kind, RunId(run_id))}plan.json"
