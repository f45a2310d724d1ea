"""End a server process without losing a request.

1. For `notice_s`, answer "draining" at `/_ready` and keep accepting connections, so that a balancer leaves first.
   Connections that wait in the queue of an unshared socket are lost when it closes.
2. Accept no more connections. Connections in the queue of a shared socket are accepted by another process.
3. Answer requests on open connections with `connection: close`. Close idle connections.
4. When all are closed, or after `drain_s`, or at a second signal: cut off the remaining ones, and log their number.
5. Close all parts. A process that has no other task ends some seconds later, even if a thread still works.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn

from lakebed.server.http.limits import LimitedProtocol

logger = logging.getLogger(__name__)

DRAIN_S: Final = 300.0
IDLE_S: Final = 0.5
"""Close a connection without a request for this long. Busier clients read `connection: close` in an answer."""
STEP_S: Final = 0.05
CUT_S: Final = 1.0
"""Seconds for handlers to end after they were cut off."""


@dataclass(slots=True)
class Drain:
    """The progress of this process's end. Probes, answers and metrics read it.

    The server changes it, and handlers add `work`.
    """

    is_draining: bool = False
    is_over: bool = False
    work: set[asyncio.Future[Any]] = field(default_factory=set)
    """Work that continues after its client disconnected. The process waits for it as for a request."""

    def keep(self, work: asyncio.Future[Any]) -> None:
        self.work.add(work)
        work.add_done_callback(self.work.discard)


class DrainingServer(uvicorn.Server):
    """uvicorn with its own shutdown, and without its signal handlers.

    The handlers of uvicorn raise the signal again after the shutdown, before our parts are closed. `others` are
    sockets of workers that it helps.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        drain_s: float,
        notice_s: float,
        others: Sequence[socket.socket] = (),
    ) -> None:
        super().__init__(config)
        self._others = others
        self._helping: asyncio.Task[None] | None = None
        self._stop_helping = asyncio.Event()
        self.notice_s = notice_s
        self._drain = drain
        self._drain_s = drain_s
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._others:
            self._helping = asyncio.create_task(help_others(self._others, self._make_protocol, self._stop_helping))
        self.is_up.set()

    def _make_protocol(self) -> LimitedProtocol:
        return LimitedProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def cut_off(self) -> None:
        """Stop waiting for requests under way."""
        self._drain.is_over = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close every connection, in the order of this file's head. Nothing runs afterwards."""
        self._drain.is_draining = True
        await self._give_notice()
        if self._helping is not None:
            self._stop_helping.set()
            await asyncio.wait({self._helping})
        for server in self.servers:
            server.close()
        for listener in (*(sockets or []), *self._others):
            listener.close()
        await self._let_connections_end()
        await self._cut_off_the_rest()

    async def _give_notice(self) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self.notice_s
        while loop.time() < ends_at and not self._drain.is_over:  # noqa: ASYNC110  # a second signal sets a plain flag
            await asyncio.sleep(STEP_S)

    async def _let_connections_end(self) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._drain_s
        idle_since: dict[object, tuple[object, float]] = {}
        state, drain = self.server_state, self._drain
        while (state.connections or state.tasks or drain.work) and not drain.is_over:
            now = loop.time()
            if now >= ends_at:
                self._drain.is_over = True
                break
            for connection in self._connections():
                cycle = connection.cycle
                if not connection.is_between_requests:
                    idle_since.pop(connection, None)
                    continue
                # Two looks saw the same finished request, or none: no request arrived in between.
                known, since = idle_since.get(connection, (self, now))
                if known is not cycle:
                    idle_since[connection] = (cycle, now)
                elif now - since >= IDLE_S:
                    connection.shutdown()
            await asyncio.sleep(STEP_S)
            # After a pause of the process, a request that arrived in time may wait. Read it before the next look.
            await asyncio.sleep(0)

    def _connections(self) -> list[LimitedProtocol]:
        return [each for each in self.server_state.connections if isinstance(each, LimitedProtocol)]

    async def _cut_off_the_rest(self) -> None:
        tasks: set[asyncio.Future[Any]] = {*self.server_state.tasks, *self._drain.work}
        if tasks:
            logger.warning("cut off %d requests that took longer than the server waits for them", len(tasks))
        for connection in self._connections():
            connection.transport.abort()
        # Wait one turn of the loop, so that handlers see the closed connection before they are cancelled.
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_S)


def end_within(seconds: float, code: int) -> None:
    """End this process with `code` after `seconds` if it did not end before.

    Python waits for its threads without a limit.
    """

    def end() -> None:
        logger.warning("the process ends although a thread still works, %g seconds after its server", seconds)
        logging.shutdown()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


# Accept the connections of a worker that hangs. Each worker has a socket of its own, and the kernel keeps sending
# connections to a hanging process. So each worker also checks the queues of the others. If a queue is not empty for
# LOOKS checks, its worker does not accept. The first worker that checks then accepts all of its connections, without
# messages. A worker that resumes finds its queue empty, or accepts its share.

LOOK_S: Final = 0.25
LOOKS: Final = 4
"""Help a queue that had connections at this many checks in a row. A live worker accepts at once."""


async def help_others(
    listeners: Sequence[socket.socket], make_protocol: Callable[[], asyncio.Protocol], stop: asyncio.Event
) -> None:
    """Accept the connections that wait in these sockets of other workers, until `stop` is set."""
    poll = select.poll()
    for listener in listeners:
        listener.setblocking(False)
        poll.register(listener, select.POLLIN)
    found = dict.fromkeys((listener.fileno() for listener in listeners), 0)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LOOK_S)
        waiting = {number for number, _ in poll.poll(0)}
        for listener in listeners:
            number = listener.fileno()
            found[number] = found[number] + 1 if number in waiting else 0
            if found[number] >= LOOKS:
                await _take_all(listener, make_protocol)


async def _take_all(listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
    loop = asyncio.get_running_loop()
    # BlockingIOError: the queue is empty. Other errors: a client left, or no descriptors; the next check tries again.
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            try:
                await loop.connect_accepted_socket(make_protocol, connection)
            except BaseException:
                connection.close()
                raise
