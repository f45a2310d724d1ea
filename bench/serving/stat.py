"""Looking up one object over HTTP, staged and committed, 16 connections: the server's CPU for each request.

Floor: a bare route that answers with the same bytes. Ours authenticates, resolves the ref, reads the branch twice and
the cell once (9 µs each), or finds the row in a range that is in memory, and encodes the answer.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.embedded.commit import rows
from bench.harness import Bench, Pair, Work
from bench.http import Peer, objects_url

from .world import REPOSITORY, filled

OBJECTS = {"small": 2_000, "full": 100_000}
REQUESTS = {"small": 200, "full": 8_000}
ANSWER = (
    '{"checksum":"0cc175b9c0f1b6a831c399e269772661","content_type":"application/octet-stream","metadata":{},'
    '"mtime":1790000000,"path":"events/day=0000/part-00000-00000000.parquet","path_type":"object",'
    '"physical_address":"local://bench/x/data/1q306knvs002d/00000042","size_bytes":1000000}'
)


def parts(size: str) -> Iterator[Pair]:
    count = OBJECTS[size]
    chosen = random.Random(1).choices([key.decode() for key, _ in rows(count)], k=REQUESTS[size])
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder), count, answer=ANSWER) as ports:

        @contextmanager
        def ours(branch: str) -> Iterator[Work]:
            urls = [objects_url(REPOSITORY, branch, path, suffix="/stat") for path in chosen]
            yield load(ports.ours, urls)

        @contextmanager
        def floor() -> Iterator[Work]:
            yield load(ports.bare, [f"/stat?path={path}" for path in chosen])

        for branch in ("staged", "committed"):
            yield Pair(
                what=f"stat {branch}, {len(chosen):,} requests",
                limit=4,
                ours=lambda branch=branch: ours(branch),  # type: ignore[misc]  # mypy cannot type a lambda's default
                floor=floor,
            )


def load(peer: Peer, targets: list[str]) -> Work:
    requests = [peer.request("GET", target) for target in targets]
    return Work(run=lambda: peer.send_all(requests, expected=200), cpu_s=peer.cpu_s, peak_mib=peer.peak_mib)


BENCH = Bench(name="stat", parts=parts)
