"""What a run of committed data expires, published for as many branches as are given, over metadata that is 5 ms away.
One commit expires on each branch. From the first request to the one that lets deletes begin, as a collector sends them.

`python -m bench publishing [BRANCHES [COMMITS]]`, by default 1,150 and 11,500 branches with one expired commit each.
Metadata and files lie in memory; each call to the metadata first waits 5 ms, as over a network. So time is on the wall.
A request must end before its caller gives up, which is after REQUEST_S_MAX. HTTP itself is not measured.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
from msgspec.structs import replace

from lakebed.base import EMPTY_METARANGE, CommitId, RepositoryUid, RunId, StagingToken
from lakebed.gc.live import CollectionService
from lakebed.gc.live.reading.inputs import Inputs
from lakebed.gc.messages import EXPIRED, GARBAGE, Expire, RunKind, StartRun, Sweep, arrow_schema
from lakebed.gc.rules import DAY_MS, days_rules
from lakebed.kv import Held, Page, Predicate
from lakebed.kv.drivers.memory import MemoryStore
from lakebed.objectstore import MemoryObjectStore
from lakebed.runtime import live_ports
from lakebed.versions import Commit, TreeCache, Trees, Versions, encode_record, keys

from .harness import Bench, Figure, own_peak_mib

T = TypeVar("T")

SIZES: Final = {"small": ((10, 1), (40, 1)), "full": ((1_150, 1), (11_500, 1))}
"""Branches, and how many commits expire on each."""
AWAY_S: Final = {"small": 0.0, "full": 0.005}
REQUEST_S_MAX: Final = 60.0
GROWTH_MAX: Final = 1.2
"""How much more calls a branch may take among ten times as many."""
STAGED_TOGETHER: Final = 5_000


class DistantStore(MemoryStore):
    """Metadata in memory, each call of which waits `away_s` and is counted, once it is moved away."""

    away_s: float | None = None
    calls = 0

    async def _go(self, act: Awaitable[T]) -> T:
        if self.away_s is not None:
            self.calls += 1
            await asyncio.sleep(self.away_s)
        return await act

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        return await self._go(super().get(partition, key))

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        return await self._go(super().get_many(partition, keys))

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        return await self._go(super().scan(partition, start, limit))

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        await self._go(super().set(partition, key, value))

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        await self._go(super().set_many(partition, items))

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        return await self._go(super().set_if(partition, key, value, predicate))

    async def delete(self, partition: bytes, key: bytes) -> None:
        await self._go(super().delete(partition, key))

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        await self._go(super().delete_many(partition, keys))

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        await self._go(super().delete_if(partition, key, predicate))


class Took(NamedTuple):
    """`requests_s` are those that publish, and then the one that lets deletes begin."""

    wall_s: float
    cpu_s: float
    calls: int
    requests_s: list[float]


async def stage(versions: Versions, branches: int, commits: int) -> list[CommitId]:
    """Make branches with a head each, in front of commits that expire; return those."""
    await versions.commits.initialise("main")
    [(_, record)] = await versions.context.branches.every()
    now_ms = versions.ports.clock.now_ms()
    items: list[tuple[bytes, bytes]] = []
    expired: list[CommitId] = []
    for number in range(branches):
        name, parent = f"branch-{number:06d}", record.commit_id
        for at in range(commits + 1):
            id_ = CommitId(sha256(b"%d %d" % (number, at)).hexdigest())
            made = Commit(
                generation=at + 2,
                message="load",
                committer="etl",
                created_ms=now_ms - (commits + 30 - at) * DAY_MS,
                metarange_id=EMPTY_METARANGE,
                parents=(parent,),
                metadata={"job": "nightly"},
                made_for=name,
                nonce=id_[:20],
                published=True,
            )
            items.append((keys.COMMIT + id_.encode(), encode_record(made)))
            parent = id_
            if at < commits:
                expired.append(id_)
        head = replace(record, commit_id=parent, staging_token=StagingToken(name))
        items.append((keys.BRANCH + name.encode(), encode_record(head)))
    for start in range(0, len(items), STAGED_TOGETHER):
        await versions.store.set_many(versions.partition, items[start : start + STAGED_TOGETHER])
    return sorted(expired)


async def publish(branches: int, commits: int, away_s: float) -> Took:
    store, objectstore, ports = DistantStore(), MemoryObjectStore("mem://publishing"), live_ports()
    trees = Trees(objectstore, TreeCache(1 << 20), ports)
    versions = Versions(uid=RepositoryUid("bench"), store=store, objectstore=objectstore, trees=trees, ports=ports)
    expired = await stage(versions, branches, commits)
    service = CollectionService(versions)
    await service.rules.write(days_rules(1))
    run_id = (await service.start(StartRun(kind=RunKind.COMMITTED))).run_id
    inputs = Inputs(objectstore, RunKind.COMMITTED, RunId(run_id))
    rows = pa.table({"id": pa.array(expired, pa.string())}, schema=arrow_schema(EXPIRED))
    body = Expire(commits=await inputs.write_table(EXPIRED, EXPIRED.name, rows), rules_version=1)
    garbage = await inputs.write_table(GARBAGE, GARBAGE.name, arrow_schema(GARBAGE).empty_table())
    requests_s: list[float] = []

    async def timed(request: Awaitable[T]) -> T:
        began_s = time.perf_counter()
        answer = await request
        requests_s.append(time.perf_counter() - began_s)
        return answer

    store.away_s = away_s
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    answer = await timed(service.expire(run_id, body))
    while answer.commits is None:
        answer = await timed(service.expire(run_id, replace(body, continuation_token=answer.continuation_token)))
    assert (answer.expiring, answer.taken_out) == (len(expired), 0), (answer.expiring, answer.taken_out)
    await timed(service.sweep(run_id, Sweep(plan=garbage, commits=answer.commits)))
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    epochs = [record.epoch for name, record in await versions.context.branches.every() if name != "main"]
    assert min(epochs) == 1, "each branch is bumped"
    await store.close()
    return Took(wall_s, cpu_s, store.calls, requests_s)


def figures(sizes: Sequence[tuple[int, int]], away_s: float, repeat: int) -> list[Figure]:
    found: list[Figure] = []
    first: float | None = None
    for branches, commits in sizes:
        took = [asyncio.run(publish(branches, commits, away_s)) for _ in range(repeat)]
        what = f"publishing {branches:,} branches, {branches * commits:,} commits"
        figure = partial(_figure, sorted(took)[repeat // 2])
        found.append(figure(f"{what}: on the wall", [one.wall_s for one in took], "s"))
        found.append(figure(f"{what}: requests", [len(one.requests_s) for one in took], ""))
        longest_s = [max(one.requests_s) for one in took]
        found.append(figure(f"{what}: longest request", longest_s, "s", limit=REQUEST_S_MAX))
        calls = [one.calls / branches for one in took]
        found.append(figure(f"{what}: calls a branch", calls, ""))
        if first is not None:
            found.append(figure(f"{what}: calls of fewer", [one / first for one in calls], "×", limit=GROWTH_MAX))
        first = first or statistics.median(calls)
    return found


def _figure(one: Took, what: str, values: Sequence[float], unit: str, *, limit: float | None = None) -> Figure:
    return Figure(
        what=what,
        value=statistics.median(values),
        value_min=min(values),
        value_max=max(values),
        unit=unit,
        limit=limit,
        cpu_s=one.cpu_s,
        wall_s=one.wall_s,
        peak_mib=own_peak_mib(),
    )


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    yield partial(figures, SIZES[size], AWAY_S[size])


def narrowed(given: Sequence[str]) -> Bench:
    """Return the bench of this many branches, with this many expired commits on each if a second number is given."""
    branches, *commits = (int(one) for one in given)
    sizes = [(branches, commits[0] if commits else 1)]
    return Bench(name="publishing", parts=lambda size: iter([partial(figures, sizes, AWAY_S[size])]))


BENCH = Bench(name="publishing", parts=parts, narrowed=narrowed)
