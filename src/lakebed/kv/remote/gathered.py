"""Group calls that wait at the same time into one request to the database.

- Calls that arrive within one turn of the event loop or the next begin together: sockets deliver calls one by one.
- A call that arrives during a request waits until the request ends, at most PATIENCE_S. Then all waiting calls begin
  together, a turn later: so the callers of that request can join with their next calls.
- So the work always begins after the call: a read sees every write that was answered before the call.
- A cancelled caller loses only its own answer. The work of other callers continues.

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
"""The longest delay that a slow request, such as one on a hanging connection, causes to later calls."""


class Gathered(Generic[A, R]):
    """Groups calls for `carry_out`, which returns their answers in order: an exception stands for one call that failed.

    A request takes `most` calls. With `equal_share`, equal calls count once and share a request, as reads do.

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
        """Carry out this call, not before now. The future raises the error of the call."""
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
        """Wait until all requests that began have ended. A request may continue after its callers were cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin in the turn after the next."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_soon(self._spawn_beginning)

    def _spawn_beginning(self) -> None:
        """Begin in the next turn, in its own task: a cancelled caller must not cancel the others.

        Keep the timer set until then, so that no call sets another.
        """
        self._spawn(self._begin())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self) -> None:
        """Carry out all waiting calls."""
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
        """Split calls into requests."""
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
    """Return a copy of an error for one caller, which adds its own traceback."""
    copied = type(error)(str(error), **error.facts) if isinstance(error, LakebedError) else error
    copied.__cause__ = error.__cause__
    return copied
