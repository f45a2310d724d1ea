"""Looking up one object over HTTP, staged and committed, 16 connections: the server's CPU for each request.

Floor: a bare route that answers with the same bytes. Ours authenticates, resolves the ref, reads the branch twice and
the cell once (9 µs each), or finds the row in a range that is in memory, and encodes the answer.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.embedded.commit import rows
from bench.harness import Bench, Pair, Side
from bench.http import Peer, objects_url, sending

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
        for branch in ("staged", "committed"):
            urls = [objects_url(REPOSITORY, branch, path, suffix="/stat") for path in chosen]
            yield Pair(
                what=f"stat {branch}, {len(chosen):,} requests",
                limit=4,
                ours=looking(ports.ours, urls),
                floor=looking(ports.bare, [f"/stat?path={path}" for path in chosen]),
            )


def looking(peer: Peer, targets: Sequence[str]) -> Side:
    return sending(peer, lambda: [peer.request("GET", target) for target in targets])


BENCH = Bench(name="stat", parts=parts)
