"""Where a sorted stream of entries is cut into ranges.

The cut is made by content: whatever history led to a set of entries, it is cut at the same places, so equal parts of
two trees are equal files and are shared. Behind a row, with `n` rows since the last cut (itself counted), there is a
cut where

    crc32(key) % 8192 == 0                   anywhere                              (a *strong* cut)
    crc32(key) % 1024 == 0                   and n >= 16,384                       (a *weak* cut)
    n == 32,768                                                                    (a *forced* cut)

A strong cut depends on its key alone: a change between two strong cuts cannot move anything beyond them, and touches
the range it falls into, and a neighbour where it removes or makes a cut. A stretch without a strong cut for twice the
mean (one in seven) ends at the next weak one; that place again depends on the count only by whether the count has
been reached, so a shift finds back within a range or two. The forced cut is for keys that somebody chose to defeat
the hash. The mean is 7,300 rows: about 240 KB of file.

(The idea is that of content-defined chunking with normalised sizes, applied to rows instead of bytes.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .schema import ENTRIES_SCHEMA, chunk, object_array
from .view import KeyColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRule:
    """The numbers above. They are part of the format: a store cut by others shares nothing with ours. Tests take
    small ones."""

    strong: int
    weak: int
    weak_from: int
    rows_max: int

    def is_complete(self, max_key: bytes, count: int) -> bool:
        """Whether a range of so many rows ends in a cut, rather than because the stream ended."""
        hashed = crc32(max_key)
        return (
            hashed % self.strong == 0 or (count >= self.weak_from and hashed % self.weak == 0) or count == self.rows_max
        )


CUT_RULE: Final = CutRule(strong=8192, weak=1024, weak_from=16_384, rows_max=32_768)


class Cutter:
    """Feed it a stream of entries, ascending; take away what lies between two cuts."""

    def __init__(self, rule: CutRule = CUT_RULE) -> None:
        self._rule = rule
        self._held: list[pa.Table] = []
        self._held_rows = 0

    @property
    def is_between(self) -> bool:
        """Whether nothing is held: the stream stands at a cut, or at its start."""
        return not self._held_rows

    def feed(self, entries: pa.Table, fresh: npt.NDArray[np.int64] | None = None) -> Iterator[pa.Table]:
        """Take in more entries, and give back the ranges that they complete. Run it to its end.

        Only rows at the positions `fresh` are hashed in search of strong cuts (None: all of them). Of a stored range
        all rows but the last are known not to be one.
        """
        keys = KeyColumn(chunk(entries, "key"))
        rows = np.arange(len(keys)) if fresh is None else fresh
        # Few keys are looked at one by one, many as an array of all of them.
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
        """The rest, which ends because the stream does."""
        return self._take() if self._held_rows else None

    def _ends(self, keys: KeyColumn, strong: list[int]) -> Iterator[int]:
        """Positions behind the rows after which there is a cut, ascending."""
        start = 0
        for end in [*strong, len(keys)]:
            while (weak := self._weak_end(keys, start, end)) is not None:
                start = weak
                yield weak
            if start < end <= (strong[-1] if strong else 0):
                start = end
                yield end

    def _weak_end(self, keys: KeyColumn, start: int, end: int) -> int | None:
        """The first weak or forced cut behind the rows from `start` to before `end`."""
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
    """The ranges of a whole tree, in order."""
    cutter = Cutter(rule)
    pieces = list(cutter.feed(entries.select(ENTRIES_SCHEMA.names)))
    rest = cutter.finish()
    return pieces if rest is None else [*pieces, rest]
