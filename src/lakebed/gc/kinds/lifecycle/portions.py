"""Plan due objects from saved hours, without a join. Hours select the objects, rows only give their paths.

Many ranges may name an object, and a plan has it once. So ranges that share a slice with due objects form a *portion*:

1. `portions_of` joins ranges that share such a slice. So no two portions name the same object.
2. A task reads whole portions, and puts each of their objects into the plan once.

Foreign keys have no hours. With these, or with held objects, a run joins instead (mark.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lakebed.base import RangeId, slice_name
from lakebed.gc.engines import Engine, Task
from lakebed.gc.engines.engine import PARTS, Table, required
from lakebed.gc.mark.inputs.ranges import effort_of_whole, first_folders, get_range, texts_of
from lakebed.gc.mark.mark import sum_parts, write_ordered
from lakebed.gc.mark.sets.packing import CAUSE, Integers, Rows, each_once
from lakebed.gc.messages import BadInput, Manifest, Pieces, Totals

from .rows import LIFECYCLE, Bitmap, Judging, goes_of, open_range, read_going, rows_that_go

HELD_MAX: Final = 100_000
"""A task writes its portions as soon as they have this many objects."""

PORTIONS: Final = Table("some ranges, and all that they alone name", required(("portion", pa.int64())))


def portions_of(slices_of: Mapping[str, Sequence[int]]) -> list[list[str]]:
    """Join ranges that share a slice. `slices_of` has for each range its slices with due objects, at least one."""
    # A union-find: `above` leads from a slice to the root of its portion.
    above: dict[int, int] = {}

    def root(slice_: int) -> int:
        while (next_ := above.setdefault(slice_, slice_)) != slice_:
            above[slice_] = above[next_]
            slice_ = next_
        return slice_

    for slices in slices_of.values():
        for slice_ in slices:
            above[root(slice_)] = root(slices[0])
    found: dict[int, list[str]] = {}
    for id_, slices in sorted(slices_of.items()):
        found.setdefault(root(slices[0]), []).append(id_)
    return [*found.values()]


async def mark_going(
    engine: Engine,
    ranges: pa.Table,
    judging: Judging,
    portions: Sequence[Sequence[str]],
    *,
    groups: Mapping[str, Sequence[int]],
    going: Pieces,
    into: str,
    now_ms: int,
) -> tuple[Manifest, Totals]:
    """Write GARBAGE: the objects of these row groups that are `going`, a bitmap (LIVE) for each slice. No foreign keys.

    Raises:
        BadInput: a slice is open, a row stays by its own range, or a part is missing or altered.
    """
    facts = {row["range_id"]: row for row in ranges.to_pylist()}
    closed = frozenset(judging.closed.to_pylist())

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        bitmaps = await read_going(task.store, going)
        # Plans take objects of closed slices only.
        if open_ := sorted(bitmaps.keys() - closed):
            raise BadInput(f"slice {slice_name(open_[0])} is open, and hours say that something of it goes")
        mine = [portions[number] for number in share["portion"].to_pylist()]
        last = {portion[-1] for portion in mine}

        async def verdicts() -> AsyncIterator[pa.Table]:
            batch = _Batch(judging)
            ids = [id_ for portion in mine for id_ in portion]
            async for name, data in task.ahead(ids, lambda id_: get_range(task.store, RangeId(id_))):
                batch.add(name, data, facts[name], groups[name], bitmaps)
                # Cut only between portions: several ranges of a portion may name the same object.
                if name in last and batch.held >= HELD_MAX:
                    yield batch.verdicts()
                    batch = _Batch(judging)
            if batch.held:
                yield batch.verdicts()

        async for part in write_ordered(task, into, verdicts(), now_ms=now_ms):
            yield part

    rows = PORTIONS.rows({"portion": [*range(len(portions))]})
    return sum_parts(await engine.run(work, rows, PARTS, effort=effort_of_whole(ranges)), into)


class _Batch:
    """Hold the rows of due objects in some portions, and their causes by number."""

    def __init__(self, judging: Judging) -> None:
        self.held = 0
        self._judging = judging
        self._rows: list[Rows] = []
        self._causes: dict[tuple[str, ...], int] = {}

    def add(
        self,
        name: str,
        data: bytes,
        fact: Mapping[str, Any],
        groups: Sequence[int],
        bitmaps: Mapping[int, Bitmap],
    ) -> None:
        """Add the rows of these row groups whose objects are in the bitmaps."""
        policy, number = self._judging.policy, fact["terms"]
        file = open_range(RangeId(name), data, fact["count"])
        goes = goes_of(file.table(["slice", "sequence"], groups), bitmaps)
        rows = rows_that_go(file, policy, groups, goes, with_addresses=False)
        if not rows.num_rows:
            return
        rule_of, is_due = self._judging.judge(rows, number)
        # The saved hours are wrong, so delete nothing by them.
        if not is_due.all():
            raise BadInput(f"range {name} has rows that stay, and hours say that they go", range_id=name)
        self.held += rows.num_rows
        self._rows.append(
            Rows(
                slices=rows["slice"].to_numpy(),
                sequences=rows["sequence"].to_numpy().astype(np.int64),
                sizes=rows["size_bytes"].to_numpy(),
                seen_ms=rows["modified_ms"].to_numpy(),
                causes=self._causes_of(rows, rule_of, number),
                paths=texts_of(rows["key"]),
            )
        )

    def _causes_of(self, rows: pa.Table, rule_of: Integers, number: int) -> Integers:
        texts = [rule.text() for rule in self._judging.policy.rules]
        branches, found = self._judging.terms[number].branches, np.empty(rows.num_rows, np.int64)
        for prefix, start, stop in first_folders(rows["key"]):
            part = slice(start, stop)
            for rule in np.unique(rule_of[part]).tolist():
                cause = (LIFECYCLE, texts[rule], branches[rule], prefix)
                found[part][rule_of[part] == rule] = self._causes.setdefault(cause, len(self._causes))
        return found

    def verdicts(self) -> pa.Table:
        """Return VERDICTS, each object once."""
        texts = zip(*self._causes, strict=True)
        causes = pa.table({name: pa.array(column, pa.string()) for name, column in zip(CAUSE, texts, strict=True)})
        *numbers, paths = zip(*self._rows, strict=True)
        slices, sequences, sizes, seen_ms, of_rows = (np.concatenate(column) for column in numbers)
        return each_once(
            causes, Rows(slices, sequences, sizes, seen_ms, of_rows, pa.concat_arrays(paths)), all_names=True
        )
