"""What differs between two trees, at a cost that follows the difference.

Ranges that both trees have are left out without a look: a range is equal content over an equal stretch of keys, and
no other range of either tree reaches into it. Of the others only the column of digests is read, and all columns of
the row groups that hold rows which differ. The column of keys is read only where a range of one tree ends inside a
range of the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from lakebed.base import Row
from lakebed.ranges import ENTRIES_SCHEMA, RangeFile, RangeInfo, RangeView, differing, rows_from_table

from .trees_files import Ahead, Tree, TreeFiles

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


class _Side:
    """One tree's ranges, taken from the front. `next_key` is where it stands; None at the end."""

    def __init__(self, files: TreeFiles, ranges: Sequence[RangeInfo]) -> None:
        self._infos = ranges
        self._files = Ahead(files, ranges, files.file)
        self._index = -1
        self._row = 0
        self.info: RangeInfo | None = None
        self._file: RangeFile | RangeView | None = None

    async def advance(self) -> None:
        """To the next range, if this one is used up."""
        if self.info is None or self._row == self.info.count:
            self._index += 1
            self._row = 0
            more = self._index < len(self._infos)
            self.info = self._infos[self._index] if more else None
            self._file = await self._files.next() if more else None

    @property
    def next_key(self) -> bytes:
        assert self.info is not None
        assert self._file is not None
        return self._file.keys[self._row] if self._row else self.info.min_key

    def until(self, end: bytes) -> _Stretch:
        """Take the rows up to this key, itself included, of the present range."""
        assert self.info is not None
        assert self._file is not None
        stop = self.info.count if end >= self.info.max_key else self._file.position_behind(end)
        stretch = _Stretch(self._file, self._row, stop)
        self._row = stop
        return stretch


class _Stretch(NamedTuple):
    file: RangeFile | RangeView
    start: int
    stop: int

    def digests(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self.file.digests[self.start : self.stop]

    def take(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
        return self.file.take(rows + self.start) if len(rows) else ENTRIES_SCHEMA.empty_table()


async def _differences(
    files: TreeFiles, left: Tree, right: Tree, *, first: bytes, behind: bytes | None
) -> AsyncIterator[tuple[pa.Table, pa.Table]]:
    """Stretch by stretch, the rows of each side that the other does not have. Rows outside the asked keys may come
    with them; those inside are right."""

    def asked(infos: Sequence[RangeInfo]) -> list[RangeInfo]:
        return [info for info in infos if info.max_key >= first and (behind is None or info.min_key < behind)]

    sides = (
        _Side(files, asked(without_shared(left.ranges, right.ranges))),
        _Side(files, asked(without_shared(right.ranges, left.ranges))),
    )
    while True:
        for side in sides:
            await side.advance()
        if all(side.info is None for side in sides):
            return
        with files.naming():
            found = _compare(*sides)
        if found[0].num_rows or found[1].num_rows:
            yield found


def _compare(left: _Side, right: _Side) -> tuple[pa.Table, pa.Table]:
    """Take the next stretch off both sides, up to where the first of their present ranges ends."""
    ends = [side.info.max_key for side in (left, right) if side.info is not None]
    end = min(ends)
    stretches = [None if side.info is None or side.next_key > end else side.until(end) for side in (left, right)]
    of_left, of_right = (np.empty(0, dtype=np.int64) if stretch is None else stretch.digests() for stretch in stretches)
    rows = differing(of_left, of_right)
    taken = [
        ENTRIES_SCHEMA.empty_table() if stretch is None else stretch.take(positions)
        for stretch, positions in zip(stretches, rows, strict=True)
    ]
    return taken[0], taken[1]


def _kind(left: Row | None, right: Row | None) -> DiffKind:
    if left is None:
        return "added"
    return "removed" if right is None else "changed"


def _behind_prefix(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with the prefix; None where there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
