"""Decide which objects are deleted with expired commits (docs/design/0004-committed-retention.md, steps 4 to 7).

Commits share ranges. A: the ranges of kept commits. B: the ranges of expired commits that are not in A. Garbage is each
object that a range of B names and no range of A does. A range in both is never opened.

A run keeps every object outside the storage namespace or outside `data/`. It keeps every object that a staged cell, an
open upload or a tracked copy names. It deletes objects at Lakebed's own addresses only in closed slices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from lakebed.base import (
    Corrupt,
    MetarangeId,
    RangeId,
    SublistId,
    key_inside,
    parse_address,
    parse_slice_name,
    slice_name,
)

from .history import History, Verdict

__all__ = ["EmptyLiveSet", "Namespace", "Trees", "garbage_addresses", "judge_deleted", "slice_of"]

DATA_PREFIX = "data/"


class EmptyLiveSet(Corrupt):
    """Commits with entries are kept, but no address was read from them: an input is missing. Delete nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """Map each metarange to its ranges, and each range to its addresses, spelled as in its entries.

    `sublists` has the metaranges of wide trees.
    """

    ranges: Mapping[MetarangeId, Collection[RangeId]]
    addresses: Mapping[RangeId, Collection[str]]
    sublists: Mapping[MetarangeId, Collection[SublistId]] = field(default_factory=dict)

    def ranges_of(self, metaranges: Iterable[MetarangeId]) -> set[RangeId]:
        """Return the ranges of these metaranges. Raises KeyError for an unread metarange: doubt stops the run."""
        return {range_ for metarange in metaranges if metarange for range_ in self.ranges[metarange]}

    def addresses_of(self, ranges: Iterable[RangeId]) -> set[str]:
        return {address for range_ in ranges for address in self.addresses[range_]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Describe a storage namespace for collectors: its URI (no slash at the end) and its closed slices by name."""

    uri: str
    closed: AbstractSet[str]

    def key_of(self, address: str) -> str | None:
        """Return the key of an address inside, or None outside. Both spellings of an object give one key."""
        return key_inside(address, self.uri)

    def keys_of(self, addresses: Iterable[str]) -> set[str]:
        return {key for key in map(self.key_of, addresses) if key is not None}

    def may_take(self, key: str) -> bool:
        """Return whether a collector may ever delete this key: users' files, and addresses in closed slices."""
        if not key.startswith(DATA_PREFIX):
            return False
        # An upload in an open slice may be about to name its object once more (docs/design/protocols.md, "Write",
        # step 3).
        return parse_address(key) is None or slice_of(key) in self.closed


def slice_of(key: str) -> str | None:
    """Return the slice's name in `data/<slice>/…`, or None if the key has no valid slice name."""
    name = key[len(DATA_PREFIX) :].partition("/")[0]
    return name if key.startswith(DATA_PREFIX) and parse_slice_name(name) is not None else None


def garbage_addresses(
    history: History, verdict: Verdict, trees: Trees, *, uncommitted: Collection[str], namespace: Namespace
) -> set[str]:
    """Return the keys, inside the namespace, of the objects to delete.

    Raises:
        EmptyLiveSet: the kept commits have entries, but no address was read from them.
    """
    metaranges = {commit.id: commit.metarange_id for commit in history.commits.values()}
    kept_ranges = trees.ranges_of(metaranges[commit] for commit in verdict.kept)
    lost_ranges = trees.ranges_of(metaranges[commit] for commit in verdict.expired) - kept_ranges
    live = namespace.keys_of(trees.addresses_of(kept_ranges))
    # Such an empty set would make every candidate garbage.
    if not trees.addresses_of(kept_ranges) and any(metaranges[commit] for commit in verdict.kept):
        raise EmptyLiveSet("the commits that are kept name no address at all")
    candidates = namespace.keys_of(trees.addresses_of(lost_ranges))
    return {key for key in candidates - live - namespace.keys_of(uncommitted) if namespace.may_take(key)}


def judge_deleted(
    keys: Collection[str], *, namespace: Namespace, is_own_file: Callable[[str], bool], named: Collection[str] = ()
) -> frozenset[str]:
    """Return the keys whose objects the collection of a deleted repository deletes: the planner's specification.

    It deletes each object in a recorded slice, and every file of the repository's trees and runs. Commits, branches and
    rules have no influence: no request can name an object through the repository any more.

    The closed slices of the namespace are those with a record. `named` are the full URIs that other repositories name.
    `is_own_file` recognises files of trees and runs by their form.
    """
    # Another repository may have imported objects of this namespace.
    kept = namespace.keys_of(named)

    def is_in_slice(key: str) -> bool:
        place = parse_address(key)
        return place is not None and slice_name(place[0]) in namespace.closed

    return frozenset(key for key in keys if key not in kept and (is_in_slice(key) or is_own_file(key)))
