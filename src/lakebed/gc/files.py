"""The repository's storage namespace, as drivers and workers reach it: one value that travels, one loop that runs.

A `Lake` says where the bytes lie; it is small, so it can be sent to every task. `Files` is for Spark's driver: a
blocking face for the few small files of a run. Tasks use `in_tasks`: each partition runs one event loop over one
ObjectStore, so that every storage driver exists once, for the server and for Spark alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar

import pyarrow as pa

from lakebed.base import NotFound
from lakebed.objectstore import (
    ObjectExists,
    ObjectOutcomeUnknown,
    ObjectStat,
    ObjectStore,
    ObjectStoreOptions,
    open_objectstore,
)

from .failures import marked
from .tables import Table

T = TypeVar("T")
Work: TypeAlias = Callable[[ObjectStore, Iterator[pa.RecordBatch]], AsyncIterator[pa.Table]]
"""What a task does with its share of rows (at least one): read or write, and yield Arrow rows."""

_LAST: Final = "\U0010ffff"
"""Behind whatever a folder of ours holds."""

PARALLEL: Final = 16
"""How many requests one task has under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A storage namespace, and what its URI leaves open: credentials, the root of local folders."""

    uri: str
    options: ObjectStoreOptions

    def open(self) -> ObjectStore:
        return open_objectstore(self.uri, self.options)


class Files:
    """Blocking reads and writes of small files. A context manager; keys are relative to the namespace."""

    def __init__(self, lake: Lake) -> None:
        self._runner = asyncio.Runner()
        self._store = lake.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._runner.run(self._store.close())
        self._runner.close()

    def read(self, key: str) -> bytes:
        return self._runner.run(self._store.get(key))

    def find(self, key: str) -> bytes | None:
        """None where there is no such file."""
        try:
            return self.read(key)
        except NotFound:
            return None

    def read_all(self, keys: Sequence[str]) -> list[bytes]:
        """In the order of `keys`."""
        return self._runner.run(_read_all(self._store, keys))

    def act(self, work: Callable[[ObjectStore], Coroutine[Any, Any, T]]) -> T:
        """Whatever else is to be done with the store."""
        return self._runner.run(work(self._store))

    def write(self, key: str, data: bytes) -> None:
        self._runner.run(_put(self._store, key, data))

    def write_once(self, key: str, data: bytes) -> bytes:
        """What is under the key from now on: `data`, unless somebody was faster."""
        return self._runner.run(_put_once(self._store, key, data))

    def sizes(self, prefix: str, *, without: str = "") -> dict[str, int]:
        """Everything below `prefix`, by what follows it, in byte order; the folder `without` (which ends with a slash)
        is not listed, whatever is in it.
        """
        return self._runner.run(_sizes(self._store, prefix, without))


async def _put(store: ObjectStore, key: str, data: bytes) -> None:
    await store.put(key, data)


async def _put_once(store: ObjectStore, key: str, data: bytes) -> bytes:
    try:
        await store.put(key, data, if_absent=True)
    except (ObjectExists, ObjectOutcomeUnknown):
        return await store.get(key)
    return data


async def _sizes(store: ObjectStore, prefix: str, without: str) -> dict[str, int]:
    found: dict[str, int] = {}
    async for page in listed(store, prefix, without=without):
        found |= {stat.key.removeprefix(prefix): stat.size_bytes for stat in page}
    return found


async def listed(store: ObjectStore, prefix: str, *, without: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
    """What `Files.sizes` lists, page by page. The folder costs at most one page of it."""
    if without:
        async for page in store.list(prefix):
            before = [stat for stat in page if stat.key < without]
            yield before
            if len(before) < len(page):
                break
        else:
            return  # There is nothing in the folder, or behind.
    async for page in store.list(prefix, start_after=without and without + _LAST):
        yield page


async def _read_all(store: ObjectStore, keys: Sequence[str]) -> list[bytes]:
    return [data async for _, data in ahead(keys, store.get)]


async def ahead(items: Sequence[str], read: Callable[[str], Awaitable[T]]) -> AsyncIterator[tuple[str, T]]:
    """Each item with what `read` gave for it, in order, with PARALLEL reads under way. The first error ends it."""

    async def one(item: str) -> T:
        return await read(item)

    waiting: list[asyncio.Task[T]] = []
    try:
        for position, item in enumerate(items):
            later = items[position + len(waiting) : position + PARALLEL]
            waiting += [asyncio.create_task(one(next_item)) for next_item in later]
            yield item, await waiting.pop(0)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def in_tasks(lake: Lake, work: Work, table: Table) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` wants: `work` runs over a partition's rows on an event loop of its own, and what it yields
    goes out as rows of `table` while it goes on. A partition without rows costs nothing.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        share = (batch for batch in batches if batch.num_rows)
        first = next(share, None)
        if first is not None:
            with marked():
                yield from table.batches(_stepwise(lake, work, chain([first], share)))

    return run


def whole(share: Iterator[pa.RecordBatch]) -> pa.Table:
    """All rows of a task at once: for shares that name files or folders, of which there are few."""
    return pa.Table.from_batches(list(share))


def _stepwise(lake: Lake, work: Work, share: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    with asyncio.Runner() as runner:
        store = lake.open()
        rows = work(store, share)
        try:
            while (found := runner.run(_next(rows))) is not None:
                yield found
        finally:
            runner.run(store.close())


async def _next(rows: AsyncIterator[T]) -> T | None:
    return await anext(rows, None)
