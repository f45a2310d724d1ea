"""A client of HTTP/1.1 for databases: short requests, whole answers, connections kept alive.

It costs a tenth of a general client's CPU, since it has only the features that drivers need: no redirects, proxies,
cookies or compression. Its errors show drivers whether the request may have reached the server.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from lakebed.base import in_words
from lakebed.kv.opening import InvalidStoreUri, StoreUri

from .store import take_turn

IDLE_S_MAX: Final = 5.0
"""Use no connection that was idle for longer. A server closes idle connections later than this."""
CONNECT_S_MAX: Final = 2.0
"""Wait at most this long for a connection to one of several servers, so that there is time for the next server."""
GREETING_S_MAX: Final = 5.0
"""Wait at most this long for the first answer of one of several servers, for the same reason."""
FORBIDDEN: Final = frozenset("\r\n\0 ")


class NotSent(Exception):
    """No connection was made, or none was free in time: the server did not get the request."""


class AnswerLost(Exception):
    """The connection broke, or the time is up. The server may have carried out the request."""


class AnswerTimeout(AnswerLost):
    """The server sent nothing for `timeout_s`."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """`content` is the whole body. Names of headers are in lower case; of a repeated header the last value is kept."""

    status_code: int
    content: bytes
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of a URL. `authority` is the value of the Host header."""

    is_tls: bool
    host: str
    port: int
    authority: str

    @staticmethod
    def of(url: str) -> Origin:
        """Parse a URL.

        Raises:
            ValueError: the URL is no address of a server.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise ValueError("an address begins with http:// or https:// and a host")
        if FORBIDDEN & set(parts.netloc):
            raise ValueError("an address has no spaces")
        host = parts.hostname.encode("idna")
        host.decode("idna")  # raises for more names than encode does
        port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
        if not port:
            raise ValueError("a port is a number from 1 to 65535")
        authority = parts.netloc if parts.netloc.isascii() else f"{host.decode()}:{port}"
        return Origin(parts.scheme == "https", host.decode(), port, authority)


class HttpClient:
    """Connections to any number of servers. They belong to the event loop that uses them first.

    Only https needs `certificates`. `timeout_s` bounds each of three waits: for a free connection, for a new
    connection, and for the next bytes of an answer.
    """

    def __init__(self, *, connections: int, timeout_s: float, certificates: ssl.SSLContext | None = None) -> None:
        self._free = asyncio.Semaphore(connections)
        self._timeout_s = timeout_s
        self._certificates = certificates
        self._idle: dict[Origin, list[_Connection]] = {}
        self._open: set[_Connection] = set()

    async def request(
        self,
        method: str,
        origin: Origin,
        target: str,
        *,
        headers: Mapping[str, str],
        content: bytes = b"",
        timeout_s: float | None = None,
        connect_s: float | None = None,
    ) -> HttpAnswer:
        """Send one request and read its answer. `target` is an encoded path, with the query behind '?'.

        Raises:
            NotSent, AnswerLost: see these classes.
        """
        timeout_s = timeout_s or self._timeout_s
        lines = [f"{method} {target} HTTP/1.1\r\nhost: {origin.authority}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        message = f"{''.join(lines)}content-length: {len(content)}\r\n\r\n".encode("latin-1") + content
        try:
            await take_turn(self._free, self._timeout_s)
        except TimeoutError as error:
            raise NotSent("all connections are in use") from error
        try:
            connection = self._kept(origin) or await self._connect(origin, connect_s or self._timeout_s)
            try:
                answer = await connection.ask(message, timeout_s)
            except BaseException:
                connection.abort()
                raise
            if connection.is_reusable:
                self._idle.setdefault(origin, []).append(connection)
            else:
                connection.abort()
            return answer
        finally:
            self._free.release()

    async def aclose(self) -> None:
        """Close all connections."""
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()
            await connection.closed

    def _kept(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        since = asyncio.get_running_loop().time() - IDLE_S_MAX
        while idle:
            connection = idle.pop()
            if connection.is_reusable and connection.used_at >= since and connection.is_open():
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, timeout_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        if origin.is_tls and self._certificates is None:
            self._certificates = ssl.create_default_context()
        tls = self._certificates if origin.is_tls else None
        connection = _Connection(loop, self._open)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: connection, origin.host, origin.port, ssl=tls)
        except TimeoutError as error:
            raise NotSent(f"{origin.host} does not answer") from error
        except OSError as error:
            raise NotSent(in_words(error)) from error
        return connection


class Servers:
    """Several equal servers. After a server that cannot be reached or does not answer, requests use the next one."""

    def __init__(
        self, origins: Sequence[Origin], *, connections: int, timeout_s: float, certificates: ssl.SSLContext | None
    ) -> None:
        self._origins = list(origins)
        self._connections = connections
        self._timeout_s = timeout_s
        self._certificates = certificates
        self._client: HttpClient | None = None
        is_alone, share_s = len(origins) == 1, timeout_s / (len(origins) + 1)
        self._connect_s = timeout_s if is_alone else min(CONNECT_S_MAX, share_s)
        self.greeting_s = timeout_s if is_alone else min(GREETING_S_MAX, share_s)
        """Wait this long for the first answer: a server that hangs leaves time to ask the others."""

    @property
    def all(self) -> tuple[Origin, ...]:
        """Return the servers. The next request uses the first."""
        return tuple(self._origins)

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        content: bytes = b"",
        timeout_s: float | None = None,
        server: Origin | None = None,
    ) -> HttpAnswer:
        """Send a request to one server: `server`, or else the first.

        Raises:
            NotSent, AnswerLost: see these classes. The next request uses another server, unless the connection broke.
        """
        server = server or self._origins[0]
        if self._client is None:
            self._client = HttpClient(
                connections=self._connections, timeout_s=self._timeout_s, certificates=self._certificates
            )
        try:
            return await self._client.request(
                method,
                server,
                target,
                headers=headers,
                content=content,
                timeout_s=timeout_s,
                connect_s=self._connect_s,
            )
        except (NotSent, AnswerTimeout):
            self.pass_over(server)
            raise

    def pass_over(self, server: Origin) -> None:
        """Use another server from now on, unless a concurrent failure already changed it."""
        if self._origins[0] == server:
            self._origins.append(self._origins.pop(0))

    async def aclose(self) -> None:
        """Close all connections. A later request opens new ones, on its own event loop."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def origin_of(uri: StoreUri, host: str, *, is_tls: bool) -> Origin:
    """Return the address of a server in a store's URI. Refuse hosts on which the resolver would fail later.

    Raises:
        InvalidStoreUri: the text is no host.
    """
    try:
        return Origin.of(f"{'https' if is_tls else 'http'}://{host}")
    except ValueError as error:
        raise InvalidStoreUri(f"{uri.scheme}: {host!r} is not a host: {error}", scheme=uri.scheme) from error


def certificates_of(uri: StoreUri, ca_file: str, *, is_tls: bool) -> ssl.SSLContext | None:
    """Trust the authorities of this file, or without a file those of the system. Return None without TLS.

    Raises:
        InvalidStoreUri: the file cannot be used, or is given without TLS.
    """
    if not is_tls:
        if ca_file:
            raise InvalidStoreUri(f"{uri.scheme}: ca_file asks for tls=yes too", scheme=uri.scheme)
        return None
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError) as error:
        raise InvalidStoreUri(f"{uri.scheme}: ca_file cannot be used: {error}", scheme=uri.scheme) from error


class _Connection(asyncio.Protocol):
    """One connection: one request at a time. It is in `open_` from its first moment to its last."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_: set[_Connection]) -> None:
        self._loop = loop
        self._open = open_
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self._body: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._ends_with_connection = False
        self._has_head = False
        self.closed: asyncio.Future[None] = loop.create_future()
        self.is_reusable = False
        self.used_at = 0.0

    async def ask(self, message: bytes, timeout_s: float) -> HttpAnswer:
        """Send a request and read its answer.

        Raises:
            NotSent, AnswerLost: see these classes.
        """
        if self._transport is None or self._transport.is_closing():
            raise NotSent("the connection was closed")
        self.is_reusable = False
        answer: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._answer = answer
        self.used_at = self._loop.time()
        timer = self._loop.call_later(timeout_s, self._look_at_time, timeout_s, answer)
        self._transport.write(message)
        try:
            return await answer
        finally:
            timer.cancel()
            self._answer = None

    def is_open(self) -> bool:
        """Return whether the connection is open: the server has sent no end, even one that the loop has not read.

        A write must not be sent over a closed connection. Between two requests the server sends no other bytes.
        """
        if self._transport is None or self._transport.is_closing():
            return False
        unread = select.poll()
        unread.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not unread.poll(0)

    def abort(self) -> None:
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def _look_at_time(self, timeout_s: float, answer: asyncio.Future[HttpAnswer]) -> None:
        """Fail the answer if no byte arrived for `timeout_s`. An answer that is still arriving may take longer."""
        left_s = self.used_at + timeout_s - self._loop.time()
        if answer.done():
            return
        if left_s > 0:
            self._loop.call_later(left_s, self._look_at_time, timeout_s, answer)
        else:
            answer.set_exception(AnswerTimeout(f"no answer for {timeout_s:g} s"))

    def _fail(self, error: Exception) -> None:
        self.is_reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _succeed(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(HttpAnswer(self._parser.get_status_code(), b"".join(self._body), self._headers))

    # The methods of asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        self.used_at = self._loop.time()
        if self._answer is None:  # the server sent bytes without a request: end the connection
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # not a subclass of HttpParserError
            self._fail(AnswerLost("the server answers with another protocol than HTTP/1.1"))
        except httptools.HttpParserError as error:
            self._fail(AnswerLost(f"this is no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self)
        if self._has_head and self._ends_with_connection and error is None:
            self._succeed()
        self._fail(AnswerLost(str(error) if error else "the connection was closed"))
        if not self.closed.done():
            self.closed.set_result(None)

    # The callbacks of the parser.

    def on_message_begin(self) -> None:
        if self._answer is not None and self._answer.done():  # more bytes than the answer: end the connection
            self.abort()
            self._headers = {}  # the answer keeps its own headers
            return
        self._body, self._headers, self._has_head, self._ends_with_connection = [], {}, False, True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._headers[name] = value
        if name in {b"content-length", b"transfer-encoding"}:
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # an interim response: if the connection ends here, there is no answer
            self._has_head = False
            return
        if self._answer is None or self._answer.done():  # see on_message_begin
            return
        self.is_reusable = self._parser.should_keep_alive()
        self.used_at = self._loop.time()
        self._succeed()
