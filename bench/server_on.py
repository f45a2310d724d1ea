"""A server on a database over the network, beside the same server on SQLite: the server's CPU, 16 connections.

On loopback, with the tests' own servers. What is compared is what our driver and its client cost the server; the
database's own CPU is another machine's. The floor is SQLite's server. DynamoDB is its maker's local version.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from lakebed.base import to_row
from lakebed.server import ServerOptions, opened, prepare_folder
from lakebed.versions import EXCLUSIVE, encode_cell
from tests.kv.servers import database

from .commit import rows
from .harness import Bench, Figure, Pair, Part, Work, compared
from .http import Peer, lakebed_server, objects_url
from .world import REPOSITORY, fill

DATABASES: Final = {"small": ("redis",), "full": ("postgres", "redis", "dynamodb")}
OBJECTS: Final = {"small": 500, "full": 20_000}
COMMITTED: Final = {"small": 500, "full": 100_000}
REQUESTS: Final = {"small": 50, "full": 1_000}
COMMITS_MAX: Final = 2
"""Staging so much takes DynamoDB's local version a minute."""
BODY: Final = os.urandom(1024)
LIMIT: Final = 1.5


@dataclass
class Served:
    """A server of ours over one database."""

    peer: Peer
    options: ServerOptions
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def uploads(self, count: int) -> list[bytes]:
        paths = [f"up/{next(self.numbers):08d}" for _ in range(count)]
        urls = [objects_url(REPOSITORY, "staged", path, kind="branches") for path in paths]
        return [self.peer.request("POST", url, BODY, content_type="application/octet-stream") for url in urls]

    def stats(self, paths: list[str]) -> list[bytes]:
        return [self.peer.request("GET", objects_url(REPOSITORY, "staged", path, suffix="/stat")) for path in paths]

    def lists(self, count: int) -> list[bytes]:
        target = f"/api/v1/repositories/{REPOSITORY}/refs/staged/objects/ls?amount=1000&prefix=events/"
        return [self.peer.request("GET", target)] * count

    def commit(self, count: int) -> list[bytes]:
        """Stage so many objects on a fresh branch, past the server; returns the request that commits them."""
        branch, base = f"b{next(self.numbers)}", f"/api/v1/repositories/{REPOSITORY}/branches"
        self.peer.call("POST", base, {"name": branch, "source": "staged"}, expected=201)
        asyncio.run(self._stage(branch, count))
        return [self.peer.request("POST", f"{base}/{branch}/commits", b'{"message": "bench"}')]

    async def _stage(self, branch: str, count: int) -> None:
        cells = [(key, encode_cell(EXCLUSIVE, to_row(key, entry))) for key, entry in rows(count)]
        async with opened(self.options) as state:
            context = (await state.catalog.get(REPOSITORY)).versions.context
            token = (await context.branches.fresh(branch)).record.staging_token
            for start in range(0, count, 2_000):
                await state.store.set_many(context.token_partition(token), cells[start : start + 2_000])


def parts(size: str) -> Iterator[Part]:
    return parts_of(DATABASES[size], size)


def narrowed(of: Sequence[str]) -> Bench:
    """Make the bench of these databases alone.

    Raises:
        ValueError: one of them is none of this bench.
    """
    if not set(of) <= set(DATABASES["full"]):
        raise ValueError(f"some of {', '.join(DATABASES['full'])}")
    return Bench(name="server-on", parts=partial(parts_of, of))


def parts_of(databases: Sequence[str], size: str) -> Iterator[Part]:
    for name in databases:
        try:
            with ExitStack() as stack:
                uri_of = stack.enter_context(database(name))
                ours = stack.enter_context(served(uri_of("bench"), OBJECTS[size]))
                floor = stack.enter_context(served(None, OBJECTS[size]))
                yield from compare(name, ours, floor, size)
        except pytest.skip.Exception as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)


@contextmanager
def served(uri: str | None, count: int, *, workers: int = 1) -> Iterator[Served]:
    """Serve a repository with so many staged objects over this database; None: over SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        prepare_folder(data)
        options = ServerOptions(data_dir=data, store_uri=uri)
        asyncio.run(fill(options, count))
        with lakebed_server(data, workers=workers, options=() if uri is None else ("--kv", uri)) as peer:
            yield Served(peer, options)


def compare(name: str, ours: Served, floor: Served, size: str) -> Iterator[Pair | Callable[[int], list[Figure]]]:
    count = REQUESTS[size]
    chosen = random.Random(1).choices([key.decode() for key, _ in rows(OBJECTS[size])], k=count)

    def pair(what: str, requests: Callable[[Served], list[bytes]], expected: int) -> Pair:
        @contextmanager
        def side(served: Served) -> Iterator[Work]:
            sent, peer = requests(served), served.peer
            yield Work(run=lambda: peer.send_all(sent, expected=expected), cpu_s=peer.cpu_s, peak_mib=peer.peak_mib)

        what = f"server-on {name}, {what}"
        return Pair(what=what, limit=LIMIT, ours=lambda: side(ours), floor=lambda: side(floor))

    yield pair("upload", lambda served: served.uploads(count), 201)
    yield pair("stat", lambda served: served.stats(chosen), 200)
    yield pair("list", lambda served: served.lists(max(count // 20, 5)), 200)
    commit = pair(f"commit {COMMITTED[size]:,}", lambda served: served.commit(COMMITTED[size]), 201)
    yield lambda repeat: [compared(commit, min(repeat, COMMITS_MAX))]


BENCH = Bench(name="server-on", parts=parts, narrowed=narrowed)
