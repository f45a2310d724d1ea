"""Find the differences of two trees, at a cost that follows the difference.

Sublists and ranges that both trees have are left out without a look: a range is equal content over an equal stretch of
keys, and no other range of either tree reaches into it. Of the others the column of digests is read. Then, of row
groups that hold rows which differ, all columns are read on the right. On the left only the keys are, and not even these
where the two files say that they have the same ones. All keys of a range are read only where a range of one tree ends
inside a range of the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lakebed.base import Row
from lakebed.kv import prefix_end
from lakebed.ranges import RangeList, differing

from .files import Ahead, Item, Tree, TreeFiles
from .sides import Side, Stretch

DiffKind: TypeAlias = Literal["added", "removed", "changed"]


class DiffRow(NamedTuple):
    """`right` is None where the key was removed. `left` is the removed entry; else None, also where the key was
    changed: callers rarely need the old entry, which is a third of the cost, and can look it up."""

    kind: DiffKind
    key: bytes
    left: Row | None
    right: Row | None


async def diff_trees(
    files: TreeFiles, left: Tree, right: Tree, *, start: bytes, prefix: bytes
) -> AsyncIterator[list[DiffRow]]:
    """Rows in key order, in batches that are never empty: keys at or after `start` that begin with `prefix`."""
    first, behind = max(start, prefix), prefix_end(prefix)

    def is_asked(info: Item) -> bool:
        return info.max_key >= first and (behind is None or info.min_key < behind)

    async def unlike(tree: Tree, other: Tree) -> list[RangeList]:
        """Return the sublists asked for that the other tree does not have, where the tree is wide."""
        if isinstance(tree, RangeList):
            return [tree]
        shared = {*other.ids}
        own = [tree[row] for row, id_ in enumerate(tree.ids) if id_ not in shared]
        lists = Ahead(files, own := [info for info in own if is_asked(info)], files.sublist)
        return [await lists.next() for _ in own]

    def side(lists: Sequence[RangeList], others: Sequence[RangeList]) -> Side:
        # Ids first: they cost a tenth of the ranges, and most are in both.
        shared = {id_ for ranges in others for id_ in ranges.ids}
        own = [ranges[row] for ranges in lists for row, id_ in enumerate(ranges.ids) if id_ not in shared]
        return Side(files, [info for info in own if is_asked(info)], ahead=True)

    lists = await unlike(left, right), await unlike(right, left)
    sides = side(lists[0], lists[1]), side(lists[1], lists[0])
    while ends := [side.info.max_key for side in sides if side.info]:
        # One after the other: each side reads ahead by itself.
        stretches = [await side.until(min(ends)) for side in sides]
        with files.naming():
            rows = _compare(stretches[0], stretches[1])
        # A range may reach beyond the wanted keys, where its counterpart was not read.
        batch = [row for row in rows if first <= row.key and (behind is None or row.key < behind)]
        if batch:
            yield batch


def _compare(left: Stretch, right: Stretch) -> list[DiffRow]:
    """Yield the differences in one stretch of keys, in key order."""
    of_left, of_right = differing(left.digests(), right.digests())
    now = dict(right.rows(of_right))
    changed, rest = _replaced(left, right, of_left, dict(zip(of_right.tolist(), now, strict=True)))
    was = left.keys(rest)
    changed.update(was)
    gone = np.array([key not in now for key in was], dtype=np.bool_)
    removed = dict(left.rows(rest[gone]))
    kinds: dict[bytes, DiffKind] = {key: "changed" if key in changed else "added" for key in now}
    kinds.update(dict.fromkeys(removed, "removed"))
    return [DiffRow(kinds[key], key, removed.get(key), now.get(key)) for key in sorted(kinds)]


def _replaced(
    left: Stretch, right: Stretch, of_left: npt.NDArray[np.int64], keys: dict[int, bytes]
) -> tuple[set[bytes], npt.NDArray[np.int64]]:
    """Return the keys of rows that were replaced in place (`keys`, by row), and the other rows."""
    # A replaced row has the key that is there now, so nothing of the left must be read.
    known = left.has_keys_of(right, of_left) & np.array([row in keys for row in of_left.tolist()], np.bool_)
    return {keys[row] for row in of_left[known].tolist()}, of_left[~known]
