"""The retention rules' verdict on a million commits of a thousand branches: what the driver of a committed collection
computes from the tables COMMITS and REFS before it reads any metarange. CPU seconds.

Two fifths of the commits are the main branch's, one in twenty dangles, the others are on branches that leave the main
one somewhere; a tenth of them are merges. Rules: a default, twenty globs and exact names, and pins. Dates are an hour
apart along the main branch, so most of it is expired. Every commit has its own metarange.

Sketch: the row of each first parent 0.2 s (one index of a million ids), one walk over the history 0.1, dates and first
parents 0.05, the table of metaranges 0.15.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.gc.mark.inputs.history import Judged, judge
from lakebed.gc.messages import COMMITS, REFS, arrow_schema
from lakebed.gc.rules import BranchRule, KeepLast, Rules

from .harness import Bench, Single, Work

COMMIT_COUNT = {"small": 20_000, "full": 1_000_000}
BRANCHES = {"small": 50, "full": 1_000}
HOUR_MS = 3_600_000
NOW_MS = 1_790_000_000_000
RULES = Rules(
    default="7d",
    branches=(
        BranchRule(pattern="main", period="6mo"),
        *(BranchRule(pattern=f"team-{team}/*", period=f"{team + 1}d") for team in range(10)),
        *(BranchRule(pattern=f"team-0/branch-{number}", period="30d") for number in range(10)),
    ),
    keep_last=(KeepLast(pattern="main", commits=1_000), KeepLast(pattern="team-1/*", commits=10)),
)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)

Numbers = npt.NDArray[np.int64]


def history(commits: int, branches: int) -> tuple[pa.Table, pa.Table]:
    """COMMITS and REFS."""
    main, dangling = commits * 2 // 5, commits // 20
    each = (commits - main - dangling) // (branches - 1)
    random = np.random.default_rng(1)
    parent, generation, heads = np.arange(-1, main - 1), np.arange(1, main + 1), [main - 1]
    for start in random.integers(main // 2, main, branches - 1).tolist():
        first = len(parent)
        parent = np.append(parent, [start, *range(first, first + each - 1)])
        generation = np.append(generation, np.arange(each) + generation[start] + 1)
        heads.append(len(parent) - 1)
    rest = commits - len(parent)
    loose = random.integers(0, len(parent), rest)
    parent, generation = np.append(parent, loose), np.append(generation, generation[loose] + 1)
    merged = np.where(random.integers(0, 10, commits) == 0, random.integers(0, main, commits), -1)
    order = np.argsort(generation, kind="stable")
    return _commits(parent, generation, merged, order), _refs(heads)


def _commits(parent: Numbers, generation: Numbers, merged: Numbers, order: Numbers) -> pa.Table:
    ids = _ids(np.arange(len(parent)))
    firsts, seconds = parent[order], merged[order]
    both = np.stack((firsts, seconds), axis=1).ravel()
    counts = np.cumsum((firsts >= 0).astype(np.int32) + (seconds >= 0))
    named = ids.take(pa.array(both[both >= 0]))
    columns = {
        "id": ids.take(pa.array(order)),
        "generation": generation[order],
        "creation_date": NOW_MS - (generation.max() - generation[order]) * HOUR_MS // 10,
        "metarange_id": _ids(order + 10**9),
        "parents": pa.ListArray.from_arrays(np.append(0, counts).astype(np.int32), named),
        "swept": np.zeros(len(order), np.bool_),
        "expiring": np.zeros(len(order), np.bool_),
    }
    return pa.table(columns).cast(arrow_schema(COMMITS))


def _refs(heads: list[int]) -> pa.Table:
    names = ["main", *(f"team-{number % 20}/branch-{number}" for number in range(1, len(heads)))]
    ids = _ids(np.array(heads)).to_pylist()
    columns = {"kind": ["branch"] * len(heads), "name": names, "commit_id": ids, "state": ["active"] * len(heads)}
    return pa.table(columns).cast(arrow_schema(REFS))


def _ids(numbers: Numbers) -> pa.Array:
    """64 hex digits each."""
    words = numbers.astype(np.uint64)[:, None] * np.array([[3, 5, 7, 11]], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    octets = words.view(np.uint8).reshape(len(numbers), 32)
    digits = _HEX[np.stack((octets >> 4, octets & 15), axis=2)]
    offsets = pa.py_buffer(np.arange(0, 64 * len(numbers) + 1, 64, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), len(numbers), [None, offsets, pa.py_buffer(digits.tobytes())])


@contextmanager
def ours(commits: pa.Table, refs: pa.Table) -> Iterator[Work]:
    def run() -> None:
        check(judge(commits, refs, RULES, now_ms=NOW_MS))

    yield Work(run=run)


def check(judged: Judged) -> None:
    kept, expired = int(judged.kept.sum()), int(judged.expired.sum())
    assert kept + expired == judged.commits.num_rows, (kept, expired)
    assert min(kept, expired) > 0, (kept, expired)


def parts(size: str) -> Iterator[Single]:
    commits, refs = history(COMMIT_COUNT[size], BRANCHES[size])
    yield Single(
        what=f"active: {commits.num_rows:,} commits, {refs.num_rows:,} branches",
        limit=1.0,
        ours=partial(ours, commits, refs),
    )


BENCH = Bench(name="active", parts=parts)
