"""Uploading 1 KiB objects over HTTP, 16 connections: the server's CPU for each upload, everything durable.

Floor: a bare route that writes the file durably (file and folder synchronised) and does one group-commit set.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Bench, Pair, Work
from bench.http import Peer, objects_url

from .world import REPOSITORY, filled

UPLOADS = {"small": 100, "full": 3_000}
BODY = os.urandom(1024)


def parts(size: str) -> Iterator[Pair]:
    count = UPLOADS[size]
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder), 1_000) as ports:

        @contextmanager
        def ours() -> Iterator[Work]:
            yield load(
                ports.ours,
                [objects_url(REPOSITORY, "staged", f"up/{next(numbers):08d}", kind="branches") for _ in range(count)],
            )

        @contextmanager
        def floor() -> Iterator[Work]:
            yield load(ports.bare, [f"/upload?path=up/{next(numbers):08d}" for _ in range(count)])

        yield Pair(what=f"upload {count:,} of 1 KiB", limit=2, ours=ours, floor=floor)


def load(peer: Peer, targets: list[str]) -> Work:
    requests = [peer.request("POST", target, BODY, content_type="application/octet-stream") for target in targets]
    return Work(run=lambda: peer.send_all(requests, expected=201), cpu_s=peer.cpu_s, peak_mib=peer.peak_mib)


BENCH = Bench(name="upload", parts=parts)
