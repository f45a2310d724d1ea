"""A lake in a folder of this machine, without a server: its application runs in a thread of this process.

A composition root. The client's requests reach the application through memory instead of a socket (`_InProcess`), so
the code is the same with and without a server. Anyone who can open the folder has every right in it: there is no login,
and commits carry the user's name.

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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from lakebed.base import Invalid, NotFound
from lakebed.client import Client
from lakebed.server import ServerOptions, create_app, opened, options_of, prepare_folder
from lakebed.server.process.folder import MARKER_FILE
from lakebed.server.process.upkeep_loop import run_upkeep

from .lake import Lake

T = TypeVar("T")
Message = dict[str, Any]
Application = Callable[..., Coroutine[Any, Any, None]]

ENDPOINT: Final = "http://in-process"
AHEAD: Final = 8
"""The most pieces of an answer that wait for their reader."""


def open_local(
    folder: str | Path, *, create: bool = True, committer: str = "", environment: Mapping[str, str] | None = None
) -> Lake:
    """Open the lake in a folder. Close it when done: it is a context manager.

    `create`: make the folder if it is new; with False, a folder without a lake is an error.

    `committer` is the author of commits, by default the user's name. `environment`: the settings of `lakebed serve`, by
    default those of this process.

    Raises:
        Invalid: the folder has other contents, or a setting is invalid.
        NotFound: the folder has no lake, and `create` is False.
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
        return "local"  # a container may run as a user without a name


class _Server:
    """A server's application and its event loop, in a thread that ends with `stop`."""

    def __init__(self, options: ServerOptions, user: str) -> None:
        started: Future[None] = Future()
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._entry = threading.Lock()
        self._is_closed = False
        self.app: Application
        self._thread = threading.Thread(target=self._run, args=(options, user, started), name="lakebed", daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._thread.join()
            raise

    def stop(self) -> None:
        """End the requests under way, and close everything. Calling it again does nothing."""
        if self._pid != os.getpid():
            return
        self._refuse()
        if self._thread.is_alive():
            self.call(self._stopping.set)
            self._thread.join()

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run work on the server's loop.

        Raises:
            Invalid: the lake is closed, or was opened before this process was forked.
        """
        if self._pid != os.getpid():
            raise Invalid("this lake was opened before its process was forked: open it anew in this process")
        with self._entry:  # `_serve` ends every task that was submitted before the close
            if self._is_closed:
                raise Invalid("the lake was closed")
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def call(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended, so no task waits in it
            self._loop.call_soon_threadsafe(function)

    def _refuse(self) -> None:
        with self._entry:
            self._is_closed = True

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
                self._refuse()
                await asyncio.sleep(0)  # let the work that was submitted last begin
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(upkeep, *others, return_exceptions=True)


class _InProcess(httpx.BaseTransport):
    """Carries requests to an ASGI application on another thread's event loop, bodies in pieces both ways."""

    def __init__(self, server: _Server) -> None:
        self._server = server

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = _Call(self._server, request)
        try:
            status, headers = call.start()
        except BaseException:
            call.close()
            raise
        return httpx.Response(status, headers=headers, stream=call)


class _Call(httpx.SyncByteStream):
    """One request and its answer; also the stream of the answer's body.

    The thread that waits for the answer also reads the request's body, one piece whenever the application asks. The
    body may itself be read from this lake, through the application. In the loop's threads, enough such bodies would
    take every thread, and wait for an answer that needs a thread.
    """

    def __init__(self, server: _Server, request: httpx.Request) -> None:
        self._server = server
        self._request = request
        assert isinstance(request.stream, httpx.SyncByteStream)
        self._body: Iterator[bytes] = iter(request.stream)
        self._pieces: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        self._is_asked = False
        self._is_sent = False
        self._failure: BaseException | None = None
        """The error of reading the body."""
        self._messages: queue.SimpleQueue[Message | Future[None] | None] = queue.SimpleQueue()
        """The application's messages; None when it asks for a piece of the body; at the end, its future."""
        self._room = asyncio.Semaphore(AHEAD)
        self._future: Future[None] | None = None

    def start(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        self._future = self._server.submit(self._run)
        self._future.add_done_callback(self._messages.put)
        head = self._next()
        if self._failure is not None:
            raise self._failure
        return head["status"], [*head.get("headers", [])]

    def __iter__(self) -> Iterator[bytes]:
        has_more = True
        while has_more:
            message = self._next()
            if body := message.get("body", b""):
                yield body
            has_more = message.get("more_body", False)

    def close(self) -> None:
        """Cancel the handler if its answer is no longer wanted."""
        if self._future is not None:
            self._future.cancel()

    def _next(self) -> Message:
        """Return the application's next message.

        Raises:
            httpx.RemoteProtocolError: the application failed; its error is the cause.
        """
        while (message := self._messages.get()) is None:
            self._read_piece()
        if isinstance(message, Future):
            if self._failure is not None:
                raise self._failure
            error = None if message.cancelled() else message.exception()
            why = f"failed: {error}" if error is not None else "was stopped, or gave no answer"
            raise httpx.RemoteProtocolError(f"the application {why}", request=self._request) from error
        self._server.call(self._room.release)
        return message

    def _read_piece(self) -> None:
        piece: bytes | BaseException | None
        try:
            piece = next(self._body, None)
        except BaseException as error:  # noqa: BLE001  # raised where the application has ended
            self._failure = piece = error
        self._server.call(partial(self._pieces.put_nowait, piece))

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
        await self._server.app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._is_sent:
            await asyncio.Event().wait()  # a client in this process leaves by `close`, which cancels
        if not self._is_asked:  # an earlier caller may have been cancelled: then its piece is for this call
            self._is_asked = True
            self._messages.put(None)
        piece = await self._pieces.get()
        self._is_asked = False
        if isinstance(piece, BaseException):
            self._is_sent = True
            return {"type": "http.disconnect"}
        self._is_sent = piece is None
        return {"type": "http.request", "body": piece or b"", "more_body": not self._is_sent}

    async def _send(self, message: Message) -> None:
        await self._room.acquire()
        self._messages.put(message)
