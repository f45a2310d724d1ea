"""What differs between two trees, at a cost that follows the difference.

Ranges that both trees have are left out without a look: a range is equal content over an equal stretch of keys, and
no other range of either tree reaches into it. Of the others only the column of digests is read, and all columns of
the row groups that hold rows which differ. The column of keys is read only where a range of one tree ends inside a
range of the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

from lakebed.base import Row
from lakebed.ranges import RangeInfo, differing, rows_from_table

from .trees_files import Tree, TreeFiles
from .trees_sides import Side

DiffKind: TypeAlias = Literal["added", "removed", "changed"]


class DiffRow(NamedTuple):
    """`left` is None where added, `right` where removed."""

    kind: DiffKind
    key: bytes
    left: Row | None
    right: Row | None


async def diff_trees(
    files: TreeFiles, left: Tree, right: Tree, *, start: bytes, prefix: bytes
) -> AsyncIterator[list[DiffRow]]:
    """Rows in key order, in batches that are never empty: keys at or after `start` that begin with `prefix`."""
    first, behind = max(start, prefix), _behind_prefix(prefix)
    async for left_rows, right_rows in _differences(files, left, right, first=first, behind=behind):
        of_left, of_right = dict(rows_from_table(left_rows)), dict(rows_from_table(right_rows))
        batch = [
            DiffRow(_kind(of_left.get(key), of_right.get(key)), key, of_left.get(key), of_right.get(key))
            for key in sorted(of_left.keys() | of_right.keys())
            if first <= key and (behind is None or key < behind)
        ]
        if batch:
            yield batch


def without_shared(left: Sequence[RangeInfo], right: Sequence[RangeInfo]) -> list[RangeInfo]:
    """The ranges of `left` that `right` does not have."""
    shared = {info.id for info in right}
    return [info for info in left if info.id not in shared]


async def _differences(
    files: TreeFiles, left: Tree, right: Tree, *, first: bytes, behind: bytes | None
) -> AsyncIterator[tuple[pa.Table, pa.Table]]:
    """Stretch by stretch, the rows of each side that the other does not have. Rows outside the asked keys may come
    with them; those inside are right."""

    def side(tree: Tree, other: Tree) -> Side:
        unlike = without_shared(tree.ranges, other.ranges)
        asked = [info for info in unlike if info.max_key >= first and (behind is None or info.min_key < behind)]
        return Side(files, asked, ahead=True)

    sides = side(left, right), side(right, left)
    while ends := [side.info.max_key for side in sides if side.info]:
        # One after the other: each side reads ahead by itself.
        stretches = [await side.until(min(ends)) for side in sides]
        with files.naming():
            rows = differing(*(stretch.digests() for stretch in stretches))
            taken = [stretch.take(positions) for stretch, positions in zip(stretches, rows, strict=True)]
        if taken[0].num_rows or taken[1].num_rows:
            yield taken[0], taken[1]


def _kind(left: Row | None, right: Row | None) -> DiffKind:
    if left is None:
        return "added"
    return "removed" if right is None else "changed"


def _behind_prefix(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with the prefix; None where there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
