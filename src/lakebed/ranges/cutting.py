"""Cut a sorted stream of entries into ranges (docs/formats/range.md has the rule).

The content decides the cuts. Any history that leads to the same set of entries gives the same cuts, so equal parts of
two trees are equal files, and both trees share them.

The idea is that of content-defined chunking with normalised sizes, applied to rows instead of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .sealed import KeyColumn, chunk, object_array
from .view import ENTRIES_SCHEMA

__all__ = ["CUT_RULE", "CutRule", "Cutter", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRule:
    """Set the numbers of the rule. The mean range is 7,300 rows: about 240 KB of file.

    A *strong* cut depends on its key alone, so a change between two of them moves no cut beyond them. A stretch without
    one for twice the mean (one in seven) ends at the next *weak* one: the count only says from where a weak cut counts,
    so after a shift the cuts are the same again within a range or two. The *forced* cut is for keys chosen to defeat
    the hash.

    The numbers are part of the format: trees cut by other numbers share no files. Tests use small ones.

    The same is true of lists: one in `listed` ranges ends a sublist (`ends_sublist`), and a tree that is cut into fewer
    than `sublists_min` of them is not wide: its metarange lists its ranges.
    """

    strong: int
    weak: int
    weak_from: int
    rows_max: int
    listed: int = 256
    sublists_min: int = 8

    def is_complete(self, max_key: bytes, count: int) -> bool:
        """Return True where a range of `count` rows ends in a cut, and not because the stream ended."""
        hashed = crc32(max_key)
        return (
            hashed % self.strong == 0 or (count >= self.weak_from and hashed % self.weak == 0) or count == self.rows_max
        )


CUT_RULE: Final = CutRule(strong=8192, weak=1024, weak_from=16_384, rows_max=32_768)


class Cutter:
    """Take in a stream of ascending entries, and return the ranges between its cuts."""

    def __init__(self, rule: CutRule = CUT_RULE) -> None:
        self._rule = rule
        self._held: list[pa.Table] = []
        self._held_rows = 0

    @property
    def is_between(self) -> bool:
        """Return True where no entry is held back: the stream stands at a cut, or at its start."""
        return not self._held_rows

    def feed(self, entries: pa.Table, fresh: npt.NDArray[np.int64] | None = None) -> Iterator[pa.Table]:
        """Take in more entries, and yield the ranges that they complete. The caller must run it to its end.

        Only rows at the positions `fresh` are hashed in search of strong cuts (None: all of them). In a stored range
        only the last row can be one.
        """
        keys = KeyColumn(chunk(entries, "key"))
        rows = np.arange(len(keys)) if fresh is None else fresh
        # A few keys are read one by one, many as one array.
        hashed = (
            map(keys.__getitem__, rows.tolist()) if len(rows) * 16 < len(keys) else object_array(entries["key"])[rows]
        )
        hashes = np.fromiter(map(crc32, hashed), np.uint32, len(rows))
        strong: list[int] = (rows[hashes % self._rule.strong == 0] + 1).tolist()
        start = 0
        for end in self._ends(keys, strong):
            self._held.append(entries.slice(start, end - start))
            yield self._take()
            start = end
        if start < len(keys):
            self._held.append(entries.slice(start))
            self._held_rows += len(keys) - start

    def finish(self) -> pa.Table | None:
        """Return the last range, which ends because the stream does; None where no entry is held back."""
        return self._take() if self._held_rows else None

    def _ends(self, keys: KeyColumn, strong: list[int]) -> Iterator[int]:
        """Yield the positions behind the rows that end in a cut, ascending."""
        start = 0
        for end in [*strong, len(keys)]:
            while (weak := self._weak_end(keys, start, end)) is not None:
                start = weak
                yield weak
            if start < end <= (strong[-1] if strong else 0):
                start = end
                yield end

    def _weak_end(self, keys: KeyColumn, start: int, end: int) -> int | None:
        """Return the first weak or forced cut behind the rows from `start` to before `end`."""
        rule, origin = self._rule, start - self._held_rows
        for row in range(max(start, origin + rule.weak_from - 1), min(end, origin + rule.rows_max)):
            if row + 1 - origin == rule.rows_max or crc32(keys[row]) % rule.weak == 0:
                return row + 1
        return None

    def _take(self) -> pa.Table:
        table = pa.concat_tables(self._held) if len(self._held) > 1 else self._held[0]
        self._held, self._held_rows = [], 0
        return table


def cut(entries: pa.Table, rule: CutRule = CUT_RULE) -> list[pa.Table]:
    """Cut the entries of a whole tree into its ranges, in order."""
    cutter = Cutter(rule)
    pieces = list(cutter.feed(entries.select(ENTRIES_SCHEMA.names)))
    rest = cutter.finish()
    return pieces if rest is None else [*pieces, rest]
