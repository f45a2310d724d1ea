"""Give a collection access to the repository's storage namespace.

A `Lake` names the namespace; it is small, and sent to every task. `Files` is a blocking interface for callers without
an event loop: the Python API and the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from lakebed import objectstore
from lakebed.gc.messages import CLOCK_KEY
from lakebed.objectstore import ObjectStore, ObjectStoreOptions, open_objectstore

T = TypeVar("T")
_ENDINGS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Name a storage namespace, with options that its URI lacks: credentials, and the root of local folders."""

    uri: str
    options: ObjectStoreOptions

    def open(self) -> ObjectStore:
        return open_objectstore(self.uri, self.options)


class Files:
    """Access a namespace without an event loop. A context manager; keys are relative to the namespace."""

    def __init__(self, lake: Lake) -> None:
        self._store = lake.open()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end_tasks()
        self._wait(self._store.close())
        self._wait(self._loop.shutdown_asyncgens())
        self._wait(self._loop.shutdown_default_executor())
        self._loop.close()

    def _end_tasks(self) -> None:
        """End the tasks that Ctrl-C left: a generator that such a task runs could not be closed."""
        for _ in range(_ENDINGS_MAX):
            if not (left := asyncio.all_tasks(self._loop)):
                return
            for task in left:
                task.cancel()
            # A task that received Ctrl-C raises it again in the task that waits for it.
            with contextlib.suppress(KeyboardInterrupt):
                self._wait(asyncio.wait(left))
            for task in left:
                if task.done() and not task.cancelled():
                    task.exception()  # Retrieve it, or asyncio logs that no code did.

    def act(self, work: Callable[[ObjectStore], Coroutine[Any, Any, T]]) -> T:
        """Run `work` to its end. Ctrl-C ends it at once, even while it waits."""
        return self._wait(work(self._store))

    def _wait(self, done: Awaitable[T]) -> T:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public question is an exception
            # A notebook runs its own loop in this thread. Run ours in another thread.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(self._loop.run_until_complete, done).result()
        # A plain loop and no asyncio.Runner: a Runner turns the first Ctrl-C into a cancellation, which a blocking job
        # of Spark notices only at its end.
        return self._loop.run_until_complete(done)

    def each(self, rows: Callable[[ObjectStore], AsyncIterator[T]]) -> Iterator[T]:
        """Yield the items of `rows`, one at a time."""
        found = rows(self._store)
        while (row := self._wait(anext(found, None))) is not None:
            yield row

    def read(self, key: str) -> bytes:
        return self.act(lambda store: store.get(key))

    def write(self, key: str, data: bytes) -> None:
        self.act(lambda store: store.put(key, data))


async def store_clock_ms(store: ObjectStore) -> int:
    """Return the object store's time. The store dates objects, so compare their dates with this time.

    Costs a put and a stat.
    """
    return await objectstore.store_clock_ms(store, CLOCK_KEY)
