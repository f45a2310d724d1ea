"""Listing 100,000 objects over HTTP, 1,000 a page: the server's CPU, staged and committed.

Floors: a bare route that scans the same cells with sqlite3 and encodes the page; and one that builds the page from an
Arrow table in memory and encodes it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from bench.harness import Bench, Pair, Work
from bench.http import Peer

from .world import REPOSITORY, filled

OBJECTS = {"small": 3_000, "full": 100_000}
PAGE = 1000


def parts(size: str) -> Iterator[Pair]:
    count, refs = OBJECTS[size], f"/api/v1/repositories/{REPOSITORY}/refs"
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


BENCH = Bench(name="list", parts=parts)
