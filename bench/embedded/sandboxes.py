"""Sandboxes made and ended: CPU for each, and that nothing is left.

All of a size are there at once, so that a look at all of them, for each one that is made or ended, would show. What
stays of a branch is its note and its log, as of each deleted branch.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.harness import Bench, Figure
from lakebed.auth import PARTITION, Ref, SandboxRecord
from lakebed.base import in_waves
from lakebed.kv import scan_prefix
from lakebed.server import AppState, ServerOptions, opened

COUNTS: Final = {"small": 20, "full": 10_000}
LIMIT_MS: Final = 10.0
"""Of CPU, to make a sandbox, and to end it."""
DAY_MS: Final = 86_400_000


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    def take(repeat: int) -> list[Figure]:
        taken = [asyncio.run(_round(COUNTS[size])) for _ in range(repeat)]
        return [
            Figure.of(f"sandboxes: {what}", [each[place] for each in taken], unit="ms", limit=LIMIT_MS)
            for place, what in enumerate(("made", "ended"))
        ]

    yield take


async def _round(count: int) -> tuple[float, float]:
    """Return milliseconds of CPU for each sandbox made, and for each ended."""
    with tempfile.TemporaryDirectory() as folder:
        async with opened(ServerOptions(data_dir=Path(folder), blockstore="local")) as state:
            lake = await state.catalog.create("lake", storage_namespace="local://lake", default_branch="main")
            before = await _records(state)

            async def make(_: int) -> SandboxRecord:
                record, _issued = await state.sandboxes.create(
                    lake,
                    state.sandboxes.fresh_id(),
                    source="main",
                    read=Ref.of_branch("main"),
                    lasts_ms=DAY_MS,
                    by="bench",
                )
                return record

            async def end(record: SandboxRecord) -> None:
                await state.sandboxes.end(lake, record.id, by="bench")

            started = time.process_time()
            made = await in_waves(state.ports.tasks, range(count), make)
            between = time.process_time()
            await in_waves(state.ports.tasks, made, end)
            ended = time.process_time()
            left = await _records(state) - before
            assert not left, f"of {count} sandboxes there is left: {left}"
            return (between - started) * 1000 / count, (ended - between) * 1000 / count


async def _records(state: AppState) -> Counter[str]:
    records = [key.split(b"/")[0].decode() async for key, _ in scan_prefix(state.store, PARTITION, b"")]
    lake = await state.catalog.get("lake")
    branches = await lake.versions.context.branches.every()
    objects = [one async for page in lake.objectstore.list("") for one in page]
    return Counter([*records, *("branch" for _ in branches), *("object" for _ in objects)])


BENCH = Bench(name="sandboxes", parts=parts)


if __name__ == "__main__":
    made_ms, ended_ms = asyncio.run(_round(int(sys.argv[1])))
    print(f"{sys.argv[1]} sandboxes: {made_ms:.2f} ms of CPU to make one, {ended_ms:.2f} ms to end it, none left")
