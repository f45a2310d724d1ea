"""A pool of connections, each lent to one caller at a time.

- The connection used last is lent first, so connections of a burst become idle. They end after IDLE_S_MAX.
- A caller waits for a turn, then gets an idle connection that is open, or a new one.
- Where the database has no free connection but we have others, the next turn comes after FULL_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from .store import take_turn

C = TypeVar("C")

IDLE_S_MAX: Final = 300.0
"""Use no connection that was idle for longer: the network may have dropped it silently."""
FULL_S: Final = 1.0
"""Wait this long before the next attempt to connect to a full database, where we have other connections."""


class Kept(Generic[C]):
    """At most `most` connections of type C. Belongs to the event loop that uses it.

    `make` opens a connection; `is_full` returns whether its error means a full database. `end` closes a connection at
    once, and may be called twice. `is_open` returns, without a request, whether a connection can still be used.
    """

    def __init__(
        self,
        most: int,
        *,
        turn_s: float,
        make: Callable[[], Awaitable[C]],
        is_full: Callable[[BaseException], bool],
        is_open: Callable[[C], bool],
        end: Callable[[C], object],
    ) -> None:
        self._free = asyncio.Semaphore(most)
        self._turn_s = turn_s
        self._make = make
        self._is_full = is_full
        self._is_open = is_open
        self._end = end
        self._idle: list[tuple[float, C]] = []
        """When each connection was last used. The latest is last."""
        self._lent = 0
        self._is_closed = False

    async def take(self) -> C:
        """Lend a connection. The caller always gives it back, even after a failure.

        Raises:
            TimeoutError: no connection was free within `turn_s`.
            Exception: an error of `make`.
        """
        await take_turn(self._free, self._turn_s)
        try:
            kept = self._kept()
            connection = await self._make() if kept is None else kept
        except BaseException as error:
            if self._lent and self._is_full(error):
                # The next attempts wait for one of our connections: they would flood the database otherwise.
                asyncio.get_running_loop().call_later(FULL_S, self._free.release)
            else:
                self._free.release()
            raise
        self._lent += 1
        return connection

    def give_back(self, connection: C, *, is_usable: bool) -> None:
        """Keep a connection, or end it where a late answer could meet the next statement. End connections idle for too
        long.
        """
        self._lent -= 1
        if is_usable and not self._is_closed and self._is_open(connection):
            now_s = time.monotonic()
            while self._idle and now_s - self._idle[0][0] >= IDLE_S_MAX:
                self._end(self._idle.pop(0)[1])
            self._idle.append((now_s, connection))
        else:
            self._end(connection)
        self._free.release()

    def close(self) -> list[C]:
        """Return the idle connections, for the caller to end. A lent connection ends when it is given back."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        return [connection for _, connection in idle]

    def _kept(self) -> C | None:
        while self._idle:
            used_at, connection = self._idle.pop()
            if self._is_open(connection) and time.monotonic() - used_at < IDLE_S_MAX:
                return connection
            self._end(connection)
        return None
