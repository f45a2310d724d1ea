"""One of several worker processes: `python -m lakebed.server.process.worker`. Only serving.py starts it.

The first line of standard input has the orders. Its end is the order to stop: with notice after a NOTICE byte, and
otherwise at once, because another worker replaces it or the parent died. Standard output gets READY or NEW, and then a
byte each BEAT_S while the event loop runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys

from lakebed.base import LakebedError
from lakebed.server.operate.logs import configure_logs

from .serving import BEAT_S, NEW, READY, WorkerOrders, decode_orders, run_in_loop, serve_here

logger = logging.getLogger(__name__)


async def _work(orders: WorkerOrders) -> None:
    stop, at_once = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            loop.remove_reader(sys.stdin.fileno())
            if not stop.is_set():
                at_once.set()
        stop.set()

    loop.add_reader(sys.stdin.fileno(), on_input)

    def ready(is_new: bool) -> None:
        os.write(sys.stdout.fileno(), NEW if is_new else READY)
        beat()

    def beat() -> None:
        with contextlib.suppress(OSError):  # The parent is gone. The end of standard input reports it too.
            os.write(sys.stdout.fileno(), b".")
            loop.call_later(BEAT_S, beat)

    with contextlib.ExitStack() as stack:
        listeners, others = (
            [stack.enter_context(socket.socket(fileno=number)) for number in numbers]
            for numbers in (orders.listener_fds, orders.other_fds)
        )
        await serve_here(orders.options, listeners, ready, orders.process, others=others, stop=stop, at_once=at_once)


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return 1  # The parent already ended.
    orders = decode_orders(line)
    configure_logs(orders.process.log)
    try:
        run_in_loop(_work(orders))
    except LakebedError as error:
        logger.error("%s", error)  # noqa: TRY400  # the message is for people, a stack trace would hide it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
