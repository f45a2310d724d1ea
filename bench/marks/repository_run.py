"""One repository, built and collected: `python -m bench.marks.repository_run GIVEN` prints, as JSON, what each phase
took.

The live side is in this process, over a store in memory; collectors ask it as they ask a server, without HTTP.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.collecting.listing import s3_options
from bench.http import family, peak_mib
from lakebed.base import Entry, RepositoryUid
from lakebed.gc import Collector, SessionOptions, local_session
from lakebed.gc.live import CollectionService
from lakebed.gc.messages import DATA_PREFIX, ApplyRequest, Mode, PlanRequest, RunKind
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import Deleter, ObjectStore, ObjectStoreOptions, open_deleter, open_objectstore
from lakebed.runtime import LiveTasks, live_ports
from lakebed.versions import Note, Options, TreeCache, Trees, Versions

from .live_side import answer
from .mark_session import TICK_S, family_cpu_s
from .waiting import Waiting

T = TypeVar("T")
CORES = 2
TASKS = 4 * CORES
AT_ONCE = 100
DELETED_AT_ONCE = 16
DELETE_KEYS = 1000


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """`garbage` of what is staged on a branch is uploaded twice: the first time is for nothing."""

    branches: int
    base_commits: int
    base_objects: int
    commits: int
    objects: int
    staged: int
    garbage: int

    @property
    def all(self) -> int:
        named = self.base_commits * self.base_objects + self.branches * (self.commits * self.objects + self.staged)
        return named + self.all_garbage

    @property
    def all_garbage(self) -> int:
        return self.branches * self.garbage


SIZES = {
    "small": Size(branches=3, base_commits=2, base_objects=50, commits=2, objects=20, staged=20, garbage=5),
    "full": Size(branches=200, base_commits=20, base_objects=5_500, commits=15, objects=200, staged=1_250, garbage=250),
}


class Given(msgspec.Struct, frozen=True, kw_only=True):
    size: str
    uri: str
    local_root: str | None
    s3_endpoint: str | None

    @property
    def objectstore(self) -> ObjectStoreOptions:
        if self.local_root is not None:
            return ObjectStoreOptions(local_root=Path(self.local_root), local_durable=False)
        assert self.s3_endpoint is not None
        return s3_options(self.s3_endpoint)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cpu_s: float
    wall_s: float


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """The first two of `phases`, building and starting Spark, are not `timed`; the last is the floor."""

    objects: int
    phases: list[Phase]
    peak_mib: float

    @property
    def timed(self) -> list[Phase]:
        return self.phases[2:-1]

    @property
    def floor_cpu_s(self) -> float:
        """At least a tick, which is how finely it is measured."""
        return max(self.phases[-1].cpu_s, TICK_S)


NAMES = {
    "listing": "list",
    "reading": "read staged data and commits",
    "marking": "read ranges, mark",
    "deleting": "delete",
}
"""What a collector tells of its progress, by its first word: the phases that it begins."""


class Phases:
    """Each lasts until the next begins."""

    def __init__(self) -> None:
        self.ended: list[Phase] = []
        self._name, self._cpu_s, self._wall_s = "", 0.0, 0.0

    def progress(self, line: str) -> None:
        name = NAMES.get(line.split(" ")[0])
        if name is not None:
            self.begin(name)

    def begin(self, name: str) -> None:
        cpu_s, wall_s = family_cpu_s(), time.perf_counter()
        if self._name:
            self.ended.append(Phase(name=self._name, cpu_s=cpu_s - self._cpu_s, wall_s=wall_s - self._wall_s))
        self._name, self._cpu_s, self._wall_s = name, cpu_s, wall_s


class Lake:
    """The repository, and what a collector may ask of its server."""

    def __init__(self, given: Given) -> None:
        ports = live_ports()
        self.uri, self._runner = given.uri, Waiting()
        self.objectstore = open_objectstore(given.uri, given.objectstore)
        self.versions = Versions(
            uid=RepositoryUid("bench"),
            store=MemoryStore(),
            objectstore=self.objectstore,
            trees=Trees(self.objectstore, TreeCache(64 << 20), ports),
            ports=ports,
            options=Options(owner="bench"),
        )
        self.service = CollectionService(self.versions)
        # The records are new for each run, and the namespace is not.
        self.wait(self.service.adopting())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def call(self, method: str, path: str, *, json: object = None) -> object:
        return self.wait(answer(self.service, self.uri, method, path, json))

    async def build(self, size: Size) -> None:
        await self.versions.commits.initialise("main")
        for number in range(size.base_commits):
            await self._upload("main", f"base/{number:03d}", size.base_objects)
            await self._commit("main")
        for number in range(size.branches):
            branch = f"branch-{number:03d}"
            await self.versions.refs.create_branch(branch, "main")
            for commit in range(size.commits):
                await self._upload(branch, f"daily/{number:03d}/{commit:03d}", size.objects)
                await self._commit(branch)
            await self._upload(branch, "staged", size.garbage)
            await self._upload(branch, "staged", size.staged)
        await self.versions.cleanup.clean()
        await self.versions.slices.end()

    async def _commit(self, branch: str) -> None:
        await self.versions.commits.commit(branch, Note(message="bench", committer="bench"))

    async def _upload(self, branch: str, folder: str, count: int) -> None:
        async def body(address: str) -> Entry:
            stored = await self.objectstore.put(address, b"x")
            return Entry(address=address, size_bytes=1, checksum=stored.md5, modified_ms=1_790_000_000_000)

        for first in range(0, count, AT_ONCE):
            paths = [f"{folder}/part-{number:06d}".encode() for number in range(first, min(first + AT_ONCE, count))]
            await asyncio.gather(*(self.versions.staging.upload(branch, path, body) for path in paths))


async def floor(
    objectstore: ObjectStore, spare: ObjectStore, deleter: Deleter, all_garbage: int, begin: Callable[[], None]
) -> None:
    """List all objects, and delete as many as a run does, of others."""
    keys = [f"{DATA_PREFIX}spare-{number // 10_000}/{number:08d}" for number in range(all_garbage)]
    for first in range(0, all_garbage, AT_ONCE):
        await asyncio.gather(*(spare.put(key, b"x") for key in keys[first : first + AT_ONCE]))
    slices = (await objectstore.level(DATA_PREFIX)).folders
    begin()
    listed = [len(found) async for _, found in LiveTasks().ahead(slices, lambda folder: _list(objectstore, folder))]
    assert sum(listed), slices
    batches = iter([keys[first : first + DELETE_KEYS] for first in range(0, all_garbage, DELETE_KEYS)])

    async def delete() -> None:
        for batch in batches:
            assert not await deleter.delete(batch)

    await asyncio.gather(*(delete() for _ in range(DELETED_AT_ONCE)))


async def _list(objectstore: ObjectStore, folder: str) -> list[str]:
    return [stat.key async for page in objectstore.list(folder) for stat in page]


def main(given: Given) -> Ran:
    size, phases, lake = SIZES[given.size], Phases(), Lake(given)
    phases.begin("build")
    lake.wait(lake.build(size))
    spare = open_objectstore(f"{given.uri}-floor", given.objectstore)
    deleter = open_deleter(spare.uri, given.objectstore)
    phases.begin("start Spark")
    with local_session(SessionOptions(cores=CORES), os.environ) as session:
        collector = Collector(
            client=lake,
            repository="bench",
            objectstore=given.objectstore,
            tasks=TASKS,
            progress=phases.progress,
            session=lambda: session.spark,
        )
        phases.begin("start the run")
        (plan,) = collector.plan(PlanRequest(kinds=(RunKind.UNCOMMITTED,), mode=Mode.CLEAN))
        assert plan.totals.all.objects == size.all_garbage, (plan.totals.all, size.all_garbage)
        assert plan.listing is not None
        assert plan.listing.objects == size.all, (plan.listing, size.all)
        phases.begin("begin to apply")
        report = collector.apply(ApplyRequest(run_id=plan.run_id, readers_grace="0"))
        assert report.objects_deleted == size.all_garbage, report
        peak = sum(peak_mib(pid) for pid in family(os.getpid()))
        phases.begin("prepare the floor")
        lake.wait(
            floor(lake.objectstore, spare, deleter, size.all_garbage, lambda: phases.begin("floor: list, bulk delete"))
        )
        phases.begin("end")
    ended = [phase for phase in phases.ended if phase.name != "prepare the floor"]
    return Ran(objects=size.all, phases=ended, peak_mib=peak)


if __name__ == "__main__":
    print(msgspec.json.encode(main(msgspec.json.decode(sys.argv[1], type=Given))).decode())
