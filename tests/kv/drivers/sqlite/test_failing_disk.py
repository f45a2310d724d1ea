"""A database whose disk fails loses no answered write, answers none that it did not keep, and comes back.

strace lets each fsync and fdatasync of a real server fail with EIO.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.http import family
from lakebed.base import OutcomeUnknown
from lakebed.kv import Store, StoreUnavailable, open_store
from lakebed.testing.contracts.store import P, read_all
from tests.kv.servers import START_S, Server, etcd, mariadb, postgres, program, redis

BUSY = 100
"""Answered writes before the disk fails."""
AFTER = 25
"""Writes of each writer that begin after that."""

SERVERS: dict[str, tuple[Callable[[], AbstractContextManager[Server]], str]] = {
    "etcd": (etcd, "etcd://127.0.0.1:{port}?wait_s={wait_s}"),
    "mysql": (mariadb, "mysql://root@127.0.0.1:{port}/mysql?wait_s={wait_s}"),
    "postgres": (postgres, "postgres://lakebed@127.0.0.1:{port}/postgres?wait_s={wait_s}"),
    "redis": (redis, "redis://127.0.0.1:{port}/0?wait_s={wait_s}"),
}


@contextmanager
def failing_disk(server: Server, *, for_good: bool) -> Iterator[Disk]:
    """From soon on let each sync of the server's processes fail; `for_good`: also of those that it starts."""
    strace, folder = program("strace", "strace"), server.folder / "strace"
    folder.mkdir()
    disk = Disk(folder)
    assert server.process is not None
    first, *others = family(server.process.pid)
    whose = ["-f", "-p", ",".join(map(str, [first, *others]))] if for_good else ["-p", ",".join(map(str, others))]
    fault = ["-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO"]
    command = ["setpriv", "--pdeathsig=KILL", strace, "-qq", "-o", str(disk.calls), *fault, *whose]
    with disk.messages.open("wb") as messages, subprocess.Popen(command, stderr=messages) as disk.process:
        try:
            yield disk
        finally:
            disk.process.terminate()  # it lets go of the server's processes


@dataclass
class Disk:
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def calls(self) -> Path:
        return self.folder / "calls"

    @property
    def messages(self) -> Path:
        return self.folder / "messages"

    def has_failed(self) -> bool:
        return self.calls.exists() and "INJECTED" in self.calls.read_text()

    async def fails(self) -> bool:
        """Return True once a sync failed, and False where strace may not look at the server."""
        deadline = time.monotonic() + START_S
        while not self.has_failed():
            if self.process.poll() is not None:  # also where every process of the server has ended
                return self.has_failed()
            assert time.monotonic() < deadline, self.messages.read_text()[-2000:]
            await asyncio.sleep(0.01)
        return True


@dataclass
class Outcomes:
    answered: set[bytes] = field(default_factory=set)
    unavailable: set[bytes] = field(default_factory=set)
    began_late: set[bytes] = field(default_factory=set)
    """Begun after the disk failed."""
    is_busy: asyncio.Event = field(default_factory=asyncio.Event)
    has_failed: bool = False

    async def write(self, store: Store, writer: int) -> None:
        """Write new keys, up to AFTER once the disk failed, or one that is refused then. No other error may come."""
        number = late = 0
        while late < AFTER:
            number += 1
            key = b"%d/%d" % (writer, number)
            if is_late := self.has_failed:
                late += 1
                self.began_late.add(key)
            try:
                await store.set_if(P, key, key, None)
                self.answered.add(key)
            except OutcomeUnknown:
                pass
            except StoreUnavailable:
                self.unavailable.add(key)
                if is_late:
                    return
            if len(self.answered) >= BUSY:
                self.is_busy.set()


async def written_while_the_disk_fails(store: Store, server: Server, *, for_good: bool) -> Outcomes:
    """Write by four, and let the disk fail meanwhile. Every writer comes to its end."""
    outcomes = Outcomes()
    writing = [asyncio.ensure_future(outcomes.write(store, writer)) for writer in range(4)]
    busy = asyncio.ensure_future(outcomes.is_busy.wait())
    ended, _ = await asyncio.wait((busy, *writing), timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
    if busy not in ended:
        for one in (busy, *writing):
            one.cancel()
        pytest.fail(f"{len(outcomes.unavailable)} writes unavailable before the disk failed; ended: {ended}")
    with failing_disk(server, for_good=for_good) as disk:
        is_failing = await disk.fails()
        outcomes.has_failed = True
        await asyncio.gather(*writing)
    if not is_failing:
        await store.close()
        pytest.skip(f"strace may not look at the server: {disk.messages.read_text()[-300:]}")
    return outcomes


@pytest.mark.parametrize("name", SERVERS)
async def test_a_database_whose_disk_fails_for_good_refuses_writes_until_it_is_started_on_a_sound_one(
    name: str,
) -> None:
    start, uri = SERVERS[name]
    with start() as server:
        store = await opened(uri.format(port=server.port, wait_s=1))
        outcomes = await written_while_the_disk_fails(store, server, for_good=True)

        server.restart()

        found = await read_once_it_answers(store)
        assert outcomes.answered <= found.keys()
        assert not outcomes.unavailable & found.keys()
        assert not outcomes.answered & outcomes.began_late
        await store.close()


async def test_postgresql_recovers_by_itself_from_a_disk_that_failed_for_a_moment_and_writers_go_on() -> None:
    start, uri = SERVERS["postgres"]
    with start() as server:
        store = open_store(uri.format(port=server.port, wait_s=120))

        outcomes = await written_while_the_disk_fails(store, server, for_good=False)

        assert not outcomes.unavailable
        assert outcomes.answered & outcomes.began_late
        assert outcomes.answered <= (await read_all(store, P)).keys()
        await store.close()


async def opened(uri: str) -> Store:
    """Open a store that waits shortly: a disk that is busy may keep it waiting for longer."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return await asyncio.to_thread(open_store, uri)
        except StoreUnavailable:
            assert time.monotonic() < deadline


async def read_once_it_answers(store: Store) -> dict[bytes, bytes]:
    """Read with the client that saw the failure."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return await read_all(store, P)
        except StoreUnavailable:
            assert time.monotonic() < deadline
