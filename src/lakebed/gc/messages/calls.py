"""Declare the messages that servers and collectors exchange over HTTP. Each JSON body is one record.

docs/formats/gc-run.md has the routes, the order of the requests and its reasons. The files in run folders are in `run`.
"""

from __future__ import annotations

import msgspec

from lakebed.base import RunKind, RunState
from lakebed.gc.rules import Holds, Rules

from .run.tables import Manifest, Part

__all__ = [
    "AdoptedSlices",
    "Adopting",
    "Apply",
    "Defer",
    "End",
    "Expire",
    "LeftoversRetired",
    "Mark",
    "MissingCommit",
    "MissingCommits",
    "NotePlanned",
    "PlannedBy",
    "Planning",
    "PrepareCommits",
    "PreparedCommits",
    "Purge",
    "Purging",
    "ReadUncommitted",
    "RecheckInputs",
    "RetireLeftovers",
    "RunList",
    "RunView",
    "StartRun",
    "StartedRun",
    "Sweep",
    "UncommittedPage",
    "UnlistedSlices",
]


class Planning(msgspec.Struct, frozen=True, kw_only=True):
    """Allow the caller to plan. Without rules, committed data can only be planned by rules in the request."""

    has_rules: bool
    # The storage namespace's URI.
    namespace: str = ""


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    kind: RunKind


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it starts."""

    run_id: str
    kind: RunKind
    # `marking`, or `planning` for a committed run, which has no record yet.
    state: RunState
    # The storage namespace's URI, without a slash at its end.
    namespace: str
    # The run's folder inside it.
    folder: str
    now_ms: int
    # Read after the run's record was written. Only objects in them may be garbage (names, ascending).
    closed_slices: tuple[str, ...]
    # The number and the names of the slices that are not closed.
    open_slices: int = 0
    open_slice_names: tuple[str, ...] = ()
    # Addresses issued before the closed slices were known. Bytes may arrive at them after the slice was listed. A
    # committed run has no uploads (table UNCOMMITTED).
    uploads: Manifest | None = None
    # For a deleted repository, no plan begun before this time may be applied, as the repository can return until then.
    delete_from_ms: int = 0
    # The repository's uid, which every later step sends: another repository may have the name by then. Servers of
    # earlier releases send none.
    uid: str = ""

    def all_slices(self) -> tuple[str, ...] | None:
        """Return the names of closed and open slices, or None if the server did not name the open slices."""
        is_known = len(self.open_slice_names) == self.open_slices
        return (*self.closed_slices, *self.open_slice_names) if is_known else None


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run by its record. `expiring` counts commits; `plan` is the digest of the plan's manifest."""

    run_id: str
    kind: RunKind
    state: RunState
    started_ms: int
    expiring: int = 0
    plan: str = ""
    # The end of the `window` for which the deletes are deferred.
    until_ms: int | None = None
    window: str = ""
    # The window is over, and the run deletes.
    is_purging: bool = False
    # The user who made the plan, or empty.
    planned_by: str = ""
    # The user whose apply began, or empty.
    applied_by: str = ""
    # The caller did not make the plan, so the apply must plan again (answer to `applying`).
    looks_again: bool = False
    # The digest of the table that the run may delete instead of the plan's.
    sweeps: str = ""
    # The digest of the run's saved state.
    saved: str = ""
    # No branch may have taken some of its expired commits, and the oldest of these was written then.
    unpublished_ms: int | None = None


class NotePlanned(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`: the SHA-256 of the complete file `plan.json`."""

    kind: RunKind
    plan: str


class PlannedBy(msgspec.Struct, frozen=True, kw_only=True):
    """The author of a plan by the server's record. `is_own`: the author is the caller, or a job of the server."""

    run_id: str
    by: str
    is_own: bool


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """`planned` includes runs without a record, which were only planned."""

    runs: tuple[RunView, ...]
    planned: tuple[PlannedBy, ...] = ()


class ReadUncommitted(msgspec.Struct, frozen=True, kw_only=True):
    continuation_token: str | None = None


class UncommittedPage(msgspec.Struct, frozen=True, kw_only=True):
    """`parts`: the files that this page wrote, or none. The last page has `manifest` and no token."""

    run_id: str
    location: str
    parts: tuple[Part, ...]
    continuation_token: str | None = None
    manifest: Manifest | None = None


class PrepareCommits(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` applies to a run without a record, and selects its folder.

    For metadata, `swept` is set only for commits that were swept longer ago than the readers' grace. With `for_good` it
    is set only for commits that no undo can bring back.
    """

    kind: RunKind = RunKind.COMMITTED
    for_good: bool = False


class PreparedCommits(msgspec.Struct, frozen=True, kw_only=True):
    """Every commit record (table COMMITS), every ref (REFS), the rules, and their version for `Expire`.

    `rules` None: the repository has no rules, and a committed run must stop.
    """

    run_id: str
    commits: Manifest
    refs: Manifest
    rules: Rules | None
    rules_version: int
    # A lifecycle run gets the policy and its version instead of rules (JSON, or empty).
    policy: str = ""
    holds: Holds = Holds()
    # A commit that was recently marked as gone has no metarange. A metadata run cannot know its ranges, so it takes
    # none.
    has_lost_trees: bool = False
    # A file of a table that nothing names is pruned at this age. None: the repository has no tables, or the kind takes
    # no object that commits name.
    tables_ms: int | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`: the manifest of the plan (table GARBAGE). The run's record keeps its digest, to limit the deletes."""

    plan: Manifest


class Apply(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`: the digest of the plan's manifest. `rules_version`: the version of the rules to expire by, or 0."""

    kind: RunKind
    plan: str
    rules_version: int = 0
    # This request begins the apply. From now on no metadata run ends a run of uncommitted data.
    begins: bool = False
    uid: str = ""
    # The SHA-256 of `plan.json`.
    plan_file: str = ""
    # Digests for the run's record (RunView).
    sweeps: str = ""
    saved: str = ""


class Purging(msgspec.Struct, frozen=True, kw_only=True):
    """The repository's storage namespace. The caller may delete there, and nowhere else."""

    namespace: str
    # A file that the server wrote there for this answer. A caller that cannot find it reads another store.
    mark: str


class Adopting(msgspec.Struct, frozen=True, kw_only=True):
    """The user who chose this installation for the namespace, and the time."""

    adopted_by: str
    adopted_ms: int


class UnlistedSlices(msgspec.Struct, frozen=True, kw_only=True):
    """The slices without a record, which can be adopted now."""

    slices: tuple[str, ...] = ()


class AdoptedSlices(msgspec.Struct, frozen=True, kw_only=True):
    """The slices that have a record from now on. Collections list them once they are closed."""

    slices: tuple[str, ...] = ()


class MissingCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit whose tree lacks files, and the refs that name it directly, such as `branch main`."""

    id: str
    refs: tuple[str, ...] = ()


class MissingCommits(msgspec.Struct, frozen=True, kw_only=True):
    """A page of commits whose trees lack files: `count` in all, `named` of them by refs. The named commits come first.

    After a call that marks: the run `run_id` marked `marked` commits as gone, and the other commits are left. With a
    continuation token, ask again: the search continues, or has more commits. `read` counts the files read so far.
    """

    count: int = 0
    named: int = 0
    commits: tuple[MissingCommit, ...] = ()
    marked: int = 0
    run_id: str = ""
    read: int = 0
    continuation_token: str | None = None


class Expire(msgspec.Struct, frozen=True, kw_only=True):
    """`commits` (table EXPIRED) is in the run's folder. Send the same body again, with the token, for each page.

    A lifecycle run expires no commits; `rules_version` is the version of its policy. The plan was made by the legal
    holds of `holds_version`, at `planned_ms`: ages are measured from then (0: unknown).
    """

    commits: Manifest
    rules_version: int
    planned_ms: int = 0
    holds_version: int = 0
    kind: RunKind = RunKind.COMMITTED
    continuation_token: str | None = None
    uid: str = ""


class RecheckInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The last page has every field but the token. Other pages have only the token and `run_id`."""

    run_id: str
    continuation_token: str | None = None
    # The table COMMITS as read now. The plan may take objects that `expiring` rows name. It must keep every object that
    # a row names which is neither expiring nor swept, and every object of `uncommitted`.
    commits: Manifest | None = None
    refs: Manifest | None = None
    uncommitted: Manifest | None = None
    closed_slices: tuple[str, ...] = ()
    expiring: int = 0
    # The number of requested commits that are kept after all. `closed_slices` bounds the plan as in StartedRun.
    taken_out: int = 0


class RetireLeftovers(msgspec.Struct, frozen=True, kw_only=True):
    """`leftovers` (table LEFTOVERS) is in the run's folder. After a crash send the same list again, never another."""

    leftovers: Manifest
    uid: str = ""


class LeftoversRetired(msgspec.Struct, frozen=True, kw_only=True):
    """`commits`: the table COMMITS, read after the list was published and every branch bumped.

    Keep the files of every row that is not swept, and the folders of `runs_alive`. If it `has_lost_trees`
    (PreparedCommits), keep all ranges.
    """

    run_id: str
    commits: Manifest
    refs: Manifest
    runs_alive: tuple[str, ...]
    has_lost_trees: bool = False


class End(msgspec.Struct, frozen=True, kw_only=True):
    """`plan`: the digest of the plan carried out, as in the run's record. `saved`: the digest of the saved state."""

    plan: str
    saved: str = ""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` (table GARBAGE) was made from the last `RecheckInputs`, whose `commits` must be sent back here.

    The server refuses a plan made from earlier inputs. For a run that sweeps already, the request resumes the run.
    """

    plan: Manifest
    commits: Manifest
    uid: str = ""


class Defer(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` (table GARBAGE): the objects that the run may delete. They stay for the `window` (`7d`).

    A repeated request restarts the window if that makes it longer.
    """

    plan: Manifest
    window: str
    # The digest of the run's saved state.
    saved: str = ""


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """The last page has the names in force now, like the answer of `Expire`. The request expires no commit."""

    continuation_token: str | None = None
