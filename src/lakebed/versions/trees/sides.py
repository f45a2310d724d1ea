"""One tree's ranges, taken from the front in step with those of other trees. Diff and merge use it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import Row
from lakebed.ranges import ENTRIES_SCHEMA, RangeFile, RangeInfo, RangeView

from .files import Ahead, TreeFiles


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
