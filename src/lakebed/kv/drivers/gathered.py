"""Carry out calls together that wait at the same time: one request to the database instead of one each.

- What comes within one turn of the event loop or the next begins together: callers come from sockets one by one.
- What comes while that is under way waits until it has ended, at most PATIENCE_S. Then all that wait begin together,
  a turn later: so those whose answers it brought come along with what they ask next.
- So a call's work begins after the call, always: a read that begins then sees all that was answered before.
- A caller that is cancelled takes only its own answer along. The work of the others goes on.

The idea is that of group commit, for a database on a network (docs/design/0002-metadata-on-kv.md, "amortized reads").
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from lakebed.base import LakebedError

A = TypeVar("A")
R = TypeVar("R")

PATIENCE_S: Final = 0.02
"""A request that takes longer than this, on a connection that hangs say, delays what comes after it by no more."""


class Gathered(Generic[A, R]):
    """Made of what carries calls out: their answers in their order, an exception where one alone failed.

    A request takes `most` calls. Where `equal_share`, equal calls count as one and go together: those of reads.

    Belongs to the event loop that uses it.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[A]], Awaitable[Sequence[R | Exception]]],
        most: int,
        *,
        equal_share: bool = False,
    ) -> None:
        self._carry_out = carry_out
        self._most = most
        self._equal_share = equal_share
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._under_way = 0
        self._timer: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, asked: A) -> asyncio.Future[R]:
        """Carry this out, after this call began. The future raises what carrying it out raises."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        self._waiting.append((asked, answer))
        if self._timer is None:
            if self._under_way:
                self._timer = loop.call_later(PATIENCE_S, self._spawn_beginning)
            else:
                self._begin_soon(loop)
        return answer

    async def ended(self) -> None:
        """Return once all that began has ended. It may go on after its callers were cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin in the turn after the next one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_soon(self._spawn_beginning)

    def _spawn_beginning(self) -> None:
        """Begin in the next turn, in a task of its own: no caller's end is that of the others.

        The timer stays until then, so that no call makes another.
        """
        self._spawn(self._begin())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self) -> None:
        """Carry all out that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [call for call in self._waiting if not call[1].done()]
        self._waiting = []
        if not waiting:
            return
        first, *others = self._divided(waiting)
        self._under_way += 1 + len(others)
        for calls in others:
            self._spawn(self._together(calls))
        await self._together(first)

    def _divided(self, calls: list[tuple[A, asyncio.Future[R]]]) -> list[list[tuple[A, asyncio.Future[R]]]]:
        """Make requests of them."""
        if len(calls) <= self._most:
            return [calls]
        alike: dict[object, list[tuple[A, asyncio.Future[R]]]] = {}
        for number, call in enumerate(calls):
            alike.setdefault(call[0] if self._equal_share else number, []).append(call)
        groups = list(alike.values())
        parts = (groups[first : first + self._most] for first in range(0, len(groups), self._most))
        return [[call for group in part for call in group] for part in parts]

    async def _together(self, calls: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        answers: Sequence[R | Exception]
        try:
            answers = await self._carry_out([asked for asked, _ in calls])
            assert len(answers) == len(calls), "a caller without an answer would wait for ever"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the callers'
            answers = [copied(error) for _ in calls]
        except BaseException:
            for _, answer in calls:
                answer.cancel()
            raise
        finally:
            self._under_way -= 1
            if self._waiting:
                self._begin_soon(asyncio.get_running_loop())
        for (_, answer), found in zip(calls, answers, strict=True):
            if answer.done():  # cancelled meanwhile
                continue
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)


def copied(error: Exception) -> Exception:
    """Return an error of one caller's own, to which it adds its own traceback."""
    copied = type(error)(str(error), **error.facts) if isinstance(error, LakebedError) else error
    copied.__cause__ = error.__cause__
    return copied
