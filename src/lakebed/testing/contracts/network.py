"""A proxy between a client and a server on loopback, which causes faults of a network.

It runs in a thread of its own, so it continues while the code under test blocks.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CHUNK = 1 << 16
ARRIVES_S = 0.1
"""The time from a request's arrival to the cut, so that the server carries it out."""
ARRIVES_S_HTTP2 = 1.0
"""HTTP/2 answers a frame before it carries out the request, and drops the requests of a cut connection."""
LOOK_S = 0.05
HTTP2 = b"PRI * HTTP/2.0"
"""The first bytes of its connections."""


@dataclass(kw_only=True)
class Hold:
    """Requests that are held back.

    `waiting` is the number of requests that wait now; `wait_for` waits for a number of them.
    """

    value: bytes
    after: int
    loop: asyncio.AbstractEventLoop
    waiting: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def wait_for(self, requests: int, *, or_until: Callable[[], bool]) -> bool:
        """Return True once this many requests wait, or False if `or_until` returns True first."""
        with self._changed:
            while self.waiting < requests and not or_until():
                self._changed.wait(LOOK_S)
            return self.waiting >= requests

    def release(self) -> None:
        """Let the held requests arrive, and all later ones."""
        self.loop.call_soon_threadsafe(self._released.set)

    async def passed(self, data: bytes) -> None:
        """Wait with these bytes of a connection, if they are held back."""
        if self.value not in data or self._released.is_set():
            return
        if self.after:
            self.after -= 1
            return
        self._count(1)
        try:
            await self._released.wait()
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._changed:
            self.waiting += more
            self._changed.notify_all()


@dataclass
class FaultyNetwork:
    """Forwards `port` to the server's port. Made by `faulty_network`. A fault affects only later traffic."""

    server_port: int
    port: int
    delay_s: float = 0
    """Hold back each answer for this long."""
    _listener: asyncio.Server | None = None
    _unanswered: set[bytes] = field(default_factory=set)
    _hold: Hold | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def cut(self) -> None:
        """Cut every connection. New connections are served."""
        self._run(self._cut())

    def refuse(self) -> None:
        """Cut every connection and refuse new ones, until `heal`."""
        self._run(self._listen(False))
        self.cut()

    def end(self) -> None:
        """Refuse new connections, and return once every socket is closed."""
        self._run(self._end())

    def heal(self) -> None:
        self._run(self._listen(True))
        self.delay_s = 0

    def lose_answer_to(self, value: bytes) -> None:
        """Let the next request with these bytes arrive, then cut its connection instead of answering."""
        self._unanswered = {value, base64.b64encode(value), value.hex().encode()}

    def hold(self, value: bytes, *, after: int = 0) -> Hold:
        """Hold back each request with these bytes, except the first `after` of them, until `Hold.release`.

        A released request arrives even if its sender has left.
        """
        self._hold = Hold(value=value, after=after, loop=self._loop)
        return self._hold

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self, wanted: bool) -> None:
        """Start or stop listening."""
        if wanted and self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        elif not wanted and self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut(self) -> None:
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn of the loop

    async def _end(self) -> None:
        await self._listen(False)
        # A connection that was just accepted has a task, but is not in `_connections` yet.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn of the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the connection ends below, and so does this task
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self.server_port)
        lost: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        try:
            ways = [
                asyncio.ensure_future(self._carry_requests(reader, here, lost)),
                asyncio.ensure_future(self._carry_answers(there, writer, lost)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            here.transport.abort()

    async def _carry_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Future[float]
    ) -> None:
        """Forward requests. Sets `lost` to the wait before the cut, for the request whose answer must be lost."""
        arrives_s = 0.0
        while data := await reader.read(CHUNK):
            arrives_s = arrives_s or (ARRIVES_S_HTTP2 if data.startswith(HTTP2) else ARRIVES_S)
            if any(each in data for each in self._unanswered) and not lost.done():
                self._unanswered = set()
                lost.set_result(arrives_s)
            if self._hold is not None:
                await self._hold.passed(data)
            writer.write(data)
            await writer.drain()

    async def _carry_answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Future[float]
    ) -> None:
        while data := await reader.read(CHUNK):
            if lost.done():
                await asyncio.sleep(lost.result())
                return
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()


@contextmanager
def faulty_network(server_port: int) -> Iterator[FaultyNetwork]:
    """Forward a fresh port of this machine to the server's, until the block ends."""
    with held_port() as port:
        network = FaultyNetwork(server_port, port)
        loop = network._loop  # noqa: SLF001 - its own maker
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            network.heal()
            yield network
        finally:
            network.end()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve a free port of 127.0.0.1 until the block ends, even while the server that will use it is down.

    A bound socket that never listens makes the port refuse connections meanwhile. The system gives the port to no
    connection and to no bind to port 0. A server that binds to the port by number gets it, since servers set
    SO_REUSEADDR.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
