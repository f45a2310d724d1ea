"""Several server processes over one data folder, each on a port of its own, to be killed and started again.

A fault can be planted: then they run from a copy of the package in which a few lines are replaced.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import lakebed
from bench.http import Answer, Connection

MARKER: Final = " at http://127.0.0.1:"
START_S: Final = 600
ANSWER_S: Final = 120


class NotSent(Exception):
    """No server got the request, so nothing happened."""


class NoAnswer(Exception):
    """The request was sent and the connection broke, so anything may have happened."""


@dataclass(frozen=True, slots=True)
class Patch:
    """`old` becomes `new` in a file of the package; it must be there exactly once."""

    file: str
    old: str
    new: str


def patched_copy(patches: Sequence[Patch], folder: Path) -> Path:
    """Copy the package below `folder`, patched, and return the path for PYTHONPATH.

    Raises:
        ValueError: a patch does not fit.
    """
    package = folder / "lakebed"
    shutil.copytree(Path(lakebed.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for patch in patches:
        file = package / patch.file
        text = file.read_text()
        if text.count(patch.old) != 1:
            raise ValueError(f"{patch.file} has these lines {text.count(patch.old)} times, not once:\n{patch.old}")
        file.write_text(text.replace(patch.old, patch.new))
    return folder


class Server:
    """One process. `generation` counts its starts: a connection of an earlier one is dead."""

    def __init__(
        self, data: Path, pythonpath: Path | None, environment: Mapping[str, str], *, log: Path | None = None
    ) -> None:
        self._data = data
        self._log = log
        self._environment = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
        if pythonpath is not None:
            self._environment["PYTHONPATH"] = str(pythonpath)
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0
        self.door: int | None = None
        """The port that clients take, where a proxy is before the server."""
        self.generation = 0

    async def start(self) -> None:
        with nullcontext() if self._log is None else self._log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "lakebed", "serve", "--data", str(self._data), "--port", "0"],
                *["--log-level", "error"],
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=self._environment,
            )
        self._process = process
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
        if MARKER not in line:
            raise RuntimeError(f"the server ended with {await process.wait()} before it served")
        self.generation += 1
        self.port = int(line.rpartition(MARKER)[2].split()[0].strip("/"))

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def stop(self, *, is_kill: bool) -> None:
        """End the process and wait for that. Only this one: it was started here."""
        process, self._process, self.port = self._process, None, 0
        if process is not None and process.returncode is None:
            process.kill() if is_kill else process.terminate()
        if process is not None:
            await process.wait()


class Fleet:
    """The servers, and what clients need to speak to them."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers
        self.authorization = ""

    async def set_up(self) -> None:
        """Make the first user of the installation."""
        async with self.client() as client:
            answer = await client.send(0, "POST", "/setup_lakefs", {"username": "histories"})
        made = json.loads(answer.body)
        secret = f"{made['access_key_id']}:{made['secret_access_key']}".encode()
        self.authorization = f"Basic {base64.b64encode(secret).decode()}"

    async def kill_some(self, chance: random.Random) -> int:
        """Kill one server, or now and then all of them, and start again what was killed; return how many."""
        victims = list(self.servers) if chance.random() < 0.2 else [chance.choice(self.servers)]
        await asyncio.gather(*[victim.stop(is_kill=True) for victim in victims])
        await asyncio.gather(*[victim.start() for victim in victims])
        return len(victims)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        client = Client(self.servers, self.authorization)
        try:
            yield client
        finally:
            client.close()


@asynccontextmanager
async def fleet(
    folder: Path, count: int, patches: Sequence[Patch] = (), environment: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Fleet]:
    """Start that many servers over one fresh folder, set up; stop them afterwards."""
    pythonpath = patched_copy(patches, folder / "patched") if patches else None
    async with fleet_of([Server(folder / "data", pythonpath, environment) for _ in range(count)]) as found:
        yield found


@asynccontextmanager
async def fleet_of(servers: Sequence[Server]) -> AsyncIterator[Fleet]:
    """Start these servers of one installation, set up; stop them afterwards."""
    try:
        await servers[0].start()
        await asyncio.gather(*[server.start() for server in servers[1:]])
        found = Fleet(servers)
        await found.set_up()
        yield found
    finally:
        await asyncio.gather(*[server.stop(is_kill=True) for server in servers])


class Client:
    """Connections of one client, at most one a server; requests one after the other."""

    def __init__(self, servers: Sequence[Server], authorization: str) -> None:
        self._servers = servers
        self._authorization = authorization
        self._open: dict[int, tuple[int, Connection]] = {}

    async def send(
        self, number: int, method: str, target: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Ask one server. A body other than bytes travels as JSON.

        Raises:
            NotSent, NoAnswer: there is no answer.
        """
        return await self._sent(number, self._request(method, target, body, headers or {}))

    async def send_signed(self, number: int, method: str, target: str, body: bytes = b"") -> Answer:
        """Ask one server as a client of S3 does.

        Raises:
            NotSent, NoAnswer: there is no answer.
        """
        key_id, _, secret = base64.b64decode(self._authorization.removeprefix("Basic ")).decode().partition(":")
        request = AWSRequest(method, f"http://127.0.0.1{target}", {"host": "127.0.0.1"}, body)
        S3SigV4Auth(Credentials(key_id, secret), "s3", "us-east-1").add_auth(request)
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        head = f"{method} {target} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n"
        return await self._sent(number, head.encode() + body)

    async def _sent(self, number: int, request: bytes) -> Answer:
        connection = await self._connection(number)
        try:
            return await asyncio.wait_for(connection.send(request), ANSWER_S)
        except (OSError, EOFError, TimeoutError) as error:
            self._drop(number)
            raise NoAnswer(repr(error)) from error

    async def _connection(self, number: int) -> Connection:
        server = self._servers[number]
        held = self._open.get(number)
        if held is not None and held[0] == server.generation and server.port:
            return held[1]
        self._drop(number)
        if not server.port:
            raise NotSent("the server is down")
        generation = server.generation
        try:
            streams = await asyncio.open_connection("127.0.0.1", server.door or server.port)
        except OSError as error:
            raise NotSent(repr(error)) from error
        self._open[number] = (generation, Connection(*streams))
        return self._open[number][1]

    def _request(self, method: str, target: str, body: object, headers: Mapping[str, str]) -> bytes:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        head = f"{method} /api/v1{target} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(data)}\r\n"
        if self._authorization:
            head += f"authorization: {self._authorization}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{head}content-type: {kind}\r\n\r\n".encode() + data

    def _drop(self, number: int) -> None:
        _, connection = self._open.pop(number, (0, None))
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for number in list(self._open):
            self._drop(number)
