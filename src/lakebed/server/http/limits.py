"""Limit one connection: size and speed of its requests, and the number of connections.

A connection is closed when

    the head of a request (line and headers) is over HEAD_BYTES_MAX or HEADERS_MAX          431
    it has two Host headers                                                                 400
    the head is not complete after HEAD_S                                                   408
    fewer than BODY_BYTES_MIN of a body arrive in BODY_S while the server is ready to read  408
    there are too many connections, and none of them is idle                                503

A request whose head arrives in one piece, as nearly all do, costs two comparisons and no timer.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HELD_BYTES_MAX: Final = 4 << 10
"""Write a longer piece at once, so that flow control sees large bodies. Heads are shorter."""


HEAD_BYTES_MAX: Final = 64 << 10
"""Leaves half free after the longest encoded path and query of the contract, and a token."""
HEADERS_MAX: Final = 128
HEAD_S: Final = 20.0
BODY_S: Final = 30.0
BODY_BYTES_MIN: Final = 30 << 10
"""The fewest bytes in BODY_S: 1 KiB a second."""
CONNECTIONS_MAX: Final = 4096
DESCRIPTORS_KEPT: Final = 128
"""Descriptors reserved for files, the key-value store and the object store."""
REQUEST_BYTES_MIN: Final = len(b"GET / HTTP/1.1")
CHUNKED_BYTES_MIN: Final = 256
"""Give the parser at least this much of a chunked body at once: chunk ends may appear every four bytes."""
HEAD_END: Final = b"\r\n\r\n"
"""The end of a head, and of a chunked body. The parser accepts no other."""


def connections_max() -> int:
    """Return the number of connections for which this process has file descriptors, minus those that it needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(CONNECTIONS_MAX, soft - DESCRIPTORS_KEPT))


class HoldingFlow(FlowControl):
    """uvicorn's flow control, which does not resume reading while the bytes of a later request wait."""

    is_holding = False

    def resume_reading(self) -> None:
        if not self.is_holding:
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol over httptools, with limits.

    The parser (httptools) has no limits. It joins the pieces of an endless header at quadratic cost, and waits for the
    rest without a timeout.
    """

    flow: HoldingFlow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._is_in_body = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._piece_bytes = 0
        self._head_bytes_most = 0
        """At least the bytes of a head that ends now: those since the head before, with all of that one's piece."""
        self._parsed_body_bytes = 0
        self._rest: memoryview | None = None
        """The bytes after a request that has no answer yet. Reading is paused, so they are at most one read (256
        KiB).
        """
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        gathering: Any = GatheringTransport(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(gathering)
        self.flow = HoldingFlow(gathering)
        if len(self.connections) > connections_max() and not self._make_room():
            self._refuse(503, b"too many connections")
            return
        self._arm(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._rest = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._rest is not None:
            # Reading is paused, so this happens at most once after the pause.
            self._rest = memoryview(b"".join([self._rest, data]))
        elif not self._is_unanswered and self._end_of_piece(data, 0) == len(data):
            self._parse(data)  # Nearly always: one request, or a part of one.
        else:
            self._parse_requests(memoryview(data))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        rest, self._rest = self._rest, None
        if rest is not None and not self.transport.is_closing():
            self.flow.is_holding = False
            self.flow.resume_reading()
            self._parse_requests(rest)

    def _parse_requests(self, data: memoryview) -> None:
        """Parse until a request is complete. The bytes after it wait for its answer, so a connection has one
        request.
        """
        start, whole = 0, data.obj
        assert isinstance(whole, bytes)
        offset = len(whole) - len(data)
        while start < len(data) and not self._is_refused and not self.transport.is_closing():
            if self._is_unanswered:
                self._rest = data[start:]
                self.flow.pause_reading()
                self.flow.is_holding = True
                return
            end = self._end_of_piece(whole, offset + start) - offset
            self._parse(data[start:end])
            start = end

    @property
    def _is_unanswered(self) -> bool:
        """Return whether the last request arrived whole and has no answer yet."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """Return how far to parse, so that at most one request ends."""
        if not self._is_in_body:
            end = data.find(HEAD_END, start + REQUEST_BYTES_MIN)
        else:
            length = next((value for name, value in self.headers if name == b"content-length"), None)
            if length is not None:
                return min(len(data), start + int(length) - self._parsed_body_bytes)
            end = data.find(HEAD_END, start + CHUNKED_BYTES_MIN)
        return len(data) if end < 0 else end + len(HEAD_END)

    def _parse(self, data: bytes | memoryview) -> None:
        if self._is_refused:
            return
        self._piece_bytes = len(data)
        self._body_bytes += len(data)
        self._head_bytes_most += len(data)
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)  # type: ignore[arg-type]  # the parser takes any buffer
        if self._is_in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431, b"the headers are too large")
        elif self._timer is None and self._is_under_way():
            self._arm(HEAD_S if self._is_in_head else BODY_S)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        self._disarm()
        is_long = self._head_bytes_most > HEAD_BYTES_MAX and self._size_of_head() > HEAD_BYTES_MAX
        self._head_bytes_most = self._piece_bytes  # A piece may have a second head, behind a chunked body.
        if is_long or len(self.headers) > HEADERS_MAX:
            self._refuse(431, b"the headers are too large")
            return
        if [name for name, _ in self.headers].count(b"host") > 1:
            # Two proxies on the way could each use another Host (RFC 9112, 3.2).
            self._refuse(400, b"more than one Host header")
            return
        self._is_in_head, self._head_bytes, self._body_bytes = False, 0, 0
        self._is_in_body, self._parsed_body_bytes = True, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._parsed_body_bytes += len(body)
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._disarm()
        self._is_in_body = False
        if not self._is_refused:
            super().on_message_complete()

    def _size_of_head(self) -> int:
        return len(self.url) + sum([len(name) + len(value) for name, value in self.headers])

    def _is_under_way(self) -> bool:
        """Return whether a part of a request arrived, but not its end."""
        if self._is_in_head:
            return self._head_bytes > 0
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _arm(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self.on_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_slow(self) -> None:
        """Refuse a request that is too slow, unless the next reads bring its rest.

        After a pause of the process or its machine, uvloop may run a timer before it reads bytes that arrived
        meanwhile. So a timer only schedules a second check, which runs after the reads.
        """
        fired = self._timer
        self._after_reads(lambda: self._on_timer() if self._timer is fired else None)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless the next reads bring a request."""
        fired, close = self.timeout_keep_alive_task, super().timeout_keep_alive_handler
        self._after_reads(lambda: close() if self.timeout_keep_alive_task is fired else None)

    def _after_reads(self, act: Callable[[], None]) -> None:
        # The loop reads between two rounds. A second timer could fire in the same round as the first.
        self.loop.call_soon(self.loop.call_soon, act)

    def _on_timer(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._refuse(408, b"the request took too long")
            return
        if not self._is_under_way():
            return
        # A client is not slow while it waits for `100 Continue`, or while we do not read from it.
        is_ours = self.flow.read_paused or self.cycle.waiting_for_100_continue
        if not is_ours and self._body_bytes < BODY_BYTES_MIN:
            self._refuse(408, b"the request body came too slowly")
            return
        self._body_bytes = 0
        self._arm(BODY_S)

    def _make_room(self) -> bool:
        """Close a connection that is idle between two requests, and return whether there was one."""
        for other in [*self.connections]:
            if isinstance(other, LimitedProtocol) and other is not self and other.is_idle:
                other.transport.close()
                return True
        return False

    @property
    def is_idle(self) -> bool:
        return self.cycle is not None and self.is_between_requests

    @property
    def is_between_requests(self) -> bool:
        return (self.cycle is None or self.cycle.response_complete) and not self._head_bytes

    def _refuse(self, status: int, reason: bytes) -> None:
        """Answer if no answer has begun, and close the connection."""
        self._is_refused = True
        self._disarm()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = b'{"message":"' + reason + b'"}'
            phrase = {
                400: b"Bad Request",
                408: b"Request Timeout",
                431: b"Request Header Fields Too Large",
                503: b"Service Unavailable",
            }
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
                % (status, phrase[status], len(body), body)
            )
        self.transport.close()


# The head of an answer and its body in one write
#
# uvicorn writes them one after the other, and uvloop passes each write to the kernel at once. On loopback one such call
# takes a tenth of the time of a look-up, because the kernel delivers each packet to its reader in the call.


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
