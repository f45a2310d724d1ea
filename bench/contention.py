"""Many at once on one branch, on a server of two processes: does anybody fail, is anything lost, how long does one
wait?

8 committers × 20 commits, each after an upload of its own; then 8 writers and a committer for 10 s. *Failed* is every
answer but the one hoped for; *lost* is every acknowledged object or commit that is not there at the end.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .harness import Bench, Figure
from .http import Connection, Peer, lakebed_server, objects_url

REPOSITORY = "busy"
COMMITTERS, WRITERS = 8, 8
COMMITS = {"small": 3, "full": 20}
STORM_S = {"small": 1.0, "full": 10.0}


@dataclass(slots=True)
class Tally:
    failed: int = 0
    paths: set[str] = field(default_factory=set)
    commits: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)


def parts(size: str) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder, lakebed_server(Path(folder) / "data", workers=2) as peer:
        creation = {"name": REPOSITORY, "storage_namespace": "local://busy/x"}
        peer.call("POST", "/api/v1/repositories", creation, expected=201)
        began, cpu = time.perf_counter(), peer.cpu_s()
        tally = Tally()
        asyncio.run(committers(peer, tally, COMMITS[size]))
        asyncio.run(storm(peer, tally, STORM_S[size]))
        cpu_s, wall_s = peer.cpu_s() - cpu, time.perf_counter() - began
        lost = len(tally.paths - set(listed(peer))) + len(tally.commits - set(logged(peer)))
        what = f"contention, {len(tally.commits)} commits, {len(tally.paths)} writes: "
        for name, value, unit, limit in (
            ("failed", float(tally.failed), "", 0.0),
            ("lost", float(lost), "", 0.0),
            ("longest wait", max(tally.waits_s), "s", None),
        ):
            yield Figure(
                what=what + name,
                value=value,
                unit=unit,
                limit=limit,
                cpu_s=cpu_s,
                wall_s=wall_s,
                peak_mib=peer.peak_mib(),
            )


async def committers(peer: Peer, tally: Tally, commits: int) -> None:
    async def work(connection: Connection, number: int) -> None:
        for turn in range(commits):
            await write(peer, connection, tally, f"committer/{number}/{turn}")
            await commit(peer, connection, tally, f"{number}/{turn}")

    await peer.with_connections(work, COMMITTERS)


async def storm(peer: Peer, tally: Tally, duration_s: float) -> None:
    end = time.perf_counter() + duration_s

    async def work(connection: Connection, number: int) -> None:
        turn = 0
        while time.perf_counter() < end:
            if number < WRITERS:
                await write(peer, connection, tally, f"writer/{number}/{turn}")
            else:
                await commit(peer, connection, tally, f"storm/{turn}")
            turn += 1

    await peer.with_connections(work, WRITERS + 1)


async def write(peer: Peer, connection: Connection, tally: Tally, path: str) -> None:
    target = objects_url(REPOSITORY, "main", path, kind="branches")
    answer = await connection.send(peer.request("POST", target, path.encode(), content_type="text/plain"))
    if answer.status == 201:
        tally.paths.add(path)
    else:
        tally.failed += 1


async def commit(peer: Peer, connection: Connection, tally: Tally, message: str) -> None:
    """A commit is refused only where nothing was written since the last: a storm's committer may meet that."""
    # Another committer may take this one's write with its own commit, all in the moment between our upload and our
    # commit: then there is nothing left to commit, which `allow_empty` says is fine. A storm's committer never asks.
    body = json.dumps({"message": message, "allow_empty": not message.startswith("storm")}).encode()
    began = time.perf_counter()
    answer = await connection.send(
        peer.request("POST", f"/api/v1/repositories/{REPOSITORY}/branches/main/commits", body)
    )
    tally.waits_s.append(time.perf_counter() - began)
    if answer.status == 201:
        tally.commits.add(json.loads(answer.body)["id"])
    elif not (message.startswith("storm") and b"no changes" in answer.body):
        tally.failed += 1


def listed(peer: Peer) -> Iterator[str]:
    yield from pages(peer, "objects/ls", "path")


def logged(peer: Peer) -> Iterator[str]:
    yield from pages(peer, "commits", "id")


def pages(peer: Peer, what: str, name: str) -> Iterator[str]:
    after, more = "", True
    while more:
        target = f"/api/v1/repositories/{REPOSITORY}/refs/main/{what}?amount=1000&after={after}"
        page = json.loads(peer.call("GET", target, expected=200))
        yield from (item[name] for item in page["results"])
        after, more = page["pagination"]["next_offset"], page["pagination"]["has_more"]


BENCH = Bench(name="contention", parts=parts)
