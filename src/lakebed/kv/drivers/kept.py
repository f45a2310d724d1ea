"""Keep connections, and lend each to one caller at a time.

- The one that was used last is lent first, so those that only a burst needs grow old. They end after IDLE_S_MAX.
- A caller waits for a turn, then gets a kept connection that is open, or a new one.
- Where the database has no connection left for us but we hold others, the next turn comes after FULL_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from .remote import take_turn

C = TypeVar("C")

IDLE_S_MAX: Final = 300.0
"""Use no connection that was idle for longer: the network between may have forgotten it without a word."""
FULL_S: Final = 1.0
"""Ask again so much later a database that has no connection left for us, where we have others."""


class Kept(Generic[C]):
    """At most `most` connections of type C. Belongs to the event loop that uses it.

    `make` opens one; `is_full` tells that its error means a full database. `end` closes one at once, and may be called
    twice. `is_open` tells, without asking the server, whether a connection can still be used.
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
        """When each was last used. The latest stands last."""
        self._lent = 0
        self._is_closed = False

    async def take(self) -> C:
        """Lend a connection. The caller gives it back, whatever becomes of it.

        Raises:
            TimeoutError: none was free within `turn_s`.
            Exception: what `make` raises.
        """
        await take_turn(self._free, self._turn_s)
        try:
            kept = self._kept()
            connection = await self._make() if kept is None else kept
        except BaseException as error:
            if self._lent and self._is_full(error):
                # The next attempts wait for one of ours, or they would ask the database again and again.
                asyncio.get_running_loop().call_later(FULL_S, self._free.release)
            else:
                self._free.release()
            raise
        self._lent += 1
        return connection

    def give_back(self, connection: C, *, is_usable: bool) -> None:
        """Keep it, or end it where a late answer could meet the next statement; and end what was idle for too long."""
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
        """Hand over the idle ones, for the caller to end. One that is lent ends when it comes back."""
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
