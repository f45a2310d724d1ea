"""Decide which objects no record names: the clean run of docs/design/0001-uncommitted-gc.md as a plain function.

Garbage is the store listing, minus committed addresses, minus uncommitted addresses, minus special paths. An object
whose name is not an address of Lakebed (an old layout, a user's file) is an unknown file: it is reported and kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lakebed.base import CommitId, parse_address

from .committed import DATA_PREFIX, EmptyLiveSet, Namespace, Trees, slice_of
from .history import History

__all__ = ["NOTHING_SAVED", "Saved", "check_live", "clean_run", "committed_addresses", "new_addresses", "optimised_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    """`unknown_files`: files below `data/` whose names are not addresses. `skipped`: addresses in open slices. `young`:
    garbage but for the rules' least age.
    """

    garbage: frozenset[str]
    unknown_files: frozenset[str]
    skipped: frozenset[str]
    young: frozenset[str] = frozenset()


def committed_addresses(history: History, trees: Trees) -> set[str]:
    """Return every address that a commit names, reachable or not. Swept commits name nothing."""
    # A sweep deleted the data of swept commits. An object that it left is garbage like any other.
    return trees.addresses_of(
        trees.ranges_of(commit.metarange_id for commit in history.commits.values() if not commit.swept)
    )


def clean_run(
    listing: Iterable[str],
    *,
    committed: Collection[str],
    uncommitted: Collection[str],
    namespace: Namespace,
    young_since_ms: int | None = None,
    uploaded_ms: Mapping[str, int] | None = None,
) -> CleanRun:
    """Judge the keys of the namespace in `listing`. Addresses are spelled as in entries, relative or absolute.

    Keep uploads at or after `young_since_ms` (`Rules.uncommitted_since_ms`); `uploaded_ms` then has the instant of
    each key. Raises KeyError for a missing instant: doubt stops the run.
    """
    live = namespace.keys_of(committed) | namespace.keys_of(uncommitted)
    users = {key for key in listing if key.startswith(DATA_PREFIX)}
    ours = {key for key in users if parse_address(key) is not None}
    # Every upload into a slice that was closed when the run began has ended. So an object there that no record names
    # now is never named again.
    closed = {key for key in ours if namespace.may_take(key)}
    unnamed = closed - live
    uploaded_ms = uploaded_ms or {}
    # The least age gives people time to think. Safety does not need it.
    young = set() if young_since_ms is None else {key for key in unnamed if uploaded_ms[key] >= young_since_ms}
    return CleanRun(
        garbage=frozenset(unnamed - young),
        unknown_files=frozenset(users - ours),
        skipped=frozenset(ours - closed),
        young=frozenset(young),
    )


def check_live(history: History, committed: Collection[str]) -> None:
    """Check that the committed addresses were read, or raise EmptyLiveSet."""
    if not committed and any(commit.metarange_id and not commit.swept for commit in history.commits.values()):
        raise EmptyLiveSet("there are commits with entries, but they name no address at all")


# Continue from the saved state of an earlier run ("Flow 2" of the document). Candidates are the objects that the
# earlier run kept although no commit named them, and the objects in slices that no run has listed. The earlier run
# deleted every other object in listed slices, or a commit of that time named it. The rule is that of a clean run.


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Hold the saved state of a run, once its deletes are done. Keys are relative to the namespace."""

    # Candidates that it did not delete and no commit named, also after a failed delete.
    kept: frozenset[str] = frozenset()
    # All slices that this run or an earlier one listed.
    slices: frozenset[str] = frozenset()
    commits: frozenset[CommitId] = frozenset()
    # At least the objects that `commits` name.
    committed: frozenset[str] = frozenset()


NOTHING_SAVED = Saved()
"""The base of a clean run."""


def new_addresses(history: History, trees: Trees, base: Saved) -> set[str]:
    """Return every address that a commit names which the base does not have and which was not swept."""
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
    """Return the verdict, and the saved state for the next run once all garbage is deleted.

    `listing` has at least the keys below `data/` in slices that the base has not listed. `uploads` are the addresses of
    upload records. `commits` are all commits of now. `committed` are the addresses of those that the base does not
    have. `garbage` may contain addresses without an object.

    From NOTHING_SAVED and without uploads this is `clean_run`. Raises KeyError for a candidate of unknown age.
    """
    users = {key for key in listing if key.startswith(DATA_PREFIX) and slice_of(key) not in base.slices}
    ours = {key for key in users if parse_address(key) is not None}
    listed = {key for key in ours if namespace.may_take(key)}
    # An object can arrive in a slice after its listing, but only at an address handed out before the slice closed. So
    # the caller reads upload records after the closed slices and before the listing. Read later, a record may have
    # expired and been removed while its bytes arrived.
    issued = {key for key in namespace.keys_of(uploads) if namespace.may_take(key) and slice_of(key) not in base.slices}
    # Commits of the base that were swept since keep their objects here. A clean run finds these objects.
    every_commit = base.committed | namespace.keys_of(committed)
    candidates = (base.kept | listed | issued) - every_commit
    unnamed = {key for key in candidates - namespace.keys_of(uncommitted) if namespace.may_take(key)}
    uploaded_ms = uploaded_ms or {}
    young = set() if young_since_ms is None else {key for key in unnamed if uploaded_ms[key] >= young_since_ms}
    garbage = frozenset(unnamed - young)
    # No list has an object whose address expired before its upload ended, or whose slice lost its owner. Only a clean
    # run finds it.
    found = CleanRun(
        garbage=garbage, unknown_files=frozenset(users - ours), skipped=frozenset(ours - listed), young=frozenset(young)
    )
    return found, Saved(
        kept=frozenset(candidates - garbage),
        slices=base.slices | namespace.closed,
        commits=base.commits | frozenset(commits),
        committed=frozenset(every_commit),
    )
