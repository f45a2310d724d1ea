"""Upload and stat with one and with two server processes (`serve -w`): requests a second.

Each server process gets the same small share of a core (shares.py): a second one doubles what the server may use, and
load generator and database keep what they need. The figure is the median of the ratios, run by run in turn. Two
processes with 16 connections in all are a figure beside, without a limit.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from bench.embedded.commit import rows
from bench.harness import Bench, Figure
from bench.http import CONNECTIONS, Peer, family, lakebed_server, objects_url
from bench.shares import limited
from lakebed.server import ServerOptions, prepare_folder
from tests.kv.servers import database

from .world import REPOSITORY, fill

OBJECTS: Final = {"small": 500, "full": 20_000}
REQUESTS: Final = {"small": {"upload": 20, "stat": 40}, "full": {"upload": 500, "stat": 2_000}}
STORES: Final = {"small": ("sqlite",), "full": ("postgres", "sqlite")}
LEAST: Final = {"postgres": 1.8, "sqlite": 1.2}
LOADS: Final = ((1, CONNECTIONS), (2, 2 * CONNECTIONS), (2, CONNECTIONS))
"""Server processes and the connections to all of them."""

BODY: Final = os.urandom(1024)
SHARE: Final = 0.25
"""Of a core, for each server process. Two take half a core; generator and database took less than one core in all."""


@dataclass
class Served:
    """A server of ours over one database."""

    peer: Peer
    options: ServerOptions
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def uploads(self, count: int) -> list[bytes]:
        names = [f"up/{next(self.numbers):08d}" for _ in range(count)]
        return [self.peer.upload(REPOSITORY, "staged", name, BODY) for name in names]

    def stats(self, paths: list[str]) -> list[bytes]:
        return [self.peer.request("GET", objects_url(REPOSITORY, "staged", path, suffix="/stat")) for path in paths]


@dataclass(frozen=True, slots=True)
class Round:
    """What its requests took: seconds on the wall, and CPU seconds of the server and of the load generator."""

    wall_s: float
    server_s: float
    generator_s: float


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    is_measured = size != "small"
    for store in STORES[size]:
        with ExitStack() as ending:
            ending.enter_context(limited([os.getpid()] if is_measured else [], None))
            try:
                uri_of = None if store == "sqlite" else ending.enter_context(database(store))
            except pytest.skip.Exception as missing:
                print(f"{store} is left out: {missing}", file=sys.stderr)
                continue
            servers = {}
            for processes in sorted({processes for processes, _ in LOADS}):
                uri = None if uri_of is None else uri_of(f"bench{processes}")
                one = ending.enter_context(served(uri, OBJECTS[size], workers=processes))
                ending.enter_context(limited(serving(one.peer, processes) if is_measured else [], SHARE))
                servers[processes] = one
            for what, count in REQUESTS[size].items():
                yield partial(taken, store, what, count, servers, OBJECTS[size])


def serving(peer: Peer, processes: int) -> list[int]:
    """The processes that answer requests. The parent of several answers none."""
    found = family(peer.pid)
    return found if processes == 1 else found[1:]


def taken(store: str, what: str, count: int, servers: dict[int, Served], objects: int, repeat: int) -> list[Figure]:
    """One round of each is thrown away, as elsewhere."""
    chosen = random.Random(1).choices([key.decode() for key, _ in rows(objects)], k=count)

    def load(processes: int, connections: int) -> Round:
        one = servers[processes]
        requests = one.uploads(count) if what == "upload" else one.stats(chosen)
        server_s, generator_s, began_s = one.peer.cpu_s(), time.process_time(), time.perf_counter()
        one.peer.send_all(requests, expected=201 if what == "upload" else 200, connections=connections)
        wall_s = time.perf_counter() - began_s
        return Round(wall_s, one.peer.cpu_s() - server_s, time.process_time() - generator_s)

    rounds = [[load(*each) for each in LOADS] for _ in range(repeat + 1)][1:]
    peak_mib = max(one.peer.peak_mib() for one in servers.values())

    def figure(name: str, values: list[float], unit: str, *, of: int, least: float | None = None) -> Figure:
        return Figure.of(
            f"workers {store}, {what}, {name}",
            values,
            unit=unit,
            least=least,
            cpu_s=statistics.median(each[of].server_s for each in rounds),
            wall_s=[each[of].wall_s for each in rounds],
            peak_mib=peak_mib,
        )

    faster = [[found[0].wall_s / found[at].wall_s for found in rounds] for at in (1, 2)]
    figures = [
        figure("1 → 2 processes", faster[0], "×", of=1, least=LEAST[store]),
        figure("1 → 2 processes, connections as many", faster[1], "×", of=2),
    ]
    for at, (processes, connections) in enumerate(LOADS):
        of = [found[at] for found in rounds]
        named = f"{processes} process{'es' if processes > 1 else ''}, {connections} connections"
        figures += [
            figure(f"{named}", [count / one.wall_s for one in of], "/s", of=at),
            figure(f"{named}, server CPU a request", [one.server_s * 1000 / count for one in of], "ms", of=at),
            figure(f"{named}, load generator", [one.generator_s / one.wall_s for one in of], "core", of=at),
        ]
    return figures


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


BENCH = Bench(name="workers", parts=parts)
