"""Requests that look into a history of a million commits, embedded: CPU of the process, and the longest stretch for
which the event loop was busy: the CPU of its thread between two turns of another task.

The history is written by a process of its own, through the key-value port with the product's encoder: one line of
commits, and two branches of a tenth as many behind its four fifths. Their trees are sixteen small ones in turn, so a
log with a filter compares two trees for each commit.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from bench.collecting.prepare import opened
from bench.harness import Bench, Figure, in_process
from lakebed.base import CommitId, Entry, MetarangeId, StagingToken
from lakebed.gc.live import CollectionService
from lakebed.gc.messages import PrepareCommits, RunKind, StartRun
from lakebed.versions import Commit, Note, Versions, encode_record, keys
from lakebed.versions.history.ancestors import jump_span

COMMITS: Final = {"small": 3_000, "full": 1_000_000}
TREES: Final = 16
BATCH: Final = 5_000
STRETCH_MAX_MS: Final = 50.0


class Asked(NamedTuple):
    """One request. `limit_ms` is of its CPU; None: only the loop's stretches are limited."""

    what: str
    run: Callable[[Versions], Awaitable[object]]
    limit_ms: float | None


class Line:
    """A chain of commits in the making: a jump is looked up in its list of ids. `items` are the records to write."""

    def __init__(self, ids: Sequence[CommitId]) -> None:
        self.ids, self.items = [*ids], list[tuple[bytes, bytes]]()

    def commit(self, branch: str, tree: MetarangeId, created_ms: int, **given: Any) -> None:
        depth = len(self.ids)
        span = jump_span(depth)
        commit = Commit(
            generation=depth + 1,
            message=f"load {depth} of {branch}",
            created_ms=created_ms,
            metarange_id=tree,
            parents=(self.ids[-1],),
            made_for=branch,
            published=True,
            depth=depth,
            jump=self.ids[depth - span] if span > 1 else "",
            **{"committer": "bench", **given},
        )
        self.ids.append(commit.id)
        self.items.append((keys.COMMIT + commit.id.encode(), encode_record(commit)))

    async def grow(self, versions: Versions, trees: Sequence[MetarangeId], count: int, branch: str) -> None:
        """Write so many commits, whose trees are these in turn."""
        for start in range(0, count, BATCH):
            for _ in range(min(BATCH, count - start)):
                depth = len(self.ids)
                created_ms = 1_700_000_000_000 + depth * 1_000
                self.commit(branch, trees[depth % len(trees)], created_ms, metadata={"job": "nightly"})
            await versions.store.set_many(versions.partition, self.items)
            self.items.clear()


async def stage(versions: Versions, commits: int) -> None:
    first = await versions.commits.initialise("main")
    record = (await versions.context.branches.every())[0][1]
    trees = []
    for number in range(TREES):
        entry = Entry(address=f"s3://bench/{number}", size_bytes=1, checksum=f"{number:032x}", modified_ms=1)
        await versions.staging.put("main", b"tables/now", entry)
        trees.append((await versions.commits.commit("main", Note(message="m", committer="c"))).metarange_id)
    main = Line([first.id])
    await main.grow(versions, trees, commits, "main")
    fork = main.ids[: commits * 4 // 5]
    heads = {"main": main.ids[-1]}
    for name in ("left", "right"):
        line = Line(fork)
        await line.grow(versions, trees, commits // 10, name)
        heads[name] = line.ids[-1]
    for name, head in heads.items():
        value = encode_record(replace(record, commit_id=head, staging_token=StagingToken(name)))
        await versions.store.set(versions.partition, keys.BRANCH + name.encode(), value)


def requests(commits: int) -> list[Asked]:
    async def page(versions: Versions, **how: object) -> object:
        return await versions.history.log("main", **how)  # type: ignore[arg-type]  # of one request or another

    async def late(versions: Versions, back: int) -> object:
        after = await versions.refs.resolve_commit(f"main~{back}")
        return await versions.history.log("main", after=after)

    async def prepare(versions: Versions) -> object:
        service = CollectionService(versions)
        started = await service.start(StartRun(kind=RunKind.COMMITTED))
        return await service.prepare_commits(started.run_id, PrepareCommits(kind=RunKind.COMMITTED))

    far = commits * 29 // 100
    return [
        Asked("a page of 100", page, 4.0),
        Asked(f"a page behind {far:,}, by a commit's id", lambda versions: late(versions, far), 50.0),
        Asked(
            "a page of a prefix that none of 10,000 touches", lambda versions: page(versions, prefixes=[b"far/"]), None
        ),
        Asked("a page of an object that all touch", lambda versions: page(versions, objects=[b"tables/now"]), None),
        Asked(f"~{far:,}", lambda versions: versions.refs.resolve_commit(f"main~{far}"), 50.0),
        Asked(f"a branch made at ~{far:,}", partial(_branch, back=far), 50.0),
        Asked("a merge base, branches of a tenth", lambda versions: versions.history.merge_base("left", "right"), 50.0),
        Asked("a three-dot diff of these", lambda versions: versions.history.diff_refs("left", "right"), 50.0),
        Asked("a merge of these", _merge, 50.0),
        Asked("the commits prepared for a collector", prepare, 12_000.0),
    ]


async def _branch(versions: Versions, back: int) -> object:
    return await versions.refs.create_branch(f"b{time.monotonic_ns()}", f"main~{back}")


async def _merge(versions: Versions) -> object:
    name, note = f"m{time.monotonic_ns()}", Note(message="m", committer="c")
    await versions.refs.create_branch(name, "left")
    return await versions.merges.merge(name, "right", note, strategy="source-wins", allow_empty=True)


class Took(NamedTuple):
    cpu_ms: float
    stretch_ms: float
    wall_s: float


async def timed(work: Callable[[], Awaitable[object]]) -> Took:
    """Take a turn as often as the loop lets us, and see how much CPU its thread used in between."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    watcher = asyncio.create_task(watch())
    gc.collect()
    gc.freeze()  # as a server does
    gc.set_threshold(50_000, 20, 50)
    await asyncio.sleep(0.005)
    longest, cpu, wall = 0.0, time.process_time(), time.perf_counter()
    await work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    await asyncio.sleep(0.005)
    watcher.cancel()
    return Took(1_000 * cpu, 1_000 * longest, wall)


def figures(folder: Path, asked: Asked, repeat: int) -> list[Figure]:
    took = []
    for _ in range(repeat + 1):
        with opened(folder) as (runner, versions):
            # Compile its SQL and open its files. No later request looks at these commits first.
            runner.run(versions.history.log("left~50"))
            took.append(runner.run(timed(partial(asked.run, versions))))
    took = took[1:]  # The first one imports what the others have.
    cpu = [each.cpu_ms for each in took]
    stretches = [each.stretch_ms for each in took]
    cpu_s, wall_s = statistics.median(cpu) / 1_000, [each.wall_s for each in took]
    return [
        Figure.of(f"log {what}", values, unit="ms", limit=limit, cpu_s=cpu_s, wall_s=wall_s)
        for what, values, limit in (
            (asked.what, cpu, asked.limit_ms),
            ("  longest stretch of the loop", stretches, STRETCH_MAX_MS),
        )
    ]


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    with tempfile.TemporaryDirectory() as folder:
        in_process("embedded.log", folder, COMMITS[size])
        for asked in requests(COMMITS[size]):
            yield partial(figures, Path(folder), asked)


BENCH = Bench(name="log", parts=parts)


if __name__ == "__main__":
    with opened(Path(sys.argv[1])) as (runner, versions):
        runner.run(stage(versions, int(sys.argv[2])))
