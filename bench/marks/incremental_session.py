"""A repository, and three collections of its uncommitted data: `python -m bench.marks.incremental_session FOLDER SLICES
EACH` prints, as JSON, what each took.

Built here without HTTP, and not timed: SLICES closed slices of EACH objects, which are files in a folder. Of every
twenty objects nothing names one; the others of all slices but the last are committed, a slice a commit, those of
the last one are staged. A clean run comes first. Then 1 % changes: a new slice, of whose objects half replace committed
ones in a new commit, all over the tree, a quarter is staged, nothing names another quarter, and a quarter of what was
staged is deleted. The second run is optimised, and finds just the garbage of the change; a clean one in the same warm
session ends it.

Each run is planned and applied. CPU is that of this process, which is the live side too, of the JVM and of the Python
workers, from when the session stands.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.http import family, peak_mib
from lakebed.base import Entry, RepositoryUid, format_address, slice_name, slice_number, to_row
from lakebed.gc import Collector, SessionOptions, local_session
from lakebed.gc.live import CollectionService
from lakebed.gc.messages import ApplyRequest, Mode, PlanRequest, RunKind, RunMode
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import ObjectStoreOptions, open_objectstore
from lakebed.runtime import live_ports
from lakebed.versions import (
    EXCLUSIVE,
    Note,
    SliceRecord,
    SliceState,
    TreeCache,
    Trees,
    Versions,
    encode_cell,
    encode_record,
)
from lakebed.versions import keys as kv_keys

from .live_side import answer
from .mark_session import CORES, TASKS, Took, family_cpu_s
from .waiting import Waiting

T = TypeVar("T")
URI = "local://bench/incremental"
SIZE_BYTES = 4
OPENED_MS = 1_790_000_000_000
CALM_S = 2.0
"""The JVM compiles on for a while after a run: that is the run's alone."""


class Repository:
    """The live side, which answers the collectors' calls as the server does, without HTTP."""

    def __init__(self, folder: Path) -> None:
        self.options = ObjectStoreOptions(local_root=folder, local_durable=False)
        self._loop = Waiting()
        self._folder = folder / "bench" / "incremental"
        ports = live_ports()
        self.objectstore = open_objectstore(URI, self.options)
        trees = Trees(self.objectstore, TreeCache(64 << 20), ports)
        self.versions = Versions(
            uid=RepositoryUid("bench"), store=MemoryStore(), objectstore=self.objectstore, trees=trees, ports=ports
        )
        self.service = CollectionService(self.versions)
        self.wait(self.versions.commits.initialise("main"))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)

    def fill(self, number: int, count: int) -> list[str]:
        """A closed slice with so many objects; their addresses. All are one file under many names."""
        slice_ = slice_number(opened_at_ms=OPENED_MS + number, random_bits=number)
        addresses = [format_address(slice_, sequence) for sequence in range(count)]
        first = self._folder / addresses[0]
        first.parent.mkdir(parents=True)
        first.write_bytes(b"x" * SIZE_BYTES)
        for address in addresses[1:]:
            os.link(first, self._folder / address)
        record = encode_record(SliceRecord(state=SliceState.CLOSED, owner="bench", opened_ms=OPENED_MS))
        self.wait(self._set(kv_keys.SLICE + slice_name(slice_).encode(), record))
        return addresses

    def stage(self, entries: Sequence[tuple[str, str]]) -> None:
        """Pairs of path and address."""
        self.wait(self._stage(entries))

    def commit(self) -> None:
        self.wait(self.versions.commits.commit("main", Note(message="bench", committer="bench")))

    def delete(self, paths: Sequence[str]) -> None:
        self.wait(self._delete(paths))

    async def _set(self, key: bytes, value: bytes) -> None:
        await self.versions.store.set(self.versions.partition, key, value)

    async def _stage(self, entries: Sequence[tuple[str, str]]) -> None:
        [(_, record)] = await self.versions.context.branches.every()
        partition = kv_keys.token_partition(self.versions.uid, record.staging_token)
        cells = []
        for path, address in entries:
            entry = Entry(address=address, size_bytes=SIZE_BYTES, checksum=checksum_of(address), modified_ms=OPENED_MS)
            key = path.encode()
            cells.append((key, encode_cell(EXCLUSIVE, to_row(key, entry))))
        for start in range(0, len(cells), 2_000):
            await self.versions.store.set_many(partition, cells[start : start + 2_000])

    async def _delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            await self.versions.staging.delete("main", path.encode())

    def call(self, method: str, path: str, *, json: object = None) -> object:
        return self.wait(answer(self.service, URI, method, path, json))


def checksum_of(address: str) -> str:
    """Each object has content of its own: a commit takes entries of equal content for no change."""
    return hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()


def is_named(sequence: int) -> bool:
    return sequence % 20 != 7


def build(repository: Repository, slices: int, each: int) -> int:
    """The repository before the first run; how much of it is garbage."""
    for number in range(slices):
        named = [
            (f"day={number:04d}/part-{sequence:05d}.parquet", address)
            for sequence, address in enumerate(repository.fill(number, each))
            if is_named(sequence)
        ]
        repository.stage(named)
        if number < slices - 1:
            repository.commit()
    return slices * sum(not is_named(sequence) for sequence in range(each))


def change(repository: Repository, slices: int, each: int) -> int:
    """1 % of the objects, or what is nearest to it; how much garbage it makes."""
    count = max(4, slices * each // 100)
    addresses = repository.fill(slices, count)
    quarter = count // 4
    staged = [f"day={slices - 1:04d}/part-{sequence:05d}.parquet" for sequence in range(each) if is_named(sequence)]
    deleted = staged[: len(staged) // 4]
    committed = [
        f"day={number:04d}/part-{sequence:05d}.parquet"
        for number in range(slices - 1)
        for sequence in range(each)
        if is_named(sequence)
    ]
    # As far apart as they can be: nearly every range of the commit is a new one.
    replaced = committed[:: max(1, len(committed) // (2 * quarter))]
    repository.delete(deleted)
    taken = list(zip(replaced[: 2 * quarter], addresses, strict=False))
    repository.stage(taken)
    repository.commit()
    repository.stage([(f"new/{address}", address) for address in addresses[-quarter:]])
    return len(deleted) + count - len(taken) - quarter


def main(folder: Path, slices: int, each: int) -> list[Took]:
    repository = Repository(folder)
    garbage = build(repository, slices, each)
    took = []
    with local_session(SessionOptions(cores=CORES), os.environ) as session:
        collector = Collector(
            client=repository,
            repository="bench",
            objectstore=repository.options,
            session=lambda: session.spark,
            tasks=TASKS,
        )
        for mode in (Mode.CLEAN, Mode.AUTOMATIC, Mode.CLEAN):
            time.sleep(CALM_S)
            cpu, wall = family_cpu_s(), time.perf_counter()
            (plan,) = collector.plan(PlanRequest(kinds=(RunKind.UNCOMMITTED,), mode=mode))
            report = collector.apply(ApplyRequest(run_id=plan.run_id, readers_grace="0"))
            cpu_s, wall_s = family_cpu_s() - cpu, time.perf_counter() - wall
            assert plan.mode is (RunMode.CLEAN if mode is Mode.CLEAN else RunMode.OPTIMISED), plan.mode_note
            assert report.objects_deleted == garbage, (report.objects_deleted, garbage)
            peak = sum(peak_mib(pid) for pid in family(os.getpid()))
            took.append(Took(cpu_s=cpu_s, wall_s=wall_s, peak_mib=peak))
            garbage = change(repository, slices, each) if len(took) == 1 else 0
    return took


if __name__ == "__main__":
    print(msgspec.json.encode(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))).decode())
