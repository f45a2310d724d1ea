"""Listing 100,000 objects over HTTP, 1,000 a page: the server's CPU, staged and committed.

Floors: a bare route that scans the same cells with sqlite3 and encodes the page; and one that builds the page from an
Arrow table in memory and encodes it.

Sketch, a page of staged objects: scan 0.6 ms, decode 0.5, records 0.24, JSON 0.13; ours adds two reads of the branch, a
look whether anything is committed below, and the overlay.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from bench.harness import Bench, Pair, Work
from bench.http import Peer

from .world import REPOSITORY, filled

OBJECTS = {"small": 3_000, "full": 100_000}
PAGE = 1000


def parts(size: str) -> Iterator[Pair]:
    count = OBJECTS[size]
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder), count) as ports:

        @contextmanager
        def ours(branch: str) -> Iterator[Work]:
            yield work(ports.ours, f"/api/v1/repositories/{REPOSITORY}/refs/{branch}/objects/ls?amount={PAGE}", count)

        @contextmanager
        def floor(branch: str) -> Iterator[Work]:
            yield work(ports.bare, f"/list-{branch}?", count)

        for branch in ("staged", "committed"):
            yield Pair(
                what=f"list {branch}",
                limit=2.5,
                ours=lambda branch=branch: ours(branch),  # type: ignore[misc]  # mypy cannot type a lambda's default
                floor=lambda branch=branch: floor(branch),  # type: ignore[misc]  # mypy cannot type a lambda's default
            )


def work(peer: Peer, target: str, count: int) -> Work:
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

    return Work(run=run, cpu_s=peer.cpu_s, peak_mib=peer.peak_mib)


BENCH = Bench(name="list", parts=parts)
