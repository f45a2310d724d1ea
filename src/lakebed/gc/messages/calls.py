"""Declare the messages of servers and collectors over HTTP (JSON), beside the files. One record a body.

Routes, below `/api/v1/repositories/{repository}/gc` (docs/formats/gc-run.md tells the order and the why). With the
query `deleted=UID` each is of the deleted repository that had this name; with `deleted=only` of the only one that had
it.

    POST planning                  (empty)           -> Planning            before anything that is slow begins
    POST runs                      StartRun          -> StartedRun
    POST runs/{id}/uncommitted     ReadUncommitted   -> UncommittedPage     again with its token until it has none
    POST runs/{id}/commits         PrepareCommits    -> PreparedCommits     may be empty
    POST runs/{id}/marked          Mark              -> RunView             409: abandoned, throw the work away
    POST runs/{id}/planned         NotePlanned       -> PlannedBy           the plan is written; says who made it
    POST runs/{id}/applying        Apply             -> RunView             before an apply writes or deletes anything
    POST runs/{id}/expire          Expire            -> RecheckInputs       again with its token until it has none
    POST runs/{id}/retire          RetireLeftovers   -> LeftoversRetired    of metadata, in place of expire
    POST runs/{id}/sweeping        Sweep             -> RunView
    POST runs/{id}/deferred        Defer             -> RunView             409: its window is over, it deletes
    POST runs/{id}/purging         Purge             -> RecheckInputs       again with its token until it has none
    POST runs/{id}/ended           End               -> RunView             409: that is not the plan it sweeps by
    POST runs/{id}/abandoned       (empty)           -> RunView
    GET  runs                                        -> RunList             newest first
    GET  runs/{id}                                   -> RunView
    POST purging                   (empty)           -> Purging             before an apply or a purge deletes anything
    GET  ../holds                                    -> Holds               in force now
    GET  slices                                      -> UnlistedSlices      those without a record
    POST slices                    (empty)           -> AdoptedSlices       and they have one now
    GET  missing                                     -> MissingCommits      after a restore of an older backup
    POST missing                   (empty)           -> MissingCommits      marks what no ref names
                                   both in pages, with &continuation_token=TOKEN
"""

from __future__ import annotations

import msgspec

from lakebed.base import RunKind, RunState
from lakebed.gc.rules import Holds, Rules

from .run.tables import Manifest, Part


class Planning(msgspec.Struct, frozen=True, kw_only=True):
    """Tell a caller that may plan here what it needs to know. Without rules no committed data can be planned but by
    rules to suppose. `namespace` is the storage namespace's URI.
    """

    has_rules: bool
    namespace: str = ""


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    kind: RunKind


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """`closed_slices` (names, ascending) were read after the run's record was there: only objects in these may be
    garbage. `namespace` is the storage namespace's URI without a slash at its end; `folder` the run's, inside it.
    `state` is `marking`, or `planning` for a committed run, which has no record yet. `uploads` (table UNCOMMITTED) are
    the addresses that were handed out when the closed slices were known: bytes may come to lie there after the slice
    was listed. A committed run has none. `open_slices` counts those that are not closed, `open_slice_names` names
    them. `delete_from_ms` is for a deleted repository: no plan that begins before it may be applied, for until then
    the repository can come back. `uid` is the repository's. It comes back with each step by which an apply goes on:
    another repository may have the name by then. Servers of earlier releases send none.
    """

    run_id: str
    kind: RunKind
    state: RunState
    namespace: str
    folder: str
    now_ms: int
    closed_slices: tuple[str, ...]
    open_slices: int = 0
    open_slice_names: tuple[str, ...] = ()
    uploads: Manifest | None = None
    delete_from_ms: int = 0
    uid: str = ""

    def all_slices(self) -> tuple[str, ...] | None:
        """Return the names of closed and open slices. None where the server did not name the open ones."""
        is_known = len(self.open_slice_names) == self.open_slices
        return (*self.closed_slices, *self.open_slice_names) if is_known else None


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its record has it. `expiring` counts commits; `plan` is the digest of the plan's manifest.

    `until_ms`: its deletes are deferred until then, for a `window`. `is_purging`: the window is over, and it deletes.
    `planned_by` is the user who made the plan, empty where that is unknown. The answer to `applying` says whether the
    apply `looks_again`: the caller did not make this plan. `sweeps` is the digest of the table that it may delete in
    place of the plan's, `saved` that of the run's saved state.
    """

    run_id: str
    kind: RunKind
    state: RunState
    started_ms: int
    expiring: int = 0
    plan: str = ""
    until_ms: int | None = None
    window: str = ""
    is_purging: bool = False
    planned_by: str = ""
    looks_again: bool = False
    sweeps: str = ""
    saved: str = ""


class NotePlanned(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` is the SHA-256 of the file `plan.json`, which is complete."""

    kind: RunKind
    plan: str


class PlannedBy(msgspec.Struct, frozen=True, kw_only=True):
    """Say who made a plan, by the server's record. `is_own`: the caller did, or a job of the server."""

    run_id: str
    by: str
    is_own: bool


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """`planned` also has runs without a record: they were only planned."""

    runs: tuple[RunView, ...]
    planned: tuple[PlannedBy, ...] = ()


class ReadUncommitted(msgspec.Struct, frozen=True, kw_only=True):
    continuation_token: str | None = None


class UncommittedPage(msgspec.Struct, frozen=True, kw_only=True):
    """`parts` were written by this page (none if it found nothing); the last page has `manifest` and no token."""

    run_id: str
    location: str
    parts: tuple[Part, ...]
    continuation_token: str | None = None
    manifest: Manifest | None = None


class PrepareCommits(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` counts for a run without a record: its folder goes by it. For metadata, `swept` holds only for commits
    that were swept longer ago than the readers' grace.
    """

    kind: RunKind = RunKind.COMMITTED


class PreparedCommits(msgspec.Struct, frozen=True, kw_only=True):
    """Every commit record (table COMMITS), every ref (REFS), the rules, and their version for `Expire`.

    `rules` None: none are set, and a committed run must stop here. A lifecycle run gets the `policy` instead, as
    JSON, and its version; empty: none is set. `holds` are the legal holds. `has_lost_trees`: a commit that was
    marked as gone a short while ago has no metarange, so a run of metadata knows none of its ranges, and takes
    none.
    """

    run_id: str
    commits: Manifest
    refs: Manifest
    rules: Rules | None
    rules_version: int
    policy: str = ""
    holds: Holds = Holds()
    has_lost_trees: bool = False


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` is the manifest of the plan (table GARBAGE), so that the record says what may be deleted."""

    plan: Manifest


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` is the digest of the plan's manifest, `rules_version` that of the rules which it is to expire by (0 where
    it expires no commits). `begins`: the apply does not only ask, but begins with this: from now on no collection of
    metadata ends a run of uncommitted data. `plan_file` is the SHA-256 of `plan.json`. `sweeps` and `saved` are
    digests for the run's record (RunView).
    """

    kind: RunKind
    plan: str
    rules_version: int = 0
    begins: bool = False
    uid: str = ""
    plan_file: str = ""
    sweeps: str = ""
    saved: str = ""


class Purging(msgspec.Struct, frozen=True, kw_only=True):
    """The repository's storage namespace, as in the repository: who got this answer may delete there, nowhere else.

    `mark` is a file that the server put there for this answer. A caller that does not find it looks at another store.
    """

    namespace: str
    mark: str


class Adopting(msgspec.Struct, frozen=True, kw_only=True):
    """Say who chose this installation for the namespace, and when."""

    adopted_by: str
    adopted_ms: int


class UnlistedSlices(msgspec.Struct, frozen=True, kw_only=True):
    """Name the slices that have no record: they can be adopted now."""

    slices: tuple[str, ...] = ()


class AdoptedSlices(msgspec.Struct, frozen=True, kw_only=True):
    """Name the slices that had no record and have one now: collections list them once they closed."""

    slices: tuple[str, ...] = ()


class MissingCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit whose tree lacks files, and what names it directly, such as `branch main`."""

    id: str
    refs: tuple[str, ...] = ()


class MissingCommits(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the commits whose trees lack files: `count` in all, of which refs name `named`. These come first.

    Of a call that marks: `marked` went by the run `run_id`, and the others are those that are left.
    With a continuation token ask again: the search goes on, or more commits follow. `read` files were read so far.
    """

    count: int = 0
    named: int = 0
    commits: tuple[MissingCommit, ...] = ()
    marked: int = 0
    run_id: str = ""
    read: int = 0
    continuation_token: str | None = None


class Expire(msgspec.Struct, frozen=True, kw_only=True):
    """`commits` (table EXPIRED) lies in the run's folder. The same body again, with the token, for each page.

    A lifecycle run expires no commits; `rules_version` is that of its policy. The plan was made by the legal holds of
    `holds_version`, at `planned_ms`: dates count from then (0: not known).
    """

    commits: Manifest
    rules_version: int
    planned_ms: int = 0
    holds_version: int = 0
    kind: RunKind = RunKind.COMMITTED
    continuation_token: str | None = None
    uid: str = ""


class RecheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the last page has everything but the token; of the others only the token and `run_id`.

    `commits` is the table COMMITS as read now: the plan may take what `expiring` rows name and must keep what any row
    names that is neither expiring nor swept. `uncommitted` must be kept too. `taken_out` counts the commits that were
    asked for and are kept after all; `closed_slices` bounds the plan as in StartedRun.
    """

    run_id: str
    continuation_token: str | None = None
    commits: Manifest | None = None
    refs: Manifest | None = None
    uncommitted: Manifest | None = None
    closed_slices: tuple[str, ...] = ()
    expiring: int = 0
    taken_out: int = 0


class RetireLeftovers(msgspec.Struct, frozen=True, kw_only=True):
    """`leftovers` (table LEFTOVERS) lies in the run's folder. The same list again after a crash, never another."""

    leftovers: Manifest
    uid: str = ""


class LeftoversRetired(msgspec.Struct, frozen=True, kw_only=True):
    """`commits` is the table COMMITS as read after the list was published and every branch bumped: files that a row
    names which is not swept must stay. So must the folders of `runs_alive`, and all ranges if it `has_lost_trees`
    (PreparedCommits).
    """

    run_id: str
    commits: Manifest
    refs: Manifest
    runs_alive: tuple[str, ...]
    has_lost_trees: bool = False


class End(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` is the digest of the plan that was carried out, as the run's record has it, `saved` that of the state
    that it saved.
    """

    plan: str
    saved: str = ""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` (table GARBAGE) was made from the inputs of the last `RecheckInputs`, whose `commits` comes back here: a
    plan made from an earlier one is refused. Sent again for a run that sweeps already, it resumes that run.
    """

    plan: Manifest
    commits: Manifest
    uid: str = ""


class Defer(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` (table GARBAGE) is what the run may delete now; its objects stay for the `window` (`7d`). Sent again, the
    window counts from then, if that makes it longer. `saved` is the digest of the state that the run saved.
    """

    plan: Manifest
    window: str
    saved: str = ""


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the last page has what is named now, as that of `Expire` has; it expires nothing."""

    continuation_token: str | None = None
