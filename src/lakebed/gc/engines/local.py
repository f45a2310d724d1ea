"""The local engine: the very same work in this process, over stores and ports that are handed in.

It needs neither Spark nor an event loop of its own, so it also runs inside the simulator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pyarrow as pa

from lakebed.base import Ports
from lakebed.gc.tables import Table
from lakebed.objectstore import Deleter, ObjectStore

from .engine import DeletingWork, Effort, Task, Work


class LocalEngine:
    """Runs shares one after the other. `open_deleter` is called by `run_deleting` alone."""

    def __init__(
        self, store: ObjectStore, ports: Ports, *, open_deleter: Callable[[], Deleter], shares: int = 1
    ) -> None:
        self._store = store
        self._ports = ports
        self._open_deleter = open_deleter
        self._shares = shares

    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:  # noqa: ARG002 - the port's
        found = [out.schema.empty_table()]
        shares = min(self._shares, rows.num_rows)
        for number in range(shares):
            task = Task(store=self._store, ports=self._ports, number=number)
            share = rows.take(pa.array(range(number, rows.num_rows, shares)))
            found += [table.select(out.schema.names) async for table in work(task, share)]
        return pa.concat_tables(found)

    async def run_deleting(self, work: DeletingWork, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        if not rows.num_rows:
            return out.schema.empty_table()
        deleter = self._open_deleter()

        def with_deleter(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
            return work(task, deleter, share)

        try:
            return await self.run(with_deleter, rows, out, effort=effort)
        finally:
            await deleter.close()
