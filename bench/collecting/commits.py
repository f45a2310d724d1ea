"""Writing down a million commit records and a thousand branches for a collector: PrepareGarbageCollectionCommits;
embedded, SQLite in a file, blocks in a local folder, both durable. CPU seconds, and the memory of the process.

The history is that of history.py, with a message, a committer and a little metadata in each record. It is staged by a
process of its own (`python -m bench.collecting.commits FOLDER COMMITS BRANCHES`), so that neither its time nor its
memory counts.

Sketch: for each commit 0.7 µs to scan its record, 1.5 to decode it, 1 to put it into columns, 1 to encode those: 4 s.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from bench.harness import Bench, Single, Work
from lakebed.base import CommitId, MetarangeId, StagingToken
from lakebed.gc.live import CollectionService
from lakebed.gc.messages import PrepareCommits, RunKind, StartRun
from lakebed.versions import Commit, Versions, encode_record, keys

from .history import history
from .prepare import opened

BATCH = 5_000

COMMITS = {"small": 20_000, "full": 1_000_000}
BRANCHES = {"small": 50, "full": 1_000}


async def stage(versions: Versions, commits: int, branches: int) -> None:
    await versions.commits.initialise("main")
    record = (await versions.context.branches.every())[0][1]
    table, refs = history(commits, branches)
    order = pa.array(np.argsort(table["id"].to_numpy(zero_copy_only=False)))
    for start in range(0, commits, BATCH):
        rows = table.take(order.slice(start, BATCH)).to_pylist()
        items = [(keys.COMMIT + row["id"].encode(), encode_record(commit(row))) for row in rows]
        await versions.store.set_many(versions.partition, items)
    for ref in refs.to_pylist():
        head = replace(record, commit_id=CommitId(ref["commit_id"]), staging_token=StagingToken(ref["name"]))
        await versions.store.set(versions.partition, keys.BRANCH + ref["name"].encode(), encode_record(head))


def commit(row: dict[str, Any]) -> Commit:
    return Commit(
        generation=row["generation"],
        message=f"load of {row['creation_date']:%Y-%m-%d %H:%M}",
        committer="etl",
        created_ms=int(row["creation_date"].timestamp() * 1000),
        metarange_id=MetarangeId(row["metarange_id"]),
        parents=tuple(row["parents"]),
        metadata={"job": "nightly"},
        made_for="main",
        nonce=row["id"][:20],
        published=True,
    )


@contextmanager
def ours(folder: Path, commits: int) -> Iterator[Work]:
    with opened(folder) as (runner, versions):

        async def prepare() -> None:
            service = CollectionService(versions)
            started = await service.start(StartRun(kind=RunKind.COMMITTED))
            prepared = await service.prepare_commits(started.run_id, PrepareCommits(kind=RunKind.COMMITTED))
            # And the one that the repository was made with.
            assert prepared.commits.rows == commits + 1, prepared.commits.rows

        yield Work(run=lambda: runner.run(prepare()))


def parts(size: str) -> Iterator[Single]:
    commits, branches = COMMITS[size], BRANCHES[size]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "bench.collecting.commits", folder, str(commits), str(branches)], check=True
        )
        yield Single(
            what=f"commits: {commits:,} records of {branches:,} branches",
            limit=10.0,
            ours=partial(ours, Path(folder), commits),
            peak_limit_mib=500.0,
        )


BENCH = Bench(name="commits", parts=parts)


if __name__ == "__main__":
    with opened(Path(sys.argv[1])) as (runner, versions):
        runner.run(stage(versions, int(sys.argv[2]), int(sys.argv[3])))
