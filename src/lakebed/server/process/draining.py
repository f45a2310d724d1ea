"""Ending a server process without losing a request.

1. For `notice_s`, say "draining" at `/_ready` and go on taking connections, so that a balancer leaves first. What
   waits in the queue of a socket that no other process shares is lost when that closes.
2. Take no more connections. Those that wait in the queue of a shared socket go to another process.
3. Answer what comes on open connections with `connection: close`. Close those that are idle.
4. When all are closed, or after `drain_s`, or at a second signal: cut off what is left, and log how much that was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn

from lakebed.server.http.limits import LimitedProtocol

from .helping import help_others

logger = logging.getLogger(__name__)

DRAIN_S: Final = 300.0
IDLE_S: Final = 0.5
"""A connection without a request for this long is closed. A busier client reads `connection: close` in an answer."""
STEP_S: Final = 0.05
CUT_S: Final = 1.0
"""How long handlers get to end after they were cut off."""


@dataclass(slots=True)
class Drain:
    """Say how far the end of this process is. Probes, answers and metrics read it.

    The server changes it, and handlers add `work`.
    """

    is_draining: bool = False
    is_over: bool = False
    work: set[asyncio.Future[Any]] = field(default_factory=set)
    """What goes on when its client has gone away. The process waits for it as for a request."""

    def keep(self, work: asyncio.Future[Any]) -> None:
        self.work.add(work)
        work.add_done_callback(self.work.discard)


class DrainingServer(uvicorn.Server):
    """uvicorn with a shutdown of our own, and without its signal handlers.

    These raise the signal again afterwards, before anything is closed. `others` are sockets of workers that it helps.
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
        """Wait no longer for requests under way."""
        self._drain.is_over = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close every connection, in the order that heads this file. Nothing runs afterwards."""
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
                # The same finished request, or none, in two looks: nothing came in between.
                known, since = idle_since.get(connection, (self, now))
                if known is not cycle:
                    idle_since[connection] = (cycle, now)
                elif now - since >= IDLE_S:
                    connection.shutdown()
            await asyncio.sleep(STEP_S)
            # After a pause of the process a request may wait that came in time: read it before the next look.
            await asyncio.sleep(0)

    def _connections(self) -> list[LimitedProtocol]:
        return [each for each in self.server_state.connections if isinstance(each, LimitedProtocol)]

    async def _cut_off_the_rest(self) -> None:
        tasks: set[asyncio.Future[Any]] = {*self.server_state.tasks, *self._drain.work}
        if tasks:
            logger.warning("cut off %d requests that took longer than the server waits for them", len(tasks))
        for connection in self._connections():
            connection.transport.abort()
        # One turn of the loop, so that handlers see the connection gone before they are cancelled.
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_S)
