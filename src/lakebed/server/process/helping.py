"""Accept the connections of a worker that hangs.

Each worker has a socket of its own, and the kernel keeps sending connections to a hanging process. So each worker also
checks the queues of the others. If a queue is not empty for LOOKS checks, its worker does not accept. The first worker
that checks then accepts all of its connections. No messages are needed. A worker that resumes finds its queue empty,
or accepts its share.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from typing import Final

LOOK_S: Final = 0.25
LOOKS: Final = 4
"""Help a queue that had connections at this many checks in a row. A live worker accepts at once."""


async def help_others(
    listeners: Sequence[socket.socket], make_protocol: Callable[[], asyncio.Protocol], stop: asyncio.Event
) -> None:
    """Accept the connections that wait in these sockets of other workers, until `stop` is set."""
    poll = select.poll()
    for listener in listeners:
        listener.setblocking(False)
        poll.register(listener, select.POLLIN)
    found = dict.fromkeys((listener.fileno() for listener in listeners), 0)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LOOK_S)
        waiting = {number for number, _ in poll.poll(0)}
        for listener in listeners:
            number = listener.fileno()
            found[number] = found[number] + 1 if number in waiting else 0
            if found[number] >= LOOKS:
                await _take_all(listener, make_protocol)


async def _take_all(listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
    loop = asyncio.get_running_loop()
    # BlockingIOError: the queue is empty. Other errors: a client left, or no descriptors; the next check tries again.
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            try:
                await loop.connect_accepted_socket(make_protocol, connection)
            except BaseException:
                connection.close()
                raise
