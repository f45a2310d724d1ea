"""Decide which objects no record names: the clean run of docs/design/0001-uncommitted-gc.md as a plain function.

Garbage is the store listing, minus committed addresses, minus uncommitted addresses, minus special paths. An object
whose name is not an address of Lakebed (an old layout, a user's file) is an unknown file: it is reported and kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lakebed.base import parse_address

from .committed import DATA_PREFIX, EmptyLiveSet, Namespace, Trees
from .history import History

__all__ = ["check_live", "clean_run", "committed_addresses"]


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
    """Check that the committed addresses were read.

    Raises:
        EmptyLiveSet: commits have entries, but no committed address was read.
    """
    if not committed and any(commit.metarange_id and not commit.swept for commit in history.commits.values()):
        raise EmptyLiveSet("there are commits with entries, but they name no address at all")
