"""The three-way merge of trees, at a cost that follows what both sides changed in the same place.

For every key the rule is that of `ranges.merge_tables`. Three steps settle most of it without reading a row:

1. A range of the base that one side still has tells that this side changed nothing there. It is dropped from both: a
   key absent in both leaves what the other side has.
2. A range that source and destination both have stands in the result as it is.
3. Of the ranges left, one that meets no other goes over whole (a side's own), or goes away (the base's).

What remains is ranges that overlap: changed on both sides. These are merged row by row, as far as the first of them
ends, and so on; at most one range of each tree is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from lakebed.base import MetarangeId
from lakebed.ranges import ENTRIES_SCHEMA, CutRule, RangeInfo, RangeView, Strategy, merge_tables

from .trees_building import TreeBuilder
from .trees_diff import without_shared
from .trees_files import Tree, TreeFiles

CONFLICTS_LISTED_MAX: Final = 1000


@dataclass(slots=True)
class Conflicts:
    """The first keys in order, and how many there are."""

    keys: list[bytes] = field(default_factory=list)
    count: int = 0

    def add(self, keys: Sequence[bytes]) -> None:
        self.keys.extend(keys[: CONFLICTS_LISTED_MAX - len(self.keys)])
        self.count += len(keys)


class _Side:
    """One tree's ranges, taken from the front; the present one is read when rows of it are asked for."""

    def __init__(self, ranges: Sequence[RangeInfo]) -> None:
        self._infos = list(reversed(ranges))
        self._view: RangeView | None = None
        self._row = 0

    @property
    def info(self) -> RangeInfo | None:
        return self._infos[-1] if self._infos else None

    @property
    def is_at_start(self) -> bool:
        return not self._row

    @property
    def next_key(self) -> bytes:
        return self._view.keys[self._row] if self._row and self._view else self._infos[-1].min_key

    def reaches(self, end: bytes) -> bool:
        return bool(self._infos) and self.next_key <= end

    def drop(self) -> RangeInfo:
        """Leave the present range."""
        self._view, self._row = None, 0
        return self._infos.pop()

    async def until(self, end: bytes, files: TreeFiles) -> pa.Table:
        """Take the rows up to this key, itself included; of one range."""
        if not self.reaches(end):
            return ENTRIES_SCHEMA.empty_table()
        if self._view is None:
            self._view = RangeView(await files.entries(self._infos[-1]))
        view, start = self._view, self._row
        self._row = view.position_behind(end)
        rows = view.entries.slice(start, self._row - start)
        if self._row == len(view):
            self.drop()
        return rows


async def merge_trees(
    files: TreeFiles,
    rule: CutRule,
    *,
    base: Tree,
    source: Tree,
    destination: Tree,
    destination_id: MetarangeId,
    strategy: Strategy,
) -> tuple[MetarangeId, Conflicts]:
    """The merged tree; or, where there are conflicts, the destination and what they are. Ranges written before the
    first conflict was met stay behind, named by nothing."""
    kept_ids = {info.id for info in source.ranges} & {info.id for info in destination.ranges}
    kept = [info for info in reversed(destination.ranges) if info.id in kept_ids]
    of_base = _Side(without_shared(without_shared(base.ranges, source.ranges), destination.ranges))
    of_source = _Side(without_shared(without_shared(source.ranges, base.ranges), destination.ranges))
    of_destination = _Side(without_shared(without_shared(destination.ranges, base.ranges), source.ranges))
    sides = (of_base, of_source, of_destination)
    builder, conflicts = TreeBuilder(files, rule, replaced=destination), Conflicts()

    async def keep_before(key: bytes | None) -> None:
        while kept and (key is None or kept[-1].min_key < key):
            await builder.keep(kept.pop())

    while any(side.info for side in sides):
        lone = _lone(sides)
        if lone is not None:
            info = lone.drop()
            if lone is not of_base and not conflicts.count:
                await keep_before(info.min_key)
                await builder.keep(info)
            continue
        end = min(side.info.max_key for side in sides if side.info)
        rows = await files.together([side.until(end, files) for side in sides])
        merged = merge_tables(base=rows[0], source=rows[1], destination=rows[2], strategy=strategy)
        conflicts.add(merged.conflicts)
        if merged.entries.num_rows and not conflicts.count:
            await keep_before(merged.entries.column("key")[0].as_py())
            await builder.put(merged.entries)
    if conflicts.count:
        return destination_id, conflicts
    await keep_before(None)
    return await builder.finish(destination_id), conflicts


def _lone(sides: Sequence[_Side]) -> _Side | None:
    """The side whose present range, not yet begun, ends before any of the others goes on."""
    for side in sides:
        info = side.info
        if info and side.is_at_start and not any(other.reaches(info.max_key) for other in sides if other is not side):
            return side
    return None
