"""Run the server: one process, or several workers that share one port.

With one worker the parent serves itself. With more it starts them as fresh Python processes, each an instance of its
own, and watches them. It replaces a worker that dies or is silent for SILENT_S. If a worker cannot start, the server
ends. Meanwhile the others accept its connections (`draining.py`).

SIGTERM and SIGINT end a server when its requests have ended (`draining.py`); a second signal ends it at once. SIGHUP
replaces the workers one by one: a fresh one serves before an old one drains, and the socket stays open in the parent.
A worker stops at SIGTERM, or at the end of its standard input, which the parent holds. So a killed parent leaves no
worker behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Final

import msgspec
import uvicorn
import uvloop

from lakebed.base import Invalid, Unavailable
from lakebed.runtime import leave_pandas_out
from lakebed.server.app import create_app, opened
from lakebed.server.http.limits import LimitedProtocol
from lakebed.server.identity.setting_up import is_loopback
from lakebed.server.operate.logs import LogOptions, configure_logs
from lakebed.server.options import ServerOptions
from lakebed.server.state import AppState

from .aside import Aside
from .draining import CUT_S, DRAIN_S, DrainingServer, end_within
from .folder import RESERVE_BYTES, addresses_of, keep_reserve, noting_address, prepare_folder
from .machine import reap_others, usable_cores
from .upkeep_loop import run_upkeep

logger = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 75
"""Longer than clients and proxies keep an idle connection: the sender closes it, so no request is lost."""
CLOSE_S: Final = 15
"""Seconds for a process to close its parts and end its threads after it drained."""
RESTARTS_MAX: Final = 20
RESTARTS_WINDOW_S: Final = 600
FIRST_FD: Final = 3
"""The descriptor of the first socket that a service manager passes on."""
NOTICE: Final = b"n"
"""The parent writes this to a worker when the whole server ends, because balancers must leave it."""
READY: Final = b"ready\n"
NEW: Final = b"new\n"
"""A worker writes one of these to the parent when it serves. NEW: the installation has no user yet."""
BEAT_S: Final = 1.0
"""Seconds between beats of a worker's event loop to the parent."""
SILENT_S: Final = 30.0
"""Kill and replace a worker that sent no beat for this long: its loop hangs, so it would not handle a signal."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Options of glibc (`mallopt`, malloc.h)."""
REUSED_BYTES_MAX: Final = 32 << 20
"""Reuse the memory of buffers up to this size, the largest that glibc allows."""
KEPT_BYTES_MAX: Final = 32 << 20
"""Return free memory to the kernel beyond this."""


class BadAddress(Invalid):
    """The host or port does not exist, or the process may not listen there."""


class WorkerFailed(Unavailable):
    """A worker process ended before it could serve. The log has its last output."""


def serve(
    options: ServerOptions,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    drain_s: float = DRAIN_S,
    notice_s: float = 0,
    log: LogOptions | None = None,
    on_ready: Callable[[str], None] | None = None,
    on_new: Callable[[str], None] | None = None,
    s3_listen: tuple[str, int] | None = None,
    on_s3_ready: Callable[[str], None] | None = None,
    sockets: Sequence[socket.socket] = (),
    ends: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, and return when everything is closed. Call it in the main thread.

    `on_ready` is called once, with the URL, when requests are answered; then `on_new`, if the installation has no user.
    Port 0 selects a free port. At the end, the server accepts connections for `notice_s` but is not ready; then
    requests under way get `drain_s` to end.
    `log` None: the caller configured the logs of this process; its workers log warnings as text.
    `s3_listen` is a host and port for S3 requests only. `on_s3_ready` gets its URL, and is called first.
    `sockets` listen already (`inherited_sockets`) and replace both addresses: the API's and optionally S3's.
    `ends`: see `ProcessOptions`.

    Raises:
        Unavailable, BadAddress: the server cannot listen at the address.
        NotADataFolder, DataFolderFormat, Unavailable: see `prepare_folder`.
        StoreUnavailable, StoreFormat: see `open_store`; with several workers it is WorkerFailed.
    """
    if workers < 1:
        raise BadAddress(f"at least one worker is needed, not {workers}")
    # Bind first, so that a port in use is an error at once and leaves no folder behind.
    with contextlib.ExitStack() as stack:
        addresses = [(host, port)] if s3_listen is None else [(host, port), s3_listen]
        try:
            listeners = [stack.enter_context(one) for one in sockets or [listen(*one) for one in addresses]]
        except Unavailable as error:
            served = [address.url for address in addresses_of(options.data_dir)]
            if not served:
                raise
            where = f"{options.data_dir} is served already, at {' and '.join(served)}"
            raise Unavailable(f"{where}. {error}", folder=str(options.data_dir), urls=served) from error
        if len(listeners) > 1:
            ports = tuple(listener.getsockname()[1] for listener in listeners[1:])
            options = replace(options, s3=replace(options.s3, ports=ports))
        prepare_folder(options.data_dir)
        if keep_reserve(options.data_dir):
            logger.warning(
                "the disk of %s is full: released the %d MiB kept for this. Collect or free space, then restart",
                options.data_dir,
                RESERVE_BYTES >> 20,
            )
        if not is_loopback(listeners[0].getsockname()[0]) and options.setup_secret is None:
            options = replace(options, setup_secret=secrets.token_urlsafe(16))
            # Print only to the operator's terminal, not to a log that others read.
            print(f"set-up secret, if this server is new: {options.setup_secret}", file=sys.stderr, flush=True)  # noqa: T201  # see above
        options = replace(options, aside=_works_aside(options, workers), proof_key=secrets.token_hex(16))
        urls = [_url_of(listener) for listener in listeners]

        def ready(is_new: bool) -> None:
            stack.enter_context(noting_address(options.data_dir, urls[0], options.proof_key))
            if on_s3_ready is not None and len(urls) > 1:
                on_s3_ready(urls[1])
            if on_ready is not None:
                on_ready(urls[0])
            if on_new is not None and is_new:
                on_new(urls[0])

        if log is not None:
            configure_logs(log)
        process = ProcessOptions(drain_s=drain_s, notice_s=notice_s, log=log or LogOptions(), ends=ends or workers > 1)
        if workers == 1:
            run_in_loop(serve_here(options, listeners, ready, process))
        else:
            with tempfile.TemporaryDirectory(prefix="lakebed-metrics-") as folder:
                process = msgspec.structs.replace(process, metrics_folder=Path(folder))
                shares = [listeners] * workers if sockets else _shares_of(stack, listeners, workers)
                run_in_loop(_Parent(options, shares, process, ready).run())


def _works_aside(options: ServerOptions, workers: int) -> bool:
    """Return whether each worker does large work in a second process: by default one, or where cores are left for it.

    No second process can open stores in memory.
    """
    if options.blockstore == "mem" or (options.store_uri or "").startswith("mem:"):
        return False
    if options.aside is not None:
        return options.aside
    return workers == 1 or usable_cores() > workers


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def inherited_sockets(environment: Mapping[str, str]) -> list[socket.socket]:
    """Return the sockets that a service manager such as systemd opened for this process, or an empty list.

    Such a socket outlives the server. Connections between two servers wait in it, and two servers that hold the socket
    share them. So no restart loses a request.

    Raises:
        BadAddress: these are not one or two listening TCP sockets.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environment.get("LISTEN_FDS", "")
    if count not in {"1", "2"}:
        raise BadAddress(f"LISTEN_FDS is {count!r}: a server takes the API's socket, and perhaps one for S3")
    found = []
    for number in range(FIRST_FD, FIRST_FD + int(count)):
        try:
            found.append(socket.socket(fileno=number))
            is_listening = found[-1].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise BadAddress(f"descriptor {number} is not a socket: {error.strerror}") from error
        if not is_listening or found[-1].family not in {socket.AF_INET, socket.AF_INET6}:
            raise BadAddress(f"descriptor {number} does not listen for TCP")
        found[-1].setblocking(False)
    return found


def _shares_of(
    stack: contextlib.ExitStack, listeners: Sequence[socket.socket], workers: int
) -> list[Sequence[socket.socket]]:
    """Return the sockets of each worker, on the same addresses. Linux distributes new connections evenly among them.

    With one shared socket, the worker that wakes first would accept nearly all connections. Other systems share one.
    """
    if sys.platform != "linux":
        return [listeners] * workers
    for listener in listeners:
        # Set it after binding. Set before, it would let us join another server that listens there.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    more = [
        [stack.enter_context(listen(*listener.getsockname()[:2], joins=True)) for listener in listeners]
        for _ in range(workers - 1)
    ]
    return [listeners, *more]


def listen(host: str, port: int, *, joins: bool = False) -> socket.socket:
    """Listen at a free address, or with `joins` at an address where this process already listens.

    Raises:
        Unavailable, BadAddress: see those classes.
    """
    if not 0 <= port <= 65535:
        raise BadAddress(f"there is no port {port}", host=host, port=port)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise BadAddress(f"cannot listen on {host}:{port}: {error}", host=host, port=port) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if joins:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"{host}:{port} is taken: a server or another program listens there. --port takes another port",
                host=host,
                port=port,
            ) from error
        raise BadAddress(f"cannot listen on {host}:{port}: {error}", host=host, port=port) from error
    return listener


def run_in_loop(main: Awaitable[None]) -> None:
    async def run() -> None:
        await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one serving process. `metrics_folder` is where the workers of one server share their metrics.

    `ends`: the process ends with its server, at most CLOSE_S later, whatever its threads do.
    """

    drain_s: float
    notice_s: float
    log: LogOptions
    ends: bool = False
    metrics_folder: Path | None = None


async def serve_here(
    options: ServerOptions,
    listeners: Sequence[socket.socket],
    ready: Callable[[bool], None],
    process: ProcessOptions,
    *,
    others: Sequence[socket.socket] = (),
    stop: asyncio.Event | None = None,
    at_once: asyncio.Event | None = None,
) -> None:
    """Serve in this process until a signal, or until `stop` is set; then drain.

    `ready` gets whether the installation has no user yet.
    `others` are the sockets of other workers, for when one of them hangs (`draining.py`).
    `at_once` set as well: drain without notice, because no balancer has to leave.
    """
    leave_pandas_out()
    stop = stop or asyncio.Event()
    server: DrainingServer | None = None

    def hurry() -> None:
        if server is not None:
            server.cut_off()

    with _signals(stop, hurry):
        own = WorkerOrders(options=options, listener_fds=(), other_fds=(), process=process)
        async with opened(options, Aside(encode_orders(own)) if options.aside else None) as state:
            is_new = await state.accounts.installation() is None
            calm_the_collector()
            keep_memory()
            server = DrainingServer(_config(state, options), state.drain, process.drain_s, process.notice_s, others)
            loops = (run_upkeep(state), state.hard_deleting.run(), state.eventing.run())
            beside = [asyncio.create_task(loop) for loop in loops]
            if process.metrics_folder is not None:
                beside.append(asyncio.create_task(state.metrics.share(process.metrics_folder)))
            serving = asyncio.create_task(server.serve(sockets=[*listeners]))
            stopping = asyncio.create_task(stop.wait())
            starting = asyncio.create_task(server.is_up.wait())
            code = 1
            try:
                await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
                if server.is_up.is_set():
                    ready(is_new)
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if at_once is not None and at_once.is_set():
                    server.notice_s = 0
                server.should_exit = True
                await serving
                code = 0
            finally:
                if process.ends:
                    # Before the parts are closed, for closing may wait for a thread that hangs.
                    end_within(CLOSE_S, code)
                for task in (stopping, starting, *beside):
                    task.cancel()
                await asyncio.gather(stopping, starting, *beside, return_exceptions=True)


def _config(state: AppState, options: ServerOptions) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(state),
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        # By default uvicorn trusts every caller on loopback, and an environment variable of its own.
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=[*options.trusted_proxies],
    )


def calm_the_collector() -> None:
    """Exclude the objects of the start from the cycle collector, and let it run less often.

    A page of a listing makes thousands of small objects and no cycle. With the default thresholds each page pays for
    scans of the objects of every module (a staged page of 1,000: 4.0 ms of CPU before, 2.9 after).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def keep_memory() -> None:
    """Let the C library reuse the buffers of bodies, instead of returning them to the kernel after each request.

    The kernel makes each page of a fresh buffer anew: up to a third of the CPU of a put of 1 MiB. glibc adapts its
    thresholds itself, but not reliably. Other C libraries have no such option.
    """
    with contextlib.suppress(AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, REUSED_BYTES_MAX)
        set_option(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


@contextlib.contextmanager
def _signals(
    stop: asyncio.Event, hurry: Callable[[], None], reload: Callable[[], None] | None = None
) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT, and call `hurry` at the next ones; call `reload` at SIGHUP."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread can have signal handlers. A caller in another thread sets `stop`.
        return

    def end() -> None:
        if stop.is_set():
            hurry()
        stop.set()

    handlers = {signal.SIGTERM: end, signal.SIGINT: end} | ({} if reload is None else {signal.SIGHUP: reload})
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


# Several workers


class WorkerOrders(msgspec.Struct, frozen=True, kw_only=True):
    """The orders that the parent writes to a worker's standard input, as one line of JSON. Secrets are not passed on
    command lines.
    """

    options: ServerOptions
    listener_fds: tuple[int, ...]
    other_fds: tuple[int, ...]
    """The sockets of the other workers."""
    process: ProcessOptions


def encode_orders(orders: WorkerOrders) -> bytes:
    return msgspec.json.encode(orders, enc_hook=str) + b"\n"


def decode_orders(line: bytes) -> WorkerOrders:
    return msgspec.json.decode(line, type=WorkerOrders, dec_hook=_to_path)


def _to_path(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)


class _Parent:
    """Watch the workers: those that serve, and those that drain after a signal to stop.

    Each worker has a share of the sockets. Its successor gets the share, so waiting connections are not lost. A worker
    also has the sockets of the others, and accepts their connections while one of them hangs.
    """

    def __init__(
        self,
        options: ServerOptions,
        shares: Sequence[Sequence[socket.socket]],
        process: ProcessOptions,
        ready: Callable[[bool], None],
    ) -> None:
        self._listeners = [listener for share in shares for listener in share]
        self._process = process
        every = {listener.fileno() for listener in self._listeners}
        own = [tuple(listener.fileno() for listener in share) for share in shares]
        self._orders = [
            WorkerOrders(options=options, listener_fds=fds, other_fds=tuple(every.difference(fds)), process=process)
            for fds in own
        ]
        self._share_of: dict[int, int] = {}
        """The share of each worker, by process id."""
        self._ready = ready
        self._running: list[Popen[bytes]] = []
        self._leaving: list[Popen[bytes]] = []
        self._heard: dict[int, float] = {}
        """The time of the last beat of each worker, by process id."""
        self._restarted: list[float] = []
        self._to_replace: list[Popen[bytes]] = []

    async def run(self) -> None:
        stop = asyncio.Event()
        with _signals(stop, self._terminate_all, self._replace_all):
            try:
                self._ready(any([await self._start(share) for share in range(len(self._orders))]))
                await self._watch(stop)
            finally:
                await self._stop_all()

    def _replace_all(self) -> None:
        logger.info("replacing %d workers", len(self._running))
        self._to_replace = list(self._running)

    async def _start(self, share: int) -> bool:
        """Return whether the installation has no user yet."""
        process = await asyncio.to_thread(_spawn, self._orders[share])
        self._running.append(process)
        self._share_of[process.pid] = share
        assert process.stdout is not None
        answer = await asyncio.to_thread(process.stdout.readline)
        if answer not in {READY, NEW}:
            raise WorkerFailed("a worker process could not start; its own message is above", pid=process.pid)
        self._heard[process.pid] = time.monotonic()
        threading.Thread(target=self._listen_to, args=(process,), daemon=True).start()
        return answer == NEW

    def _listen_to(self, process: Popen[bytes]) -> None:
        """Record each beat, until the worker ends or its pipe is closed."""
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while os.read(process.stdout.fileno(), 64):
                self._heard[process.pid] = time.monotonic()

    async def _watch(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.5)
            for process in (*self._running, *self._leaving):
                if process.poll() is None and time.monotonic() - self._heard[process.pid] > SILENT_S:
                    logger.error("worker %d does not answer: killing it", process.pid)
                    process.kill()
                    process.wait()
            for process in [process for process in self._leaving if process.poll() is not None]:
                self._leaving.remove(process)
                self._heard.pop(process.pid, None)
                _close_pipes(process)
            for process in [process for process in self._running if process.poll() is not None]:
                self._running.remove(process)
                self._heard.pop(process.pid, None)
                _close_pipes(process)
                if stop.is_set():
                    return
                logger.error("worker %d ended with code %s; starting another", process.pid, process.returncode)
                self._count_restart(process.returncode)
                await self._start(self._share_of.pop(process.pid))
            if os.getpid() == 1:
                reap_others({process.pid for process in (*self._running, *self._leaving)})
            if self._to_replace and not stop.is_set():
                await self._replace(self._to_replace.pop(0))

    async def _replace(self, process: Popen[bytes]) -> None:
        """Start a fresh worker, and stop the old one when the fresh one serves."""
        if process in self._running:
            await self._start(self._share_of.pop(process.pid))
            self._running.remove(process)
            self._leaving.append(process)
            _tell_to_go(process)

    def _count_restart(self, code: int) -> None:
        now_s = time.monotonic()
        self._restarted = [then_s for then_s in self._restarted if now_s - then_s < RESTARTS_WINDOW_S] + [now_s]
        if len(self._restarted) > RESTARTS_MAX:
            raise WorkerFailed(f"workers ended {RESTARTS_MAX} times in {RESTARTS_WINDOW_S // 60} minutes", code=code)

    def _terminate_all(self) -> None:
        for process in (*self._running, *self._leaving):
            process.terminate()

    async def _stop_all(self) -> None:
        # Refuse connections from now on. Another process that listens on the address gets them.
        for listener in self._listeners:
            listener.close()
        for process in self._running:
            _tell_to_go(process, notice=True)
        seconds = self._process.notice_s + self._process.drain_s + CUT_S + CLOSE_S
        for process in (*self._running, *self._leaving):
            await asyncio.to_thread(_wait_or_kill, process, seconds)
            _close_pipes(process)


def _spawn(orders: WorkerOrders) -> Popen[bytes]:
    process = Popen(
        [sys.executable, "-m", "lakebed.server.process.worker"],
        stdin=PIPE,
        stdout=PIPE,
        pass_fds=orders.listener_fds + orders.other_fds,
        start_new_session=True,  # Ctrl-C reaches the parent alone, which stops them in order.
    )
    assert process.stdin is not None
    process.stdin.write(encode_orders(orders))
    process.stdin.flush()
    return process


def _tell_to_go(process: Popen[bytes], *, notice: bool = False) -> None:
    """End the worker's standard input, after NOTICE if balancers have to leave it.

    Do not send SIGTERM: a service manager may also send it, and a second one would cut requests off.
    """
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        if notice:
            process.stdin.write(NOTICE)
        process.stdin.close()


def _close_pipes(process: Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _wait_or_kill(process: Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except TimeoutExpired:
        process.kill()
        process.wait()
