"""Plan a collection of uncommitted data: there, and named by nothing.

The order of docs/design/protocols.md is what makes it safe: the run's record, the settled slices and the addresses
handed out, then the listing, then what is staged, uploaded and copied (the server reads these in an order of its own),
then every commit record, and at the end the record says `marked`, unless somebody abandoned the run meanwhile: then
everything here is thrown away.

A *clean* run lists every settled slice and reads every commit. An *optimised* one goes on from what an earlier run
saved: it lists slices that are new, reads commits whose ids and ranges that are new, and looks again at what was kept
(docs/design/0001-uncommitted-gc.md, "Flow 2"). A clean run is one with nothing to go on from, so both are one function.
What an optimised run has to read is mostly a few files: then the driver reads them, and no job is started.

What runs hold whose deletes began counts as named too, and is read after the commits (unfinished.py): a commit that
was swept by then names nothing here, and its run is seen to sweep.

Candidates are addresses of slices, and nothing else: what was listed, kept, or could not be deleted. So foreign keys
that something names are left out where they are read, were there ever so many; the full URI of an address of a slice
is none. A candidate that is a foreign key stops the run (mark/uncommitted.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import RunId, count_of, slice_name, slice_opened_at_ms
from lakebed.gc import protocol
from lakebed.gc.protocol import (
    BadInput,
    Keeps,
    Manifest,
    Mode,
    Pieces,
    PreparedCommits,
    StartedRun,
    UncommittedOptions,
    input_folder,
)

from .files import Files
from .here import BYTES_HERE, RANGES_HERE, SLICES_HERE, run_here
from .history import check_live, metaranges_of_all
from .mark import Live, Places, mark_unreferenced
from .modes import choose
from .packing import LiveSet
from .parts import parts_of, rows_of_parts
from .planning_old_layout import plan_old_layout
from .read import (
    Found,
    Issued,
    gather_live,
    held_objects,
    list_slices,
    listing_into,
    live_objects,
    read_ranges,
    reading_live,
    reading_uncommitted,
)
from .rereading import reread
from .runs import CommitCounts, Plan, RangeCounts, plan_frame
from .saving import Base, write_piece
from .strays import Strays, find_strays, strays_of
from .tables import LIVE, PARTS, RANGE_IDS, RANGES, SETTLED
from .unfinished import held_tables, runs_over
from .workshop import Workshop, read_input, slice_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """One run while it is planned. `base` is None in a clean run."""

    shop: Workshop
    run: StartedRun
    files: Files
    base: Base | None

    def folder(self, name: str) -> str:
        return input_folder(self.run.kind, RunId(self.run.run_id), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Those to be listed; and how many settled ones are left to a later run for their age."""

    listed: list[int]
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What commits name. `commits` are all records, `new_ranges` the ids of the ranges that were read now."""

    commits: pa.Table
    new_ranges: pa.Array
    live: Pieces


def plan_uncommitted(shop: Workshop, run: StartedRun, files: Files, options: UncommittedOptions) -> Plan:
    """A run in the mode that is asked for, or that is due, up to and with `marked`.

    Raises:
        BadInput: what an unfinished run holds cannot be read, too.
        NoSavedState: an optimised run was asked for and cannot be.
    """
    if options.mode is Mode.OLD_LAYOUT:
        return plan_old_layout(shop, run, files, options)
    choice = choose(shop, files, run, options)
    shop.progress(f"{choice.mode.value} run: {choice.note}")
    desk = Desk(shop=shop, run=run, files=files, base=choice.base)
    slices = _slices(desk, options)
    over_before = runs_over(shop.live_side.runs())
    listed, found = _list(desk, slices.listed)
    shop.progress(f"reading what is not committed; {count_of(found.objects, 'object')} listed")
    uncommitted = shop.live_side.uncommitted(run.run_id)
    prepared, committed = reread(
        shop, files, lambda: shop.live_side.commits(run.run_id), lambda answer: (answer, _read_commits(desk, answer))
    )
    # Once commits are read: of one that was swept by then, the run has begun.
    held = held_tables(files, shop.live_side.runs(), over_before)
    earlier = [] if desk.base is None else [desk.base.saved.keeps.kept, desk.base.saved.failed]
    marked = mark_unreferenced(
        shop.spark,
        shop.lake,
        candidates=[listed, *earlier],
        live=Live(
            committed=committed.live,
            uncommitted=_read_uncommitted(desk, uncommitted),
            held=held_objects(shop.spark, shop.lake, [*held.values()], tasks=shop.tasks, folder=desk.folder("held")),
        ),
        into=Places(doomed=desk.folder("doomed"), kept=desk.folder("kept"), bytes_here=BYTES_HERE if desk.base else 0),
        tasks=shop.tasks,
        now_ms=run.now_ms,
        young_since_ms=prepared.rules.uncommitted_since_ms(run.now_ms) if prepared.rules else None,
    )
    keeps = _keep(desk, slices.listed, prepared, committed, marked.kept)
    shop.live_side.marked(run.run_id, marked.doomed)
    swept = int(pc.sum(committed.commits["swept"]).as_py() or 0)
    count = committed.commits.num_rows
    return Plan(
        **plan_frame(run, prepared, shop.live_side.repository),
        uncommitted=uncommitted,
        listing=found,
        mode=choice.mode,
        mode_note=choice.note,
        beside=tuple(held),
        based_on=choice.base.saved.run_id if choice.base else "",
        keeps=keeps,
        token_expiry_ms=options.token_expiry_ms,
        slices_skipped=slices.skipped,
        last_read_slice=_last_read_slice(desk, slices.listed),
        commit_counts=CommitCounts(all=count, kept=count - swept, expired=0, swept=swept),
        range_counts=RangeCounts(live=len(committed.new_ranges), expired=0),
        doomed=marked.doomed,
        totals=marked.totals,
        # The special folders hold as much as all commits: they are looked through by clean runs.
        **strays_of(found).plus(Strays() if desk.base else find_strays(files)).facts(),
    )


def _slices(desk: Desk, options: UncommittedOptions) -> Slices:
    """Those that nobody listed yet. Slices are told apart by name: their order says nothing of age."""
    settled = np.array(slice_numbers(desk.run.settled_slices), np.int64)
    if desk.base is not None:
        settled = np.setdiff1d(settled, desk.base.slices)
    after_ms = desk.run.now_ms - options.token_expiry_ms
    listed = [
        number for number in settled.tolist() if slice_opened_at_ms(number) <= after_ms or not options.token_expiry_ms
    ]
    return Slices(listed=listed, skipped=len(settled) - len(listed))


def _list(desk: Desk, slices: list[int]) -> tuple[Pieces, Found]:
    shop, folder = desk.shop, desk.folder("listed")
    issued = _issued(desk, slices)
    shop.progress(f"listing {count_of(len(slices), 'settled slice')}")
    if desk.base is not None and len(slices) <= SLICES_HERE:
        work = listing_into(folder, issued)
        written = run_here(shop.lake, work, SETTLED.rows({"bucket": slices}), PARTS)
    else:
        written = list_slices(shop.spark, shop.lake, slices, folder=folder, tasks=shop.tasks, issued=issued).toArrow()
    found = Found()
    for note in written["note"].to_pylist():
        found = found.plus(msgspec.json.decode(note, type=Found))
    return Pieces(folder=folder, parts=tuple(parts_of(written))), found


def _issued(desk: Desk, slices: list[int]) -> Issued:
    """The addresses that were handed out in these slices, as the server read them before they are listed.

    Raises:
        BadInput: it did not.
    """
    if desk.run.uploads is None:
        raise BadInput("the server did not say which addresses are handed out", input="uploads")
    rows = read_input(desk.files, desk.run.uploads, protocol.UNCOMMITTED)
    rows = rows.filter(pc.is_in(rows["slice"], value_set=pa.array(slices, pa.int64()))).sort_by("slice")
    numbers, starts = np.unique(rows["slice"].to_numpy(), return_index=True)
    sequences = np.split(rows["sequence"].to_numpy().astype(np.int64), starts[1:])
    issued_ms = np.split(rows["creation_date"].cast(pa.int64()).to_numpy(), starts[1:])
    return {number: (of_it, at) for number, of_it, at in zip(numbers.tolist(), sequences, issued_ms, strict=False)}


def _read_uncommitted(desk: Desk, manifest: Manifest) -> Pieces:
    """LIVE of what is staged, uploaded or copied."""
    shop, folder = desk.shop, desk.folder("uncommitted.live")
    work, parts = reading_uncommitted(manifest, shop.lake.uri, with_keys=False), rows_of_parts(manifest.parts)
    if manifest.size_bytes > BYTES_HERE:
        return gather_live(shop.spark, shop.lake, work, parts, PARTS, folder=folder, tasks=shop.tasks)
    return write_piece(desk.files, folder, "bucket-all.parquet", LIVE, run_here(shop.lake, work, parts, LIVE))


def _read_commits(desk: Desk, prepared: PreparedCommits) -> Committed:
    shop, base = desk.shop, desk.base
    commits = read_input(desk.files, prepared.commits, protocol.COMMITS)
    new = commits if base is None else commits.filter(pc.invert(pc.is_in(commits["id"], value_set=base.commits)))
    metaranges = metaranges_of_all(new)
    ranges = read_ranges(shop.spark, shop.lake, metaranges, tasks=shop.tasks)
    check_live(metaranges, ranges.num_rows)
    if base is not None:
        ranges = ranges.filter(pc.invert(pc.is_in(ranges["range_id"], value_set=base.ranges)))
    shop.progress(f"marking against {count_of(new.num_rows, 'commit')} in {count_of(ranges.num_rows, 'range')}")
    ids = ranges["range_id"].combine_chunks()
    return Committed(commits=commits, new_ranges=ids, live=_live_of(desk, ranges))


def _live_of(desk: Desk, ranges: pa.Table) -> Pieces:
    """LIVE of what these ranges name, and of what the base's commits do."""
    shop, folder = desk.shop, desk.folder("committed")
    if desk.base is None:
        work = reading_live(shop.lake.uri, with_keys=False)
        return gather_live(shop.spark, shop.lake, work, ranges, RANGES, folder=folder, tasks=shop.tasks)
    live = LiveSet()
    live.add_rows(desk.base.committed)
    if ranges.num_rows <= RANGES_HERE:
        live.add_rows(run_here(shop.lake, reading_live(shop.lake.uri, with_keys=False), ranges, LIVE))
    else:
        live.add_rows(live_objects(shop.spark, shop.lake, ranges, tasks=shop.tasks, with_keys=False).toArrow())
    return write_piece(desk.files, folder, "bucket-all.parquet", LIVE, live.rows())


def _keep(desk: Desk, listed: list[int], prepared: PreparedCommits, committed: Committed, kept: Pieces) -> Keeps:
    """What a later run may go on from, once the plan is carried out."""
    base, ranges, slices = desk.base, committed.new_ranges, np.array(listed, np.int64)
    clean_run, clean_ms, since = desk.run.run_id, desk.run.now_ms, 0
    if base is not None:
        before = base.saved.keeps
        clean_run, clean_ms, since = before.clean_run, before.clean_ms, before.runs_since_clean + 1
        ranges, slices = pa.concat_arrays([base.ranges, ranges]), np.union1d(base.slices, slices)
    names = RANGE_IDS.rows({"range_id": ranges})
    numbers = SETTLED.rows({"bucket": slices})
    return Keeps(
        kept=kept,
        committed=committed.live,
        ranges=write_piece(desk.files, desk.folder("ranges"), protocol.part_name(0), RANGE_IDS, names),
        slices=write_piece(desk.files, desk.folder("slices"), protocol.part_name(0), SETTLED, numbers),
        commits=prepared.commits,
        clean_run=clean_run,
        clean_ms=clean_ms,
        runs_since_clean=since,
    )


def _last_read_slice(desk: Desk, listed: list[int]) -> str:
    """The newest by name: where the document's optimised run would stop. For people."""
    if listed:
        return slice_name(min(listed))
    return desk.base.saved.last_read_slice if desk.base else ""
