"""The three-way merge of trees, at a cost that follows the changes of both sides in the same place.

For every key the rule is that of `ranges.merge_tables`. Three steps settle most of it without reading a row:

1. A range of the base that one side still has tells that this side changed nothing there. It is dropped from both: a
   key absent in both keeps the entry of the other side.
2. A range that source and destination both have stands in the result as it is.
3. Of the ranges left, one that meets no other goes over whole (a side's own), or goes away (the base's).

The remaining ranges overlap: both sides changed them. There the rows that the source changed are found by digests,
as a diff finds them, and done to the destination's rows; as far as the first of the three ranges ends, and so on. At
most one range of each tree is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from lakebed.base import MetarangeId
from lakebed.ranges import Choices, CutRule, MergedTable, RangeInfo, Strategy, differing, merge_tables

from .builder import RetiredBy, TreeBuilder
from .diff import Side, Stretch
from .files import Tree, TreeFiles, ids_of, without_shared

CONFLICTS_LISTED_MAX: Final = 1000


@dataclass(slots=True)
class Conflicts:
    """The first keys in order, and how many there are."""

    keys: list[bytes] = field(default_factory=list)
    count: int = 0

    def add(self, keys: Sequence[bytes]) -> None:
        self.keys.extend(keys[: CONFLICTS_LISTED_MAX - len(self.keys)])
        self.count += len(keys)


async def merge_trees(
    files: TreeFiles,
    rule: CutRule,
    *,
    base: Tree,
    source: Tree,
    destination: Tree,
    destination_id: MetarangeId,
    strategy: Strategy,
    choices: Choices | None,
    retired_by: RetiredBy,
) -> tuple[MetarangeId, Conflicts]:
    """The merged tree; or, where there are conflicts, the destination and the conflicts. Ranges written before the
    first conflict was met stay behind, named by nothing."""
    # Sublists that all three have stay whole. Any other is opened wherever it is: a part of it may be in other trees.
    whole = {*base.ids}.intersection(source.ids, destination.ids)
    all_items = [await files.opened(tree, lambda info: info.id not in whole) for tree in (base, source, destination)]
    kept_ids = {*ids_of(all_items[1])}.intersection(ids_of(all_items[2]))
    kept = [info for info in reversed(all_items[2]) if info.id in kept_ids]
    ranges = [[info for info in items if isinstance(info, RangeInfo)] for items in all_items]

    def side(own: int, one: int, other: int) -> Side:
        return Side(files, without_shared(without_shared(ranges[own], ranges[one]), ranges[other]), ahead=False)

    sides = of_base, _, _ = side(0, 1, 2), side(1, 0, 2), side(2, 0, 1)
    safe = {*ids_of(destination), *ids_of(all_items[2])}
    builder, conflicts = TreeBuilder(files, rule, safe=safe, retired_by=retired_by), Conflicts()

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
        stretches = await files.together([side.until(end) for side in sides])
        rows = sum(stretch.stop - stretch.start for stretch in stretches)
        with files.naming():
            merged = await files.work(rows, partial(_merge_stretches, stretches, strategy, choices))
        conflicts.add(merged.conflicts)
        if merged.entries.num_rows and not conflicts.count:
            await keep_before(merged.entries.column("key")[0].as_py())
            # A key that makes a strong cut ends the range it is in, and so a stretch: only the last can be one.
            await builder.put(merged.entries, np.array([merged.entries.num_rows - 1]))
    if conflicts.count:
        return destination_id, conflicts
    await keep_before(None)
    return await builder.finish(destination_id), conflicts


def _merge_stretches(stretches: Sequence[Stretch], strategy: Strategy, choices: Choices | None) -> MergedTable:
    base, source, destination = stretches
    if not len(base.digests()) and not len(destination.digests()):
        return MergedTable(entries=source.entries(), conflicts=[])
    of_base, of_source = differing(base.digests(), source.digests())
    return merge_tables(
        base=base.take(of_base),
        source=source.take(of_source),
        destination=destination.entries(),
        strategy=strategy,
        choices=choices,
    )


def _lone(sides: Sequence[Side]) -> Side | None:
    """The side whose present range, not yet begun, ends before any of the others goes on."""
    for side in sides:
        info = side.info
        if info and side.is_at_start and not any(other.reaches(info.max_key) for other in sides if other is not side):
            return side
    return None
