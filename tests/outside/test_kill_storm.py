"""`kill -9` of a real server in the middle of a storm of writes and commits, again and again.

Afterwards: nothing acknowledged is lost, the server has started by itself every time, and after cleaning and one
collection there is neither a cell, nor a claim, nor an object left that belongs to nobody. SQLite here;
tests/compat/test_databases.py has fewer rounds on each other database.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.http import Answer, Connection, Peer, objects_url, started
from lakebed.objectstore import Deleter, ObjectStoreOptions, open_deleter
from lakebed.server import ServerOptions, opened
from lakebed.versions import Versions, keys
from tests.outside.storms.settling import AFTER, claims, clean_up, collect, read_branch, unnamed

ROUNDS = int(os.environ.get("LAKEBED_TEST_KILLS", "20"))
WRITERS = 6
REPOSITORY = "stormy"


@dataclass
class Acknowledged:
    """What the server said was done, over all rounds. `unknown`: the values of paths whose last answer never came."""

    objects: dict[str, bytes] = field(default_factory=dict)
    unknown: dict[str, set[bytes]] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)


class Storm:
    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.key = ("", "")
        self.acknowledged = Acknowledged()
        self.answers_left = 0
        self.counts_commits = False
        self.random = random.Random(1)

    def run_round(self, number: int) -> None:
        options = ["--data", str(self.options.data_dir), "--kv", self.options.metadata_uri, "--port", "0"]
        with started(["-m", "lakebed", "serve", *options], marker=" at http://127.0.0.1:") as bare:
            if not self.key[0]:
                self._set_up(bare)
            peer = Peer(bare.pid, bare.port, self.key)
            self.counts_commits = number % 2 == 0
            self.answers_left = self.random.randint(1, 6 if self.counts_commits else 60)
            asyncio.run(peer.with_connections(lambda c, n: self._work(peer, c, number, n), WRITERS + 1))

    def _set_up(self, bare: Peer) -> None:
        made = json.loads(bare.call("POST", "/api/v1/setup_lakefs", {"username": "storm"}, expected=200))
        self.key = (made["access_key_id"], made["secret_access_key"])
        creation = {"name": REPOSITORY, "storage_namespace": "local://stormy/x"}
        Peer(bare.pid, bare.port, self.key).call("POST", "/api/v1/repositories", creation, expected=201)

    def _count_answer(self, peer: Peer, *, is_commit: bool) -> None:
        """The kill comes with some answer, of a commit or of a write: in the middle of what the others are about."""
        self.answers_left -= is_commit == self.counts_commits
        if self.answers_left == 0 and is_commit == self.counts_commits:
            os.kill(peer.pid, signal.SIGKILL)

    async def _work(self, peer: Peer, connection: Connection, number: int, worker: int) -> None:
        """Until the connection breaks. A path is overwritten now and then, only ever by the worker that owns it."""
        turn = 0
        try:
            while True:
                if worker == WRITERS:
                    await self._commit(peer, connection, f"{number}/{turn}")
                else:
                    await self._write(
                        peer, connection, f"{worker}/{turn % 7}/{number % 5}", f"{number}/{turn}".encode()
                    )
                self._count_answer(peer, is_commit=worker == WRITERS)
                turn += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            return

    async def _write(self, peer: Peer, connection: Connection, path: str, data: bytes) -> None:
        target = objects_url(REPOSITORY, "main", path, kind="branches")
        # Until we are told, either value may be there.
        before = self.acknowledged.objects.pop(path, None)
        self.acknowledged.unknown.setdefault(path, set()).update({data} if before is None else {data, before})
        answer = await connection.send(peer.request("POST", target, data, content_type="text/plain"))
        assert answer.status == 201, answer
        del self.acknowledged.unknown[path]
        self.acknowledged.objects[path] = data

    async def _commit(self, peer: Peer, connection: Connection, message: str) -> None:
        body = json.dumps({"message": message}).encode()
        target = f"/api/v1/repositories/{REPOSITORY}/branches/main/commits"
        answer: Answer = await connection.send(peer.request("POST", target, body))
        if answer.status == 201:
            self.acknowledged.commits.add(json.loads(answer.body)["id"])
        else:
            assert b"no changes" in answer.body, answer
            await asyncio.sleep(0.01)


async def check_after(storm: Storm) -> None:
    async with opened(storm.options) as state:
        versions = (await state.catalog.get(REPOSITORY)).versions
        found = await read_branch(versions)
        wrong = {path: data for path, data in storm.acknowledged.objects.items() if found.get(path) != data}
        assert wrong == {}
        unknown = storm.acknowledged.unknown
        assert {path for path in found if path in unknown and found[path] not in unknown[path]} == set()
        history, _ = await versions.history.log("main", limit=100_000)
        assert storm.acknowledged.commits - {commit.id for commit in history} == set()
        local = ObjectStoreOptions(local_root=storm.options.data_dir / "objects")
        await check_nothing_leaks(versions, open_deleter(versions.objectstore.uri, local), found)
        if storm.options.store_uri is None:
            tokens = {token for _, record in await versions.context.branches.every() for token in record.tokens()}
            partitions = staging_partitions(storm.options.data_dir / "metadata.db", versions)
            assert partitions <= {keys.token_partition(versions.uid, token) for token in tokens}


async def check_nothing_leaks(versions: Versions, deleter: Deleter, found: dict[str, bytes]) -> None:
    await clean_up(versions)
    assert await claims(versions) == []
    await collect(versions, deleter)
    assert await unnamed(versions) == set()
    assert {**found, "after": AFTER} == await read_branch(versions)


def staging_partitions(database: Path, versions: Versions) -> set[bytes]:
    """Every staging partition that has a key left, as the database itself has it."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT DISTINCT partition FROM kv").fetchall()
    found = {bytes(partition) for (partition,) in rows}
    return {each for each in found if each.startswith(versions.partition + b"/") and b"/run-" not in each}


def check_storm(options: ServerOptions, rounds: int) -> None:
    storm = Storm(options)
    for number in range(rounds):
        storm.run_round(number)

    assert storm.acknowledged.objects
    assert storm.acknowledged.commits
    asyncio.run(check_after(storm))


@pytest.mark.slow
def test_many_kills_in_a_storm_lose_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    check_storm(ServerOptions(data_dir=tmp_path / "data"), ROUNDS)
