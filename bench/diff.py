"""What differs between two commits of ten million entries: `Trees.diff`, all rows of it, with nothing in the cache. CPU
seconds.

1,000 changes, contiguous (neighbours) and scattered (one in every ten thousand entries). That the cost follows the
changes, and not the ten million, is shown by a tenth of the changes, for orientation; each line says how many ranges
were read, of both trees together.

Sketch: two lists of all ranges (30 ms), then for each range that differs and each side 0.4 ms for its digests and 0.3
for a group of rows that holds a change.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lakebed.base import MetarangeId

from . import lake
from .harness import Bench, Single, Work
from .rewrite import ENTRIES, rewrite

CHANGES = {"small": 100, "full": 1_000}


async def count_differences(folder: Path, left: MetarangeId, right: MetarangeId) -> int:
    objectstore = lake.open_lake(folder)
    try:
        return sum([len(batch) async for batch in lake.open_trees(objectstore).diff(left, right)])
    finally:
        await objectstore.close()


async def to_read(folder: Path, left: MetarangeId, right: MetarangeId) -> str:
    """The ranges that only one of the two has."""
    objectstore = lake.open_lake(folder)
    trees = lake.open_trees(objectstore)
    sides = [{info.id: info.file_bytes for info in await trees.ranges(id_)} for id_ in (left, right)]
    await objectstore.close()
    unlike = [side[id_] for side in sides for id_ in sides[0].keys() ^ sides[1].keys() if id_ in side]
    return f"{len(unlike):,} ranges, {sum(unlike) / 2**20:.1f} MiB"


@contextmanager
def ours(folder: Path, left: MetarangeId, right: MetarangeId, expected: int) -> Iterator[Work]:
    def run() -> None:
        found = asyncio.run(count_differences(folder, left, right))
        assert found == expected, (found, expected)

    yield Work(run=run)


def parts(size: str) -> Iterator[Single]:
    of = ENTRIES[size]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        left = lake.build(folder, of)
        for kind, place, limit in (("contiguous", lake.contiguous, 0.1), ("scattered", lake.scattered, 1.5)):
            for count, at_most in ((CHANGES[size], limit), (CHANGES[size] // 10, None)):
                changes = lake.changes(place(count, of), generation=1)
                right = asyncio.run(rewrite(folder, left, changes)).metarange_id
                ranges = asyncio.run(to_read(folder, left, right))
                yield Single(
                    what=f"diff {kind}: {count:,} changes, {ranges}",
                    limit=at_most,
                    ours=partial(ours, folder, left, right, count),
                )


BENCH = Bench(name="diff", parts=parts)
