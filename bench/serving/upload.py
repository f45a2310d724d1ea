"""Uploading 1 KiB objects over HTTP, 16 connections: the server's CPU for each upload, everything durable.

Floor: a bare route that writes the file durably (file and folder synchronised) and does one group-commit set.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Bench, Pair
from bench.http import sending

from .world import REPOSITORY, filled

UPLOADS = {"small": 100, "full": 3_000}
BODY = os.urandom(1024)


def parts(size: str) -> Iterator[Pair]:
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


BENCH = Bench(name="upload", parts=parts)
