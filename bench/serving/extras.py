"""What teams add to each request: an event for a commit, quotas and conditions for a look-up and an upload.

A look for events after ten commits is that of a branch which gets ten a second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from bench.embedded.commit import rows
from bench.harness import Bench, Pair, Side, Work
from bench.http import Peer, lakebed_server, objects_url, sending
from lakebed.base import Entry
from lakebed.catalog import Repository, SubscriptionRecord
from lakebed.server import ServerOptions, opened, prepare_folder
from lakebed.versions import Look, Note

from .objects import BODY, looking
from .world import REPOSITORY, fill

COMMITS: Final = {"small": 20, "full": 200}
STATS: Final = {"small": 200, "full": 1_000}
UPLOADS: Final = {"small": 100, "full": 400}
TICK: Final = 10
ROOM: Final = 1 << 50
ANYWHERE: Final[dict[str, object]] = {
    "effect": "allow",
    "action": ["fs:*"],
    "resource": f"arn:lakefs:fs:::repository/{REPOSITORY}*",
}
CONDITIONS: Final = {
    "StringLike": {"branch": ["staged", "committed", "box-${user}-*"]},
    "IpAddress": {"SourceIp": ["127.0.0.0/8"]},
}


def parts(size: str) -> Iterator[Pair]:
    yield from _events(COMMITS[size])
    yield from _requests(STATS[size], UPLOADS[size])


def _events(count: int) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        data = Path(folder) / "data"
        prepare_folder(data)
        made = opened(ServerOptions(data_dir=data))
        state = runner.run(made.__aenter__())

        async def create(name: str, *, subscribes: bool) -> Repository:
            repository = await state.catalog.create(name, storage_namespace=f"local://{name}", default_branch="main")
            if subscribes:
                await repository.subscriptions.create("one", SubscriptionRecord(target="http://x/", created_ms=0))
            return repository

        async def commit(repository: Repository, numbers: Iterator[int], *, gathers: bool) -> None:
            versions = repository.versions
            for done in range(1, count + 1):
                entry = Entry(address="local://elsewhere/x", size_bytes=1, checksum="x", modified_ms=0)
                await versions.staging.put("main", f"a/{next(numbers):09d}".encode(), entry)
                await versions.commits.commit("main", Note(message="bench", committer="bench"))
                if gathers and done % TICK == 0:
                    await versions.outbox.gather(Look.OWN)

        @contextmanager
        def side(repository: Repository, numbers: Iterator[int], *, gathers: bool) -> Iterator[Work]:
            yield Work(run=lambda: runner.run(commit(repository, numbers, gathers=gathers)))

        told = runner.run(create("told", subscribes=True))
        plain = runner.run(create("plain", subscribes=False))
        yield Pair(
            what=f"extras: events of {count:,} commits",
            limit=1.05,
            ours=partial(side, told, itertools.count(), gathers=True),
            floor=partial(side, plain, itertools.count(), gathers=False),
        )
        runner.run(made.__aexit__(None, None, None))


def _requests(stats: int, uploads: int) -> Iterator[Pair]:
    paths = random.Random(1).choices([key.decode() for key, _ in rows(2_000)], k=stats)
    stat_urls = [objects_url(REPOSITORY, "committed", path, suffix="/stat") for path in paths]
    numbers = itertools.count()

    def looks(peer: Peer) -> Side:
        return looking(peer, stat_urls)

    def uploads_of(peer: Peer) -> Side:
        made = (peer.upload(REPOSITORY, "staged", f"up/{number:08d}", BODY) for number in numbers)
        return sending(peer, lambda: [*islice(made, uploads)], 201)

    def both(what: str, ours: Peer, floor: Peer) -> Iterator[Pair]:
        for load, side in ((f"{stats:,} stats", looks), (f"{uploads:,} uploads of 1 KiB", uploads_of)):
            yield Pair(what=f"extras: {what}, {load}", limit=1.03, ours=side(ours), floor=side(floor))

    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        for folder in (first, second):
            prepare_folder(Path(folder) / "data")
            asyncio.run(fill(ServerOptions(data_dir=Path(folder) / "data"), 2_000))
        with lakebed_server(Path(first) / "data") as limited, lakebed_server(Path(second) / "data") as plain:
            _limit(limited)
            yield from both("quotas", limited, plain)
            free = _user(plain, "free", [ANYWHERE])
            bound = _user(plain, "bound", [{**ANYWHERE, "condition": CONDITIONS}])
            yield from both("conditions", bound, free)


def _limit(peer: Peer) -> None:
    """Set all three quotas: of the repository, of the branch and of the user."""
    quotas, room = f"/api/v1/repositories/{REPOSITORY}/quotas", {"limit_bytes": ROOM}
    for target in (quotas, f"{quotas}?branch=staged", "/api/v1/auth/users/bench/quota"):
        peer.call("PUT", target, room, expected=200)


def _user(peer: Peer, name: str, statements: Sequence[dict[str, object]]) -> Peer:
    """Make a user with these rights alone, and return the same server asked with that key pair."""
    api = "/api/v1/auth"
    peer.call("POST", f"{api}/users", {"id": name}, expected=201)
    peer.call("POST", f"{api}/policies", {"id": name, "statement": statements}, expected=201)
    peer.call("PUT", f"{api}/users/{name}/policies/{name}", expected=201)
    key = json.loads(peer.call("POST", f"{api}/users/{name}/credentials", expected=201))
    return Peer(peer.pid, peer.port, (key["access_key_id"], key["secret_access_key"]))


BENCH = Bench(name="extras", parts=parts)
