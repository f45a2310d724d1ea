"""A run of uncommitted data deletes objects of slices that nothing names.

The order of docs/design/protocols.md makes it safe:

1. Record the run, and read the closed slices and the addresses handed out.
2. List slices.
3. Read staged, uploaded and copied addresses. The service has an order of its own for these.
4. Read every commit record, and the trees of the commits.
5. Read the objects of unfinished runs.
6. Set the record to `marked`. If the run was abandoned meanwhile, discard the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Conflict, count_of, slice_name, slice_opened_at_ms
from lakebed.gc import messages
from lakebed.gc.engines.engine import CLOSED, RANGE_IDS, RANGES, without
from lakebed.gc.kinds import Limits, Look, SweepRule, begin_unpublished
from lakebed.gc.kinds.saved import Base, read_base
from lakebed.gc.mark.inputs.listing import Issued, UnknownFiles, find_unknown_files, list_slices, unknown_files_of
from lakebed.gc.mark.inputs.named import check_live, deal_live, from_tables, merge_live, metaranges_of_all
from lakebed.gc.mark.inputs.ranges import ListedRanges, from_ranges, read_ranges
from lakebed.gc.mark.mark import Live, mark_listed
from lakebed.gc.mark.sets.places import may_be_swept
from lakebed.gc.messages import (
    BadInput,
    Cleared,
    Found,
    Keeps,
    Manifest,
    Mode,
    Pieces,
    Plan,
    PreparedCommits,
    RangeCounts,
    RunKind,
    RunMode,
    RunView,
    StartedRun,
    UncommittedOptions,
)
from lakebed.gc.rules import DAY_MS
from lakebed.gc.runs.context import RunContext, counts_of, folder_in, plan_frame, slice_numbers, write_piece
from lakebed.gc.runs.resume import held_tables, runs_over

from .old_layout import OldLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Hold the mode of a run, and the reason for people (`note`). `base` is the saved state for an optimised run."""

    mode: RunMode
    note: str
    base: Base | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Hold the slices to list, and the number of closed slices that are too young (`skipped`)."""

    listed: list[int]
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Hold the objects that commits name (`live`). `commits` are all records, `new_ranges` those of unknown ids."""

    commits: pa.Table
    new_ranges: ListedRanges
    live: Pieces


@dataclass(frozen=True, slots=True)
class Uncommitted:
    options: UncommittedOptions
    name: ClassVar = RunKind.UNCOMMITTED
    rule: ClassVar = SweepRule(may_delete=may_be_swept, look=Look.NOT_YOUNGER)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        """Bind the run to this apply. Its garbage cannot come back, however old the plan is."""
        return await begin_unpublished(context, plan, rules_version)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """Plan, and set the run's record to `marked`.

        Raises:
            BadInput: an input cannot be read, such as the objects of an unfinished run.
            Conflict: the options allow only an optimised run, and none is possible.
        """
        choice = await choose(context, run, self.options)
        context.progress(f"{choice.mode.value} run: {choice.note}")
        base = choice.base
        slices = slices_to_list(run, base, self.options)
        # The listing may show objects of each run that ends after this look.
        before = await context.service.runs()
        over_before = runs_over(before)
        listed, found = await self.listing(context, run, slices.listed)
        context.progress(f"reading what is not committed; {count_of(found.objects, 'object')} listed")
        uncommitted = await context.service.uncommitted(run.run_id)

        async def read_commits(answer: PreparedCommits) -> tuple[PreparedCommits, Committed]:
            return answer, await _read_commits(context, run, base, answer)

        prepared, committed = await context.reread(lambda: context.service.commits(run.run_id), read_commits)
        # Read unfinished runs after commits: a run that swept a commit before shows here.
        held = await held_tables(context, await context.service.runs(), over_before)
        earlier = [] if base is None else [base.saved.keeps.kept, base.saved.failed]
        marked = await mark_listed(
            context.engine,
            [listed, *earlier],
            Live(
                committed=committed.live,
                uncommitted=await _named_in(context, run, [uncommitted], messages.UNCOMMITTED),
                held=await _named_in(context, run, [*held.values()], messages.GARBAGE),
            ),
            into=folder_in(run, "garbage"),
            kept_into=folder_in(run, "kept"),
            now_ms=run.now_ms,
            young_since_ms=prepared.rules.uncommitted_since_ms(run.now_ms) if prepared.rules else None,
        )
        keeps = await _keep(context, run, base, slices.listed, prepared, committed, marked.kept)
        await context.service.marked(run.run_id, marked.garbage)
        around = UnknownFiles() if base else await find_unknown_files(context.engine, context.store)
        return Plan(
            **plan_frame(context, run, prepared),
            uncommitted=uncommitted,
            listing=found,
            mode=choice.mode,
            mode_note=choice.note,
            beside=tuple(held),
            erasures=published_erasures(before),
            based_on=base.saved.run_id if base else "",
            keeps=keeps,
            token_expiry_ms=self.options.token_expiry_ms,
            slices_skipped=slices.skipped,
            last_read_slice=_last_read_slice(base, slices.listed),
            commit_counts=counts_of(committed.commits),
            range_counts=RangeCounts(live=committed.new_ranges.count, expired=0),
            garbage=marked.garbage,
            totals=marked.totals,
            **unknown_files_of(found).plus(around).facts(),
        )

    async def listing(self, context: RunContext, run: StartedRun, slices: Sequence[int]) -> tuple[Pieces, Found]:
        issued = await _issued(context, run, slices)
        context.progress(f"listing {count_of(len(slices), 'closed slice')}")
        return await list_slices(context.engine, slices, folder=folder_in(run, "listed"), issued=issued)


def make(limits: Limits) -> Uncommitted | OldLayout:
    if limits.options.mode is Mode.OLD_LAYOUT:
        return OldLayout(limits.options.old_layout_age_ms)
    return Uncommitted(limits.options)


async def choose(context: RunContext, run: StartedRun, options: UncommittedOptions) -> Choice:
    """Choose a clean or an optimised run.

    A clean run lists every closed slice and reads every commit. An optimised run goes on from the state of an earlier
    run: it lists new slices, reads new commits and ranges, and looks again at kept objects
    (docs/design/0001-uncommitted-gc.md, "Flow 2").

    Raises:
        Conflict: the options allow only an optimised run, and none is possible.
    """
    # An optimised run misses objects that a committed run released, objects that came to an expired address, and those
    # that a restore staged. So make a clean run now and then. Safety does not depend on counts of runs or days.
    if options.mode is Mode.CLEAN:
        return Choice(mode=RunMode.CLEAN, note="asked for")
    try:
        base = await read_base(context, run)
    except BadInput as error:
        if options.mode is Mode.OPTIMISED:
            raise Conflict(f"no optimised run can be made: {error}") from error
        return Choice(mode=RunMode.CLEAN, note=str(error))
    due = _why_clean(base, run, options)
    if due and options.mode is Mode.AUTOMATIC:
        return Choice(mode=RunMode.CLEAN, note=due)
    return Choice(mode=RunMode.OPTIMISED, note=f"goes on from run {base.saved.run_id}", base=base)


def _why_clean(base: Base, run: StartedRun, options: UncommittedOptions) -> str:
    """Return why a clean run is due, or ""."""
    keeps = base.saved.keeps
    if keeps.runs_since_clean + 1 >= options.clean_every:
        return f"{keeps.runs_since_clean} optimised runs since clean run {keeps.clean_run}"
    if run.now_ms - keeps.clean_ms >= options.clean_after_ms:
        return f"clean run {keeps.clean_run} is {(run.now_ms - keeps.clean_ms) // DAY_MS} days old"
    return ""


def published_erasures(views: Sequence[RunView]) -> tuple[str, ...]:
    """Return the ids of erasures whose plans are complete by now. The proof of a certificate needs them."""
    return tuple(view.run_id for view in views if view.kind is RunKind.ERASURE)


def slices_to_list(run: StartedRun, base: Base | None, options: UncommittedOptions) -> Slices:
    """Return the closed slices that no run listed yet, and count those that are too young."""
    # Compare all names, because the order of slices does not give their age.
    closed = np.array(slice_numbers(run.closed_slices), np.int64)
    if base is not None:
        closed = np.setdiff1d(closed, base.slices)
    after_ms = run.now_ms - options.token_expiry_ms
    listed = [
        number for number in closed.tolist() if not options.token_expiry_ms or slice_opened_at_ms(number) <= after_ms
    ]
    return Slices(listed=listed, skipped=len(closed) - len(listed))


async def _issued(context: RunContext, run: StartedRun, slices: Sequence[int]) -> Issued:
    """Return the addresses handed out in these slices. The service read them before the listing."""
    if run.uploads is None:
        raise BadInput("the server did not say which addresses are handed out", input="uploads")
    rows = await context.read(run.uploads, messages.UNCOMMITTED)
    rows = rows.filter(pc.is_in(rows["slice"], value_set=pa.array(slices, pa.int64()))).sort_by("slice")
    numbers, starts = np.unique(rows["slice"].to_numpy(), return_index=True)
    sequences = np.split(rows["sequence"].to_numpy().astype(np.int64), starts[1:])
    issued_ms = np.split(rows["creation_date"].cast(pa.int64()).to_numpy(), starts[1:])
    found: Mapping[int, tuple[np.ndarray, np.ndarray]] = {
        number: (of_it, at) for number, of_it, at in zip(numbers.tolist(), sequences, issued_ms, strict=False)
    }
    return found


async def _named_in(context: RunContext, run: StartedRun, tables: Sequence[Manifest], table: messages.Table) -> Pieces:
    """Write LIVE of the addresses in these tables: staged, uploaded or copied ones, or those of unfinished runs."""
    # Leave out foreign keys, because candidates are addresses of slices only. A full URI of such an address is kept.
    folder = folder_in(run, "uncommitted.live" if table is messages.UNCOMMITTED else "held")
    source, rows, effort = from_tables(tables, table)
    dealt = await deal_live(
        context.engine,
        source,
        rows,
        uri=run.namespace,
        folder=f"{folder.removesuffix('/')}.tasks/",
        with_keys=False,
        effort=effort,
    )
    return await merge_live(context.engine, dealt, folder=folder)


async def _read_commits(
    context: RunContext, run: StartedRun, base: Base | None, prepared: PreparedCommits
) -> Committed:
    commits = await context.read(prepared.commits, messages.COMMITS)
    new = commits if base is None else commits.filter(pc.invert(pc.is_in(commits["id"], value_set=base.commits)))
    metaranges = metaranges_of_all(new)
    ranges = await read_ranges(context.engine, metaranges, folder=folder_in(run, "ranges.tasks"))
    check_live(metaranges, ranges.count)
    if base is not None:
        # The earlier run knows nearly all ranges, so the few new ones fit into this process.
        new_ranges = [without(some, base.ranges, "range_id") async for some in ranges.each(context)]
        ranges = ListedRanges(pa.concat_tables([RANGES.schema.empty_table(), *new_ranges]))
    context.progress(f"marking against {count_of(new.num_rows, 'commit')} in {count_of(ranges.count, 'range')}")
    live = await _live_of(context, run, base, ranges)
    return Committed(commits=commits, new_ranges=ranges, live=live)


async def _live_of(context: RunContext, run: StartedRun, base: Base | None, ranges: ListedRanges) -> Pieces:
    """Write LIVE of the objects in these ranges, and of the base's commits."""
    folder = folder_in(run, "committed")
    dealt = await deal_live(
        context.engine,
        from_ranges,
        ranges.rows,
        uri=run.namespace,
        folder=folder_in(run, "committed.tasks"),
        with_keys=False,
        effort=ranges.effort_of_ends,
    )
    if base is None:
        return await merge_live(context.engine, dealt, folder=folder)
    merged = await merge_live(context.engine, dealt, folder=folder_in(run, "committed.new"))
    return await base.joined_with(context.store, merged, folder=folder)


async def _keep(
    context: RunContext,
    run: StartedRun,
    base: Base | None,
    listed: list[int],
    prepared: PreparedCommits,
    committed: Committed,
    kept: Pieces,
) -> Keeps:
    """Write the state for a later run, and return its names. It is saved once the plan is applied."""
    names = [some["range_id"] async for some in committed.new_ranges.each(context)]
    slices = np.array(listed, np.int64)
    clean_run, clean_ms, since = run.run_id, run.now_ms, 0
    if base is not None:
        before = base.saved.keeps
        clean_run, clean_ms, since = before.clean_run, before.clean_ms, before.runs_since_clean + 1
        names, slices = [base.ranges, *names], np.union1d(base.slices, slices)
    ranges = pa.concat_tables([RANGE_IDS.schema.empty_table(), *(RANGE_IDS.rows({"range_id": some}) for some in names)])
    numbers, part = CLOSED.rows({"bucket": slices}), messages.part_name(0)
    return Keeps(
        kept=kept,
        committed=committed.live,
        ranges=await write_piece(context.store, folder_in(run, "ranges"), part, RANGE_IDS, ranges),
        slices=await write_piece(context.store, folder_in(run, "slices"), part, CLOSED, numbers),
        commits=prepared.commits,
        clean_run=clean_run,
        clean_ms=clean_ms,
        runs_since_clean=since,
    )


def _last_read_slice(base: Base | None, listed: list[int]) -> str:
    """Return the newest slice by name, where the design document's optimised run would stop. Only people read it."""
    if listed:
        return slice_name(min(listed))
    return base.saved.last_read_slice if base else ""
