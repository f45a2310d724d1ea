"""Run the work of a collection: one port with one method, and the engine of this process. For Spark see spark.py.

A step of a collection is a `Work`: an async function from a share of rows to rows. The input rows name files, folders
or buckets. The output rows name the files that the work wrote. So both are small, and all large data passes through the
object store. An engine decides nothing: every engine returns the same rows, and property tests hold them equal.

The local engine does the same work in this process, with the stores and ports that it gets. It needs neither Spark nor
its own event loop, so it also runs inside the simulator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from lakebed.base import Ports
from lakebed.objectstore import Deleter, ObjectStore

from .tables import Table

A = TypeVar("A")
T = TypeVar("T")

REQUESTS_A_SECOND: Final = 1024
BYTES_A_SECOND: Final = 64 << 20

ROWS_PER_PART: Final = 10_000
"""A part is the unit of progress: a core that loses its executor repeats one part, and two cores share at least one. A
plan of ten million objects has a thousand parts. Tenfold parts would save half the bytes and 2 s of CPU in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Give one share of work its tools: the namespace, its own ports, and the number of the share. A part of a plan has
    at most `rows_per_part` rows.
    """

    store: ObjectStore
    ports: Ports
    number: int = 0
    rows_per_part: int = ROWS_PER_PART

    def ahead(self, items: Sequence[A], read: Callable[[A], Awaitable[T]]) -> AsyncIterator[tuple[A, T]]:
        """Yield each item with the result of `read`, in order, several at a time."""
        return self.ports.tasks.ahead(items, read)


Work: TypeAlias = Callable[[Task, pa.Table], AsyncIterator[pa.Table]]
"""Read or write the files that the rows of one share name, and yield rows. A share has at least one row."""

DeletingWork: TypeAlias = Callable[[Task, Deleter, pa.Table], AsyncIterator[pa.Table]]
"""A `Work` with the right to delete. Only sweep.py has such work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Estimate the cost of a step in one process: small reads as requests, large reads by their bytes."""

    requests: float = 0
    size_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.requests / REQUESTS_A_SECOND + self.size_bytes / BYTES_A_SECOND


class Engine(Protocol):
    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        """Deal `rows` into shares, run `work` over each, and return all yielded rows, as rows of `out`.

        Without rows no work runs. The order of shares is free. A share may run twice, even concurrently: work writes
        equal bytes under equal names.
        """
        ...

    async def run_deleting(self, work: DeletingWork, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:
        """Do as `run`, for the sweep."""
        ...


class LocalEngine:
    """Run shares one after the other. Only `run_deleting` calls `open_deleter`. Only the simulator sets
    `rows_per_part`, to get small parts.
    """

    def __init__(
        self,
        store: ObjectStore,
        ports: Ports,
        *,
        open_deleter: Callable[[], Deleter],
        shares: int = 1,
        rows_per_part: int = ROWS_PER_PART,
    ) -> None:
        self._store = store
        self._ports = ports
        self._open_deleter = open_deleter
        self._shares = shares
        self._rows_per_part = rows_per_part

    async def run(self, work: Work, rows: pa.Table, out: Table, *, effort: Effort) -> pa.Table:  # noqa: ARG002 - the port's
        found = [out.schema.empty_table()]
        shares = min(self._shares, rows.num_rows)
        for number in range(shares):
            task = Task(store=self._store, ports=self._ports, number=number, rows_per_part=self._rows_per_part)
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
