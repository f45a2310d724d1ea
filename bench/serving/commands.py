"""Commands of ours against a server, each a process of its own: what both spend."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Figure
from bench.http import Peer, lakebed_server


@dataclass(frozen=True, slots=True)
class Took:
    """CPU seconds of the command and of its server, the clock on the wall, and the command's peak."""

    cpu_s: float
    server_s: float
    wall_s: float
    peak_mib: float


@contextmanager
def commanded() -> Iterator[tuple[Peer, dict[str, str]]]:
    """An empty server, and the variables by which a command finds it."""
    with tempfile.TemporaryDirectory() as folder, lakebed_server(Path(folder) / "data") as peer:
        yield peer, variables(peer, Path(folder))


def variables(peer: Peer, folder: Path) -> dict[str, str]:
    """The variables of a command beside a server whose data are in this folder."""
    found = {**os.environ, **peer.environment(), "XDG_CONFIG_HOME": str(folder), "LAKEBED_DATA": str(folder / "data")}
    # A first command compiles, the others must not.
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def make(peer: Peer, name: str, paths: Sequence[str]) -> None:
    """Make a repository with these objects in a commit, uploaded one after the other. Each has its path as bytes."""
    body = {"name": name, "storage_namespace": f"local://{name}", "default_branch": "main"}
    peer.call("POST", "/api/v1/repositories", body, expected=201)
    peer.send_all([peer.upload(name, "main", path, path.encode()) for path in paths], expected=201, connections=1)
    peer.call("POST", f"/api/v1/repositories/{name}/branches/main/commits", {"message": "all"}, expected=201)


def timed(peer: Peer, environment: dict[str, str], *words: str) -> tuple[Took, str]:
    """Run a command, and return what it took and its output."""
    command = [sys.executable, "-m", "lakebed", *words, "--engine", "auto", "-o", "json"]
    server_s, started_s = peer.cpu_s(), time.perf_counter()
    with tempfile.TemporaryFile() as output, subprocess.Popen(command, env=environment, stdout=output) as running:
        # Of this child alone: the peak of all children is that of the greatest.
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        assert running.returncode == 0, command
        output.seek(0)
        printed = output.read().decode()
    spent = peer.cpu_s() - server_s, time.perf_counter() - started_s, used.ru_maxrss / 1024
    return Took(used.ru_utime + used.ru_stime, *spent), printed


def both(
    what: str, took: Sequence[Took], peer: Peer, *, limit: float, peak_limit_mib: float | None = None
) -> list[Figure]:
    """Make the figure of a command, which has limits, and that of its server."""
    server_s, wall_s = [each.server_s for each in took], [each.wall_s for each in took]
    return [
        Figure.taken(f"{what}, the command", took, limit=limit, peak_limit_mib=peak_limit_mib),
        Figure.of(f"{what}, its server", server_s, wall_s=wall_s, peak_mib=peer.peak_mib()),
    ]
