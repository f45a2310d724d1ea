"""Find the differences of two trees, at a cost that follows the difference.

Sublists and ranges that both trees have are left out without a look: a range is equal content over an equal stretch of
keys, and no other range of either tree reaches into it. Of the others the column of digests is read. Then, of row
groups that hold rows which differ, all columns are read on the right. On the left only the keys are, and not even these
where the two files say that they have the same ones. All keys of a range are read only where a range of one tree ends
inside a range of the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import cache
from sys import maxsize
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Row
from lakebed.kv import prefix_end
from lakebed.ranges import ENTRIES_SCHEMA, RangeFile, RangeInfo, RangeList, RangeView, chunk, differing

from .files import Ahead, Item, Tree, TreeFiles

DiffKind: TypeAlias = Literal["added", "removed", "changed"]

STRETCHES_MAX: Final = 1_000
"""Keep at most this many stretches of keys for two trees. More become one."""
ROWS_READ_MAX: Final = 100_000
"""Read the keys that differ only in ranges with at most this many rows: some 10 ms."""
_APART_BYTES: Final = 400
_STRETCH_BYTES: Final = 150


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

    async for one, other in _stretches(files, left, right, is_asked):
        with files.naming():
            rows = _compare(one, other)
        # A range may reach beyond the wanted keys, where its counterpart was not read.
        batch = [row for row in rows if first <= row.key and (behind is None or row.key < behind)]
        if batch:
            yield batch


async def rows_unlike(files: TreeFiles, left: Tree, right: Tree) -> AsyncIterator[list[tuple[bytes, Row]]]:
    """Yield (key, row) of the right tree's rows that the left one has not, in batches that are never empty.

    In key order. A row of equal content at another address counts, which is no difference to a diff.
    """
    async for one, other in _stretches(files, left, right, lambda _: True):
        with files.naming():
            batch = _unlike_rows(one, other)
        if batch:
            yield batch


async def _stretches(
    files: TreeFiles, left: Tree, right: Tree, is_asked: Callable[[Item], bool]
) -> AsyncIterator[tuple[Stretch, Stretch]]:
    """Yield the same stretch of keys of both trees, ascending, where the ranges asked for are not the same."""
    # Ids first: they cost a tenth of the ranges, and most are in both.
    sides = [Side(files, infos, ahead=True) for infos in await _unlike(files, left, right, is_asked)]
    while ends := [side.info.max_key for side in sides if side.info]:
        # One after the other: each side reads ahead by itself.
        one, other = [await side.until(min(ends)) for side in sides]
        yield one, other


async def _unlike(
    files: TreeFiles, left: Tree, right: Tree, is_asked: Callable[[Item], bool]
) -> tuple[list[RangeInfo], list[RangeInfo]]:
    """Return the ranges asked for that only the left tree has, and those that only the right one has, ascending."""
    lists = await _lists(files, left, right, is_asked), await _lists(files, right, left, is_asked)

    def side(own: Sequence[RangeList], others: Sequence[RangeList]) -> list[RangeInfo]:
        return [info for ranges in own for row in _own(ranges, others) if is_asked(info := ranges[row])]

    return side(*lists), side(*reversed(lists))


async def _lists(files: TreeFiles, tree: Tree, other: Tree, is_asked: Callable[[Item], bool]) -> list[RangeList]:
    """Return the list of ranges, or of a wide tree the sublists asked for that the other one does not have."""
    if isinstance(tree, RangeList):
        return [tree]
    own = [info for row in _own(tree, [other]) if is_asked(info := tree[row])]
    lists = Ahead(files, own, files.sublist)
    return [await lists.next() for _ in own]


def _own(tree: Tree, others: Sequence[Tree]) -> list[int]:
    """Return the rows whose ids are in no other list."""
    ids = pa.chunked_array([piece for other in others for piece in other.table["id"].chunks], tree.table["id"].type)
    is_shared = pc.is_in(tree.table["id"], value_set=ids).to_numpy()
    rows: list[int] = np.flatnonzero(~is_shared).tolist()
    return rows


class Apart:
    """Say where two trees differ: in stretches of keys, disjoint and ascending, each from a start to an end.

    Where `is_exact`, each is one key. Else they are ranges that the trees do not share, and `rows` says how many rows
    have to be read to know the keys. Trees never change, so a cache may keep it.
    """

    __slots__ = ("ends", "is_exact", "nbytes", "rows", "starts")

    def __init__(self, stretches: Iterable[tuple[bytes, bytes]], *, rows: int, is_exact: bool) -> None:
        self.starts: list[bytes] = []
        self.ends: list[bytes] = []
        for start, end in stretches:
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)
        self.rows = rows
        self.is_exact = is_exact
        keys = sum(map(len, self.starts)) + sum(map(len, self.ends))
        self.nbytes = _APART_BYTES + _STRETCH_BYTES * len(self.starts) + keys

    @property
    def is_final(self) -> bool:
        """Return whether no more can be known about the keys."""
        return self.is_exact or self.rows > ROWS_READ_MAX

    def meets(self, starts: Sequence[bytes], behinds: Sequence[bytes]) -> list[int]:
        """Return which of these stretches, disjoint and ascending, have a key at which the trees may differ."""
        if len(starts) <= len(self.starts):
            firsts = [bisect_left(self.ends, start) for start in starts]
            return [row for row, at in enumerate(firsts) if at < len(self.starts) and self.starts[at] < behinds[row]]
        met: dict[int, None] = {}
        for start, end in zip(self.starts, self.ends, strict=True):
            met |= dict.fromkeys(range(bisect_right(behinds, start), bisect_right(starts, end)))
        return [*met]


async def apart_trees(files: TreeFiles, left: Tree, right: Tree) -> Apart:
    """Compare the lists of two trees. Reads no range, and of wide trees the sublists that they do not share."""
    infos = [info for own in await _unlike(files, left, right, lambda _: True) for info in own]
    stretches = sorted([(info.min_key, info.max_key) for info in infos])
    if len(stretches) > STRETCHES_MAX:
        stretches = [(stretches[0][0], max(end for _, end in stretches))]
    return Apart(stretches, rows=sum([info.count for info in infos]), is_exact=False)


async def apart_at_keys(files: TreeFiles, left: Tree, right: Tree, known: Apart) -> Apart:
    """Read the keys at which the trees differ. Where these are too many, return what is known as all there is."""
    keys: list[bytes] = []
    async for batch in diff_trees(files, left, right, start=b"", prefix=b""):
        keys += [row.key for row in batch]
        if len(keys) > STRETCHES_MAX:
            return Apart(zip(known.starts, known.ends, strict=True), rows=maxsize, is_exact=False)
    return Apart([(key, key) for key in keys], rows=0, is_exact=True)


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


def _unlike_rows(left: Stretch, right: Stretch) -> list[tuple[bytes, Row]]:
    of_left, of_right = differing(left.digests(), right.digests())
    # A digest covers the key. So the other rows of both sides are the same ones, in the same order.
    same = [np.delete(np.arange(side.stop - side.start), own) for side, own in ((left, of_left), (right, of_right))]
    here, there = (side.take(rows) for side, rows in zip((left, right), same, strict=True))
    is_moved = np.zeros(len(same[1]), np.bool_)
    for name in ("slice", "sequence", "address"):
        is_moved |= pc.not_equal(chunk(here, name), chunk(there, name)).to_numpy(zero_copy_only=False)
    return right.rows(np.union1d(of_right, same[1][is_moved]))


class Stretch(NamedTuple):
    """Rows `start` to before `stop` of a range, decoded only as far as callers ask.

    A caller asks inside `TreeFiles.naming`.
    """

    file: RangeFile | RangeView
    start: int
    stop: int

    def digests(self) -> npt.NDArray[np.int64]:
        return self.file.digests[self.start : self.stop]

    def take(self, rows: npt.NDArray[np.int64]) -> pa.Table:
        """Rows counted from the start of the stretch."""
        return self.file.take(rows + self.start) if len(rows) else ENTRIES_SCHEMA.empty_table()

    def rows(self, rows: npt.NDArray[np.int64]) -> list[tuple[bytes, Row]]:
        """(key, row) of rows counted likewise."""
        return self.file.rows_at(rows + self.start) if len(rows) else []

    def keys(self, rows: npt.NDArray[np.int64]) -> list[bytes]:
        """Return the keys of rows counted likewise; a third of the cost of taking them."""
        keys: list[bytes] = self.file.take(rows + self.start, ["key"]).column("key").to_pylist() if len(rows) else []
        return keys

    def has_keys_of(self, other: Stretch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return whether the key of each row is known, without reading it, to be that of the other's row of this
        number.
        """
        if self.start == other.start and isinstance(self.file, RangeFile) and isinstance(other.file, RangeFile):
            return self.file.has_keys_of(other.file, rows + self.start)
        return np.zeros(len(rows), np.bool_)

    def entries(self) -> pa.Table:
        return self.file.between(self.start, self.stop)


@cache
def _nothing() -> Stretch:
    # Made when it is first asked for: Arrow's first list imports pandas, unless the process left it out by then.
    return Stretch(RangeView(ENTRIES_SCHEMA.empty_table()), 0, 0)


class Side:
    """One tree of a comparison. With `ahead`, it reads ranges before they are asked for: none may be dropped."""

    def __init__(self, files: TreeFiles, ranges: Sequence[RangeInfo], *, ahead: bool) -> None:
        self._files = files
        self._ahead = Ahead(files, ranges, files.file) if ahead else None
        self._infos = list(reversed(ranges))
        self._file: RangeFile | RangeView | None = None
        self._row = 0
        self._next_key: bytes | None = None

    @property
    def info(self) -> RangeInfo | None:
        """The present range; None at the end."""
        return self._infos[-1] if self._infos else None

    @property
    def is_at_start(self) -> bool:
        """Return whether no row of the present range has been taken."""
        return not self._row

    def reaches(self, end: bytes) -> bool:
        """Return whether the next row's key is this one or before it."""
        if not self._infos:
            return False
        return (self._next_key or self._infos[-1].min_key) <= end

    def drop(self) -> RangeInfo:
        """Leave the present range."""
        self._file, self._row, self._next_key = None, 0, None
        return self._infos.pop()

    async def until(self, end: bytes) -> Stretch:
        """Take the rows up to this key, itself included; of the present range only."""
        if not self.reaches(end):
            return _nothing()
        info = self._infos[-1]
        if self._file is None:
            self._file = await (self._ahead.next() if self._ahead else self._files.file(info))
        file, start, stop = self._file, self._row, info.count
        # Keys are decoded only where the stretch ends inside the range.
        if end < info.max_key:
            with self._files.naming():
                stop, self._next_key = file.find(end + b"\0")
        self._row = stop
        if stop == info.count:
            self.drop()
        return Stretch(file, start, stop)
