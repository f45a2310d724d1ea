"""The faults of a storm: a schedule that follows from its seed, and what carries it out."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, Self

from tests.outside.servers import Server

from .collectors import Collectors
from .installations import Installation
from .journal import FAULTS, Journal
from .replicated import Replicated

LOOK_S: Final = 0.1
PAUSE_S: Final = 15.0
"""A fault comes after so many operations, or after so long where clients get no answers."""


class Kind(StrEnum):
    """Say what fails, and how often beside the others. `seconds` of a fault is how long, `amount` how much."""

    weight: int

    def __new__(cls, value: str, weight: int) -> Self:
        kind = str.__new__(cls, value)
        kind._value_, kind.weight = value, weight
        return kind

    KILL = "kill", 6
    """A server is killed and started again."""
    KILL_ALL = "kill all", 2
    STOP = "stop", 4
    """A server stands still."""
    CLOCK = "clock", 4
    """A server's clock is off by `amount` milliseconds."""
    KILL_COLLECTOR = "kill collector", 5
    STOP_COLLECTOR = "stop collector", 2
    FULL = "full disk", 3
    EIO = "eio", 6
    """Some system calls of a server fail with EIO."""
    READ_ONLY = "read-only", 2
    """The file system stops under all servers and turns read-only. They are killed, and it is mounted anew."""
    STORE = "store", 3
    """Most requests to the object store meet a fault."""
    DOORS = "doors", 3
    """Many requests of clients meet a fault."""
    CRASH = "database crash", 2
    TAKE_OVER = "take-over", 2
    """The primary is killed, and its replica takes its place."""
    CUT = "database cut", 4
    SLOW = "database slow", 3


CALLS: Final = ("fsync,fdatasync", "pwrite64", "pread64", "openat", "rename,renameat,renameat2,link,linkat")
"""What `eio` lets fail, of which `amount` chooses. Not `write`: by it the event loop wakes its threads, and ends."""
CLOCK_MS_MAX: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: Kind
    after: int
    """Operations of all clients since the fault before."""
    server: int
    seconds: float
    amount: int


def schedule(seed: int, kinds: Sequence[Kind], *, every: int, processes: int) -> Iterator[Fault]:
    """Yield faults without an end."""
    chance = random.Random(f"{seed}/faults")
    while True:
        [kind] = chance.choices(kinds, [kind.weight for kind in kinds])
        longest = {Kind.STOP: 15.0, Kind.CLOCK: 20.0}.get(kind, 6.0)
        off_ms = chance.choice([-1, 1]) * int(CLOCK_MS_MAX ** chance.uniform(0.5, 1.0))
        yield Fault(
            kind=kind,
            after=chance.randint(every // 2, every * 3 // 2),
            server=chance.randrange(processes),
            seconds=round(chance.uniform(0.5, longest), 2),
            amount=off_ms if kind == Kind.CLOCK else chance.randrange(len(CALLS)),
        )


def kinds_of(installation: Installation) -> list[Kind]:
    """Return the faults that can meet this installation here."""
    kinds = [Kind.KILL, Kind.KILL_ALL, Kind.STOP, Kind.CLOCK, Kind.KILL_COLLECTOR, Kind.STOP_COLLECTOR]
    if installation.disk is not None:
        kinds += [Kind.FULL, Kind.READ_ONLY] + ([Kind.EIO] if shutil.which("strace") else [])
    if installation.store is not None:
        kinds.append(Kind.STORE)
    if installation.doors:
        kinds.append(Kind.DOORS)
    if installation.database is not None:
        kinds += [Kind.CRASH, Kind.TAKE_OVER, Kind.CUT, Kind.SLOW]
    return kinds


class Nemesis:
    """Carries out one fault after the other. `done` is called with operations; `kinds` counts faults."""

    def __init__(self, installation: Installation, collectors: Collectors | None, journal: Journal) -> None:
        self._installation = installation
        self._collectors = collectors
        self._journal = journal
        self.operations = 0
        self.kinds: Counter[str] = Counter()
        self.ended_alone = 0

    async def run(self, faults: Iterator[Fault]) -> None:
        """Go on until cancelled. A fault that began is over then."""
        for fault in faults:
            await self._wait(fault.after)
            carried_out = asyncio.ensure_future(self._carry_out(fault))
            try:
                await asyncio.shield(carried_out)
            except asyncio.CancelledError:
                await carried_out
                raise

    async def _wait(self, operations: int) -> None:
        until, until_s = self.operations + operations, self._journal.now_s + PAUSE_S
        while self.operations < until and self._journal.now_s < until_s:
            await asyncio.sleep(LOOK_S)
            await self.revive()

    async def _carry_out(self, fault: Fault) -> None:
        self.kinds[fault.kind.value] += 1
        self._journal.write(FAULTS, {"begin": True, **asdict(fault)})
        try:
            deed: Callable[[Fault], Awaitable[None]] = getattr(self, f"_{fault.kind.name.lower()}")
            await deed(fault)
            await self.revive()
        finally:
            self._journal.write(FAULTS, {"end": True, "kind": fault.kind.value})

    async def revive(self) -> None:
        """Start the servers that do not run, again and again until they do."""
        down = [(number, server) for number, server in enumerate(self._installation.servers) if server.pid is None]
        for number, server in down:
            if server.port:
                self.ended_alone += 1
                self._journal.write(FAULTS, {"ended by itself": number})
        await asyncio.gather(*[self._start(server) for _, server in down])

    async def _start(self, server: Server) -> None:
        await server.stop(is_kill=True)
        for _ in range(100):
            try:
                await server.start()
            except RuntimeError as error:
                self._journal.write(FAULTS, {"did not start": str(error)})
                await asyncio.sleep(1)
            else:
                return
        raise RuntimeError("a server does not start any more")

    # Servers

    def _server(self, fault: Fault) -> Server:
        return self._installation.servers[fault.server]

    async def _kill(self, fault: Fault) -> None:
        await self._server(fault).stop(is_kill=True)

    async def _kill_all(self, _: Fault) -> None:
        await asyncio.gather(*[server.stop(is_kill=True) for server in self._installation.servers])

    async def _stop(self, fault: Fault) -> None:
        await _held(self._server(fault).pid, fault.seconds)

    async def _clock(self, fault: Fault) -> None:
        file = self._installation.clock_of(fault.server)
        file.write_text(str(fault.amount))
        await asyncio.sleep(fault.seconds)
        file.write_text("0")

    # Collectors

    async def _kill_collector(self, _: Fault) -> None:
        if self._collectors is not None and (process := await self._collectors.some()) is not None:
            with suppress(ProcessLookupError):
                process.kill()

    async def _stop_collector(self, fault: Fault) -> None:
        if self._collectors is not None and (process := await self._collectors.some()) is not None:
            await _held(process.pid, fault.seconds)

    # The disk

    async def _full(self, fault: Fault) -> None:
        assert self._installation.disk is not None
        self._installation.disk.fill()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self._installation.disk.free()

    async def _eio(self, fault: Fault) -> None:
        calls, pid = CALLS[fault.amount], self._server(fault).pid
        if pid is None:
            return
        inject = f"inject={calls}:error=EIO:when={1 + fault.amount}+{2 + fault.amount}"
        command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", inject, "-p", str(pid)]
        strace = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            with suppress(ProcessLookupError):
                strace.terminate()  # it lets go of the server
            await strace.wait()

    async def _read_only(self, fault: Fault) -> None:
        disk = self._installation.disk
        assert disk is not None
        disk.turn_read_only()
        await asyncio.sleep(fault.seconds)
        await self._kill_all(fault)
        if self._collectors is None:
            disk.mend()
            return
        async with self._collectors.none():
            disk.mend()

    # Networks

    async def _store(self, fault: Fault) -> None:
        assert self._installation.store is not None
        self._installation.store.rate = 0.8
        await asyncio.sleep(fault.seconds)
        self._installation.store.rate = self._installation.store.usual_rate

    async def _doors(self, fault: Fault) -> None:
        for door in self._installation.doors:
            door.rate = 0.5
        await asyncio.sleep(fault.seconds)
        for door in self._installation.doors:
            door.rate = door.usual_rate

    # The database

    @property
    def _database(self) -> Replicated:
        assert self._installation.database is not None
        return self._installation.database

    async def _crash(self, _: Fault) -> None:
        await asyncio.to_thread(self._database.crash)

    async def _take_over(self, _: Fault) -> None:
        await asyncio.to_thread(self._database.take_over)

    async def _cut(self, fault: Fault) -> None:
        for network in self._database.networks:
            await asyncio.to_thread(network.refuse)
        await asyncio.sleep(fault.seconds / 3)
        for network in self._database.networks:
            await asyncio.to_thread(network.heal)

    async def _slow(self, fault: Fault) -> None:
        for network in self._database.networks:
            network.delay_s = 0.3
        await asyncio.sleep(fault.seconds)
        for network in self._database.networks:
            network.delay_s = 0


async def _held(pid: int | None, seconds: float) -> None:
    """Let a process stand still."""
    with suppress(ProcessLookupError):
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
