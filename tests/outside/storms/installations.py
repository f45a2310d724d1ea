"""What a storm runs on: servers, their metadata and object store, and what stands between them to fail.

    sqlite + local     on a disk of its own, which fills, fails and turns read-only
    sqlite + s3        the object store behind a proxy
    postgres + s3      the same, and a PostgreSQL whose replica takes over

The servers and collectors run from a copy of the package with short intervals (`PATCHES`), and with clocks that jump.
An hour of a rule or a window is HOUR_S seconds there. Nothing else is patched.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.http import started
from lakebed.objectstore import Deleter, ObjectStoreOptions, open_deleter
from lakebed.server import ServerOptions, opened
from lakebed.versions import Versions
from tests.outside.servers import Fleet, Patch, Server, fleet_of, patched_copy

from .clients import REPOSITORY
from .disk import Disk, disk
from .proxy import AT_A_DOOR, FaultyProxy, faulty_proxy
from .replicated import Replicated, replicated

HOUR_S: Final = 10
DOORS_FEWER: Final = 5
CLOCK: Final = "STORM_CLOCK"
"""Names the file by whose number of milliseconds a process's clock is off."""
_CLOCK: Final = f"""import os
import time as _time
from pathlib import Path as _Path


class time:
    @staticmethod
    def time_ns() -> int:
        try:
            off_ms = int(_Path(os.environ["{CLOCK}"]).read_text())
        except (KeyError, OSError, ValueError):
            off_ms = 0
        return _time.time_ns() + off_ms * 1_000_000


"""
PATCHES: Final = (
    Patch("gc/live/publish/hard_delete.py", "LINGER_MS: Final = 60_000", "LINGER_MS: Final = 0"),
    Patch("gc/live/publish/hard_delete.py", "AGAIN_MS: Final = 60_000", "AGAIN_MS: Final = 1_000"),
    Patch("server/hard_delete.py", "TICK_S: Final = 1.0", "TICK_S: Final = 0.1"),
    Patch("server/hard_delete.py", "WORK_S: Final = 5.0", "WORK_S: Final = 0.2"),
    Patch("server/hard_delete.py", "ASK_S: Final = 60.0", "ASK_S: Final = 1.0"),
    Patch("server/hard_delete.py", "BACK_OFF_S: Final = 60.0", "BACK_OFF_S: Final = 0.5"),
    Patch("server/process/upkeep_loop.py", "INTERVAL_S: Final = 60.0", "INTERVAL_S: Final = 1.0"),
    Patch("versions/context.py", "claim_age_ms_max: int = 900_000", "claim_age_ms_max: int = 3_000"),
    Patch("versions/context.py", "slice_size_max: int = 10_000", "slice_size_max: int = 20"),
    Patch("gc/rules/rules.py", "HOUR_MS: Final = 3_600_000", f"HOUR_MS: Final = {HOUR_S}_000"),
    Patch("gc/rules/rules.py", "DAY_MS: Final = 24 * HOUR_MS", "DAY_MS: Final = 86_400_000"),
    # A run whose collector was killed keeps what is under way on record for so long.
    Patch("gc/live/options.py", "dead_run_age_ms: int = 7 * 24 * HOUR_MS", "dead_run_age_ms: int = 60_000"),
    # An address that was handed out to a process that was killed, and uploads in parts to a branch that was deleted,
    # stay for so long. Until then no certificate holds.
    Patch("versions/context.py", "upload_ttl_ms: int = 3_600_000 * 24", "upload_ttl_ms: int = 45_000"),
    Patch("versions/staging/parts.py", "AGE_MS_MAX: Final = 7 * 24 * 3_600_000", "AGE_MS_MAX: Final = 60_000"),
    # No client here reads by a signed URL.
    Patch("base/runs.py", "SIGNED_S: Final = 15 * 60", "SIGNED_S: Final = 2"),
    # A server that was killed is dead for good, so collections may soon look at what it wrote.
    Patch("gc/live/options.py", "dead_owner_age_ms: int = 24 * HOUR_MS", "dead_owner_age_ms: int = 20_000"),
    Patch("runtime/live.py", "import time\n", _CLOCK),
)


@dataclass(slots=True)
class Installation:
    """`environment` has what servers and collectors both read."""

    folder: Path
    data: Path
    environment: dict[str, str]
    options: ServerOptions
    """How this process opens it, past what fails."""
    scheme: str
    fleet: Fleet = field(init=False)
    store: FaultyProxy | None = None
    doors: list[FaultyProxy] = field(default_factory=list)
    disk: Disk | None = None
    database: Replicated | None = None

    @property
    def servers(self) -> Sequence[Server]:
        return self.fleet.servers

    def clock_of(self, number: int) -> Path:
        """Return the file that says by how much the clock of a server is off."""
        return self.folder / f"clock-{number}"

    @property
    def proxies(self) -> list[FaultyProxy]:
        return [*self.doors, *([self.store] if self.store else [])]

    def set_rate(self, rate: float) -> None:
        """Let this share of requests to the object store meet a fault, and fewer at doors: a command makes dozens."""
        for proxy in self.proxies:
            proxy.usual_rate = proxy.rate = rate if proxy is self.store else rate / DOORS_FEWER

    def met(self) -> dict[str, int]:
        """Return how many requests met which fate, at the object store and at the doors of servers."""
        met: Counter[str] = Counter()
        for proxy in self.proxies:
            name = "store" if proxy is self.store else "door"
            met.update({f"{name} {fate}": count for fate, count in proxy.met.items()})
        return dict(met)

    async def calm(self) -> None:
        """Let no further request meet a fault."""
        for proxy in self.proxies:
            await proxy.calm()

    @asynccontextmanager
    async def without_faults(self) -> AsyncIterator[tuple[Versions, Deleter]]:
        """The repository as this process has it."""
        async with opened(self.options) as state:
            versions = (await state.catalog.get(REPOSITORY)).versions
            deleter = open_deleter(versions.objectstore.uri, self.options.objectstore)
            try:
                yield versions, deleter
            finally:
                await deleter.close()


@asynccontextmanager
async def installed(
    folder: Path,
    *,
    kv: str,
    store: str,
    processes: int,
    seed: int,
    has_doors: bool = False,
    patches: Sequence[Patch] = (),
    store_port: int | None = None,
    disk_mib: int = 2_048,
) -> AsyncIterator[Installation]:
    """Start it all, with no fault yet but at doors, and stop it afterwards.

    `store_port`: of another S3 server on this machine, which has an empty bucket `lake` and takes any credentials.
    """
    async with AsyncExitStack() as stack:
        found = await _without_servers(stack, folder, kv=kv, store=store, seed=seed, port=store_port, mib=disk_mib)
        pythonpath = patched_copy((*PATCHES, *patches), folder / "patched")
        found.environment["PYTHONPATH"] = str(pythonpath)
        servers = [
            Server(
                found.data,
                pythonpath,
                found.environment | {CLOCK: str(found.clock_of(number))},
                log=folder / f"server-{number}.log",
            )
            for number in range(processes)
        ]
        found.fleet = await stack.enter_async_context(fleet_of(servers))
        for number, server in enumerate(servers if has_doors else ()):
            chance = random.Random(f"{seed}/door/{number}")
            proxy = faulty_proxy(_port_of(server), chance, rate=0.0, fates=AT_A_DOOR)
            door, server.door = await stack.enter_async_context(proxy)
            found.doors.append(door)
        yield found


def _port_of(server: Server) -> Callable[[], int]:
    return lambda: server.port


async def _without_servers(
    stack: AsyncExitStack, folder: Path, *, kv: str, store: str, seed: int, port: int | None, mib: int
) -> Installation:
    environment = {"LAKEBED_DELETED_DAYS": "0"}
    made, data, uri = None, folder / "data", None
    if kv == "sqlite" and store == "local" and (made := stack.enter_context(disk(folder, size_mib=mib))) is not None:
        data = made.path / "data"
    pair = None
    if kv == "postgres":
        pair = stack.enter_context(replicated())
        uri = pair.uri()
        environment["LAKEBED_STORE_URI"] = uri
    proxy = None
    if store == "s3":
        command = ["-m", "bench.s3", str(folder / "s3"), "0", "0", "0"]
        real = port or stack.enter_context(started(command, marker="s3 at port ")).port
        chance = random.Random(f"{seed}/proxy")
        proxy, front = await stack.enter_async_context(faulty_proxy(real, chance, rate=0.0))
        environment |= _s3(front)
        objectstore = _s3_options(real)
    else:
        objectstore = ObjectStoreOptions(local_root=data / "objects")
    blockstore = "s3" if store == "s3" else "local"
    options = ServerOptions(data_dir=data, blockstore=blockstore, objectstore=objectstore, store_uri=uri)
    return Installation(
        folder=folder,
        data=data,
        environment=environment,
        options=options,
        scheme=blockstore,
        store=proxy,
        disk=made,
        database=pair,
    )


def _s3_options(port: int) -> ObjectStoreOptions:
    return ObjectStoreOptions(
        s3_endpoint=f"http://127.0.0.1:{port}",
        s3_region="us-east-1",
        s3_access_key_id="storm",
        s3_secret_access_key="storm",  # the store takes any
    )


def _s3(port: int) -> Mapping[str, str]:
    return {
        "LAKEBED_BLOCKSTORE": "s3",
        "LAKEBED_S3_ENDPOINT": f"http://127.0.0.1:{port}",
        "LAKEBED_S3_REGION": "us-east-1",
        "LAKEBED_S3_ACCESS_KEY_ID": "storm",
        "LAKEBED_S3_SECRET_ACCESS_KEY": "storm",
    }
