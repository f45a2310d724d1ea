"""A tree of 150,000 ranges, warm: what a server costs that has read the tree before.

Only the ranges that are touched are files; of the others the lists say that they are there. `built` is what it took
to write the lists of all ranges once, for orientation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final
from zlib import crc32

import numpy as np

from bench.harness import Bench, Figure
from lakebed.base import EMPTY_METARANGE, Entry, MetarangeId, RangeId, to_row
from lakebed.objectstore import MemoryObjectStore
from lakebed.ranges import CUT_RULE, RangeInfo, changes_from_rows, encode_range, range_key, table_from_rows
from lakebed.runtime import live_ports
from lakebed.versions import TreeCache, Trees
from lakebed.versions.trees.builder import TreeBuilder, none_retired
from lakebed.versions.trees.files import TreeFiles

RANGES: Final = {"small": 600, "full": 150_000}
ENTRIES: Final = {"small": 100, "full": 7_200}
PAGE: Final = {"small": 50, "full": 1_000}
LISTED: Final = {"small": 16, "full": CUT_RULE.listed}
TURNS: Final = {"small": 2, "full": 50}
CHANGES: Final = 10
CACHE_BYTES: Final = 256 << 20
LIMITS_MS: Final = {"look-up": 1.0, "page": 5.0, "commit": 50.0, "diff": 50.0}


class Wide:
    """A wide tree, of which CHANGES ranges are files."""

    def __init__(self, size: str) -> None:
        self._count, self._entries, self._page = RANGES[size], ENTRIES[size], PAGE[size]
        self._store = MemoryObjectStore("mem://wide")
        # The rule of the product, but that one key in eight ends a range: such keys are found in no time.
        self._rule = replace(CUT_RULE, strong=8, weak_from=1 << 40, rows_max=1 << 40, listed=LISTED[size])
        cache, ports = TreeCache(CACHE_BYTES), live_ports()
        self._trees = Trees(self._store, cache, ports, rule=self._rule)
        self._files = TreeFiles(self._store, cache, ports)
        self._tree = EMPTY_METARANGE
        self._keys: list[bytes] = []
        """A key in the middle of each range that is a file."""

    async def build(self) -> None:
        builder = TreeBuilder(self._files, self._rule, safe=set(), retired_by=none_retired)
        files = set(np.linspace(0, self._count - 1, CHANGES).astype(int).tolist())
        for number in range(self._count):
            await builder.keep(await self._write(number) if number in files else self._make_up(number))
        self._tree = await builder.finish(EMPTY_METARANGE)

    def _make_up(self, number: int) -> RangeInfo:
        return RangeInfo(
            id=RangeId(sha256(b"%d" % number).hexdigest()),
            min_key=_key(number, 0),
            max_key=_last_key(number),
            count=self._entries,
            size_bytes=self._entries << 20,
            file_bytes=self._entries * 33,
        )

    async def _write(self, number: int) -> RangeInfo:
        keys = [*(_key(number, entry) for entry in range(self._entries - 1)), _last_key(number)]
        info, data = encode_range(table_from_rows(keys, [to_row(key, _entry(1)) for key in keys]))
        await self._store.put(range_key(info.id), data, size_bytes=len(data))
        self._keys.append(keys[self._entries // 2])
        return info

    async def look_up(self, turn: int) -> None:
        assert await self._trees.lookup(self._tree, self._keys[turn % CHANGES]) is not None

    async def page(self, turn: int) -> None:
        assert len(await self._trees.scan(self._tree, self._keys[turn % CHANGES], self._page)) == self._page

    async def commit(self, turn: int) -> None:
        await self._add([self._keys[turn % CHANGES]], version=2 + turn)

    async def differ(self) -> Callable[[int], Awaitable[None]]:
        other = await self._add(self._keys, version=2)

        async def diff(_: int) -> None:
            assert sum([len(batch) async for batch in self._trees.diff(self._tree, other)]) == CHANGES

        return diff

    async def _add(self, keys: Sequence[bytes], *, version: int) -> MetarangeId:
        # A key that ends a range would cut this one in two.
        added = [next(new for n in range(100) if crc32(new := key + b"%d" % n) % 8) for key in keys]
        changes = changes_from_rows(added, [to_row(key, _entry(version)) for key in added])
        applied = await self._trees.apply(self._tree, changes)
        assert applied.added == len(keys)
        return applied.metarange_id


def _key(number: int, entry: int) -> bytes:
    return b"warehouse/events/day=%06d/hour=07/part-%05d.snappy.parquet" % (number, entry)


def _last_key(number: int) -> bytes:
    """The first key behind all others of the range that ends one by its hash."""
    return next(key for entry in range(90_000, 99_999) if crc32(key := _key(number, entry)) % 8 == 0)


def _entry(version: int) -> Entry:
    return Entry(address=f"data/0123456789abc/{version:08d}", size_bytes=1 << 20, checksum="", modified_ms=version)


async def figures(size: str, repeat: int) -> list[Figure]:
    wide = Wide(size)
    began = time.process_time()
    await wide.build()
    found = [Figure.of("wide built", [1_000 * (time.process_time() - began)], unit="ms")]
    works = {"look-up": wide.look_up, "page": wide.page, "commit": wide.commit, "diff": await wide.differ()}
    for what, work in works.items():
        for turn in range(CHANGES):
            await work(turn)
        took = [await _milliseconds(work, TURNS[size]) for _ in range(repeat)]
        found.append(Figure.of(f"wide {what}", took, unit="ms", limit=LIMITS_MS[what]))
    return found


async def _milliseconds(work: Callable[[int], Awaitable[None]], turns: int) -> float:
    began = time.process_time()
    for turn in range(turns):
        await work(turn)
    return 1_000 * (time.process_time() - began) / turns


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    yield lambda repeat: asyncio.run(figures(size, repeat))


BENCH = Bench(name="wide", parts=parts)
