"""A listing with a delimiter of a thousand committed folders, or a hundred staged, of 10,000 objects each: CPU for each
folder, embedded, as pages of 1,000 are asked for. `cold` has nothing in its cache; *cached* all ranges that it reads.

`python -m bench folders [committed|cached|staged]…`. The library's own writer writes the tree to a local folder, and
cells lie in SQLite. A process of its own makes them (`python -m bench.folders FOLDER COMMITTED STAGED OBJECTS`), so
that its memory does not count.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lakebed.base import EMPTY_METARANGE, CommitId, to_row
from lakebed.ranges import CHANGES_SCHEMA
from lakebed.server.app import TREE_CACHE_BYTES
from lakebed.versions import EXCLUSIVE, Commit, Versions, encode_cell, encode_record, keys

from .commit import rows
from .harness import Bench, Figure, own_peak_mib
from .lake import puts
from .prepare import opened

LIMIT_MS: Final = 0.2
PAGE: Final = 1_000
COMMITTED: Final = CommitId("c" * 64)
BUILT_TOGETHER: Final = 250_000


class Size(NamedTuple):
    committed: int
    staged: int
    objects: int


SIZES: Final = {"small": Size(20, 10, 50), "full": Size(1_000, 100, 10_000)}
CACHES: Final = {"committed": TREE_CACHE_BYTES, "cached": 4 << 30, "staged": TREE_CACHE_BYTES}


def _key(folder: int, number: int) -> bytes:
    return b"events/day=%05d/part-%05d.parquet" % (folder, number)


async def make(versions: Versions, size: Size) -> None:
    """Make a commit with folders, and a branch `main` without any, on which others are staged."""
    await versions.commits.initialise("main")
    [(_, record)] = await versions.context.branches.every()
    tree, together = EMPTY_METARANGE, max(1, BUILT_TOGETHER // size.objects)
    for first in range(0, size.committed, together):
        numbers = np.arange(first * size.objects, min(first + together, size.committed) * size.objects)
        table = puts(numbers, generation=0)
        named = [_key(number // size.objects, number % size.objects) for number in numbers.tolist()]
        table = table.set_column(0, CHANGES_SCHEMA.field("key"), pa.array(named, pa.binary()))
        tree = (await versions.context.trees.apply(tree, table)).metarange_id
    commit = Commit(
        generation=2,
        message="folders",
        committer="etl",
        created_ms=1,
        metarange_id=tree,
        parents=(record.commit_id,),
        made_for="main",
        nonce="folders",
        published=True,
    )
    await versions.store.set(versions.partition, keys.COMMIT + COMMITTED.encode(), encode_record(commit))
    partition = keys.token_partition(versions.uid, record.staging_token)
    for folder in range(size.staged):
        found = rows(size.objects, first=folder * size.objects)
        named = [_key(folder, number) for number in range(size.objects)]
        cells = [
            (key, encode_cell(EXCLUSIVE, to_row(key, entry))) for key, (_, entry) in zip(named, found, strict=True)
        ]
        await versions.store.set_many(partition, cells)


async def list_folders(versions: Versions, ref: str) -> int:
    """Page by page; return how many there were."""
    after, count, more = b"", 0, True
    while more:
        page = await versions.staging.list(ref, prefix=b"events/", after=after, delimiter=b"/", limit=PAGE)
        count, more = count + len(page.items), page.has_more
        after = page.items[-1][0]
    return count


def figure(folder: Path, what: str, size: Size, repeat: int) -> list[Figure]:
    ref, count = ("main", size.staged) if what == "staged" else (COMMITTED, size.committed)
    took_s: list[tuple[float, float]] = []
    cold: list[float] = []
    with opened(folder, cache_bytes=CACHES[what]) as (runner, versions):
        for turn in range(repeat + 1):
            began, began_s = time.process_time(), time.perf_counter()
            found = runner.run(list_folders(versions, ref))
            cpu_s, wall_s = time.process_time() - began, time.perf_counter() - began_s
            assert found == count, found
            if turn:
                took_s.append((cpu_s, wall_s))
            else:
                cold.append(cpu_s)
    cpu_s, wall_s = (statistics.median(values) for values in zip(*took_s, strict=True))
    named = f"folders {what}, {count:,} of {size.objects:,} objects"
    each_ms = partial(_figure, cpu_s=cpu_s, wall_s=wall_s)
    return [
        each_ms(named, [1_000 * cpu / count for cpu, _ in took_s]),
        each_ms(f"{named}, cold", [1_000 * cpu / count for cpu in cold]),
    ]


def _figure(what: str, values_ms: Sequence[float], *, cpu_s: float, wall_s: float) -> Figure:
    return Figure(
        what=what,
        value=statistics.median(values_ms),
        value_min=min(values_ms),
        value_max=max(values_ms),
        unit="ms",
        limit=None if what.endswith("cold") else LIMIT_MS,
        cpu_s=cpu_s,
        wall_s=wall_s,
        peak_mib=own_peak_mib(),
    )


def parts(wanted: Sequence[str], size: str) -> Iterator[Callable[[int], list[Figure]]]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "bench.folders", folder, *map(str, SIZES[size])], check=True)
        for what in wanted:
            yield partial(figure, Path(folder), what, SIZES[size])


def narrowed(given: Sequence[str]) -> Bench:
    if unknown := set(given) - set(CACHES):
        raise ValueError(f"no such part: {', '.join(sorted(unknown))}")
    return Bench(name="folders", parts=partial(parts, given))


BENCH = Bench(name="folders", parts=partial(parts, [*CACHES]), narrowed=narrowed)


if __name__ == "__main__":
    with opened(Path(sys.argv[1])) as (runner, versions):
        runner.run(make(versions, Size(*map(int, sys.argv[2:5]))))
