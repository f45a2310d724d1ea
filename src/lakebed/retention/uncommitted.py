"""Which objects nothing names: the clean run of docs/design/0001-uncommitted-gc.md as a plain function.

Store listing, minus committed addresses, minus uncommitted addresses, minus special paths. Only slices that were
settled when the run began count: every upload into them has ended, so an object there that nothing names now will never
be named again. What looks like no address of ours (an old layout, a file that somebody put there) is a stray: reported
and kept.

Commits that were swept name nothing here: their data was taken, and what a sweep left of it is garbage like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lakebed.base import parse_address

from .committed import DATA_PREFIX, EmptyLiveSet, Namespace, Trees
from .history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    """`strays` lie below `data/` and are no addresses of ours. `skipped`: in slices not settled yet."""

    doomed: frozenset[str]
    strays: frozenset[str]
    skipped: frozenset[str]


def committed_addresses(history: History, trees: Trees) -> set[str]:
    """Every address that some commit, reachable or not, names and was not swept of."""
    return trees.addresses_of(
        trees.ranges_of(commit.metarange_id for commit in history.commits.values() if not commit.swept)
    )


def clean_run(
    listing: Iterable[str], *, committed: Collection[str], uncommitted: Collection[str], namespace: Namespace
) -> CleanRun:
    """`listing` are keys of the namespace. Addresses are as entries have them, relative or absolute."""
    live = namespace.keys_of(committed) | namespace.keys_of(uncommitted)
    users = {key for key in listing if key.startswith(DATA_PREFIX)}
    ours = {key for key in users if parse_address(key) is not None}
    settled = {key for key in ours if namespace.may_take(key)}
    return CleanRun(
        doomed=frozenset(settled - live),
        strays=frozenset(users - ours),
        skipped=frozenset(ours - settled),
    )


def check_live(history: History, committed: Collection[str]) -> None:
    """
    Raises:
        EmptyLiveSet: there are commits with entries, and yet no committed address was read.
    """
    if not committed and any(commit.metarange_id and not commit.swept for commit in history.commits.values()):
        raise EmptyLiveSet("there are commits with entries, but they name no address at all")
