"""First come, first served: the turns of those who want to move one branch.

Two commits of one branch can run at once and both succeed, but the later one builds twice; of many, some are
overtaken. So they queue, in this process by arrival. A turn has no time limit (a commit takes what it takes), the wait
has one, and who waited in vain is told for how long. Other processes are not in this queue: `changes.py` is polite
to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lakebed.base import Event, Ports

from .errors import CommitQueueTimeout

T = TypeVar("T")


class BranchQueue:
    def __init__(self, ports: Ports, *, wait_s_max: float) -> None:
        self._ports = ports
        self._wait_s_max = wait_s_max
        self._waiting: dict[str, deque[Event]] = {}
        """A branch is a key while somebody has the turn. Its value: who waits, in order."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def run(self, branch: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` when everybody who came before is through.

        Raises:
            CommitQueueTimeout: that took longer than `wait_s_max`.
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
        except BaseException:  # The caller went away. A turn that it was just given goes to the next one.
            if turn.is_set():
                self._pass_on(branch)
            else:
                waiting.remove(turn)
            raise
        if not is_ours:
            waiting.remove(turn)
            waited_s = (self._ports.clock.now_ms() - began_ms) / 1000
            raise CommitQueueTimeout(
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
