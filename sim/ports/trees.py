"""Trees for simulations: the promises of `lakebed.versions.Trees` on plain dictionaries, a hundred times cheaper.

A tree is one value in the simulated object store, under the key that its metarange would have: its (key, row) pairs.
Reading a tree is one effect, unless this instance has read or written it before (`remembers`); writing a new one is one
effect. Ids follow from content, so equal trees have equal ids, and the empty tree is EMPTY_METARANGE.
Held equal to the real trees on random changes, differences and merges by tests/sim/test_trees.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from lakebed.base import EMPTY_METARANGE, MetarangeId, RangeId, Row
from lakebed.objectstore import ObjectMissing
from lakebed.ranges import (
    Choices,
    RangeCorrupt,
    RangeInfo,
    Strategy,
    SublistInfo,
    decode_range,
    metarange_key,
    range_key,
    rows_from_table,
)
from lakebed.versions import Applied, DiffRow, Merged, RetiredBy, Trees, none_retired

from .files import Tree, files_of
from .ports import SimObjectStore

Contents: TypeAlias = dict[bytes, Row]

_NONE: Final[Contents] = {}


class SimTrees(Trees):
    def __init__(self, objectstore: SimObjectStore, *, remembers: bool = True, salt: str = "") -> None:
        self._salt = salt
        self._objectstore = objectstore
        self._remembered: dict[MetarangeId, Contents] | None = {} if remembers else None

    async def ranges(self, metarange: MetarangeId) -> Sequence[RangeInfo]:
        """Return None: a simulated tree is one file."""
        del metarange
        return ()

    async def sublists(self, metarange: MetarangeId) -> Sequence[SublistInfo]:
        """Return None: a simulated tree is one file."""
        del metarange
        return ()

    async def contents(self, metarange: MetarangeId) -> Contents:
        """Return a tree's rows by key, ascending. Not to be changed."""
        if metarange == EMPTY_METARANGE:
            return _NONE
        if self._remembered is not None and metarange in self._remembered:
            return self._remembered[metarange]
        try:
            contents = dict(await self._objectstore.get_value(metarange_key(metarange)))
        except ObjectMissing as error:
            raise AssertionError(f"tree {metarange[:12]} was deleted, or named before it was written") from error
        if self._remembered is not None:
            self._remembered[metarange] = contents
        return contents

    async def lookup(self, metarange: MetarangeId, key: bytes) -> Row | None:
        return (await self.contents(metarange)).get(key)

    async def row_in(self, range_id: RangeId, key: bytes) -> Row | None:
        try:
            data = await self._objectstore.get(range_key(range_id))
        except ObjectMissing as error:
            raise RangeCorrupt(range_id, "the file is missing") from error
        return dict(rows_from_table(decode_range(range_id, data))).get(key)

    async def lookup_many(self, metarange: MetarangeId, keys: Sequence[bytes]) -> list[Row | None]:
        contents = await self.contents(metarange)
        return [contents.get(key) for key in keys]

    async def scan(
        self, metarange: MetarangeId, start: bytes, limit: int, *, end: bytes | None = None
    ) -> list[tuple[bytes, Row]]:
        pairs = list((await self.contents(metarange)).items())
        first = bisect_left(pairs, start, key=lambda pair: pair[0])
        return [pair for pair in pairs[first : first + limit] if end is None or pair[0] < end]

    async def apply(
        self, metarange: MetarangeId, changes: pa.Table, *, retired_by: RetiredBy = none_retired
    ) -> Applied:
        before = await self.contents(metarange)
        after = dict(before)
        gone = changes.column("tombstone").to_pylist()
        for (key, row), is_gone in zip(rows_from_table(changes), gone, strict=True):
            if is_gone:
                after.pop(key, None)
            elif key not in before or before[key][0] != row[0]:
                after[key] = row
        rows = differences(before, after)
        if not rows:
            return Applied(metarange_id=metarange, added=0, changed=0, removed=0)
        kinds = [row.kind for row in rows]
        return Applied(
            metarange_id=await self._write(after, retired_by),
            added=kinds.count("added"),
            changed=kinds.count("changed"),
            removed=kinds.count("removed"),
        )

    async def diff(
        self, left: MetarangeId, right: MetarangeId, *, start: bytes = b"", prefix: bytes = b""
    ) -> AsyncIterator[list[DiffRow]]:
        rows = differences(await self.contents(left), await self.contents(right))
        found = [row for row in rows if row.key >= start and row.key.startswith(prefix)]
        if found:
            yield found

    async def rows_unlike(self, left: MetarangeId, right: MetarangeId) -> AsyncIterator[list[tuple[bytes, Row]]]:
        before, after = await self.contents(left), await self.contents(right)
        if unlike := [(key, row) for key, row in after.items() if before.get(key) != row]:
            yield unlike

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
        old, new, here = [await self.contents(id_) for id_ in (base, source, destination)]
        merged = dict(here)
        conflicts = []
        for row in differences(old, new):
            key = row.key
            if _digest(here, key) != _digest(old, key) and _digest(here, key) != _digest(new, key):
                side = (choices or {}).get(key, strategy)
                if side == "none":
                    conflicts.append(key)
                if side != "source-wins":
                    continue
            if row.right is None:
                merged.pop(key, None)
            else:
                merged[key] = row.right
        if conflicts:
            return Merged(metarange_id=destination, conflicts=conflicts[:1000], conflict_count=len(conflicts))
        is_same = not differences(here, merged)
        id_ = destination if is_same else await self._write(merged, retired_by)
        return Merged(metarange_id=id_, conflicts=[], conflict_count=0)

    async def _write(self, contents: Contents, retired_by: RetiredBy) -> MetarangeId:
        if not contents:
            return EMPTY_METARANGE
        pairs, salt = tuple(sorted(contents.items())), self._salt
        files = files_of(pairs, salt)
        while retired := (await retired_by([files.metarange_id]))[0]:
            salt = retired
            files = files_of(pairs, salt)
        id_ = files.metarange_id
        if self._remembered is not None:
            self._remembered[id_] = dict(pairs)
        await self._objectstore.put_value(metarange_key(id_), Tree(pairs, salt), len(files.metarange))
        return id_


def differences(left: Contents, right: Contents) -> list[DiffRow]:
    """List what differs between two trees, in key order."""
    rows = []
    for key in sorted(left.keys() | right.keys()):
        before, after = left.get(key), right.get(key)
        if before is None:
            rows.append(DiffRow("added", key, None, after))
        elif after is None:
            rows.append(DiffRow("removed", key, before, None))
        elif before[0] != after[0]:
            rows.append(DiffRow("changed", key, None, after))
    return rows


def _digest(contents: Contents, key: bytes) -> int | None:
    row = contents.get(key)
    return None if row is None else row[0]
