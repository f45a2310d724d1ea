"""An erasure by the command and over HTTP in a repository with very many branches: plan, apply, certificate, verify.

What counts is the CPU and the memory of the command: each question that it asked once for each branch would show there.
Beside it stands what its server spent. Nothing is staged on the branches; one object is erased.

Sketch: Python and imports 0.7 s, a hundred requests 0.3; the server reads all branches some ten times, 0.1 s each.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.harness import Bench, Figure
from bench.http import Peer, lakebed_server, objects_url
from bench.serving.ten_objects import timed

BRANCHES: Final = {"small": 100, "full": 10_023}
LIMIT_S: Final = 5.0
PEAK_LIMIT_MIB: Final = 300
NAME: Final = "many"


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with lakebed_server(data) as peer:
            environment = {**os.environ, **peer.environment(), "LAKEBED_DATA": str(data), "XDG_CONFIG_HOME": folder}
            _make(peer, BRANCHES[size])

            def take(repeat: int) -> list[Figure]:
                del repeat  # an object is erased once
                return _figures(peer, environment, BRANCHES[size], folder)

            yield take


def _figures(peer: Peer, environment: dict[str, str], branches: int, folder: str) -> list[Figure]:
    lake, file = f"lakefs://{NAME}", str(Path(folder) / "cert.json")
    plan, printed = timed(peer, environment, "erase", "plan", lake, "users/ann", "--why", "bench")
    [made] = json.loads(printed)
    assert made["totals"]["all"]["objects"] == 1, printed
    apply, _ = timed(
        peer,
        environment,
        *("erase", "apply", lake, made["run_id"], "--everywhere", "--readers-grace", "0", "--yes", "--out", file),
    )
    verify, _ = timed(peer, environment, "erase", "verify", lake, file)
    return [
        Figure(
            what=f"erase-branches: {what}, {branches:,} branches, {whose}",
            value=took[place],
            unit="s",
            limit=(LIMIT_S, None)[place],
            cpu_s=took[place],
            wall_s=took[2],
            peak_mib=(took[3], peer.peak_mib())[place],
            peak_limit_mib=(PEAK_LIMIT_MIB, None)[place],
        )
        for what, took in (("plan", plan), ("apply", apply), ("verify", verify))
        for place, whose in enumerate(("the command", "its server"))
    ]


def _make(peer: Peer, branches: int) -> None:
    base = f"/api/v1/repositories/{NAME}"
    body = {"name": NAME, "storage_namespace": f"local://{NAME}", "default_branch": "main"}
    peer.call("POST", "/api/v1/repositories", body, expected=201)
    for path in ("users/ann", "users/bob"):
        url = objects_url(NAME, "main", path, kind="branches")
        request = peer.request("POST", url, path.encode(), content_type="application/octet-stream")
        peer.send_all([request], expected=201, connections=1)
    peer.call("POST", f"{base}/branches/main/commits", {"message": "users"}, expected=201)
    asked = [json.dumps({"name": f"b{number:05d}", "source": "main"}).encode() for number in range(branches)]
    requests = [peer.request("POST", f"{base}/branches", one) for one in asked]
    peer.send_all(requests, expected=201, connections=16)


BENCH = Bench(name="erase-branches", parts=parts)
