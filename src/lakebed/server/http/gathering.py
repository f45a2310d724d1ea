"""Sending the head of an answer and its body in one write.

uvicorn writes them one after the other, and uvloop hands each write to the kernel at once. On loopback one such call is
a tenth of what a look-up costs, for the kernel carries each packet to its reader in it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

HELD_BYTES_MAX: Final = 4 << 10
"""A longer piece is written at once, so that flow control sees what is large. Heads are shorter."""


class GatheringTransport:
    """A transport that holds a short piece back until the next one comes, or until the loop's next round.

    Order is kept: what else shows in the stream, `close` say, first writes what is held.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        # Asked after each answer, and by `__getattr__` at a multiple of the cost.
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        """Return what the transport itself has for all that does not write."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.writelines([held, data])
        elif 0 < len(data) <= HELD_BYTES_MAX:
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)
