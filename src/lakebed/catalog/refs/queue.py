"""Turns of the changes of one branch: first come, first served.

Two commits of one branch can run at once and both succeed, but the later one builds twice. With many, some are
overtaken. So the changes of one process queue by arrival. A turn has no time limit. The wait has one, and its error
states how long the caller waited. Other processes do not share this queue: `changes.py` waits a little for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lakebed.base import Event, Ports, Unavailable

T = TypeVar("T")


class BranchQueue:
    def __init__(self, ports: Ports, *, wait_s_max: float) -> None:
        self._ports = ports
        self._wait_s_max = wait_s_max
        self._waiting: dict[str, deque[Event]] = {}
        """By branch whose turn is taken: the events of the waiting callers, in order."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def run(self, branch: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` after all work of the branch that arrived earlier.

        Raises:
            Unavailable: the wait took longer than `wait_s_max`.
        """
        waiting = self._waiting.get(branch)
        if waiting is None:
            self._waiting[branch] = deque()
        else:
            await self._wait(branch, waiting)
        try:
            return await work()
        finally:
            self._pass_on(branch)

    async def _wait(self, branch: str, waiting: deque[Event]) -> None:
        turn = self._ports.tasks.event()
        waiting.append(turn)
        began_ms = self._ports.clock.now_ms()
        try:
            is_ours = await turn.wait(self._wait_s_max)
        except BaseException:  # The caller was cancelled. If it just got the turn, pass the turn on.
            if turn.is_set():
                self._pass_on(branch)
            else:
                waiting.remove(turn)
            raise
        if not is_ours:
            waiting.remove(turn)
            waited_s = (self._ports.clock.now_ms() - began_ms) / 1000
            raise Unavailable(
                f"branch {branch} is busy: waited {waited_s:.0f} s behind other commits, try again",
                branch=branch,
                waited_s=waited_s,
            )

    def _pass_on(self, branch: str) -> None:
        waiting = self._waiting[branch]
        if waiting:
            waiting.popleft().set()
        else:
            del self._waiting[branch]
