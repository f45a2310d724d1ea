"""A collection so small that only its commands cost: `gc plan` and `gc apply` of ten objects, with `--engine auto`.

Each round has a repository of its own, with ten objects in a commit and one more that was overwritten before. What
counts is the CPU of the command, at most a second; beside it stands what its server spent.

Sketch: Python and imports 0.5 s, a hundred requests and small files 0.2.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from bench.harness import Bench, Figure
from bench.http import Peer, lakebed_server, objects_url

OBJECTS = 10
LIMIT_S = 1.0


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    del size  # it is small at any
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with lakebed_server(data) as peer:
            environment = {**os.environ, **peer.environment(), "LAKEBED_DATA": str(data), "XDG_CONFIG_HOME": folder}
            # The first round compiles, the others must not.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            numbers = itertools.count()

            def take(repeat: int) -> list[Figure]:
                rounds = [_round(peer, f"lake-{next(numbers)}", environment) for _ in range(repeat + 1)][1:]
                return [
                    _figure(what, place, [taken[which] for taken in rounds], peer)
                    for which, what in enumerate(("plan", "apply"))
                    for place in (0, 1)
                ]

            yield take


def _figure(what: str, place: int, taken: list[tuple[float, float, float]], peer: Peer) -> Figure:
    cpu_s = [each[place] for each in taken]
    return Figure(
        what=f"ten-objects: {what}, {('the command', 'its server')[place]}",
        value=median(cpu_s),
        value_min=min(cpu_s),
        value_max=max(cpu_s),
        unit="s",
        limit=(LIMIT_S, None)[place],
        cpu_s=median(cpu_s),
        wall_s=median(each[2] for each in taken),
        peak_mib=(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, peer.peak_mib())[place],
    )


def _round(peer: Peer, name: str, environment: dict[str, str]) -> list[tuple[float, float, float]]:
    """Return CPU seconds of the command, those of the server and the wall time: of a plan, and of an apply."""
    _make(peer, name)
    plan, printed = _timed(peer, environment, "plan", f"lakefs://{name}")
    [run_id] = [one["run_id"] for one in json.loads(printed) if one["kind"] == "uncommitted"]
    apply, printed = _timed(peer, environment, "apply", f"lakefs://{name}", run_id, "--readers-grace", "0", "--yes")
    assert json.loads(printed)["objects_deleted"] == 1, printed
    return [plan, apply]


def _timed(peer: Peer, environment: dict[str, str], *words: str) -> tuple[tuple[float, float, float], str]:
    took, printed = timed(peer, environment, "gc", *words)
    return took[:3], printed


def timed(peer: Peer, environment: dict[str, str], *words: str) -> tuple[tuple[float, float, float, float], str]:
    """Run a command. Return its CPU seconds, those of the server, the wall time and its peak in MiB; and its output."""
    command = [sys.executable, "-m", "lakebed", *words, "--engine", "auto", "-o", "json"]
    server_s, started_s = peer.cpu_s(), time.perf_counter()
    with tempfile.TemporaryFile() as output, subprocess.Popen(command, env=environment, stdout=output) as running:
        # Of this child alone: the peak of all children is that of the greatest.
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        assert running.returncode == 0, command
        output.seek(0)
        printed = output.read().decode()
    cpu_s = used.ru_utime + used.ru_stime
    took = cpu_s, peer.cpu_s() - server_s, time.perf_counter() - started_s, used.ru_maxrss / 1024
    return took, printed


def _make(peer: Peer, name: str) -> None:
    body = {"name": name, "storage_namespace": f"local://{name}", "default_branch": "main"}
    peer.call("POST", "/api/v1/repositories", body, expected=201)
    uploads = [objects_url(name, "main", f"day/{number}.parquet", kind="branches") for number in (0, *range(OBJECTS))]
    for url in uploads:
        request = peer.request("POST", url, b"bytes", content_type="application/octet-stream")
        peer.send_all([request], expected=201, connections=1)
    peer.call("POST", f"/api/v1/repositories/{name}/branches/main/commits", {"message": "ten"}, expected=201)


BENCH = Bench(name="ten-objects", parts=parts)
