"""Decide which objects go with the commits that expired (docs/design/0004-committed-retention.md, steps 4 to 7).

Ranges are shared between commits. Those of the commits that are kept are A; those of the expired ones, and not in A,
are B. Garbage is what ranges of B name and ranges of A do not. A range in both is never opened.

What the document asks beyond that, and what keeps it safe while people work: nothing goes that lies outside the storage
namespace or outside `data/`, or that a staged cell, an open upload or a tracked copy names. Of our own addresses only
those in closed slices go. An upload in an open slice may be about to name its object once more
(docs/design/protocols.md, "Write", step 3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from lakebed.base import Corrupt, MetarangeId, RangeId, SublistId, key_inside, parse_address, parse_slice_name

from .history import History, Verdict

DATA_PREFIX = "data/"


class EmptyLiveSet(Corrupt):
    """Commits with entries are kept, and yet not one address is: something was not read. Delete nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """Committed contents: the ranges of each metarange, and the addresses (as entries have them) of each range.

    `sublists` has the metaranges of wide trees.
    """

    ranges: Mapping[MetarangeId, Collection[RangeId]]
    addresses: Mapping[RangeId, Collection[str]]
    sublists: Mapping[MetarangeId, Collection[SublistId]] = field(default_factory=dict)

    def ranges_of(self, metaranges: Iterable[MetarangeId]) -> set[RangeId]:
        """KeyError for a metarange that was not read: doubt stops the run."""
        return {range_ for metarange in metaranges if metarange for range_ in self.ranges[metarange]}

    def addresses_of(self, ranges: Iterable[RangeId]) -> set[str]:
        return {address for range_ in ranges for address in self.addresses[range_]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A storage namespace as collectors see it: its URI (no slash at the end) and its closed slices by name."""

    uri: str
    closed: AbstractSet[str]

    def key_of(self, address: str) -> str | None:
        """The key of an address inside, or None outside. Both spellings of one object give one key."""
        return key_inside(address, self.uri)

    def keys_of(self, addresses: Iterable[str]) -> set[str]:
        return {key for key in map(self.key_of, addresses) if key is not None}

    def may_take(self, key: str) -> bool:
        """Return whether any collector may ever take this key: users' bytes, and of our own only in closed slices."""
        if not key.startswith(DATA_PREFIX):
            return False
        return parse_address(key) is None or slice_of(key) in self.closed


def slice_of(key: str) -> str | None:
    """The slice's name in `data/<slice>/…`, or None where no slice of ours can be meant."""
    name = key[len(DATA_PREFIX) :].partition("/")[0]
    return name if key.startswith(DATA_PREFIX) and parse_slice_name(name) is not None else None


def garbage_addresses(
    history: History, verdict: Verdict, trees: Trees, *, uncommitted: Collection[str], namespace: Namespace
) -> set[str]:
    """The keys, inside the namespace, whose objects go.

    Raises:
        EmptyLiveSet: the kept commits have entries, but no address was read of them.
    """
    metaranges = {commit.id: commit.metarange_id for commit in history.commits.values()}
    kept_ranges = trees.ranges_of(metaranges[commit] for commit in verdict.kept)
    lost_ranges = trees.ranges_of(metaranges[commit] for commit in verdict.expired) - kept_ranges
    live = namespace.keys_of(trees.addresses_of(kept_ranges))
    if not trees.addresses_of(kept_ranges) and any(metaranges[commit] for commit in verdict.kept):
        raise EmptyLiveSet("the commits that are kept name no address at all")
    candidates = namespace.keys_of(trees.addresses_of(lost_ranges))
    return {key for key in candidates - live - namespace.keys_of(uncommitted) if namespace.may_take(key)}
