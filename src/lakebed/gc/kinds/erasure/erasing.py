"""Find the objects that a selection takes, and the objects that other entries keep. Delete nothing.

1. Read the metaranges of every commit that was not swept. Of a range whose span meets no selected path read the end
   only, for the objects that its entries keep.
2. Read the other ranges. A selected row is a candidate, and every other row keeps its object.
3. Add the objects of staged entries, and of deferred runs at these paths.

`gc/rules/selection.py` is the specification; a property test compares both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, RangeId, RunKind, RunState, key_inside, parse_address, path_to_key
from lakebed.gc import messages
from lakebed.gc.engines import Engine, Task
from lakebed.gc.engines.engine import CANDIDATES, LIVE, PARTS, rows_of_parts
from lakebed.gc.mark.holding import metaranges_of
from lakebed.gc.mark.inputs.named import DUE, STAYS, LiveSet, Sides
from lakebed.gc.mark.inputs.ranges import (
    ListedRanges,
    get_range,
    in_closed_slices,
    pack_rows,
    ranges_in,
    read_ranges,
)
from lakebed.gc.mark.inputs.selecting import Flags, read_rows, selected, selected_objects
from lakebed.gc.mark.mark import pack_garbage, with_others
from lakebed.gc.mark.mark import read_rows as read_garbage
from lakebed.gc.mark.sets.bucketed import HELD_MAX, Bucketed, Dealer, files_of, side_of
from lakebed.gc.mark.sets.packing import Cause
from lakebed.gc.mark.sets.places import Namespace, first_folders
from lakebed.gc.messages import Manifest, StagedEntry, StartedRun
from lakebed.gc.rules import EmptyLiveSet, Holds, Selection, Spans
from lakebed.gc.runs.context import RunContext, folder_in
from lakebed.gc.runs.resume import garbage_of

ERASURE: Final = Cause(reason="erasure", rule="erasure")


class RangesBySpan(NamedTuple):
    """Hold all ranges of some commits. In `all`, a range marked live has no selected entry."""

    all: ListedRanges

    @property
    def meeting(self) -> ListedRanges:
        """Return the ranges that may have selected entries."""
        return self.all.of(live=False)

    @property
    def apart(self) -> ListedRanges:
        """Return the ranges without selected entries."""
        return self.all.of(live=True)


async def read_ranges_by_span(engine: Engine, commits: pa.Table, selection: Selection, *, folder: str) -> RangesBySpan:
    """Return the ranges of these COMMITS, each once, or raise EmptyLiveSet. Tasks write into `folder`."""
    spans = Spans(selection)
    there = pc.and_(pc.invert(commits["swept"]), pc.not_equal(commits["metarange_id"], ""))
    trees = sorted(set(commits.filter(there)["metarange_id"].to_pylist()))

    def is_apart(min_key: bytes, max_key: bytes, _: bool) -> bool:
        return not spans.meets(min_key, max_key)

    ranges = await read_ranges(engine, metaranges_of(dict.fromkeys(trees, True)), folder=folder, sort=is_apart)
    if trees and not ranges.count:
        raise EmptyLiveSet("there are commits with entries, but no range of theirs was read")
    return RangesBySpan(ranges)


async def deal_selected(
    engine: Engine, ranges: ListedRanges, selection: Selection, *, uri: str, folder: str, closed: Collection[int]
) -> tuple[Bucketed, Bucketed]:
    """Write the objects of selected rows as CANDIDATES, and those of all others as LIVE, into folders in `folder`.

    Leave out candidates in slices that are not closed.
    """
    namespace, slices = Namespace(uri), pa.array(sorted(closed), pa.int64())

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        sides = Sides(folder, namespace)
        rows = await ranges_in(task, share)
        counts = dict(zip(rows["range_id"].to_pylist(), rows["count"].to_pylist(), strict=True))
        async for name, data in task.ahead([*counts], lambda id_: get_range(task.store, RangeId(id_))):
            rows = read_rows(RangeId(name), data, counts[name], selection, also=("size_bytes", "modified_ms"))
            chosen = selected(rows, selection)
            for packed in _pack(rows.filter(pa.array(chosen)), namespace):
                sides.add(DUE, in_closed_slices(packed, slices))
            sides.add_staying(rows.filter(pa.array(~chosen)))
            async for part in sides.write(task, held_max=HELD_MAX):
                yield part
        async for part in sides.write(task):
            yield part

    written = await engine.run(work, ranges.rows, PARTS, effort=ranges.effort_of_whole)
    return side_of(written, folder, DUE), side_of(written, folder, STAYS)


def _pack(rows: pa.Table, namespace: Namespace) -> Sequence[pa.Table]:
    return list(pack_rows(rows, ERASURE, rows["modified_ms"].to_numpy(), namespace)) if rows.num_rows else ()


class DeferredRun(NamedTuple):
    """Hold a run whose objects (`table`, GARBAGE) wait for the end of a window, or are being deleted after it.

    If the table may lack paths, any of its objects may be selected or held.
    """

    run_id: str
    table: Manifest
    has_all_paths: bool


async def deferred_runs(context: RunContext) -> list[DeferredRun]:
    runs = await context.service.runs()
    views = [view for view in runs if view.until_ms is not None and view.state is not RunState.ENDED]
    tables = [(view, await garbage_of(context.store, view)) for view in views]
    return [
        # Objects of an uncommitted run were in no commit, so they lack no path.
        DeferredRun(
            view.run_id, table, view.kind is RunKind.UNCOMMITTED or table.table_version >= messages.ALL_PATHS_SINCE
        )
        for view, table in tables
    ]


async def at_selected_paths(context: RunContext, run: DeferredRun, selection: Selection) -> AsyncIterator[pa.Table]:
    """Yield the rows (GARBAGE) of a deferred run with a path that alone selects them. No row if it may lack paths."""
    task = Task(store=context.store, ports=context.ports)
    parts = run.table.parts if run.has_all_paths else ()
    async for rows in read_garbage(run.table)(task, rows_of_parts(parts)):
        yield rows.filter(pa.array(selected_objects(rows, selection)))


def held_objects(rows: pa.Table, holds: Holds) -> Flags:
    """Return for each row (GARBAGE) whether a legal hold keeps it by any of its paths."""
    return selected_objects(rows, holds.paths() or Selection())


async def add_others(
    context: RunContext,
    dealt: Bucketed,
    staged: Sequence[StagedEntry],
    deferred: Sequence[DeferredRun],
    selection: Selection,
    *,
    takes_shared: bool,
    holds: Holds,
    uri: str,
    closed: Collection[int],
) -> Bucketed:
    """Return `dealt` with the objects of staged entries, and the objects of deferred runs at selected paths.

    Tables of deferred runs (GARBAGE) have neither digests nor metadata, so these select no object of such a run.
    """
    # No commit or tag names these objects any more, so a legal hold keeps them by their paths alone.
    slices = pa.array(sorted(closed), pa.int64())
    dealer = Dealer(CANDIDATES)
    free = [entry for entry in staged if not holds.of(path=entry.path)]
    for packed in _pack(_rows_of(free), Namespace(uri)):
        dealer.add(in_closed_slices(packed, slices))
    # A selection by path and metadata selects only some objects at a path, and the tables cannot tell which.
    for run in () if selection.metadata else deferred:
        async for chosen in at_selected_paths(context, run, selection):
            goes = ~held_objects(chosen, holds)
            # A path that is not selected keeps the object, unless the order takes shared objects.
            if not takes_shared:
                goes &= selected_objects(chosen, selection, wholly=True)
            # Write each object with all its paths, because the sweep checks the legal holds once more.
            rows = with_others(chosen.filter(pa.array(goes))).sort_by("path")
            folders = first_folders(rows["path"].cast(pa.binary())) if rows.num_rows else ()
            for prefix, start, stop in folders:
                for packed in pack_garbage(rows.slice(start, stop - start), ERASURE, prefix):
                    dealer.add(in_closed_slices(packed, slices))
    if not dealer.has_rows:
        return dealt
    more = files_of(dealt.folder, await dealer.write(context.store, dealt.folder))
    return Bucketed(folder=dealt.folder, files=(*dealt.files, *more.files))


async def deal_staying(
    context: RunContext, run: StartedRun, staged: Sequence[StagedEntry], holds: Holds, *, closed: Collection[int]
) -> Bucketed:
    """Write the objects (LIVE) of selected staged entries that an apply leaves on their branches.

    A legal hold keeps an entry by its path. If a part of an upload is kept, keep all of its parts.
    """
    slices = frozenset(closed)

    def stays(entry: StagedEntry) -> bool:
        slice_, _ = parse_address(key_of(entry, run.namespace)) or (FOREIGN_SLICE, 0)
        return bool(holds.of(path=entry.path)) or slice_ not in slices

    uploads = {entry.multipart_id for entry in staged if entry.multipart_id and stays(entry)}
    left = [entry for entry in staged if entry.multipart_id in uploads or holds.of(path=entry.path)]
    folder, dealer, live = folder_in(run, "staying.tasks"), Dealer(LIVE), LiveSet()
    if not left:
        return Bucketed(folder=folder, files=())
    live.add_entries(_rows_of(left), Namespace(run.namespace))
    dealer.add(live.rows())
    return files_of(folder, await dealer.write(context.store, folder))


def key_of(entry: StagedEntry, uri: str) -> str:
    """Return the address of the entry's object as tables have it: a key, or a full URI outside of the namespace."""
    return key_inside(entry.address, uri.rstrip("/")) or entry.address


def _rows_of(staged: Sequence[StagedEntry]) -> pa.Table:
    """Return staged entries as rows of a range, sorted by key."""
    entries = sorted(staged, key=lambda entry: path_to_key(entry.path))
    places = [parse_address(entry.address) or (FOREIGN_SLICE, 0) for entry in entries]
    columns = {
        "key": pa.array([path_to_key(entry.path) for entry in entries], pa.binary()),
        "slice": pa.array([numbers[0] for numbers in places], pa.int64()),
        "sequence": pa.array([numbers[1] for numbers in places], pa.int32()),
        "address": pa.array([entry.address for entry in entries], pa.string()),
        "size_bytes": pa.array([entry.size_bytes for entry in entries], pa.int64()),
        "modified_ms": pa.array([entry.modified_ms for entry in entries], pa.int64()),
    }
    return pa.table(columns)
