"""Commits whose trees are read although their data may be gone: merges, cherry-picks and reverts compare with them.

A merge takes entries from its two sides only; of the merge base it needs the tree, to tell what each side changed. So
as long as two commits are kept, the tree of their merge base stays, also when that has expired and its objects are
deleted. A cherry-pick compares a commit with its parent: the tree of each parent of a commit that is not swept stays,
too. This keeps no bytes of users; a tree has some 26 bytes an entry, and shares most files with its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def merge_bases(parents: Sequence[Sequence[int]], generations: Sequence[int], named: Iterable[int]) -> set[int]:
    """Return at least the merge base of every pair of the named commits (indices).

    The merge base is a common ancestor of the highest generation. Walk from the highest generation down; each commit
    knows which refs lead to it. It is the base of two refs if no commit above it has both. Commits of one generation
    are judged alike, so which of several is chosen does not matter. Costs a step a commit down to where all refs meet.
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
    """Sets of refs, as bits, that some commit above is an ancestor of."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._largest: list[int] = []

    def has(self, mask: int) -> bool:
        """Return whether every two of these refs met already. A single ref has no base."""
        if mask & (mask - 1) == 0 or mask in self._seen:
            return True
        return any(mask & other == mask for other in self._largest)

    def add(self, mask: int) -> None:
        if mask in self._seen or mask & (mask - 1) == 0:
            return
        self._seen.add(mask)
        if not any(mask & other == mask for other in self._largest):
            self._largest = [other for other in self._largest if other & mask != other] + [mask]
