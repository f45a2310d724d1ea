"""Find commits whose trees are kept although their data may be deleted: merges, cherry-picks and reverts compare them.

A merge takes entries from its two sides only. It needs the tree of the merge base to find the changes of each side. So
while two commits are kept, the tree of their merge base is kept, even if the base has expired and its objects are
deleted. A cherry-pick compares a commit with its parent, so the tree of each parent of an unswept commit is kept, too.
A kept tree keeps no user bytes. It has about 26 bytes an entry, and shares most files with its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def merge_bases(parents: Sequence[Sequence[int]], generations: Sequence[int], named: Iterable[int]) -> set[int]:
    """Return a set that contains the merge base of every pair of the named commits (indices).

    The merge base is a common ancestor of the highest generation. Takes one step a commit, down to where all refs meet.
    `parents` and `generations` are by index; a parent has a lower generation than its child.
    """
    refs = sorted({*named})
    reached: dict[int, int] = {}
    for bit, index in enumerate(refs):
        reached[index] = reached.get(index, 0) | 1 << bit
    everything = (1 << len(refs)) - 1
    by_generation: dict[int, set[int]] = {}
    for index in reached:
        by_generation.setdefault(generations[index], set()).add(index)
    met = _Met()
    found: set[int] = set()
    # Walk from the highest generation down. Each commit has the set of refs that lead to it. It is the base of two refs
    # if no commit above has both. Judge the commits of one generation alike: any of several bases will do.
    while by_generation:
        level = by_generation.pop(max(by_generation))
        here = {index: reached[index] for index in level}
        found |= {index for index, mask in here.items() if not met.has(mask)}
        for mask in {*here.values()}:
            met.add(mask)
        if everything in here.values():
            return found
        for index, mask in here.items():
            del reached[index]
            for parent in parents[index]:
                reached[parent] = reached.get(parent, 0) | mask
                by_generation.setdefault(generations[parent], set()).add(parent)
    return found


class _Met:
    """Hold sets of refs, as bits, that have a common ancestor above."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._largest: list[int] = []

    def has(self, mask: int) -> bool:
        """Return whether every two of these refs already met. A single ref has no base."""
        if mask & (mask - 1) == 0 or mask in self._seen:
            return True
        return any(mask & other == mask for other in self._largest)

    def add(self, mask: int) -> None:
        if mask in self._seen or mask & (mask - 1) == 0:
            return
        self._seen.add(mask)
        # Keep only the largest sets for `has`: a part of one has met, too.
        if not any(mask & other == mask for other in self._largest):
            self._largest = [other for other in self._largest if other & mask != other] + [mask]
