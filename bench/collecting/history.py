"""Commits and branches as a run reads them, made up: main, branches that begin in it, and commits that none has."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.embedded.lake import in_hex
from lakebed.gc.messages import COMMITS, REFS, arrow_schema

HOUR_MS = 3_600_000
NOW_MS = 1_790_000_000_000

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
    return in_hex(words.view(np.uint8).reshape(len(numbers), 32))
