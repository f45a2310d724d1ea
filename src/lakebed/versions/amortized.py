"""One KV read, shared by all requests that wait for it (docs/design/0002-metadata-on-kv.md, "amortized reads").

A request may only use a read that *began after* the request did: the writer's second look would prove nothing
otherwise. So a request that arrives during a read waits for the next one, and the first that waits leads it.
No request waits when nothing is under way. An embedded store answers on the spot: then this is one dictionary look-up.
A store that shares reads itself is simply asked: to wait for another's answer first would make two requests of a burst.
"""

from __future__ import annotations

from lakebed.base import Event, Tasks
from lakebed.kv import Held, Store


class _Read:
    """The first request that waits makes `done`. Mostly none does."""

    __slots__ = ("done", "held", "is_over", "is_read")

    def __init__(self) -> None:
        self.done: Event | None = None
        self.held: Held | None = None
        self.is_over = False
        self.is_read = False

    async def wait(self, tasks: Tasks) -> None:
        if not self.is_over:
            if self.done is None:
                self.done = tasks.event()
            await self.done.wait()

    def end(self) -> None:
        self.is_over = True
        if self.done is not None:
            self.done.set()


class AmortizedReads:
    """Reads of one partition. Costs at most one `get` for each call, and one for all that wait together."""

    def __init__(self, store: Store, partition: bytes, tasks: Tasks) -> None:
        self._store = store
        self._partition = partition
        self._tasks = tasks
        self._running: dict[bytes, _Read] = {}
        self._following: dict[bytes, _Read] = {}

    async def get(self, key: bytes) -> Held | None:
        """The value as of some moment after this call began."""
        if self._store.shares_reads:
            return await self._store.get(self._partition, key)
        running = self._running.get(key)
        if running is None:
            return await self._lead(key, _Read())
        following = self._following.get(key)
        if following is None:
            following = self._following[key] = _Read()
            try:
                await running.wait(self._tasks)
            except BaseException:
                following.end()
                raise
            finally:
                del self._following[key]
            return await self._lead(key, following)
        await following.wait(self._tasks)
        # The leader failed or was cancelled: its error is not ours, so look for ourselves.
        return following.held if following.is_read else await self._lead(key, _Read())

    async def _lead(self, key: bytes, read: _Read) -> Held | None:
        self._running[key] = read
        try:
            read.held = await self._store.get(self._partition, key)
            read.is_read = True
            return read.held
        finally:
            if self._running.get(key) is read:
                del self._running[key]
            read.end()
