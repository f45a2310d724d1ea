"""Learn the ranges and hours of all commits for a lifecycle run, from the changes since an earlier run or from scratch.

A clean run has no earlier run, so one function does both. hours.py and trees.py have the tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, count_of
from lakebed.gc import messages
from lakebed.gc.engines.engine import LIVE, read_part
from lakebed.gc.mark.inputs.ranges import ListedRanges
from lakebed.gc.mark.sets.bucketed import Bucketed, Dealer, files_of
from lakebed.gc.messages import BadInput, KnownDues, Manifest, Pieces, Plan, StartedRun
from lakebed.gc.rules.lifecycle import Policy
from lakebed.gc.runs.context import RunContext, folder_in, write_piece
from lakebed.objectstore import ObjectStore

from .hours import (
    HOURS,
    READ_RANGES,
    ROWS_MAX,
    Dues,
    ReadRange,
    TooSparse,
    known_ranges,
    read_dues,
    read_hours,
    read_pieces,
    rows_of_known,
    to_read,
    write_hours,
)
from .reaching import SPANS, Periods, Ranges, Reached, keeps_versions
from .rows import MIXED, rule_of_span
from .sorting import in_rows, sort_ranges
from .trees import TreeParts

CHANGED_MAX: Final = 0.5
SPANS_HELD: Final = 65_536
"""Make Python objects of at most this many ranges at a time: a million would take 0.4 GiB."""


@dataclass(slots=True)
class Known:
    """Hold the trees, ranges and hours of a history. In `dues`, the objects of the runs in `taken` are marked TAKEN."""

    trees: TreeParts
    ranges: dict[str, ReadRange]
    dues: Dues
    taken: tuple[str, ...] = ()

    @property
    def has_foreign(self) -> bool:
        return any(read.has_foreign for read in self.ranges.values())

    async def take(self, context: RunContext, gone: Mapping[str, Manifest]) -> None:
        """Mark the objects that these runs (tables GARBAGE) deleted."""
        for run_id, table in gone.items():
            if run_id in self.taken:
                continue
            for part in table.parts:
                data = await read_part(context.store, table.folder, part)
                rows = messages.read_part(table, messages.GARBAGE, part, data, ["slice", "sequence"])
                rows = rows.filter(pc.not_equal(rows["slice"], FOREIGN_SLICE))
                self.dues.take(rows["slice"].to_numpy(), rows["sequence"].to_numpy())
        self.taken = (*self.taken, *(run_id for run_id in gone if run_id not in self.taken))

    async def write_going(self, context: RunContext, run: StartedRun, slices: Iterable[int], *, folder: str) -> Pieces:
        """Write the objects of these slices (LIVE) that are due at the run's now and not deleted yet."""
        rows = self.dues.bitmaps(slices, run.now_ms).rows()
        return await write_piece(context.store, folder, "going-all.parquet", LIVE, rows)

    async def deal_staying(
        self, context: RunContext, run: StartedRun | Plan, slices: Iterable[int], *, folder: str
    ) -> Bucketed:
        """Write the objects of these slices (LIVE) that are not due at the run's now, or were deleted."""
        dealer = Dealer(LIVE)
        dealer.add(self.dues.staying(slices, run.now_ms).rows())
        return files_of(folder, await dealer.write(context.store, folder))

    async def keep(self, context: RunContext, run: StartedRun, base: Base | None) -> KnownDues:
        """Write all of it into the run's folder, for the next run."""
        folder = folder_in(run, "known")
        trees = await self.trees.in_folder(context.store, folder)
        rows, terms = rows_of_known(self.ranges)
        return KnownDues(
            trees=trees.narrow,
            wide=trees.wide,
            sublists=trees.sublists,
            ranges=await write_piece(context.store, folder, "ranges-all.parquet", READ_RANGES, rows),
            hours=await write_hours(context.store, folder, self.dues),
            terms=terms,
            taken=self.taken,
            clean_run=run.run_id if base is None else base.clean_run,
            runs_since_clean=0 if base is None else base.runs_since_clean + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Hold the saved state of an earlier run."""

    run_id: str
    known: Known
    clean_run: str
    runs_since_clean: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Hold the ranges, and the hours in `known` unless None. `base` is the earlier run that was used in the end, and
    `note` may say why none was.
    """

    ranges: Ranges
    known: Known | None = None
    base: Base | None = None
    note: str = ""


async def read_known(store: ObjectStore, run_id: str, saved: KnownDues) -> Base:
    """Read the saved state of an earlier run, or raise BadInput."""
    ranges: dict[str, ReadRange] = {}
    async for rows in read_pieces(store, saved.ranges, READ_RANGES):
        ranges |= known_ranges(rows, saved.terms)
    trees = TreeParts(narrow=saved.trees, wide=saved.wide, sublists=saved.sublists)
    known = Known(trees=trees, ranges=ranges, dues=await read_hours(store, saved.hours), taken=saved.taken)
    return Base(run_id=run_id, known=known, clean_run=saved.clean_run, runs_since_clean=saved.runs_since_clean)


async def learn(
    context: RunContext,
    run: StartedRun | Plan,
    policy: Policy,
    reached: Reached,
    base: Base | None,
    *,
    reads_rows: bool = True,
    changed_max: float = CHANGED_MAX,
    suffix: str = "",
) -> Learned:
    """Return the ranges of the history, and the hour from which each object is due, or raise BadInput, EmptyLiveSet or
    TaskCorrupt. Takes over the hours of `base`.

    If more than the share `changed_max` of all ranges must be read, read all of them without `base`.
    """
    read = partial(
        sort_ranges,
        context.engine,
        context.store,
        reached,
        policy,
        folder=folder_in(run, f"known{suffix}"),
        tell=context.progress,
    )
    note = ""
    try:
        trees, ranges = await read(TreeParts() if base is None else base.known.trees)
    except BadInput as error:
        if base is None:
            raise
        base, note = None, str(error)
        trees, ranges = await read(TreeParts())
    rows = sum(ListedRanges(some).entries for some in (ranges.due, ranges.whole))
    if not reads_rows or keeps_versions(policy) or rows > ROWS_MAX:  # A version depends on others: it has no hour.
        return Learned(ranges=ranges, note=note)
    ranges = await in_rows(context, ranges)
    count = ranges.due.num_rows + ranges.whole.num_rows
    known = Known(trees=trees, ranges={}, dues=Dues())
    rules_of = partial(_rules_of, ranges, policy)
    todo = to_read(ranges, {} if base is None else base.known.ranges, rules_of)
    if base is not None and todo.ranges.num_rows > changed_max * count:
        base, note = None, "most of what is named has changed"
        todo = to_read(ranges, {}, rules_of)
    if base is not None:  # Slices that begin anew forget their hours, except TAKEN: `todo` has all their ranges.
        known.dues, known.taken = base.known.dues, base.known.taken
        known.dues.begin_anew(todo.anew)
    context.progress(f"reading {count_of(todo.ranges.num_rows, 'range')} of {count:,}")
    periods = [terms.periods for terms in ranges.terms]
    folder = folder_in(run, f"dues.tasks{suffix}")
    dues, facts = await read_dues(
        context.engine, todo.ranges, periods, policy, known=todo.groups, uri=run.namespace, folder=folder
    )
    try:
        await _add_read(context.store, known, dues, facts, todo.known, periods)
    except TooSparse:
        return Learned(ranges=ranges)
    return Learned(ranges=ranges, known=known, base=base, note=note)


async def _add_read(
    store: ObjectStore,
    known: Known,
    dues: Pieces,
    facts: Pieces,
    before: Mapping[str, ReadRange],
    periods: Sequence[tuple[Periods, ...]],
) -> None:
    """Add to `known` the hours and ranges that were read now, and the ranges that were known `before`.

    Raises:
        TooSparse: a sequence is too large for hours.
    """
    async for table in read_pieces(store, dues, HOURS):
        known.dues.add_rows(table)
    known.ranges |= before
    async for table in read_pieces(store, facts, READ_RANGES):
        known.ranges |= known_ranges(table, periods)


def _rules_of(ranges: Ranges, policy: Policy, ids: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """Return the rule of the policy for each of these ranges, MIXED where several apply."""
    at = pc.index_in(ids, value_set=ranges.due["range_id"])
    # The rule of a whole range does not matter, because none of its rows is due.
    found = np.full(len(at), MIXED, np.int32)
    is_due = at.is_valid().to_numpy()
    at, rules = at.filter(pa.array(is_due)), np.empty(int(is_due.sum()), np.int32)
    for start in range(0, len(at), SPANS_HELD):
        some = at.slice(start, SPANS_HELD)
        spans = zip(*(ranges.spans[name].take(some).to_pylist() for name in SPANS.schema.names), strict=True)
        rules[start : start + len(some)] = [rule_of_span(policy, *span) for span in spans]
    found[is_due] = rules
    return found


def only_ranges(ranges: Ranges, chosen: Collection[str]) -> Ranges:
    """Return the ranges that `with_due` chose: `due` ones to read by rows, and `whole` ones with foreign keys."""
    ids = pa.array(sorted(chosen), pa.string())
    due, whole = (table.filter(pc.is_in(table["range_id"], value_set=ids)) for table in (ranges.due, ranges.whole))
    return Ranges(due=due, terms=ranges.terms, whole=whole)
