"""Connections that send too much, too slowly or too many: real sockets against a real server with small limits."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.process.test_serving import workers_of

_SERVE = """
import sys
import threading
from pathlib import Path
from lakebed.server.http import limits
from lakebed.server import options_of, serve
from lakebed.server.process import serving
limits.HEAD_S, limits.BODY_S = 0.5, 0.5
limits.connections_max = lambda: 8
serving.SILENT_S = 3.0
serve(options_of(Path(sys.argv[1]), {}), port=0, workers=int(sys.argv[2]), on_ready=lambda url: print(url, flush=True))
"""


@contextmanager
def served(folder: Path, workers: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(folder), str(workers)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(600)
        process.stdout.close()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("limits") / "lake", 1) as (_, port):
        yield port


def answer_to(port: int, *pieces: bytes) -> bytes:
    """Send these pieces and return all that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as client:
        for piece in pieces:
            try:
                client.sendall(piece)
            except OSError:
                break
        answer = b""
        try:
            while data := client.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        return answer


def test_a_header_that_never_ends_is_refused_after_a_few_pieces(port: int) -> None:
    answer = answer_to(port, b"GET / HTTP/1.1\r\nx: ", *[b"a" * 8192] * 200)

    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert httpx.get(f"http://127.0.0.1:{port}/_health").status_code == 200


def test_a_head_of_the_largest_size_is_taken_and_a_larger_one_is_not(port: int) -> None:
    taken = answer_to(port, b"GET /_health HTTP/1.1\r\nconnection: close\r\nx: " + b"a" * 60_000 + b"\r\n\r\n")
    refused = answer_to(port, b"GET /_health HTTP/1.1\r\nconnection: close\r\nx: " + b"a" * 70_000 + b"\r\n\r\n")

    assert taken.startswith(b"HTTP/1.1 200 ")
    assert refused.startswith(b"HTTP/1.1 431 ")


def test_a_large_head_is_refused_behind_another_that_came_with_it(port: int) -> None:
    """The end of a chunked body, a request and a large head may be one piece for the parser."""
    begun = b"POST /_health HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    rest = b"0\r\n\r\nGET /_health HTTP/1.1\r\nhost: a\r\n\r\nGET /_health HTTP/1.1\r\nx: "

    answer = answer_to(port, begun, rest + b"a" * 70_000 + b"\r\nconnection: close\r\n\r\n")

    assert b"HTTP/1.1 431 " in answer


def test_many_small_headers_are_refused(port: int) -> None:
    headers = b"".join(b"x%d: y\r\n" % number for number in range(200))

    assert answer_to(port, b"GET /_health HTTP/1.1\r\n" + headers + b"\r\n").startswith(b"HTTP/1.1 431 ")


def test_a_second_host_is_refused(port: int) -> None:
    once = answer_to(port, b"GET /_health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    twice = answer_to(port, b"GET /_health HTTP/1.1\r\nHost: a\r\nhost: b\r\nConnection: close\r\n\r\n")

    assert once.startswith(b"HTTP/1.1 200")
    assert twice.startswith(b"HTTP/1.1 400")
    assert b"more than one Host" in twice


def test_a_head_that_is_not_completed_ends_the_connection(port: int) -> None:
    assert answer_to(port, b"GET / HTTP/1.1\r\nhost: x").startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_sends_nothing_ends(port: int) -> None:
    assert answer_to(port).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_does_not_come_ends_the_connection(port: int) -> None:
    head = b"POST /api/v1/auth/login HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"

    assert answer_to(port, head).startswith(b"HTTP/1.1 408 ")


def test_too_many_connections_are_refused_and_idle_ones_make_room(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", limits=httpx.Limits(max_connections=None)) as client:
        client.get("/_health")  # idle from here on
        busy = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        try:
            for one in busy:
                one.sendall(b"GET / HTTP/1.1\r\nx")
            answers = b""
            for one in busy:
                one.settimeout(600)
                answers += one.recv(4096)
        finally:
            for one in busy:
                one.close()
        assert b"HTTP/1.1 503 " in answers
        assert client.get("/_health").status_code == 200


def test_a_worker_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    with served(tmp_path / "lake", 2) as (process, port):
        stuck = min(workers_of(process))

        os.kill(stuck, signal.SIGSTOP)

        while stuck in workers_of(process) or len(workers_of(process)) < 2:
            time.sleep(0.1)
        assert httpx.get(f"http://127.0.0.1:{port}/_health", timeout=600).status_code == 200


# Requests that are sent before earlier ones are answered


HEALTH = b"GET /_health HTTP/1.1\r\n\r\n"
GROWTH_BYTES_MAX = 20 << 20


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def test_a_client_that_sends_requests_and_reads_no_answer_costs_little_memory(tmp_path: Path) -> None:
    with served(tmp_path / "lake", 1) as (process, port), socket.create_connection(("127.0.0.1", port)) as client:
        httpx.get(f"http://127.0.0.1:{port}/_health")
        before = resident_bytes(process.pid)
        client.setblocking(False)
        left = HEALTH * 738_000
        # Until the server stops reading: the client's own buffer is full then.
        while left and select.select([], [client], [], 1)[1]:
            left = left[client.send(left[: 1 << 20]) :]

        assert resident_bytes(process.pid) - before < GROWTH_BYTES_MAX
        assert left, "the server read all requests, although no answer was read"
        assert httpx.get(f"http://127.0.0.1:{port}/_health").status_code == 200


def test_a_client_that_reads_gets_each_answer_in_order_at_little_memory(tmp_path: Path) -> None:
    paths = [b"/_health", b"/openapi-%d.json", b"/_ready", b"/api/v1/config-%d"]
    count = 5_000
    requests = [b"GET %s HTTP/1.1\r\n\r\n" % paths[n % 4].replace(b"%d", b"%d" % n) for n in range(count)]
    with served(tmp_path / "lake", 1) as (process, port), socket.create_connection(("127.0.0.1", port)) as client:
        httpx.get(f"http://127.0.0.1:{port}/_ready")
        before = resident_bytes(process.pid)
        sender = threading.Thread(target=client.sendall, args=(b"".join(requests) + b"GET / HTTP/1.0\r\n\r\n",))
        sender.start()
        answers = client.makefile("rb").read()
        sender.join()

        assert resident_bytes(process.pid) - before < GROWTH_BYTES_MAX
    statuses = re.findall(rb"HTTP/1.1 (\d+) ", answers)
    assert len(statuses) == count + 1
    assert statuses[:4] == [b"200", b"200", b"200", b"404"]
    assert statuses[:-1] == statuses[:4] * (count // 4)


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 19, 100, 1_000_000])
def test_requests_with_bodies_are_answered_in_order_however_they_are_cut(port: int, piece_bytes: int) -> None:
    login = b"POST /api/v1/auth/login HTTP/1.1\r\ncontent-type: application/json\r\n"
    body = b'{"access_key_id": "a\\r\\n\\r\\n", "secret_access_key": "\r\n\r\n"}'
    sent = b"".join(
        [
            HEALTH,
            login + b"Content-Length: %d\r\n\r\n" % len(body) + body,
            HEALTH,
            login + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body),
            HEALTH + b"\r\n\r\n" + HEALTH,
            login + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"{" + b"\r\n" * 400),
            HEALTH,
            b"GET /_health HTTP/1.1\r\nconnection: close\r\n\r\n",
            HEALTH,
        ]
    )

    answers = answer_to(port, *[sent[n : n + piece_bytes] for n in range(0, len(sent), piece_bytes)])

    statuses = re.findall(rb"HTTP/1.1 (\d+) ", answers)
    assert statuses == [b"200", b"400", b"200", b"400", b"200", b"200", b"400", b"200", b"200"]
