"""Objects over HTTP, listed, looked up and uploaded: the server's CPU.

A look-up authenticates, resolves the ref, reads the branch twice and the cell once (9 µs each), or finds the row in a
range that is in memory, and encodes the answer.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from bench.embedded.commit import rows
from bench.harness import Bench, Pair, Side, Work
from bench.http import Peer, objects_url, sending

from .world import REPOSITORY, filled

LISTED = {"small": 3_000, "full": 100_000}
PAGE = 1000
OBJECTS = {"small": 2_000, "full": 100_000}
REQUESTS = {"small": 200, "full": 8_000}
ANSWER = (
    '{"checksum":"0cc175b9c0f1b6a831c399e269772661","content_type":"application/octet-stream","metadata":{},'
    '"mtime":1790000000,"path":"events/day=0000/part-00000-00000000.parquet","path_type":"object",'
    '"physical_address":"local://bench/x/data/1q306knvs002d/00000042","size_bytes":1000000}'
)
UPLOADS = {"small": 100, "full": 3_000}
BODY = os.urandom(1024)


def lists(size: str) -> Iterator[Pair]:
    count, refs = LISTED[size], f"/api/v1/repositories/{REPOSITORY}/refs"
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder), count) as ports:
        for branch in ("staged", "committed"):
            yield Pair(
                what=f"list {branch}",
                limit=2.5,
                ours=partial(listing, ports.ours, f"{refs}/{branch}/objects/ls?amount={PAGE}", count),
                floor=partial(listing, ports.bare, f"/list-{branch}?", count),
            )


@contextmanager
def listing(peer: Peer, target: str, count: int) -> Iterator[Work]:
    def run() -> None:
        after, listed = "", 0
        while True:
            body = peer.call("GET", f"{target}&after={quote(after, safe='')}&offset={listed}", expected=200)
            page = json.loads(body)
            listed += len(page["results"])
            if listed >= count:
                break
            after = page["pagination"]["next_offset"]
        assert listed == count, listed

    yield Work(run=run, cpu_s=peer.cpu_s, peak_mib=peer.peak_mib)


def stats(size: str) -> Iterator[Pair]:
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


def uploads(size: str) -> Iterator[Pair]:
    count = UPLOADS[size]
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder), 1_000) as ports:

        def ours() -> list[bytes]:
            return [ports.ours.upload(REPOSITORY, "staged", f"up/{next(numbers):08d}", BODY) for _ in range(count)]

        def floor() -> list[bytes]:
            targets = [f"/upload?path=up/{next(numbers):08d}" for _ in range(count)]
            return [ports.bare.request("POST", target, BODY) for target in targets]

        yield Pair(
            what=f"upload {count:,} of 1 KiB",
            limit=2,
            ours=sending(ports.ours, ours, 201),
            floor=sending(ports.bare, floor, 201),
        )


BENCHES = {
    name: Bench(name=name, parts=parts) for name, parts in (("list", lists), ("stat", stats), ("upload", uploads))
}
