"""The process for large work: `python -m lakebed.server.process.aside_worker DESCRIPTOR`. Only aside.py starts it.

The descriptor is a socket. Its first line has the orders, then questions come, and each gets an answer. Its end is the
order to stop, and nothing else is: a service manager sends a signal to all processes of a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from dataclasses import replace
from functools import partial

import msgspec

from lakebed.base import LakebedError
from lakebed.runtime import leave_pandas_out
from lakebed.server.app import App, create_app, opened
from lakebed.server.operate.logs import configure_logs
from lakebed.server.options import TREE_CACHE_BYTES_MIN
from lakebed.server.state import AppState

from .aside import BEAT_S, BUFFER_BYTES, Answer, Ask, Carry, frame, next_frame
from .serving import WorkerOrders, calm_the_collector, decode_orders, keep_memory, run_in_loop

logger = logging.getLogger(__name__)

CACHE_BYTES_MAX = 4 * TREE_CACHE_BYTES_MIN


async def _work(orders: WorkerOrders, ours: socket.socket) -> None:
    leave_pandas_out()
    options = replace(orders.options, cache_bytes=min(orders.options.cache_bytes, CACHE_BYTES_MAX))
    reader, writer = await asyncio.open_connection(sock=ours, limit=BUFFER_BYTES)
    async with opened(options) as state:
        app = create_app(state)
        calm_the_collector()
        keep_memory()
        tasks = {asyncio.create_task(_beat(writer))}
        try:
            while True:
                ask = msgspec.msgpack.decode(await next_frame(reader), type=Ask)
                task = asyncio.create_task(_answer(state, app, ask, writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except (EOFError, OSError):
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _beat(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(frame(Answer(0)))
        await asyncio.sleep(BEAT_S)


async def _answer(state: AppState, app: App, ask: Ask, writer: asyncio.StreamWriter) -> None:
    done: bytes | None = None
    try:
        if isinstance(ask.work, Carry):
            done = await app.carry(ask.work)
        else:
            work = ask.work
            versions = state.catalog.versions_at(work.uid, work.namespace, work.salt)
            done = (await versions.commits.lay(work.base, work.tokens, work.done, work.start)).encode()
    except LakebedError:
        pass  # The other process meets the same error, and reports it.
    except Exception:  # a bug here must not keep the other process waiting
        logger.exception("large work failed, and is done again in the other process")
    with contextlib.suppress(OSError):
        writer.write(frame(Answer(ask.number, done)))


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ours = socket.socket(fileno=int(sys.argv[1]))
    with ours.dup() as other, other.makefile("rb", buffering=0) as file:
        line = file.readline()
    if not line:
        return 1  # The other process already ended.
    orders = decode_orders(line)
    configure_logs(orders.process.log)
    ours.setblocking(False)
    run_in_loop(partial(_work, orders, ours)())
    return 0


if __name__ == "__main__":
    sys.exit(main())
