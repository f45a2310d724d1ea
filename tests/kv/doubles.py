"""Parts that the doubles of HTTP services share: a server in threads, and one answer for each request.

A double keeps what was written in a SQLite file, so that it outlives a kill.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.serving import serving


@dataclass
class Request:
    method: str
    path: str
    asked: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    target: str = ""
    """The path with what is asked, as it was sent."""


@dataclass
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Service:
    """A subclass answers requests, one at a time."""

    def __init__(self, file: str) -> None:
        self.database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        raise NotImplementedError


class Limit:
    """Let `per_s` requests a second through, and a fifth of a second's at once. Counts what it lets through or not."""

    def __init__(self, per_s: float) -> None:
        self.taken = self.refused = 0
        self._per_s = per_s
        self._tokens = per_s / 5
        self._filled_at = time.monotonic()

    def lets_through(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._filled_at) * self._per_s, self._per_s / 5)
        self._filled_at = now
        is_taken = self._tokens >= 1
        self._tokens -= is_taken
        self.taken += is_taken
        self.refused += not is_taken
        return is_taken


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def handle_any(self) -> None:
        split = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = dict(parse_qsl(split.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, unquote(split.path), asked, headers, body, self.path)
        with self.server.service.lock:
            answer = self.server.service.answer(request)
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - the base class looks for these names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, service: Service) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.service = service

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the double."""


def serve(service: Service, port: int) -> None:
    """Serve until killed."""
    _Server(port, service).serve_forever(poll_interval=0.05)


@contextmanager
def served(service: Service) -> Iterator[int]:
    """Serve in this process until the block ends. Yields the port."""
    try:
        with serving(_Server(0, service)) as port:
            yield port
    finally:
        service.database.close()
