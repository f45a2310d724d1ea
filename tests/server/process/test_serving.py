"""Real processes: one or several on one socket, told to stop, killed, and in each other's way."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from bench.http import children
from lakebed.base import LakebedError, Unavailable
from lakebed.server import BadAddress, NotADataFolder, options_of, serve
from lakebed.server.process.serving import keep_memory
from tests.conftest import fill_disk
from tests.kv.servers import is_alive

_SERVE = """
import os
import sys
from pathlib import Path
from lakebed.base import LakebedError
from lakebed.server import options_of, serve
try:
    taken = ("LAKEBED_TRUSTED_PROXIES", "LAKEBED_ASIDE")
    given = {name: value for name, value in os.environ.items() if name in taken}
    serve(options_of(Path(sys.argv[1]), given), port=0, workers=int(sys.argv[2]),
          on_ready=lambda url: print(url, flush=True))
except LakebedError as error:
    print(type(error).__name__, error, flush=True)
    sys.exit(3)
"""


@contextmanager
def serving(folder: Path, workers: int = 1) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its first line: the URL where it serves."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(folder), str(workers)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(600)
        process.stdout.close()


def set_up(url: str) -> httpx.Client:
    pair = httpx.post(url + "/api/v1/setup_lakefs", json={"username": "esti"}).json()
    return httpx.Client(base_url=url + "/api/v1", auth=(pair["access_key_id"], pair["secret_access_key"]))


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    return children(process.pid)


def connections_of(pid: int, port: int) -> int:
    """Count the connections from clients of this port that a process holds."""
    held = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            held.add(str(descriptor.readlink()))
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here, established = f":{port:04X}", "01"
    return sum(one[1].endswith(here) and one[3] == established and f"socket:[{one[9]}]" in held for one in fields)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 600
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_stop_ends_well_and_keeps_everything(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "lake") as (process, url), set_up(url) as client:
        body = {"name": "lake", "storage_namespace": "local://b/lake"}
        assert client.post("/repositories", json=body).status_code == 201
        assert client.post("/repositories/lake/branches/main/objects?path=a", content=b"1").status_code == 201
        auth = client.auth
        process.send_signal(number)
        assert process.wait(600) == 0

    with serving(tmp_path / "lake") as (_, url), httpx.Client(base_url=url + "/api/v1", auth=auth) as client:
        assert client.get("/repositories/lake/refs/main/objects?path=a").content == b"1"


def test_a_killed_server_starts_again_with_all_that_it_acknowledged(tmp_path: Path) -> None:
    with serving(tmp_path / "lake") as (process, url), set_up(url) as client:
        client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
        for number in range(20):
            client.post(f"/repositories/lake/branches/main/objects?path={number:02d}", content=b"1")
        auth = client.auth
        process.kill()
        process.wait(600)

    with serving(tmp_path / "lake") as (_, url), httpx.Client(base_url=url + "/api/v1", auth=auth) as client:
        listed = client.get("/repositories/lake/refs/main/objects/ls").json()["results"]
        assert [stats["path"] for stats in listed] == [f"{number:02d}" for number in range(20)]
        assert client.post("/repositories/lake/branches/main/commits", json={"message": "m"}).status_code == 201


def test_a_body_that_is_refused_unread_ends_its_connection(tmp_path: Path) -> None:
    """The client may send the body that it announced or leave it out: what follows could be either."""
    head = b"PUT /api/v1/nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    with serving(tmp_path / "lake") as (_, url):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=600) as connection:
            connection.sendall(head)
            received = b""
            while chunk := connection.recv(4096):
                received += chunk

    assert received.startswith(b"HTTP/1.1 404")
    assert b"connection: close" in received.lower()


def test_a_body_shorter_than_declared_stores_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "lake") as (_, url), set_up(url) as client:
        client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
        request = client.build_request(
            "POST", "/repositories/lake/branches/main/objects?path=a", content=b"", headers={"content-length": "9"}
        )
        next(client.auth.auth_flow(request))  # type: ignore[union-attr]  # it has one
        head = b"POST " + request.url.raw_path + b" HTTP/1.1\r\n"
        head += b"".join(name + b": " + value + b"\r\n" for name, value in request.headers.raw) + b"\r\n"
        with socket.create_connection((request.url.host, request.url.port or 0)) as connection:
            connection.sendall(head + b"abc")
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(600)
            assert connection.recv(1000) == b""

        assert client.get("/repositories/lake/refs/main/objects/ls").json()["results"] == []
        stored = [path for path in (tmp_path / "lake" / "objects").rglob("data/*/*") if path.is_file()]
        assert stored == []


class TestWorkers:
    def test_several_share_the_socket_and_the_data(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake", workers=2) as (process, url), set_up(url) as client:
            assert len(workers_of(process)) == 2
            client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})
            for number in range(30):
                # A connection each, so that both workers get some.
                answer = httpx.post(
                    f"{url}/api/v1/repositories/lake/branches/main/objects?path={number:02d}",
                    content=b"1",
                    auth=client.auth,
                )
                assert answer.status_code == 201
            listed = client.get("/repositories/lake/refs/main/objects/ls").json()["results"]
            assert len(listed) == 30
            pids = workers_of(process)
            process.terminate()
            assert process.wait(600) == 0
            wait_until_gone(pids)

    def test_a_dead_one_is_replaced(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake", workers=2) as (process, url):
            victim, other = workers_of(process)
            os.kill(victim, signal.SIGKILL)
            deadline = time.monotonic() + 600
            while len(now := set(workers_of(process)) - {victim}) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)

            assert other in now
            assert httpx.get(url + "/api/v1/healthcheck", timeout=600).status_code == 204

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers share one socket")
    def test_connections_are_dealt_to_all_of_them(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake", workers=2) as (process, url), contextlib.ExitStack() as closing:
            address = ("127.0.0.1", int(url.rpartition(":")[2]))
            for _ in range(64):
                connection = closing.enter_context(socket.create_connection(address, timeout=600))
                connection.sendall(b"GET /_health HTTP/1.1\r\nhost: lake\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")

            # One after the other, to workers with nothing else to do. All of them to one has a chance of 2 to the -63.
            assert all(connections_of(pid, address[1]) for pid in workers_of(process))

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers share one socket")
    def test_one_that_hangs_leaves_its_connections_to_the_others(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake", workers=2) as (process, url):
            victim = workers_of(process)[0]
            # The parent stands still as well, so it replaces no worker.
            stopped = [process.pid, victim]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                # All of them to the other one has a chance of 2 to the -16.
                for _ in range(16):
                    assert httpx.get(url + "/_health", timeout=600).status_code == 200
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers share one socket")
    def test_their_port_is_taken_for_another_server(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake", workers=2) as (_, url), pytest.raises(Unavailable, match="is taken"):
            serve(options_of(tmp_path / "other", {}), port=int(url.rpartition(":")[2]), workers=2)

    def test_none_outlives_a_parent_that_was_killed(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake", workers=2) as (process, _):
            pids = workers_of(process)
            process.kill()
            process.wait(600)
            wait_until_gone(pids)

    def test_that_cannot_start_end_the_server(self, tmp_path: Path) -> None:
        (tmp_path / "lake").mkdir()
        (tmp_path / "lake" / "metadata.db").write_bytes(b"this is no database at all" * 100)

        with serving(tmp_path / "lake", workers=2) as (process, said):
            assert said.startswith("WorkerFailed")
            assert process.wait(600) == 3


class TestBadStarts:
    """Nothing is served, nothing is left behind, and the error says what is wrong."""

    def test_a_folder_that_is_served_already_is_named_with_its_address(self, tmp_path: Path) -> None:
        with serving(tmp_path / "lake") as (_, url):
            port = int(url.rpartition(":")[2])
            with pytest.raises(Unavailable, match=f"lake is served already, at {url}\\. .* is taken"):
                serve(options_of(tmp_path / "lake", {}), port=port)

    def test_a_port_that_is_taken(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(Unavailable, match="is taken"):
            serve(options_of(tmp_path / "lake", {}), port=other.getsockname()[1])

    @pytest.mark.parametrize(("host", "port"), [("host.invalid", 0), ("127.0.0.1", 99999), ("127.0.0.1", -1)])
    def test_an_address_that_cannot_be(self, tmp_path: Path, host: str, port: int) -> None:
        with pytest.raises(BadAddress):
            serve(options_of(tmp_path / "lake", {}), host=host, port=port)

    def test_no_workers(self, tmp_path: Path) -> None:
        with pytest.raises(BadAddress):
            serve(options_of(tmp_path / "lake", {}), workers=0)

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("chapter one")

        with pytest.raises(NotADataFolder):
            serve(options_of(tmp_path, {}), port=0)

    def test_a_store_that_is_no_store(self, tmp_path: Path) -> None:
        (tmp_path / "metadata.db").write_bytes(b"this is no database at all" * 100)

        with pytest.raises(LakebedError):
            serve(options_of(tmp_path, {}), port=0)


def test_several_servers_may_share_a_folder(tmp_path: Path) -> None:
    with serving(tmp_path / "lake") as (_, first), serving(tmp_path / "lake") as (_, second), set_up(first) as client:
        client.post("/repositories", json={"name": "lake", "storage_namespace": "local://b/lake"})

        with httpx.Client(base_url=second + "/api/v1", auth=client.auth) as elsewhere:
            assert elsewhere.get("/repositories/lake").status_code == 200


def test_a_server_killed_on_a_full_disk_starts_reads_and_begins_a_collection(mount_disk: Callable[[str], Path]) -> None:
    folder = mount_disk("64m") / "lake"
    objects = "/repositories/lake/branches/main/objects?path="
    with serving(folder) as (process, url), set_up(url) as client:
        body = {"name": "lake", "storage_namespace": "local://b/lake"}
        assert client.post("/repositories", json=body).status_code == 201
        kept = [name for name in map(str, range(20)) if client.post(objects + name, content=b"1").is_success]
        ballast = fill_disk(folder)
        assert client.post(objects + "more", content=bytes(1 << 16)).status_code == 503
        process.kill()
        process.wait(600)
    auth = client.auth

    with serving(folder) as (_, url), httpx.Client(base_url=url + "/api/v1", auth=auth) as client:
        read = [client.get(f"/repositories/lake/refs/main/objects?path={name}").text for name in kept]
        assert read == ["1"] * 20
        assert client.post("/repositories/lake/gc/runs", json={"kind": "uncommitted"}).status_code == 201
    ballast.unlink()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the option is glibc's")
def test_the_memory_of_a_large_body_is_used_for_the_next() -> None:
    """Else the kernel makes 256 pages anew for each megabyte."""
    keep_memory()

    def answer_four() -> None:
        bodies = [bytearray(b"x") * (1 << 20) for _ in range(4)]
        del bodies

    answer_four()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        answer_four()

    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100 * 256
