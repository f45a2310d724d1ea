"""Stand between a client and a server on loopback, and do to their connections what a network does.

It runs in a thread of its own, so it goes on while the code under test blocks.
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
"""Time for a request to be carried out, from the first byte of an answer to the cut."""
ARRIVES_S_HTTP2 = 1.0
"""HTTP/2 answers a frame before it carries out the request, and drops what a cut connection asked."""
LOOK_S = 0.05
HTTP2 = b"PRI * HTTP/2.0"
"""Its connections begin with this."""


@dataclass(kw_only=True)
class Hold:
    """Requests that wait. `waiting` counts those that wait now; `wait_for` returns once there are enough."""

    value: bytes
    after: int
    loop: asyncio.AbstractEventLoop
    waiting: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def wait_for(self, requests: int, *, or_until: Callable[[], bool]) -> bool:
        """Return True once this number waits, and False where `or_until` comes true before."""
        with self._changed:
            while self.waiting < requests and not or_until():
                self._changed.wait(LOOK_S)
            return self.waiting >= requests

    def release(self) -> None:
        """Let them arrive, and all that come later."""
        self.loop.call_soon_threadsafe(self._released.set)

    async def passed(self, data: bytes) -> None:
        """Wait with these bytes of a connection, if they are to wait."""
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
    """Forward `port` to the server's port. Made by `faulty_network`. Faults count for what happens from then on."""

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
        """Cut every connection. New ones are served."""
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
        """Let the next request that has these bytes arrive, then cut its connection instead of answering."""
        self._unanswered = {value, base64.b64encode(value), value.hex().encode()}

    def hold(self, value: bytes, *, after: int = 0) -> Hold:
        """Hold back each request that has these bytes, but for the first `after` of them, until `Hold.release`.

        A held request arrives once it is released, even if who sent it is gone by then.
        """
        self._hold = Hold(value=value, after=after, loop=self._loop)
        return self._hold

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self, wanted: bool) -> None:
        """Begin or stop to listen."""
        if wanted and self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        elif not wanted and self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut(self) -> None:
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted closes its socket in the next turn of the loop

    async def _end(self) -> None:
        await self._listen(False)
        # A connection that was just accepted has a task, and is not among ours yet.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted closes its socket in the next turn of the loop

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
        """`lost` gets the time for the request whose answer is to be lost."""
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
    """Hold a free port of 127.0.0.1 until the block ends, also while the server that is to have it is away.

    A socket is bound to it that never listens, so the port refuses connections meanwhile. The system gives it to no
    connection and to no bind to port 0. A server that names it gets it, for servers set SO_REUSEADDR.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
