"""Two servers with a port each, over one PostgreSQL and one folder, behind a balancer: restarted in turn under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lakebed.testing.contracts.network import held_port
from tests.kv.servers import Server, postgres, program, running
from tests.server.process.test_draining import asking, complaints, draining

DEPLOY = Path(__file__).parents[3] / "deploy"
PROBE_S = 0.1
OFF_AFTER = 2
"""Probes that fail before our balancer leaves a server."""
NOTICE_S = 10
"""Much longer than a balancer needs to leave, for a busy machine. A server that gets connections later may lose one."""


@dataclass
class Balancer:
    """Pass on bytes: each connection to the next server of which `/_ready` answered 200 when it was asked last."""

    servers: tuple[int, ...]
    on: set[int]
    port: int = 0

    async def run(self, ready: threading.Event, stop: asyncio.Event) -> None:
        turns = itertools.cycle(self.servers)
        open_connections: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            open_connections.add(task)
            task.add_done_callback(open_connections.discard)
            with contextlib.suppress(OSError):
                async with _closed(writer):
                    back_reader, back_writer = await self._connect(turns)
                    async with _closed(back_writer):
                        await asyncio.gather(_pump(reader, back_writer), _pump(back_reader, writer))

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        probes = [asyncio.create_task(self._probe(port)) for port in self.servers]
        ready.set()
        await stop.wait()
        listener.close()
        for task in (*probes, *open_connections):
            task.cancel()
        await asyncio.gather(*probes, *open_connections, return_exceptions=True)

    async def _connect(self, turns: Iterator[int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the next server. One that refuses got no byte, so the other one is asked; after that, the client
        sees the end of its connection.
        """
        chosen = [port for port in itertools.islice(turns, len(self.servers)) if port in self.on]
        next(turns)  # Others have their turn next.
        for port in chosen[:-1]:
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", port)
        return await asyncio.open_connection("127.0.0.1", chosen[-1] if chosen else self.servers[0])

    async def _probe(self, port: int) -> None:
        failed = 0
        while True:
            failed = 0 if await _is_ready(port) else failed + 1
            if failed == 0:
                self.on.add(port)
            elif failed >= OFF_AFTER:
                self.on.discard(port)
            await asyncio.sleep(PROBE_S)


@contextlib.asynccontextmanager
async def _closed(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
        target.write_eof()


async def _is_ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with _closed(writer):
            writer.write(b"GET /_ready HTTP/1.1\r\nhost: balancer\r\nconnection: close\r\n\r\n")
            return (await reader.read()).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


@contextmanager
def our_balancer(servers: tuple[int, ...], _: Path) -> Iterator[str]:
    balancer, ready = Balancer(servers, set(servers)), threading.Event()
    with asyncio.Runner() as runner:
        loop, stop = runner.get_loop(), asyncio.Event()
        thread = threading.Thread(target=runner.run, args=(balancer.run(ready, stop),))
        thread.start()
        ready.wait()
        try:
            yield f"http://127.0.0.1:{balancer.port}"
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()


@contextmanager
def haproxy(servers: tuple[int, ...], folder: Path) -> Iterator[str]:
    """HAProxy with the file that `deploy/compose.yaml` gives it."""
    command = [program("haproxy", "haproxy"), "-db", "-f", str(DEPLOY / "haproxy.cfg")]
    names = {f"LAKEBED_SERVER_{number}": f"127.0.0.1:{server}" for number, server in enumerate(servers, 1)}
    (folder / "haproxy").mkdir()
    with held_port() as port:
        names["LAKEBED_LISTEN"] = f"127.0.0.1:{port}"
        # Not as another user: the file has nothing of this machine, and the folder is pytest's own.
        with running(Server(command, folder / "haproxy", port, names, as_root=True)):
            yield f"http://127.0.0.1:{port}"


def wait_until_balanced(url: str, port: int) -> None:
    """Ask until the server at this port answers through the balancer. Ids of requests begin alike in one process."""
    deadline = time.monotonic() + 600
    wanted = process_at(f"http://127.0.0.1:{port}")
    while process_at(url) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def process_at(url: str) -> str:
    with httpx.Client(verify=False, timeout=600) as client:  # No TLS here, and to read certificates takes long.
        return client.get(url + "/_health").headers["x-request-id"][:16]


@pytest.mark.parametrize("balancer", [our_balancer, haproxy])
def test_a_rolling_restart_of_two_servers_behind_a_balancer_loses_no_request(
    tmp_path: Path, balancer: Callable[[tuple[int, ...], Path], contextlib.AbstractContextManager[str]]
) -> None:
    """Clients ask once. One that keeps its connection goes on at the other server when an answer says `close`."""
    with ExitStack() as stack:
        database = stack.enter_context(postgres())
        log = stack.enter_context((tmp_path / "log").open("w"))
        uri = f"postgres://lakebed@127.0.0.1:{database.port}/postgres"
        ports = (stack.enter_context(held_port()), stack.enter_context(held_port()))

        def start(port: int) -> subprocess.Popen[str]:
            options = ("--kv", uri, "--port", str(port), "--notice", str(NOTICE_S), "--drain", "60")
            process, url = stack.enter_context(draining(tmp_path / "lake", log, *options))
            assert url.endswith(f":{port}")
            return process

        servers = [start(port) for port in ports]
        url = stack.enter_context(balancer(ports, tmp_path))
        with asking(f"http://127.0.0.1:{ports[0]}", through=url) as asked:
            for number, port in enumerate(ports):
                servers[number].terminate()
                assert servers[number].wait(600) == 0
                servers[number] = start(port)
                wait_until_balanced(url, port)

        asked.check_none_is_lost()
        asked.check_all_is_there(url)
    assert complaints(tmp_path / "log") == []


def test_haproxy_ends_tls_with_the_certificate_that_it_is_given(tmp_path: Path) -> None:
    certificate = tmp_path / "lakebed.pem"
    certificate.write_bytes(self_signed("localhost"))
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("w"))
        port, plain, tls = (stack.enter_context(held_port()) for _ in range(3))
        stack.enter_context(draining(tmp_path / "lake", log, "--port", str(port)))
        (tmp_path / "haproxy").mkdir()
        settings = {
            "LAKEBED_LISTEN": f"127.0.0.1:{plain}",
            "LAKEBED_LISTEN_TLS": f"127.0.0.1:{tls}",
            "LAKEBED_CERTIFICATE": str(certificate),
            **{f"LAKEBED_SERVER_{number}": f"127.0.0.1:{port}" for number in (1, 2)},
        }
        command = [program("haproxy", "haproxy"), "-db", "-f", str(DEPLOY / "haproxy.cfg")]
        stack.enter_context(running(Server(command, tmp_path / "haproxy", plain, settings, as_root=True)))
        wait_until_balanced(f"http://127.0.0.1:{plain}", port)
        trusted = ssl.create_default_context(cafile=str(certificate))

        with httpx.Client(verify=trusted, timeout=600) as client:
            assert client.get(f"https://localhost:{tls}/_health").text == "alive!"


def self_signed(name: str) -> bytes:
    """Return a certificate for this name, valid for a day, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
