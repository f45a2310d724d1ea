"""The tail of small requests beside large work. Clients of that work are a process of its own, which yields its core to
server and probes as if it ran elsewhere. A wall figure says nothing on a machine that others use. The CPU time of the
server's own process until the answer does: it has what a probe waits for in that process.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bench.harness import Bench, Figure
from bench.http import Connection, Peer

from .commands import timed, variables
from .world import REPOSITORY, filled

OBJECTS: Final = {"small": 2_000, "full": 1_000_000}
PROBES: Final = {"small": 20, "full": 1_000}
NICE: Final = 10
TIMES_MAX: Final = 3
ROOT: Final = f"/api/v1/repositories/{REPOSITORY}"
HOOK: Final = b"""name: mixed
on:
  pre-commit:
    branches: [hooked]
hooks:
  - id: script
    type: lua
    properties:
      script: print(action.branch_id)
"""


@dataclass
class Beside:
    """The large work. Each piece repeats until `is_over`, but for the one commit of everything."""

    peer: Peer
    folder: Path
    is_over: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)

    def prepare(self) -> None:
        self.peer.call("POST", f"{ROOT}/branches", {"name": "hooked", "source": "committed"}, expected=201)
        self._upload("_lakefs_actions/mixed.yaml", HOOK)
        self.plan()  # As on a server in use: its process for large work is up.

    def commit(self) -> None:
        self.peer.call("POST", f"{ROOT}/branches/staged/commits", {"message": "all"}, expected=201)

    def commit_with_a_hook(self) -> None:
        self._upload("hooked", os.urandom(16))
        self.peer.call("POST", f"{ROOT}/branches/hooked/commits", {"message": "hooked"}, expected=201)

    def list_all(self) -> None:
        after = ""
        while not self.is_over.is_set():
            target = f"{ROOT}/refs/committed/objects/ls?amount=1000&after={quote(after, safe='')}"
            pagination = json.loads(self.peer.call("GET", target, expected=200))["pagination"]
            after = pagination["next_offset"]
            if not pagination["has_more"]:
                return

    def plan(self) -> None:
        timed(self.peer, variables(self.peer, self.folder), "gc", "plan", f"lakefs://{REPOSITORY}")

    def run(self) -> None:
        """Do all of it, each piece in a thread, until `is_over`."""
        repeated = (self.commit_with_a_hook, self.list_all, self.plan)
        threads = [threading.Thread(target=self._once, args=(self.commit,))]
        threads += [threading.Thread(target=self._repeat, args=(work,)) for work in repeated]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self.is_over.is_set() and not self.failures:
            self._once(work)

    def _once(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # raised again where the threads are joined
            self.failures.append(error)

    def _upload(self, path: str, body: bytes) -> None:
        self.peer.send_all([self.peer.upload(REPOSITORY, "hooked", path, body)], expected=201, connections=1)


@contextmanager
def running(peer: Peer, folder: Path) -> Iterator[None]:
    """Do the large work in another process: threads of this one would hold up the probes."""
    asked = json.dumps([peer.pid, peer.port, peer.key, str(folder)])
    command = [sys.executable, "-m", "bench.serving.mixed", asked]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.communicate()
    assert not process.returncode, "the large work failed"


def main(asked: str) -> None:
    """Do the large work at low priority until standard input ends."""
    os.nice(NICE)
    pid, port, key, folder = json.loads(asked)
    beside = Beside(Peer(pid, port, key), Path(folder))
    working = threading.Thread(target=beside.run)
    working.start()
    print(flush=True)
    sys.stdin.read()
    beside.is_over.set()
    working.join()
    sys.exit(bool(beside.failures))


def probes(peer: Peer, count: int, name: str) -> dict[tuple[str, str], float]:
    """Return the 99th percentile of the seconds until an answer, of stats and uploads, which take turns.

    "wall" has those of the clock, "server" those of CPU time of the server's process.
    """
    stat = peer.request("GET", f"{ROOT}/refs/hooked/objects/stat?path=_lakefs_actions/mixed.yaml")
    clocks = {"wall": time.CLOCK_MONOTONIC, "server": cpu_clock(peer.pid)}
    took: dict[tuple[str, str], list[float]] = {}

    async def work(connection: Connection, _: int) -> None:
        for turn in range(count):
            upload = peer.upload(REPOSITORY, "probed", f"{name}/{turn}", bytes(1024))
            for what, request, expected in (("stat", stat, 200), ("upload 1 KiB", upload, 201)):
                began_s = {clock: time.clock_gettime(number) for clock, number in clocks.items()}
                answer = await connection.send(request)
                for clock, number in clocks.items():
                    took.setdefault((what, clock), []).append(time.clock_gettime(number) - began_s[clock])
                assert answer.status == expected, (answer.status, answer.body[:300])

    asyncio.run(peer.with_connections(work, 1))
    return {what: statistics.quantiles(seconds, n=100)[98] for what, seconds in took.items()}


def cpu_clock(pid: int) -> int:
    """Return the clock of a process's CPU time, of all its threads (clock_getcpuclockid of the C library)."""
    return ~pid << 3 | 2


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    """Measure once, whatever is asked for: the commit of everything can be made once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peer = stack.enter_context(filled(folder, OBJECTS[size])).ours
        peer.call("POST", f"{ROOT}/branches", {"name": "probed", "source": "committed"}, expected=201)
        beside, count = Beside(peer, folder), PROBES[size]
        beside.prepare()

        def take(_: int) -> list[Figure]:
            probes(peer, count, "warm")
            quiet, cpu_s, began_s = probes(peer, count, "quiet"), peer.cpu_s(), time.perf_counter()
            with running(peer, folder):
                mixed = probes(peer, count, "mixed")
            spent: dict[str, Any] = {"cpu_s": peer.cpu_s() - cpu_s, "wall_s": [time.perf_counter() - began_s]}
            figures = []
            for key in sorted(quiet):
                what, clock = key
                times = mixed[key] / quiet[key]
                for how, value, unit, limit in (
                    ("quiet", 1000 * quiet[key], "ms", None),
                    ("beside large work", 1000 * mixed[key], "ms", None),
                    ("times the quiet one", times, "×", TIMES_MAX),
                ):
                    name, peak_mib = f"mixed, p99 of {what}, {clock}: {how}", peer.peak_mib()
                    figures.append(Figure.of(name, [value], unit=unit, limit=limit, peak_mib=peak_mib, **spent))
            return figures

        yield take


BENCH = Bench(name="mixed", parts=parts)

if __name__ == "__main__":
    main(sys.argv[1])
