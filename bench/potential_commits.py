"""Potential commits of the lifecycle document among a million commits of a thousand branches, from the table COMMITS:
which they are, and the set of branches that reaches each. CPU seconds and memory, in a process that reads the table
from a file: making the history takes more than the rest.

The history is that of `active`. Of twenty rules each names its own branches; the runs before took half of them.

Sketch: the index of a million ids 0.2 s, one walk that ORs sets of a thousand bits 0.3, dates by set 0.1.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa

from lakebed.gc.rules.lifecycle import Potential, potential_rows

from .active import BRANCHES, COMMIT_COUNT, HOUR_MS, NOW_MS, history
from .harness import Bench, Figure, own_peak_mib
from .mark import run


def earliest(names: list[str]) -> dict[str, int | None]:
    """As twenty rules leave it: a date of its own for every second branch of a team, and one for all others."""
    dates = {name: NOW_MS - (place % 20) * 24 * HOUR_MS for place, name in enumerate(names) if place % 2}
    return {"": NOW_MS - 30 * 24 * HOUR_MS, **dates}


class Took(msgspec.Struct, kw_only=True):
    cpu_s: float
    wall_s: float
    peak_mib: float


def once(folder: Path) -> Took:
    """In a process of its own."""
    commits, refs = (_read(folder / name) for name in ("commits.arrow", "refs.arrow"))
    heads = dict(zip(refs["name"].to_pylist(), refs["commit_id"].to_pylist(), strict=True))
    since = earliest([*heads])
    cpu, wall = time.process_time(), time.perf_counter()
    found = potential_rows(commits, branches=heads, held=[], earliest=since)
    took = Took(cpu_s=time.process_time() - cpu, wall_s=time.perf_counter() - wall, peak_mib=own_peak_mib())
    check(found, commits.num_rows)
    return took


def check(found: Potential, commits: int) -> None:
    assert 0 < len(found.rows) < commits
    assert all(found.branches(number) for number in found.set_of[:10].tolist())


def _read(file: Path) -> pa.Table:
    with pa.OSFile(str(file)) as source:
        return pa.ipc.open_file(source).read_all()


def _write(file: Path, rows: pa.Table) -> None:
    with pa.ipc.new_file(str(file), rows.schema) as writer:
        writer.write_table(rows)


def take(folder: Path, commits: int, branches: int, repeat: int) -> list[Figure]:
    took = [msgspec.json.decode(run("potential_commits", folder), type=Took) for _ in range(repeat)]
    cpu_s = [each.cpu_s for each in took]
    return [
        Figure(
            what=f"potential-commits: {commits:,} commits, {branches:,} branches",
            value=statistics.median(cpu_s),
            value_min=min(cpu_s),
            value_max=max(cpu_s),
            unit="s",
            limit=2.0,
            cpu_s=statistics.median(cpu_s),
            wall_s=statistics.median(each.wall_s for each in took),
            peak_mib=max(each.peak_mib for each in took),
            peak_limit_mib=500,
        )
    ]


def parts(size: str) -> Iterator[Callable[[int], list[Figure]]]:
    commits, refs = history(COMMIT_COUNT[size], BRANCHES[size])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "commits.arrow", commits)
        _write(folder / "refs.arrow", refs)
        yield partial(take, folder, commits.num_rows, refs.num_rows)


BENCH = Bench(name="potential-commits", parts=parts)

if __name__ == "__main__":
    print(msgspec.json.encode(once(Path(sys.argv[1]))).decode())
