"""Do large work in a process of its own, so that small requests wait neither for its interpreter nor for its core.

The process is started once large work comes, ends when it had nothing to do for IDLE_S, and with the socket between
the two: so with this process, however that ends. It runs at low priority, with its own view of both stores. All that it
is asked may be done twice. So where it fails, is killed or hangs, this process does the work itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from lakebed.auth import Delegation
from lakebed.base import MetarangeId, RepositoryUid, StagingToken

logger = logging.getLogger(__name__)

NICE: Final = 10
IDLE_S: Final = 600.0
"""An idle process holds some 130 MiB."""
SILENT_S: Final = 5.0
"""Kill it when it sent nothing for this long. It sends something each BEAT_S."""
SHORT_S: Final = 3.0
"""Do a page, or a tree with at most one scan of cells, here after this long."""
LONG_S: Final = 300.0
"""Do a tree with more cells here after this long."""
LEAVE_S: Final = 5.0
"""Kill it when it did not end for this long after it was told to."""
BEAT_S: Final = 1.0
START_S: Final = 60.0
AGAIN_S: Final = 60.0
"""Do not start another for this long after a start, so that one which soon ends costs little."""
WISH_S: Final = 0.1
WITHIN_S: Final = 10.0
"""Start it once WISH_S of large work came within this time. Less is done sooner here."""
LAY_S: Final = 0.015
"""A commit that rewrites a range."""
BUFFER_BYTES: Final = 1 << 20
HEAD_BYTES: Final = 4


class Lay(msgspec.Struct, frozen=True, tag=True):
    """`Committer.lay` of one repository. The answer is a metarange's id."""

    uid: RepositoryUid
    namespace: str
    salt: str
    base: MetarangeId
    tokens: tuple[StagingToken, ...]
    done: MetarangeId
    start: bytes


class Carry(msgspec.Struct, frozen=True, tag=True):
    """Carry out a request, of which these are the parts. The answer is the body of a successful answer.

    The process that asks decided that the caller `user_id` may have all of it. A page has no body.
    """

    user_id: str
    delegation: Delegation | None
    method: str
    raw_path: bytes
    query_string: bytes
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    body: bytes | None


class Ask(msgspec.Struct, frozen=True, array_like=True):
    number: int
    work: Lay | Carry


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`done` is None where the work failed. Number 0 is a beat, and the first says that the process is up."""

    number: int
    done: bytes | None = None


def frame(message: Ask | Answer) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(HEAD_BYTES) + data


async def next_frame(reader: asyncio.StreamReader) -> bytes:
    """
    Raises:
        EOFError, OSError: the other process ended.
    """
    return await reader.readexactly(int.from_bytes(await reader.readexactly(HEAD_BYTES)))


class Aside:
    """The process, as others ask it. None is the answer where it did not do the work."""

    def __init__(self, orders: bytes) -> None:
        """`orders` is the first line that the process gets (`WorkerOrders` in serving.py)."""
        self._orders = orders
        self._child: _Child | None = None
        self._starting: asyncio.Task[None] | None = None
        self._wished_s = self._since_s = 0.0
        self.counts: Counter[str] = Counter()
        """Pieces of work that the process has `done` and `failed`."""

    @property
    def is_up(self) -> bool:
        return self._child is not None and not self._child.is_over

    @property
    def waiting(self) -> int:
        """How much work waits for the process."""
        return len(self._child.asked) if self._child is not None else 0

    async def lay(
        self,
        of: tuple[RepositoryUid, str, str],
        base: MetarangeId,
        tokens: Sequence[StagingToken],
        done: MetarangeId,
        start: bytes,
        is_bulk: bool,
    ) -> MetarangeId | None:
        """Do `Committer.lay`. `of`: the repository's uid, namespace and salt."""
        work = Lay(*of, base, tuple(tokens), done, start)
        laid = await self._ask(work, LONG_S if is_bulk else SHORT_S)
        if laid is None:
            self.wish(WISH_S if is_bulk else LAY_S)
            return None
        return MetarangeId(laid.decode())

    async def carry(self, work: Carry) -> bytes | None:
        # The step of a plan writes files. It has no limit, so that two processes never write them at the same time.
        return await self._ask(work, SHORT_S if work.body is None else None)

    async def _ask(self, work: Lay | Carry, limit_s: float | None) -> bytes | None:
        if self._child is None or self._child.is_over:
            return None
        done = None
        try:
            async with asyncio.timeout(limit_s):
                done = await self._child.ask(work)
        except TimeoutError:
            logger.warning("the process for large work took more than %g s, so that is done here", limit_s)
        self.counts["failed" if done is None else "done"] += 1
        return done

    def wish(self, seconds: float) -> None:
        """Note large work that was not done by the process, and start it if there was enough."""
        if self.is_up or (self._starting is not None and not self._starting.done()):
            return
        now_s = time.monotonic()
        if now_s > self._since_s + WITHIN_S:
            self._wished_s, self._since_s = 0.0, now_s
        self._wished_s += seconds
        if self._wished_s >= WISH_S and now_s >= self._since_s:
            self._since_s = now_s + AGAIN_S
            # It outlives the request that wished for it, so it has none of that request's context.
            self._starting = asyncio.create_task(self._start(), context=contextvars.Context())

    async def close(self) -> None:
        """End the process."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._child is not None:
            await self._child.end()

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(START_S):
                self._child = await _start(self._orders)
        except (OSError, EOFError, TimeoutError) as error:
            logger.warning("the process for large work could not start, so it is done here: %s", error)


class _Child:
    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.is_over = False
        self._process = process
        self._reader = reader
        self._writer = writer
        self._number = 0
        self.asked: dict[int, asyncio.Future[bytes | None]] = {}
        self._heard_s = self._used_s = time.monotonic()
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]

    async def ask(self, work: Lay | Carry) -> bytes | None:
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        self.asked[number] = answer
        try:
            self._writer.write(frame(Ask(number, work)))
            done: bytes | None = await answer
        finally:
            self.asked.pop(number, None)
            self._used_s = time.monotonic()
        return done

    async def _listen(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                answer = msgspec.msgpack.decode(await next_frame(self._reader), type=Answer)
                self._heard_s = time.monotonic()
                asked = self.asked.get(answer.number)
                if asked is not None and not asked.done():
                    asked.set_result(answer.done)
        if not self.is_over:
            logger.warning("the process for large work ended, so what it had is done here")
        self._leave()

    async def _watch(self) -> None:
        while not self.is_over:
            await asyncio.sleep(BEAT_S)
            now_s = time.monotonic()
            if now_s > self._heard_s + SILENT_S:
                logger.error("the process for large work does not answer: killing it")
                break
            if not self.asked and now_s > self._used_s + IDLE_S:
                self._leave()
        if not self.is_over:
            self._process.kill()
        await asyncio.to_thread(_wait_or_kill, self._process)

    def _leave(self) -> None:
        self.is_over = True
        self._writer.close()
        for asked in self.asked.values():
            if not asked.done():
                asked.set_result(None)

    async def end(self) -> None:
        self._leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)


async def _start(orders: bytes) -> _Child:
    """
    Raises:
        OSError, EOFError: it could not start.
    """
    ours, its = socket.socketpair()
    try:
        with its:
            process = await asyncio.to_thread(_spawn, its)
        reader, writer = await asyncio.open_connection(sock=ours, limit=BUFFER_BYTES)
    except BaseException:
        ours.close()
        raise
    try:
        writer.write(orders)
        await next_frame(reader)
    except BaseException:
        writer.close()
        process.kill()
        await asyncio.to_thread(process.wait)
        raise
    return _Child(process, reader, writer)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _spawn(its: socket.socket) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603  # our own Python and our own module
        [sys.executable, "-m", "lakebed.server.process.aside_worker", str(its.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
        # Ctrl-C does not reach it. It stays in the session: where Linux groups processes by session, a priority counts
        # only among those of one.
        process_group=0,
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
        # Where memory runs out, the server stays.
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")
    return process
