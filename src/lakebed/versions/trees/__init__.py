"""The committed contents of one repository: immutable trees of entries, named by content.

A tree is a metarange, which names ranges, which hold entries (`lakebed.ranges`). Between the two a wide tree has
sublists, so that nothing that is read or written grows with the whole tree. Equal entries are equal trees with
equal ids, whatever history led to them (but where an id was retired, `RetiredBy`), and trees that differ little share
almost all their ranges. So reading one
entry decodes one range (and finds it in the cache the next time), and the cost of changing, comparing and merging trees
follows the change, not the size of the tree.

Nothing here is ever overwritten. A new tree is durable before its id is given out: its ranges first, then its
metarange.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import MetarangeId, Ports, RangeId, Row
from lakebed.objectstore import ObjectStore
from lakebed.ranges import (
    CHANGES_SCHEMA,
    CUT_RULE,
    ENTRIES_SCHEMA,
    Change,
    Choices,
    CutRule,
    KeyColumn,
    RangeInfo,
    RangeList,
    Strategy,
    SublistInfo,
    SublistList,
    apply_changes,
    chunk,
)

from .builder import RetiredBy, TreeBuilder, none_retired
from .cache import TreeCache
from .diff import Apart, DiffRow, apart_at_keys, apart_trees, diff_trees, rows_unlike
from .files import ROWS_APART, Ahead, Item, TreeFiles, ids_of
from .merge import merge_trees

CHANGES_TOGETHER: Final = 16_384
"""The number of changes that are applied at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    metarange_id: MetarangeId
    added: int
    changed: int
    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """`conflicts` are the first thousand keys, ascending, of `conflict_count`; where there are any, `metarange_id` is
    the destination's. A diff of the two shows the changes of the merge."""

    metarange_id: MetarangeId
    conflicts: list[bytes]
    conflict_count: int


_Step: TypeAlias = tuple[Item | None, int, int, bool]
"""A range, a sublist or none; the changes that fall before its first key or into it, from, to; and whether it must be
read."""


class Trees:
    """Any method may raise MetarangeCorrupt and RangeCorrupt, which name the file and the namespace, and what the
    ObjectStore raises. `rule` is for tests. `salt` makes names of files differ from those of an earlier repository in
    the same namespace: a late delete of one must not meet ours."""

    def __init__(
        self, objectstore: ObjectStore, cache: TreeCache, ports: Ports, *, rule: CutRule = CUT_RULE, salt: str = ""
    ) -> None:
        self._files = TreeFiles(objectstore, cache, ports, salt=salt)
        self._rule = rule
        self._cache = cache
        self._uri = objectstore.uri

    async def ranges(self, metarange: MetarangeId) -> Sequence[RangeInfo]:
        """The tree's ranges, ascending."""
        tree = await self._files.tree(metarange)
        return tree if isinstance(tree, RangeList) else [info async for info in self._files.ranges_from(tree, b"")]

    async def sublists(self, metarange: MetarangeId) -> Sequence[SublistInfo]:
        """The tree's sublists, ascending; none where it is not wide. Reads only the metarange."""
        tree = await self._files.tree(metarange)
        return tree if isinstance(tree, SublistList) else ()

    async def entries(self, info: RangeInfo) -> pa.Table:
        """All entries of a range, past the cache."""
        return await self._files.entries(info)

    async def lookup(self, metarange: MetarangeId, key: bytes) -> Row | None:
        """About 10 µs where the range is in the cache."""
        info = await self._files.range_at(await self._files.tree(metarange), key)
        return None if info is None or key < info.min_key else (await self._files.view(info)).get(key)

    async def row_in(self, range_id: RangeId, key: bytes) -> Row | None:
        """Return the row of this key in a range, whichever tree has the range."""
        return (await self._files.view_of(range_id)).get(key)

    async def lookup_many(self, metarange: MetarangeId, keys: Sequence[bytes]) -> list[Row | None]:
        """Return for each key its row. Keys may come in any order; each range is loaded once."""
        tree = await self._files.tree(metarange)
        ascending, found, at = sorted(keys), dict[bytes, Row](), 0
        while at < len(ascending):
            info = await self._files.range_at(tree, ascending[at])
            if info is None:
                break
            stop = bisect_right(ascending, info.max_key, at)
            inside = ascending[bisect_left(ascending, info.min_key, at, stop) : stop]
            if inside:
                found.update((await self._files.view(info)).get_many(inside))
            at = stop
        return [found.get(key) for key in keys]

    async def apart(self, left: MetarangeId, right: MetarangeId, *, exactly: bool = False) -> tuple[Apart, int]:
        """Return where two trees differ, and how many rows of lists and ranges had to be compared for it.

        `exactly`: at which keys, unless these are too many. A comparison that was made before costs 3 µs, another some
        50 µs, at keys some ms.
        """
        name, compared = (self._uri, f"apart {left} {right}"), 0
        found = self._cache.find(name, Apart)
        if found is not None and (found.is_final or not exactly):
            return found, compared
        one, other = await self._files.tree(left), await self._files.tree(right)
        if found is None:
            found, compared = await apart_trees(self._files, one, other), len(one) + len(other)
        if exactly and not found.is_final:
            compared += found.rows
            found = await apart_at_keys(self._files, one, other, found)
        self._cache.keep(name, found)
        return found, compared

    async def is_large_at(self, metarange: MetarangeId, keys: Sequence[bytes]) -> bool:
        """Return whether a change of one of these keys rewrites a range that takes some ms."""
        tree = await self._files.tree(metarange)
        ranges = [await self._files.range_at(tree, key) for key in keys]
        return any(info is not None and info.count >= ROWS_APART for info in ranges)

    async def first_key(
        self, metarange: MetarangeId, start: bytes, folder_of: Callable[[bytes], bytes]
    ) -> bytes | None:
        """Return the first key at or after `start`, where that costs less than a page of its folder; else None.

        About 10 µs where the range is in the cache, where it was asked before or where no key of a range is smaller,
        else 0.4 ms. `folder_of` returns the beginning of all keys of a key's folder.
        """
        info = await self._files.range_at(await self._files.tree(metarange), start)
        return None if info is None else await self._files.first_key(info, start, folder_of)

    async def scan(
        self, metarange: MetarangeId, start: bytes, limit: int, *, end: bytes | None = None
    ) -> list[tuple[bytes, Row]]:
        """Up to `limit` entries at or after `start` and before `end`, ascending. About 0.4 µs an entry where the cache
        has them."""
        tree = await self._files.tree(metarange)
        found: list[tuple[bytes, Row]] = []
        position = start
        while len(found) < limit and (info := await self._files.range_at(tree, position)) is not None:
            if end is not None and info.min_key >= end:
                break
            view = await self._files.view(info)
            first = view.position(start) if start > info.min_key else 0
            last = len(view) if end is None or info.max_key < end else view.position(end)
            found += view.rows(first, min(last, first + limit - len(found)))
            position = info.max_key + b"\0"
        return found

    async def total(self, metarange: MetarangeId, start: bytes, end: bytes | None) -> tuple[int, int]:
        """Return how many entries lie between two keys, and the sum of their sizes.

        Reads at most two sublists and two ranges.
        """
        # Lists have these numbers of whole ranges. Only the ranges at both edges must be read.
        count, size_bytes, edges = (await self._files.tree(metarange)).total(start, end)
        while edges:
            edge = edges.pop()
            if isinstance(edge, SublistInfo):
                more, more_bytes, ranges = (await self._files.sublist(edge)).total(start, end)
                edges = [*edges, *ranges]
            else:
                more, more_bytes = (await self._files.view(edge)).total(start, end)
            count, size_bytes = count + more, size_bytes + more_bytes
        return count, size_bytes

    async def apply(
        self, metarange: MetarangeId, changes: pa.Table, *, retired_by: RetiredBy = none_retired
    ) -> Applied:
        """The tree after these changes (CHANGES_SCHEMA; ascending, each key once).

        A change that puts an equal entry, or removes a missing one, is none; without any, the same id comes back and
        nothing is written. Only ranges into which a change falls are read, and a neighbour where one loses its end.
        About 1 µs for each entry of these ranges; memory does not grow with the tree.
        """
        assert changes.schema.equals(CHANGES_SCHEMA), changes.schema
        tree = await self._files.tree(metarange)
        changes = await self._files.work(changes.num_rows, changes.combine_chunks)
        keys = KeyColumn(chunk(changes, "key"))
        items = await self._files.opened(tree, lambda info: _falls_into(info, keys))
        steps = _plan(items, keys)
        read = [info for info, _, _, is_read in steps if isinstance(info, RangeInfo) and is_read]
        tables = Ahead(self._files, read, self._files.entries)
        builder = TreeBuilder(self._files, self._rule, safe={*ids_of(tree), *ids_of(items)}, retired_by=retired_by)
        added = changed = removed = 0
        for info, start, stop, is_read in steps:
            if info is not None and not is_read:
                await builder.keep(info)
                continue
            entries = ENTRIES_SCHEMA.empty_table() if info is None else await tables.next()
            parts = _in_parts(entries, changes.slice(start, stop - start))
            rows = min(stop - start, CHANGES_TOGETHER) + entries.num_rows
            while (change := await self._files.work(rows, partial(next, parts, None))) is not None:
                if info is not None and change.is_none and change.entries.num_rows == info.count:
                    await builder.keep(info)
                    continue
                await builder.put(change.entries, _to_hash(change))
                added, changed, removed = added + change.added, changed + change.changed, removed + change.removed
        if not (added or changed or removed):
            return Applied(metarange_id=metarange, added=0, changed=0, removed=0)
        id_ = await builder.finish(metarange)
        return Applied(metarange_id=id_, added=added, changed=changed, removed=removed)

    async def diff(
        self, left: MetarangeId, right: MetarangeId, *, start: bytes = b"", prefix: bytes = b""
    ) -> AsyncIterator[list[DiffRow]]:
        """Yield the differences, in key order, in batches that are not empty: keys at or after `start` that begin with
        `prefix`. Ranges that both trees have are never read; of the others the digests, and rows that differ.
        """
        if left == right:
            return
        trees = [await self._files.tree(id_) for id_ in (left, right)]
        async for batch in diff_trees(self._files, *trees, start=start, prefix=prefix):
            yield batch

    async def rows_unlike(self, left: MetarangeId, right: MetarangeId) -> AsyncIterator[list[tuple[bytes, Row]]]:
        """Yield (key, row) of what `right` has and `left` has not: as a diff, and equal content at another address.

        Reads what a diff reads, and of the ranges that differ the addresses.
        """
        if left != right:
            async for batch in rows_unlike(self._files, *[await self._files.tree(id_) for id_ in (left, right)]):
                yield batch

    async def merge(
        self,
        *,
        base: MetarangeId,
        source: MetarangeId,
        destination: MetarangeId,
        strategy: Strategy,
        choices: Choices | None = None,
        retired_by: RetiredBy = none_retired,
    ) -> Merged:
        """Apply to the destination the changes of the source since the base.

        A key that both changed to different rows is a conflict. "source-wins" and "dest-wins" settle it, and `choices`
        settle single keys. Reads only ranges that both sides changed.
        """
        trees = [await self._files.tree(id_) for id_ in (base, source, destination)]
        id_, conflicts = await merge_trees(
            self._files,
            self._rule,
            base=trees[0],
            source=trees[1],
            destination=trees[2],
            destination_id=destination,
            strategy=strategy,
            choices=choices,
            retired_by=retired_by,
        )
        return Merged(metarange_id=id_, conflicts=conflicts.keys, conflict_count=conflicts.count)


def _in_parts(entries: pa.Table, changes: pa.Table) -> Iterator[Change]:
    """The changes applied some at a time, each part to the entries up to its last key: where a bulk load falls between
    two keys, this bounds what is made of it at once."""
    keys = KeyColumn(chunk(changes, "key"))
    entry_keys, done = KeyColumn(chunk(entries, "key")), 0
    for start in range(0, len(keys), CHANGES_TOGETHER):
        part = changes.slice(start, CHANGES_TOGETHER)
        is_last = start + CHANGES_TOGETHER >= len(keys)
        end = len(entry_keys) if is_last else bisect_right(entry_keys, keys[start + CHANGES_TOGETHER - 1])
        yield apply_changes(entries.slice(done, end - done), part)
        done = end


def _to_hash(change: Change) -> npt.NDArray[np.int64]:
    """Rows that may end in a strong cut: of a stored range only the last can, where it is still there."""
    last = change.entries.num_rows - 1
    return change.fresh if last in change.fresh[-1:] else np.append(change.fresh, last)


def _falls_into(info: SublistInfo, keys: KeyColumn) -> bool:
    at = bisect_left(keys, info.min_key)
    is_in: bool = at < len(keys) and keys[at] <= info.max_key
    return is_in


def _plan(items: Sequence[Item], keys: KeyColumn) -> list[_Step]:
    """Every item, in order, with the changes that belong to it; at the end those behind all of them."""
    steps: list[_Step] = []
    at = 0
    for info in items:
        if at == len(keys) or keys[at] > info.max_key:
            steps.append((info, at, at, False))
            continue
        first = bisect_left(keys, info.min_key, at)
        stop = bisect_right(keys, info.max_key, first)
        if at < first:
            steps.append((None, at, first, True))
        steps.append((info, first, stop, first < stop))
        at = stop
    if at < len(keys):
        steps.append((None, at, len(keys), True))
    return steps
