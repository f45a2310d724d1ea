"""Decide which objects nothing names: the clean run of docs/design/0001-uncommitted-gc.md as a plain function.

Store listing, minus committed addresses, minus uncommitted addresses, minus special paths. Only slices that were
closed when the run began count: every upload into them has ended, so an object there that nothing names now will never
be named again. What looks like no address of ours (an old layout, a user's file) is an unknown file: reported
and kept.

A repository's rules may give uncommitted data a least age: newer uploads stay for now. That is for
people who want an hour to think, and never for safety; it only ever keeps more.

Commits that were swept name nothing here: their data was taken, and what a sweep left of it is garbage like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lakebed.base import parse_address

from .committed import DATA_PREFIX, EmptyLiveSet, Namespace, Trees
from .history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    """`unknown_files` lie below `data/` and are no addresses of ours. `skipped`: in open slices. `young`: would go,
    were they not younger than the rules' least age.
    """

    garbage: frozenset[str]
    unknown_files: frozenset[str]
    skipped: frozenset[str]
    young: frozenset[str] = frozenset()


def committed_addresses(history: History, trees: Trees) -> set[str]:
    """Every address that some commit, reachable or not, names and was not swept of."""
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
    """`listing` are keys of the namespace. Addresses are as entries have them, relative or absolute.

    Uploads at or after `young_since_ms` stay (`Rules.uncommitted_since_ms`); then `uploaded_ms` has the
    instant of each key. KeyError where one is missing: doubt stops the run.
    """
    live = namespace.keys_of(committed) | namespace.keys_of(uncommitted)
    users = {key for key in listing if key.startswith(DATA_PREFIX)}
    ours = {key for key in users if parse_address(key) is not None}
    closed = {key for key in ours if namespace.may_take(key)}
    unnamed = closed - live
    uploaded_ms = uploaded_ms or {}
    young = set() if young_since_ms is None else {key for key in unnamed if uploaded_ms[key] >= young_since_ms}
    return CleanRun(
        garbage=frozenset(unnamed - young),
        unknown_files=frozenset(users - ours),
        skipped=frozenset(ours - closed),
        young=frozenset(young),
    )


def check_live(history: History, committed: Collection[str]) -> None:
    """
    Raises:
        EmptyLiveSet: there are commits with entries, and yet no committed address was read.
    """
    if not committed and any(commit.metarange_id and not commit.swept for commit in history.commits.values()):
        raise EmptyLiveSet("there are commits with entries, but they name no address at all")
