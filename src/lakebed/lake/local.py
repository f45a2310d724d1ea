"""A lake in a folder of this machine, with no server: its application runs in a thread of this process.

A composition root. The client's requests reach the application by memory instead of a socket (`_InProcess`), so there
is one way through the code, with or without a server. Who can open the folder can do anything with it: there is no
login, and commits carry the user's name.

A server or other processes may use the same folder at the same time, as several workers of one server do.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from lakebed.base import NotFound
from lakebed.client import Client
from lakebed.server import ServerOptions, create_app, opened, options_of, prepare_folder
from lakebed.server.folder import MARKER_FILE
from lakebed.server.upkeep_loop import run_upkeep

from .lake import Lake

T = TypeVar("T")
Message = dict[str, Any]
Application = Callable[..., Coroutine[Any, Any, None]]

ENDPOINT: Final = "http://in-process"
AHEAD: Final = 8
"""Pieces of an answer that may wait for their reader."""


def open_local(
    folder: str | Path, *, create: bool = True, committer: str = "", environment: Mapping[str, str] | None = None
) -> Lake:
    """Open the lake in a folder. Close it when done: it is a context manager.

    `create`: make the folder if it is new; where it is False, a name without a lake is an error.

    `committer` is the author of commits, by default the user's name. `environment`: the settings of `lakebed serve`,
    by default those of this process.

    Raises:
        Invalid: the folder holds something else, or a setting is invalid.
        NotFound: there is no lake, and not `create`.
        Corrupt: another release made the folder.
        Unavailable: the folder cannot be written, or its metadata cannot be opened.
    """
    options = options_of(Path(folder).expanduser(), os.environ if environment is None else environment)
    if not create and not (options.data_dir / MARKER_FILE).exists():
        raise NotFound(f"there is no lake in {options.data_dir}")
    prepare_folder(options.data_dir)
    server = _Server(options, committer or _user_name())
    return Lake(Client(ENDPOINT, transport=_InProcess(server)), on_close=server.stop)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "local"  # A container may run as a user that has no name.


class _Server:
    """A server's application and its event loop, in a thread that ends with `stop`."""

    def __init__(self, options: ServerOptions, user: str) -> None:
        started: Future[None] = Future()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self.app: Application
        self._thread = threading.Thread(target=self._run, args=(options, user, started), name="lakebed", daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread.join()
            raise

    def stop(self) -> None:
        """End requests under way, and close everything. May be called again."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(function)

    def _run(self, options: ServerOptions, user: str, started: Future[None]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(options, user, started))
        except BaseException as error:  # the thread that opens the lake raises it
            if started.done():
                raise
            started.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self, options: ServerOptions, user: str, started: Future[None]) -> None:
        async with opened(options) as state:
            self.app = create_app(state, trusted_user=user)
            upkeep = asyncio.create_task(run_upkeep(state))
            started.set_result(None)
            try:
                await self._stopping.wait()
            finally:
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(upkeep, *others, return_exceptions=True)


class _InProcess(httpx.BaseTransport):
    """Carry requests to an ASGI application on another thread's event loop, bodies in pieces both ways."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = _Call(self._server, request)
        status, headers = call.start()
        return httpx.Response(status, headers=headers, stream=call)


class _Call(httpx.SyncByteStream):
    """One request and its answer; the stream of the answer's body."""

    def __init__(self, server: _Server, request: httpx.Request) -> None:
        self._server = server
        self._request = request
        assert isinstance(request.stream, httpx.SyncByteStream)
        self._body: Iterator[bytes] = iter(request.stream)
        self._is_sent = False
        self._failure: BaseException | None = None
        """What the body raised while it was being read."""
        self._messages: queue.SimpleQueue[Message | BaseException | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(AHEAD)
        self._future: Future[None] | None = None

    def start(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        self._future = self._server.submit(self._run())
        head = self._next()
        if self._failure is not None:
            raise self._failure
        if head is None:
            raise httpx.RemoteProtocolError("the application gave no answer", request=self._request)
        return head["status"], [*head.get("headers", [])]

    def __iter__(self) -> Iterator[bytes]:
        while (message := self._next()) is not None:
            if body := message.get("body", b""):
                yield body
            if not message.get("more_body", False):
                return

    def close(self) -> None:
        """Let a handler go whose answer is wanted no longer."""
        if self._future is not None:
            self._future.cancel()

    def _next(self) -> Message | None:
        """
        Raises:
            httpx.RemoteProtocolError: the application failed; its error is the cause.
        """
        message = self._messages.get()
        self._server.call(self._room.release)
        if isinstance(message, BaseException) and self._failure is None:
            raise httpx.RemoteProtocolError(f"the application failed: {message}", request=self._request) from message
        return None if isinstance(message, BaseException) else message

    async def _run(self) -> None:
        url = self._request.url
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "server": (url.host, url.port),
            "client": None,
        }
        try:
            await self._server.app(scope, self._receive, self._send)
            self._messages.put(None)
        except BaseException as error:
            self._messages.put(error)
            if not isinstance(error, Exception):
                raise

    async def _receive(self) -> Message:
        if self._is_sent:
            await asyncio.Event().wait()  # A client in this process goes away by `close`, which cancels.
        try:
            piece = await asyncio.to_thread(next, self._body, None)
        except BaseException as error:  # noqa: BLE001  # it belongs to the caller's thread, not to a handler
            self._failure = error
            return {"type": "http.disconnect"}
        self._is_sent = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": not self._is_sent}

    async def _send(self, message: Message) -> None:
        await self._room.acquire()
        self._messages.put(message)
