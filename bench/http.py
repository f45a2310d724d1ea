"""Servers to load, ours and bare ones, as processes of their own; and a client that costs little beside them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from bench.harness import Side, Work

T = TypeVar("T")
CONNECTIONS = 16
START_S = 600
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
INSTRUCTIONS = os.environ.get("BENCH_INSTRUCTIONS", "")
"""A file's path: servers run in valgrind, which writes it. Then a CPU second is 10⁹ instructions outside the kernel."""
COUNTED = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={INSTRUCTIONS}%p"]


@dataclass(frozen=True, slots=True)
class Answer:
    """`size_bytes` is what it took on the wire, head and body."""

    status: int
    body: bytes
    size_bytes: int = 0


class Connection:
    """One keep-alive connection; requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, request: bytes) -> Answer:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n")[1:]:
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
            elif line[:18].lower() == b"transfer-encoding:":
                pieces = await read_chunks(self._reader)
                return Answer(int(head[9:12]), b"".join(pieces[1:-1:3]), len(head) + sum(map(len, pieces)))
        body = await self._reader.readexactly(length) if length else b""
        return Answer(int(head[9:12]), body, len(head) + length)

    def close(self) -> None:
        self._writer.close()


async def read_chunks(reader: asyncio.StreamReader) -> list[bytes]:
    """Read a body that is sent in chunks, and return its pieces: the size, the bytes and the end of each chunk.

    The last piece is the empty chunk, with trailers and an empty line.
    """
    pieces: list[bytes] = []
    while True:
        size = await reader.readuntil(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        if not length:
            break
        pieces += [size, await reader.readexactly(length), await reader.readexactly(2)]
    end = [size]
    while end[-1] != b"\r\n":
        end.append(await reader.readuntil(b"\r\n"))
    return [*pieces, b"".join(end)]


class Peer:
    """A server process: its port, its CPU time and memory, and bytes that ask it for something."""

    def __init__(self, pid: int, port: int, key: tuple[str, str] = ("", "")) -> None:
        self.pid = pid
        self.port = port
        self.key = key
        """Access key id and secret of the user who asks."""
        self._authorization = f"Basic {base64.b64encode(':'.join(key).encode()).decode()}" if key[0] else ""

    def request(self, method: str, target: str, body: bytes = b"", *, content_type: str = "application/json") -> bytes:
        head = f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n"
        if self._authorization:
            head += f"authorization: {self._authorization}\r\n"
        if body:
            head += f"content-type: {content_type}\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    def upload(self, repository: str, branch: str, path: str, body: bytes) -> bytes:
        """Return a request to upload an object."""
        target = objects_url(repository, branch, path, kind="branches")
        return self.request("POST", target, body, content_type="application/octet-stream")

    def environment(self) -> dict[str, str]:
        """Return the variables by which a command finds this server and may speak to it."""
        names = ("LAKEBED_ENDPOINT", "LAKEBED_ACCESS_KEY_ID", "LAKEBED_SECRET_ACCESS_KEY")
        return dict(zip(names, (f"http://127.0.0.1:{self.port}", *self.key), strict=True))

    def cpu_s(self) -> float:
        """Of all its threads, and of the processes that it started."""
        if INSTRUCTIONS:
            return instructions(self.pid) / 1e9
        return sum(_cpu_s(pid) for pid in family(self.pid))

    def peak_mib(self) -> float:
        return sum(peak_mib(pid) for pid in family(self.pid))

    async def with_connections(self, work: Callable[[Connection, int], Awaitable[T]], count: int) -> list[T]:
        """Run `work(connection, number)` on that many connections at once."""
        connections = [Connection(*await asyncio.open_connection("127.0.0.1", self.port)) for _ in range(count)]
        try:
            return list(await asyncio.gather(*[work(each, number) for number, each in enumerate(connections)]))
        finally:
            for connection in connections:
                connection.close()

    def send_all(self, requests: Sequence[bytes], *, expected: int, connections: int = CONNECTIONS) -> list[bytes]:
        """Every request, over so many connections at once; the bodies of the answers in any order."""
        # Each connection takes the next: one to a slow server process holds up none of the others.
        waiting = iter(requests)

        async def work(connection: Connection, _: int) -> list[bytes]:
            bodies = []
            for request in waiting:
                answer = await connection.send(request)
                assert answer.status == expected, (answer.status, answer.body[:300])
                bodies.append(answer.body)
            return bodies

        return [body for bodies in asyncio.run(self.with_connections(work, connections)) for body in bodies]

    def call(self, method: str, target: str, body: object = None, *, expected: int) -> bytes:
        encoded = b"" if body is None else json.dumps(body).encode()
        [answer] = self.send_all([self.request(method, target, encoded)], expected=expected, connections=1)
        return answer


def sending(peer: Peer, make: Callable[[], Sequence[bytes]], expected: int = 200) -> Side:
    """Time these requests, which are made before: the CPU is the server's."""

    @contextmanager
    def side() -> Iterator[Work]:
        requests = make()
        yield Work(run=lambda: peer.send_all(requests, expected=expected), cpu_s=peer.cpu_s, peak_mib=peer.peak_mib)

    return side


def objects_url(repository: str, ref: str, path: str, *, kind: str = "refs", suffix: str = "") -> str:
    return f"/api/v1/repositories/{repository}/{kind}/{ref}/objects{suffix}?path={quote(path, safe='')}"


@contextmanager
def lakebed_server(
    folder: Path,
    *,
    workers: int = 1,
    options: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
    key: tuple[str, str] | None = None,
) -> Iterator[Peer]:
    """A real server over this data folder, with these options of `serve`, set up, with an authorised peer. `key` is
    that of an earlier start over the same folder."""
    command = ["-m", "lakebed", "serve", "--data", str(folder), "--port", "0", "--workers", str(workers), *options]
    with started(command, marker=" at http://127.0.0.1:", environment=environment) as peer:
        if key is None:
            made = json.loads(peer.call("POST", "/api/v1/setup_lakefs", {"username": "bench"}, expected=200))
            key = (made["access_key_id"], made["secret_access_key"])
        yield Peer(peer.pid, peer.port, key)


@contextmanager
def bare_server(folder: Path, **options: str) -> Iterator[Peer]:
    """The floor (bench/serving/bare.py), which gets its options as JSON."""
    given = json.dumps({"folder": str(folder), **options})
    with started(["-m", "bench.serving.bare", given], marker="bare at port ") as peer:
        yield peer


@contextmanager
def started(command: list[str], *, marker: str, environment: Mapping[str, str] = os.environ) -> Iterator[Peer]:
    """Start a Python process that says where it listens in a line with `marker` before the port."""
    variables = {**environment, "PYTHONUNBUFFERED": "1"}
    command = [*(COUNTED if INSTRUCTIONS else []), sys.executable, *command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
    try:
        yield Peer(process.pid, _port(process, marker))
    finally:
        process.terminate()
        process.wait(START_S)
        assert process.stdout is not None
        process.stdout.close()


def instructions(pid: int) -> int:
    """Return how many a process in valgrind has carried out so far: each dump counts from the one before."""
    subprocess.run(["callgrind_control", "--dump", str(pid)], check=True, capture_output=True)
    dumps = Path(INSTRUCTIONS).parent.glob(f"{Path(INSTRUCTIONS).name}{pid}.*")
    lines = [line for dump in dumps for line in dump.read_text().splitlines() if line.startswith("totals:")]
    return sum(int(line.split()[1]) for line in lines)


def _port(process: subprocess.Popen[str], marker: str) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if marker in line:
            return int(line.rpartition(marker)[2].split()[0].strip("/"))
    raise RuntimeError(f"the server ended with {process.wait()}")


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def children(pid: int) -> list[int]:
    return [int(child) for found in _of_threads(pid, "children") for child in found.split()]


def _cpu_s(pid: int) -> float:
    """From the scheduler's nanoseconds, which are finer than the clock ticks of /proc/PID/stat."""
    return sum(int(text.split()[0]) for text in _of_threads(pid, "schedstat")) / 1e9


def spent_s(pid: int) -> float:
    """CPU of a process, with its threads and its children that have ended; 0 where it has ended itself."""
    with suppress(FileNotFoundError, ProcessLookupError):
        # Behind the name, which ends with the last bracket: user, system, and those of children waited for.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) * TICK_S
    return 0.0


def _of_threads(pid: int, name: str) -> Iterator[str]:
    """That file of every thread. Threads and processes come and go while one looks."""
    tasks: list[Path] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):
            yield (task / name).read_text()


def peak_mib(pid: int) -> float:
    """0 where the process has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
