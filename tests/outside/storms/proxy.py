"""A proxy that cuts, delays, doubles and refuses requests, and loses and truncates answers, by chance."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Final

from bench.http import read_chunks

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
    DOUBLED = "doubled"
    """It is carried out twice, and the second answer comes."""
    TRUNCATED = "truncated"
    """It is carried out, and the connection is cut within the answer."""


AT_A_DOOR: Final = (Fate.CUT, Fate.DELAYED, Fate.LOST, Fate.REFUSED, Fate.TRUNCATED)
"""What meets requests to a server of ours: their clients cannot tell what a request does that is carried out twice."""


class FaultyProxy:
    """Forwards HTTP to a port of this machine. `rate`: how many of all requests meet a fault. `met` counts faults."""

    def __init__(
        self, port: Callable[[], int], chance: random.Random, *, rate: float, fates: Sequence[Fate] = tuple(Fate)
    ) -> None:
        self._upstream = port
        self._chance = chance
        self._fates = fates
        self.rate = self.usual_rate = rate
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
                request = head + await _body(reader, head)
                answer, is_whole = await self._answer(request)
                writer.write(answer)
                await writer.drain()
                if not is_whole:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            await _closed(writer)

    async def _answer(self, request: bytes) -> tuple[bytes, bool]:
        """Return the answer and whether it is whole. The connection ends behind one that is not."""
        fate = self._chance.choice(self._fates) if self._chance.random() < self.rate else None
        if fate is not None:
            self.met[fate.value] += 1
        match fate:
            case Fate.CUT:
                return b"", False
            case Fate.REFUSED:
                return _BUSY, True
            case Fate.LATE:
                task = asyncio.create_task(self._carry_out_late(request))
                self._late.add(task)
                task.add_done_callback(self._late.discard)
                return b"", False
            case Fate.LOST:
                await self._forward(request)
                return b"", False
            case Fate.TRUNCATED:
                answer = await self._forward(request)
                return answer[: self._chance.randrange(len(answer))], False
            case Fate.DOUBLED:
                await self._forward(request)
            case Fate.DELAYED:
                await asyncio.sleep(self._chance.uniform(0, DELAY_S))
        return await self._forward(request), True

    async def _carry_out_late(self, request: bytes) -> None:
        await asyncio.sleep(self._chance.uniform(0, LATE_S))
        await self._forward(request)

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream(), limit=HEAD_MAX)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            has_body = not request.startswith(b"HEAD ") and head[9:12] not in {b"204", b"304"}
            return head + (await _body(reader, head) if has_body else b"")
        finally:
            await _closed(writer)


@asynccontextmanager
async def faulty_proxy(
    port: int | Callable[[], int], chance: random.Random, *, rate: float, fates: Sequence[Fate] = tuple(Fate)
) -> AsyncIterator[tuple[FaultyProxy, int]]:
    """Run a proxy before this port, and yield it with its own port."""
    proxy = FaultyProxy(port if callable(port) else lambda: port, chance, rate=rate, fates=fates)
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


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Read a body as it is sent: of a length that is named, or in chunks; or there is none."""
    fields = [line.lower().partition(b":") for line in head.split(b"\r\n")[1:]]
    named = {name: value.strip() for name, _, value in fields}
    if named.get(b"transfer-encoding") != b"chunked":
        return await reader.readexactly(int(named.get(b"content-length", 0)))
    return b"".join(await read_chunks(reader))
