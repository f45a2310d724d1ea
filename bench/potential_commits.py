"""Potential commits of the lifecycle document among a million commits of a thousand branches, from the table COMMITS:
which they are, and the set of branches that reaches each. CPU seconds and memory.

The history is that of `active`. Of twenty rules each names its own branches; the runs before took half of them.

Sketch: the index of a million ids 0.2 s, one walk that ORs sets of a thousand bits 0.3, dates by set 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from lakebed.gc.rules.lifecycle import Potential, potential_rows

from .active import BRANCHES, COMMIT_COUNT, HOUR_MS, NOW_MS, history
from .harness import Bench, Single, Work


def earliest(names: list[str]) -> dict[str, int | None]:
    """As twenty rules leave it: a date of its own for every second branch of a team, and one for all others."""
    dates = {name: NOW_MS - (place % 20) * 24 * HOUR_MS for place, name in enumerate(names) if place % 2}
    return {"": NOW_MS - 30 * 24 * HOUR_MS, **dates}


@contextmanager
def ours(commits: pa.Table, refs: pa.Table) -> Iterator[Work]:
    heads = dict(zip(refs["name"].to_pylist(), refs["commit_id"].to_pylist(), strict=True))
    since = earliest([*heads])

    def run() -> None:
        check(potential_rows(commits, branches=heads, held=[], earliest=since), commits.num_rows)

    yield Work(run=run)


def check(found: Potential, commits: int) -> None:
    assert 0 < len(found.rows) < commits
    assert all(found.branches(number) for number in found.set_of[:10].tolist())


def parts(size: str) -> Iterator[Single]:
    commits, refs = history(COMMIT_COUNT[size], BRANCHES[size])
    yield Single(
        what=f"potential-commits: {commits.num_rows:,} commits, {refs.num_rows:,} branches",
        limit=2.0,
        ours=partial(ours, commits, refs),
    )


BENCH = Bench(name="potential-commits", parts=parts)
