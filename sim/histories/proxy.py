"""A proxy before an object store that cuts, delays and refuses requests, and loses answers, by chance."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Final

HEAD_MAX: Final = 1 << 22
DELAY_S: Final = 0.2
LATE_S: Final = 0.5
_BUSY: Final = b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n"


class Fate(StrEnum):
    """Say what becomes of a request."""

    CUT = "cut"
    """The store never sees it."""
    DELAYED = "delayed"
    LOST = "lost"
    """It is carried out, and the answer never comes."""
    LATE = "late"
    """The client finds the connection cut; the request is carried out after that."""
    REFUSED = "refused"
    """503, and the store never sees it."""


class FaultyProxy:
    """Forwards HTTP to a port of this machine. `rate`: how many of all requests meet a fault. `met` counts faults."""

    def __init__(self, port: int, chance: random.Random, *, rate: float) -> None:
        self._upstream = port
        self._chance = chance
        self.rate = rate
        self.met: Counter[str] = Counter()
        self._late: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def calm(self) -> None:
        """Let no further request meet a fault, and wait for those that are late."""
        self.rate = 0.0
        await asyncio.gather(*self._late, return_exceptions=True)

    async def close(self) -> None:
        """End every connection."""
        for task in self._serving | self._late:
            task.cancel()
        await asyncio.gather(*self._serving, *self._late, return_exceptions=True)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it is closed, or a fault closes it."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = head + await reader.readexactly(_length(head))
                answer = await self._answer(request)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            await _closed(writer)

    async def _answer(self, request: bytes) -> bytes | None:
        fate = self._chance.choice([*Fate]) if self._chance.random() < self.rate else None
        if fate is not None:
            self.met[fate.value] += 1
        match fate:
            case Fate.CUT:
                return None
            case Fate.REFUSED:
                return _BUSY
            case Fate.LATE:
                task = asyncio.create_task(self._carry_out_late(request))
                self._late.add(task)
                task.add_done_callback(self._late.discard)
                return None
            case Fate.LOST:
                await self._forward(request)
                return None
            case Fate.DELAYED:
                await asyncio.sleep(self._chance.uniform(0, DELAY_S))
        return await self._forward(request)

    async def _carry_out_late(self, request: bytes) -> None:
        await asyncio.sleep(self._chance.uniform(0, LATE_S))
        await self._forward(request)

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream, limit=HEAD_MAX)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            has_body = not request.startswith(b"HEAD ") and head[9:12] not in {b"204", b"304"}
            return head + (await reader.readexactly(_length(head)) if has_body else b"")
        finally:
            await _closed(writer)


@asynccontextmanager
async def faulty_proxy(port: int, chance: random.Random, *, rate: float) -> AsyncIterator[tuple[FaultyProxy, int]]:
    """Run a proxy before this port, and yield it with its own port."""
    proxy = FaultyProxy(port, chance, rate=rate)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=HEAD_MAX)
    async with server:
        try:
            yield proxy, server.sockets[0].getsockname()[1]
        finally:
            await proxy.close()


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


def _length(head: bytes) -> int:
    """Return how long the body is. The stores and clients here name it, or send none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
