"""Small shares of work, done by the driver itself: a job costs Spark more than reading a few dozen files.

The work is the very one that tasks do (files.py), so what it writes and which errors it raises are the same.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pyarrow as pa

from .files import Lake, Work
from .tables import Table

SLICES_HERE: Final = 64
"""So many slices to list are not worth a job: 16 at a time, that is some seconds."""

RANGES_HERE: Final = 1024
"""So many ends of files are not: each takes a quarter of a millisecond, or a request of which 16 are under way."""

METARANGES_HERE: Final = 256
"""So many metaranges are not, in a clean run either: they are small and decode in a millisecond, where a job that also
has to tell their ranges apart takes two thirds of a second."""

BYTES_HERE: Final = 64 << 20
"""So many bytes to read through are not worth a job: about as many as a task is given of anything."""


def run_here(lake: Lake, work: Work, rows: pa.Table, out: Table) -> pa.Table:
    """What the job would return that deals `rows` to tasks. Blocks."""

    async def collect() -> list[pa.Table]:
        store = lake.open()
        try:
            return [found async for found in work(store, iter(rows.to_batches()))]
        finally:
            await store.close()

    with asyncio.Runner() as runner:
        found = runner.run(collect()) if rows.num_rows else []
    return pa.concat_tables([out.schema.empty_table(), *(table.select(out.schema.names) for table in found)])
