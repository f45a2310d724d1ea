"""Changing 100,000 of ten million committed entries by `Trees.apply`. Contiguous: neighbours. Clustered: 1,000
neighbours each at 100 places. Scattered: one in every hundred entries, so every range is read and written.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench.harness import Bench, Pair, Work
from lakebed.base import MetarangeId
from lakebed.versions import Applied

from . import lake

ENTRIES = {"small": 50_000, "full": 10_000_000}
CHANGES = {"small": 500, "full": 100_000}


async def rewrite(folder: Path, base: MetarangeId, changes: pa.Table) -> Applied:
    objectstore = lake.open_lake(folder)
    try:
        return await lake.open_trees(objectstore).apply(base, changes)
    finally:
        await objectstore.close()


async def touched(folder: Path, base: MetarangeId, changed: MetarangeId) -> str:
    objectstore = lake.open_lake(folder)
    trees = lake.open_trees(objectstore)
    before, after = [{info.id for info in await trees.ranges(id_)} for id_ in (base, changed)]
    await objectstore.close()
    return f"{len(before - after):,} of {len(before):,} ranges"


@contextmanager
def ours(folder: Path, base: MetarangeId, changes: pa.Table) -> Iterator[Work]:
    yield Work(run=lambda: asyncio.run(rewrite(folder, base, changes)))


def parts(size: str) -> Iterator[Pair]:
    count, of = CHANGES[size], ENTRIES[size]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = lake.build(folder, of)
        for kind, numbers, limit in (
            ("contiguous", lake.contiguous(count, of), 1.0),
            ("clustered", lake.clustered(count, of, places=100), 4.0),
            ("scattered", lake.scattered(count, of), 16.0),
        ):
            changes = lake.changes(numbers, generation=1)
            applied = asyncio.run(rewrite(folder, base, changes))
            assert (applied.added, applied.changed, applied.removed) == (count // 10, count // 10 * 8, count // 10)
            ranges = asyncio.run(touched(folder, base, applied.metarange_id))
            yield Pair(
                what=f"rewrite {kind}: {count:,} changes, {ranges}",
                limit=limit,
                ours=partial(ours, folder, base, changes),
                peak_limit_mib=1024.0,
            )


BENCH = Bench(name="rewrite", parts=parts)
