"""Plan a collection of uncommitted data: listed, and named by nothing.

The order of docs/design/protocols.md is what makes it safe: the run's record and the settled slices, then the listing,
then what is staged, uploaded and copied (the server reads these in an order of its own), then every commit record, and
at the end the record says `marked`, unless somebody abandoned the run meanwhile: then everything here is thrown away.
"""

from __future__ import annotations

import msgspec
import pyarrow.compute as pc

from lakebed import handoff
from lakebed.base import RunId
from lakebed.handoff import StartedRun, input_folder

from .files import Files
from .history import check_live, metaranges_of_all
from .mark import mark_unreferenced
from .parts import Written, parts_of
from .read import Found, list_slices, live_objects, named_ranges, uncommitted_objects, write_live
from .runs import CommitCounts, Plan, RangeCounts, plan_frame
from .strays import find_strays
from .workshop import Workshop, read_input, slice_numbers


def plan_uncommitted(shop: Workshop, run: StartedRun, files: Files) -> Plan:
    """The clean run of docs/design/0001-uncommitted-gc.md, up to and with `marked`."""
    slices = slice_numbers(run.settled_slices)
    shop.progress(f"listing {len(slices)} settled slices")
    listed_in = input_folder(run.kind, RunId(run.run_id), "listed")
    listing = list_slices(shop.spark, shop.lake, slices, folder=listed_in, tasks=shop.tasks).toArrow()
    found = Found()
    for note in listing["note"].to_pylist():
        found = found.plus(msgspec.json.decode(note, type=Found))
    shop.progress(f"reading what is not committed; {found.objects} objects listed")
    uncommitted = shop.live_side.uncommitted(run.run_id)
    prepared = shop.live_side.commits(run.run_id)
    commits = read_input(files, prepared.commits, handoff.COMMITS)
    metaranges = metaranges_of_all(commits)
    ranges = named_ranges(shop.spark, shop.lake, metaranges, tasks=shop.tasks).toArrow()
    check_live(metaranges, ranges.num_rows)
    shop.progress(f"marking against {commits.num_rows} commits in {ranges.num_rows} ranges")
    live = live_objects(shop.spark, shop.lake, ranges, tasks=shop.tasks).unionByName(
        uncommitted_objects(shop.spark, shop.lake, uncommitted, tasks=shop.tasks)
    )
    named = write_live(live, shop.lake, folder=input_folder(run.kind, RunId(run.run_id), "live"))
    listed = Written(folder=listed_in, parts=parts_of(listing))
    doomed, totals = mark_unreferenced(
        shop.spark,
        shop.lake,
        listed=listed,
        live=named,
        folder=input_folder(run.kind, RunId(run.run_id), "doomed"),
        tasks=shop.tasks,
        now_ms=run.now_ms,
        young_since_ms=prepared.rules.uncommitted_since_ms(run.now_ms) if prepared.rules else None,
    )
    shop.live_side.marked(run.run_id, doomed)
    swept = int(pc.sum(commits["swept"]).as_py() or 0)
    return Plan(
        **plan_frame(run, prepared, shop.live_side.repository),
        uncommitted=uncommitted,
        listing=found,
        last_read_slice=max(run.settled_slices, default=""),
        commit_counts=CommitCounts(all=commits.num_rows, kept=commits.num_rows - swept, expired=0, swept=swept),
        range_counts=RangeCounts(live=ranges.num_rows, expired=0),
        doomed=doomed,
        totals=totals,
        strays=found.strays + find_strays(files),
    )
