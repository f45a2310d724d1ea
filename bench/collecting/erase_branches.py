"""An erasure of one object by the command, in a repository with very many branches: plan, apply, verify.

A question that it asked once for each branch would show in the CPU of the command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.harness import Bench, Figure
from bench.http import Peer
from bench.serving.commands import both, commanded, make, timed

BRANCHES: Final = {"small": 100, "full": 10_023}
LIMIT_S: Final = 5.0
PEAK_LIMIT_MIB: Final = 300
NAME: Final = "many"


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    with commanded() as (peer, environment):
        make(peer, NAME, ["users/ann", "users/bob"])
        names = [{"name": f"b{number:05d}", "source": "main"} for number in range(BRANCHES[size])]
        target = f"/api/v1/repositories/{NAME}/branches"
        peer.send_all([peer.request("POST", target, json.dumps(each).encode()) for each in names], expected=201)
        yield lambda _: _figures(peer, environment, BRANCHES[size])  # once: an object is erased once


def _figures(peer: Peer, environment: dict[str, str], branches: int) -> list[Figure]:
    lake, file = f"lakefs://{NAME}", str(Path(environment["XDG_CONFIG_HOME"]) / "cert.json")
    plan, printed = timed(peer, environment, "erase", "plan", lake, "users/ann", "--why", "bench")
    [made] = json.loads(printed)
    assert made["totals"]["all"]["objects"] == 1, printed
    how = ("--everywhere", "--readers-grace", "0", "--yes", "--out", file)
    apply, _ = timed(peer, environment, "erase", "apply", lake, made["run_id"], *how)
    verify, _ = timed(peer, environment, "erase", "verify", lake, file)
    return [
        figure
        for name, took in (("plan", plan), ("apply", apply), ("verify", verify))
        for figure in both(
            f"erase-branches: {name}, {branches:,} branches", [took], peer, limit=LIMIT_S, peak_limit_mib=PEAK_LIMIT_MIB
        )
    ]


BENCH = Bench(name="erase-branches", parts=parts)
