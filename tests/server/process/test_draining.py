"""Servers that end, or renew their workers, while clients are busy."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from lakebed.server import BadAddress, inherited_sockets
from lakebed.server.process.serving import listen
from tests.kv.servers import is_alive
from tests.server.process.test_serving import set_up, wait_until_gone, workers_of


@contextmanager
def draining(folder: Path, stderr: IO[str], *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "lakebed", "serve", "--data", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().rpartition(" at ")[2].strip()
    finally:
        process.kill()
        process.wait(600)
        process.stdout.close()


def complaints(log: Path) -> list[str]:
    """Return the lines of servers, but for the notes with which they begin."""
    notes = ("it has no user yet. ", "also served at ")
    return [line for line in log.read_text().splitlines() if not line.startswith(notes)]


class SlowUpload:
    """An upload that the server is reading: it has the head and half of the body."""

    def __init__(self, client: httpx.Client, path: str) -> None:
        request = client.build_request("POST", f"/repositories/lake/branches/main/objects?path={path}", content=b"1234")
        assert client.auth is not None
        next(client.auth.auth_flow(request))
        head = b"POST " + request.url.raw_path + b" HTTP/1.1\r\n"
        head += b"".join(name + b": " + value + b"\r\n" for name, value in request.headers.raw)
        self.address = (request.url.host, request.url.port or 0)
        self.connection = socket.create_connection(self.address)
        self.connection.settimeout(600)
        self.connection.sendall(head + b"expect: 100-continue\r\n\r\n")
        # The server says so when it reads the body. Before that, it could still end without having seen the request.
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            said += self.connection.recv(1)
        assert said.startswith(b"HTTP/1.1 100 ")
        self.connection.sendall(b"12")

    def finish(self) -> bytes:
        """Send the rest; returns the answer, which ends with the connection."""
        self.connection.sendall(b"34")
        return self.rest()

    def rest(self) -> bytes:
        answer = b""
        with self.connection:
            while part := self.connection.recv(65536):
                answer += part
        return answer


def wait_until_refused(address: tuple[str, int]) -> None:
    deadline = time.monotonic() + 600
    while True:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_transfer_under_way_ends_before_the_server_does(tmp_path: Path, workers: int) -> None:
    with (tmp_path / "log").open("w") as log, draining(tmp_path / "lake", log, "-w", str(workers)) as (process, url):
        with set_up(url) as client:
            client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
            upload = SlowUpload(client, "a")
        process.send_signal(signal.SIGTERM)
        wait_until_refused(upload.address)

        answer = upload.finish()

        assert answer.startswith(b"HTTP/1.1 201 ")
        assert b"connection: close" in answer
        assert process.wait(600) == 0
    assert complaints(tmp_path / "log") == []


@pytest.mark.parametrize("hurry", ["the drain is over", "a second signal"])
def test_what_does_not_end_is_cut_off_without_a_traceback(tmp_path: Path, hurry: str) -> None:
    drain = "600" if hurry == "a second signal" else "1"
    with (tmp_path / "log").open("w") as log, draining(tmp_path / "lake", log, "--drain", drain) as (process, url):
        with set_up(url) as client:
            client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
            upload = SlowUpload(client, "a")
        process.send_signal(signal.SIGTERM)
        if hurry == "a second signal":
            wait_until_refused(upload.address)  # Of two signals at once, one arrives.
            process.send_signal(signal.SIGTERM)

        assert process.wait(600) == 0
        assert upload.rest() == b""
    text = (tmp_path / "log").read_text()
    assert "cut off 1 requests" in text
    assert "Traceback" not in text


_WITH_A_THREAD = """
import asyncio, sys, threading
from pathlib import Path
from lakebed.server import options_of, serve
from lakebed.server.process import serving

def ready(url):
    for _ in range(40):
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    print("ready", flush=True)
    if len(sys.argv) > 2:
        raise RuntimeError("the server failed")

serving.CLOSE_S = 0.5
serve(options_of(Path(sys.argv[1]), {}), port=0, on_ready=ready, ends=True)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_threads_that_never_end_do_not_keep_the_process(tmp_path: Path, fails: bool) -> None:
    command = [sys.executable, "-c", _WITH_A_THREAD, str(tmp_path / "lake"), *(["fails"] if fails else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)

            assert process.wait(600) == int(fails), "a server that failed says so"
            assert "although a thread still works" in process.stderr.read()
        finally:
            process.kill()


def test_a_server_that_gives_notice_is_not_ready_and_still_takes_connections(tmp_path: Path) -> None:
    options = ("--notice", "600", "--drain", "0")
    with (tmp_path / "log").open("w") as log, draining(tmp_path / "lake", log, *options) as (process, url):
        with set_up(url) as client:
            client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
        assert httpx.get(url + "/_ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 600
        while (probe := httpx.get(url + "/_ready")).status_code == 200:
            assert time.monotonic() < deadline

        late = httpx.post(
            f"{url}/api/v1/repositories/lake/branches/main/objects?path=a", content=b"1", auth=client.auth
        )
        process.send_signal(signal.SIGTERM)

        assert (probe.status_code, probe.json()["checks"]["process"]) == (503, "draining")
        assert (late.status_code, late.headers["connection"]) == (201, "close")
        assert process.wait(600) == 0


@dataclass(slots=True)
class Asked:
    """`answers` has (noun, status) of each request, `acknowledged` the paths whose upload was answered."""

    answers: list[tuple[str, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    auth: httpx.Auth | None = None

    def check_none_is_lost(self) -> None:
        assert self.failures == []
        assert set(self.answers) - {("commit", 400)} == {("upload", 201), ("read", 200), ("commit", 201)}

    def check_all_is_there(self, url: str) -> None:
        """Every acknowledged upload is in the branch, and nothing else."""
        target, listed, after = f"{url}/api/v1/repositories/lake/refs/main/objects/ls", set(), ""
        while True:
            page = httpx.get(target, params={"after": after, "amount": "1000"}, auth=self.auth).json()
            listed |= {one["path"] for one in page["results"]}
            if not page["pagination"]["has_more"]:
                break
            after = page["pagination"]["next_offset"]
        assert listed == self.acknowledged


NO_CHANGES = '{"message":"commit: no changes"}'
COMMIT_EVERY = 10
"""A client commits after this many uploads."""
PAUSE_S = 0.01
"""A client waits this long after each read, so that servers that start get some of the processor."""


@contextmanager
def asking(url: str, *, through: str | None = None) -> Iterator[Asked]:
    """Let clients upload, read and commit all the time, and never ask again.

    Some keep a connection, others open one for each request. `through` is a balancer's URL.
    """
    done, found = threading.Event(), Asked()
    lake = f"{through or url}/api/v1/repositories/lake"
    # Made once: httpx reads all certificates for each client otherwise, which takes longer than the request.
    context = ssl.create_default_context()

    def ask(auth: httpx.Auth | None, number: int) -> None:
        with httpx.Client(auth=auth, timeout=600) as kept:

            def send(noun: str, method: str, target: str, **body: Any) -> httpx.Response | None:
                try:
                    if number % 2:
                        answer = kept.request(method, lake + target, **body)
                    else:
                        answer = httpx.request(method, lake + target, auth=auth, timeout=600, verify=context, **body)
                except httpx.HTTPError as error:
                    found.failures.append(f"{noun}: {error!r}")
                    return None
                found.answers.append((noun, answer.status_code))
                if answer.status_code >= 400 and answer.text != NO_CHANGES:
                    found.failures.append(f"{noun}: {answer.status_code} {answer.text}")
                return answer

            def read_back(ref: str, path: str) -> None:
                read = send("read", "GET", f"/refs/{ref}/objects?path={path}")
                if read is not None and read.status_code == 200 and read.text != path:
                    found.failures.append(f"read: {path} of {ref} has {read.text!r}")

            for asked in itertools.count(1):
                path = f"{number}/{asked}"
                uploaded = send("upload", "POST", f"/branches/main/objects?path={path}", content=path.encode())
                if uploaded is not None and uploaded.status_code == 201:
                    found.acknowledged.add(path)
                read_back("main", path)
                if asked % COMMIT_EVERY == 1:
                    made = send("commit", "POST", "/branches/main/commits", json={"message": path})
                    if made is not None and made.text == NO_CHANGES:
                        # Another client's commit took the upload before this one arrived.
                        head = send("read", "GET", "/branches/main")
                        if head is not None and head.status_code == 200:
                            read_back(head.json()["commit_id"], path)
                if done.wait(PAUSE_S):
                    break

    with set_up(url) as client:
        client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
    found.auth = client.auth
    threads = [threading.Thread(target=ask, args=(client.auth, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_renewing_the_workers_loses_no_request(tmp_path: Path) -> None:
    folder, options = tmp_path / "lake", ("--workers", "2", "--notice", "600")
    with (tmp_path / "log").open("w") as log, draining(folder, log, *options) as (process, url):
        before = workers_of(process)
        with asking(url) as asked:
            process.send_signal(signal.SIGHUP)
            wait_until_gone(before)
        after = [pid for pid in workers_of(process) if is_alive(pid)]

    asked.check_none_is_lost()
    assert len(after) == 2
    assert set(after).isdisjoint(before)


def handed(folder: Path, listener: socket.socket) -> subprocess.Popen[str]:
    """Start a server as systemd does: with a socket that listens, as its descriptor 3. It serves when this returns."""
    hand_over = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); "
        "os.execve(sys.argv[2], sys.argv[2:], {**os.environ, 'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'})"
    )
    command = [sys.executable, "-m", "lakebed", "serve", "--data", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", hand_over, str(listener.fileno()), *command],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(listener.fileno(),),
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving ")
    return process


def test_a_rolling_restart_of_two_servers_on_one_socket_loses_no_request(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        servers = [handed(tmp_path / "lake", listener)]
        try:
            with asking(url) as asked:
                servers.append(handed(tmp_path / "lake", listener))
                for number in range(2):
                    servers[number].terminate()
                    assert servers[number].wait(600) == 0
                    servers.append(handed(tmp_path / "lake", listener))
        finally:
            for server in servers:
                server.terminate()
                server.wait(600)
                assert server.stdout is not None
                server.stdout.close()

    asked.check_none_is_lost()


@pytest.mark.parametrize(
    ("variables", "words"),
    [({"LISTEN_FDS": "3"}, "LISTEN_FDS is '3'"), ({"LISTEN_FDS": "x"}, "LISTEN_FDS is 'x'"), ({}, "LISTEN_FDS is ''")],
)
def test_what_is_no_socket_of_a_server_is_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(BadAddress, match=words):
        inherited_sockets({"LISTEN_PID": str(os.getpid()), **variables})

    assert inherited_sockets({"LISTEN_PID": "1", **variables}) == []
