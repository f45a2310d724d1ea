"""A run that continues from the saved state of an earlier one: docs/design/0001-uncommitted-gc.md, "Flow 2", as a plain
function.

What may be garbage now is what the earlier run could have taken and did not, in slices that it listed; and what lies in
slices that no run has listed yet. All else in listed slices was taken then, or is named by a commit that was there
then. So a run after a small change looks at little, and decides by the same rule as a clean run: of its candidates,
objects that neither a commit nor anything uncommitted names now.

Bytes can come to lie in a slice after it was listed, but only at an address handed out before the slice closed. So
upload records are candidates too, read after the closed slices and before the listing: later, one may have expired and
gone together with the bytes that came meanwhile.

Commits differ by id and slices by name; no date and no order decides anything. Commits of the base that were
swept since keep their objects here. Objects that came to an address after it had expired, or to a slice whose owner had
been given up, are in no list. A clean run finds all these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lakebed.base import CommitId, parse_address

from .committed import DATA_PREFIX, Namespace, Trees, slice_of
from .history import History
from .uncommitted import CleanRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Hold the saved state of a run, once its deletes are done. Keys are those inside the namespace.

    `kept`: what it could have taken and did not, and no commit named; what could not be deleted belongs here too.
    `slices`: all that it or a run before it listed. `committed`: the objects that `commits` name, or more.
    """

    kept: frozenset[str] = frozenset()
    slices: frozenset[str] = frozenset()
    commits: frozenset[CommitId] = frozenset()
    committed: frozenset[str] = frozenset()


NOTHING_SAVED = Saved()
"""From here a clean run goes on."""


def new_addresses(history: History, trees: Trees, base: Saved) -> set[str]:
    """Every address that a commit names which the base does not know and which was not swept."""
    new = (commit for id_, commit in history.commits.items() if id_ not in base.commits and not commit.swept)
    return trees.addresses_of(trees.ranges_of(commit.metarange_id for commit in new))


def optimised_run(
    base: Saved,
    listing: Iterable[str],
    *,
    uploads: Collection[str],
    commits: Iterable[CommitId],
    committed: Collection[str],
    uncommitted: Collection[str],
    namespace: Namespace,
    young_since_ms: int | None = None,
    uploaded_ms: Mapping[str, int] | None = None,
) -> tuple[CleanRun, Saved]:
    """The verdict, and the saved state for the next run once all garbage is deleted.

    `listing` holds the keys below `data/` at least of slices that the base has not; `uploads` are addresses handed out,
    read before it. `commits` are those there are now, `committed` what those of them name that the base has not.
    `garbage` may name addresses at which no bytes ever came.

    From NOTHING_SAVED and without uploads this is `clean_run`. KeyError where the age of a candidate is not known.
    """
    users = {key for key in listing if key.startswith(DATA_PREFIX) and slice_of(key) not in base.slices}
    ours = {key for key in users if parse_address(key) is not None}
    listed = {key for key in ours if namespace.may_take(key)}
    issued = {key for key in namespace.keys_of(uploads) if namespace.may_take(key) and slice_of(key) not in base.slices}
    every_commit = base.committed | namespace.keys_of(committed)
    candidates = (base.kept | listed | issued) - every_commit
    unnamed = {key for key in candidates - namespace.keys_of(uncommitted) if namespace.may_take(key)}
    uploaded_ms = uploaded_ms or {}
    young = set() if young_since_ms is None else {key for key in unnamed if uploaded_ms[key] >= young_since_ms}
    garbage = frozenset(unnamed - young)
    found = CleanRun(
        garbage=garbage, unknown_files=frozenset(users - ours), skipped=frozenset(ours - listed), young=frozenset(young)
    )
    return found, Saved(
        kept=frozenset(candidates - garbage),
        slices=base.slices | namespace.closed,
        commits=base.commits | frozenset(commits),
        committed=frozenset(every_commit),
    )
