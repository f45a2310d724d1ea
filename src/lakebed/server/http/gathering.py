"""Send the head of an answer and its body in one write.

uvicorn writes them one after the other, and uvloop passes each write to the kernel at once. On loopback one such call
takes a tenth of the time of a look-up, because the kernel delivers each packet to its reader in the call.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

HELD_BYTES_MAX: Final = 4 << 10
"""Write a longer piece at once, so that flow control sees large bodies. Heads are shorter."""


class GatheringTransport:
    """A transport that buffers a short piece until the next piece, or until the loop's next round.

    Order is kept: any other call that affects the stream, such as `close`, first writes the buffer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        # Bind it here: it is called after each answer, and `__getattr__` costs several times as much.
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        """Forward every attribute that does not write to the transport itself."""
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
