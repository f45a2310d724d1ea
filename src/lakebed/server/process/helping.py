"""Taking the connections of a worker that hangs.

Each worker has a socket of its own, and the kernel goes on dealing connections to one whose process stands still. So
each worker also looks at the queues of the others. One that is never found empty for a while belongs to a worker that
does not take what it gets: then the first that looks takes all of it. No process tells the others who hangs, and a
worker that goes on finds its queue empty, or takes part.
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
"""A queue found with connections this often in a row is helped with. Its worker would have taken them at once."""


async def help_others(
    listeners: Sequence[socket.socket], make_protocol: Callable[[], asyncio.Protocol], stop: asyncio.Event
) -> None:
    """Take what waits in these sockets of other workers, until `stop` is set."""
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
    # BlockingIOError: the queue is empty. Others: a client that left, or no descriptors; the next look tries again.
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            try:
                await loop.connect_accepted_socket(make_protocol, connection)
            except BaseException:
                connection.close()
                raise
