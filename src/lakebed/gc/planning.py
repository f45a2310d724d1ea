"""Plan: decide what goes, write it down with everything it rests on, and delete nothing.

A plan needs no permission to delete, and may be made, shown and thrown away as often as one likes. Both kinds end in
one Parquet table of doomed objects and `plan.json`, which is written last (runs.py).

*Uncommitted*, in the order that docs/design/protocols.md prescribes, for the order is what makes it safe: the run's
record and the settled slices, then the listing, then what is staged, uploaded and copied (the server reads these in an
order of its own), then every commit record, and at the end the record says `marked`, unless somebody abandoned the run
meanwhile: then everything here is thrown away.

*Committed*: commit records and rules give the commits that stay and those that go; their ranges give the objects. This
publishes nothing and makes nobody wait. Whether it still holds is asked when it is applied (applying.py).

Anything missing, short or unknown stops the plan with an error that names it. No live object at all, where there
should be some, is such a thing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakebed import handoff
from lakebed.base import Invalid, LakebedError, RunId
from lakebed.handoff import BadInput, PreparedCommits, RunKind, StartedRun, input_folder
from lakebed.retention import Rules, check_rules

from .failures import told
from .files import Files
from .history import Judged, check_live, judge, metaranges_of_all
from .mark import mark_expired, mark_unreferenced
from .parts import Written, parts_of
from .read import (
    Found,
    expired_objects,
    list_slices,
    live_objects,
    named_ranges,
    uncommitted_objects,
    write_live,
)
from .runs import CommitCounts, Plan, RangeCounts, write_plan
from .strays import find_strays
from .tables import LIVE
from .verdicts import write_verdicts
from .workshop import Workshop, read_input, slice_numbers, write_input


class NoRules(Invalid):
    """No retention rules are set, so nothing of the committed data may go."""


def plan_run(shop: Workshop, kind: RunKind) -> Plan:
    """Start a run, plan it and write the plan. Deletes nothing.

    Raises:
        NoRules: a committed run, and there are no rules.
        BadInput, BrokenHistory, EmptyLiveSet, TaskCorrupt: an input cannot be trusted, and the message names it.
        TaskUnavailable: the object store cannot be reached.
        RunAbandoned: somebody ended the run meanwhile.
    """
    run = shop.live_side.start(kind)
    if run.namespace.rstrip("/") != shop.lake.uri.rstrip("/"):
        raise BadInput(f"run {run.run_id} is of {run.namespace}, not of {shop.lake.uri}", input="namespace")
    with told(), Files(shop.lake) as files:
        if kind is RunKind.COMMITTED:
            plan = plan_committed(shop, run, files)
        else:
            with _abandoned_on_error(shop, run):
                plan = plan_uncommitted(shop, run, files)
        write_plan(files, plan)
    return plan


@contextlib.contextmanager
def _abandoned_on_error(shop: Workshop, run: StartedRun) -> Iterator[None]:
    """A run that is left marking keeps the server from cleaning up, for as long as it may seem alive."""
    try:
        yield
    except BaseException:
        # Marked already, abandoned by somebody else, or no server there: what went wrong first is what is told.
        with contextlib.suppress(LakebedError):
            shop.live_side.abandoned(run.run_id)
        raise


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
        young_since_ms=prepared.rules.uncommitted_since_ms(run.now_ms) if prepared.rules else None,
    )
    shop.live_side.marked(run.run_id, doomed)
    swept = int(pc.sum(commits["swept"]).as_py() or 0)
    return Plan(
        **_frame(run, prepared, shop.live_side.repository),
        uncommitted=uncommitted,
        listing=found,
        last_read_slice=max(run.settled_slices, default=""),
        commit_counts=CommitCounts(all=commits.num_rows, kept=commits.num_rows - swept, expired=0, swept=swept),
        range_counts=RangeCounts(live=ranges.num_rows, expired=0),
        doomed=doomed,
        totals=totals,
        strays=found.strays + find_strays(files),
    )


def plan_committed(shop: Workshop, run: StartedRun, files: Files) -> Plan:
    """docs/design/0004-committed-retention.md, steps 1 to 6. Staged data is looked at when the plan is applied."""
    prepared = shop.live_side.commits(run.run_id)
    rules = _rules_of(prepared)
    commits = read_input(files, prepared.commits, handoff.COMMITS)
    refs = read_input(files, prepared.refs, handoff.REFS)
    judged = judge(commits, refs, rules, now_ms=run.now_ms)
    shop.progress(f"{int(judged.expired.sum())} of {commits.num_rows} commits expired; reading their ranges")
    ranges = named_ranges(shop.spark, shop.lake, judged.metaranges, tasks=shop.tasks).toArrow()
    live, expired = ranges.filter(ranges["is_live"]), ranges.filter(pc.invert(ranges["is_live"]))
    check_live(judged.metaranges, live.num_rows)
    shop.progress(f"marking {expired.num_rows} expired ranges against {live.num_rows} live ones")
    verdicts = mark_expired(
        expired_objects(shop.spark, shop.lake, expired, tasks=shop.tasks),
        live_objects(shop.spark, shop.lake, live, tasks=shop.tasks),
        shop.spark.createDataFrame(LIVE.schema.empty_table(), LIVE.spark),
        shop.settled(run.settled_slices),
    )
    doomed, totals = write_verdicts(verdicts, shop.lake, folder=input_folder(run.kind, RunId(run.run_id), "doomed"))
    return Plan(
        **_frame(run, prepared, shop.live_side.repository),
        condemned=_write_condemned(files, run, judged),
        commit_counts=CommitCounts(
            all=commits.num_rows,
            kept=int(judged.kept.sum()),
            expired=int(judged.expired.sum()),
            swept=int((~judged.kept & ~judged.expired).sum()),
        ),
        range_counts=RangeCounts(live=live.num_rows, expired=expired.num_rows),
        doomed=doomed,
        totals=totals,
        strays=find_strays(files),
    )


def _frame(run: StartedRun, prepared: PreparedCommits, repository: str) -> dict[str, Any]:
    """What a plan of either kind says first."""
    return {
        "run_id": run.run_id,
        "kind": run.kind,
        "repository": repository,
        "namespace": run.namespace,
        "now_ms": run.now_ms,
        "settled_slices": len(run.settled_slices),
        "rules": prepared.rules,
        "rules_version": prepared.rules_version,
        "commits": prepared.commits,
        "refs": prepared.refs,
    }


def _rules_of(prepared: PreparedCommits) -> Rules:
    if prepared.rules is None:
        raise NoRules("no retention rules are set: set a default first, or nothing of the committed data ever goes")
    return check_rules(prepared.rules)


def _write_condemned(files: Files, run: StartedRun, judged: Judged) -> handoff.Manifest:
    folder = input_folder(run.kind, RunId(run.run_id), handoff.CONDEMNED.name)
    return write_input(files, folder, handoff.CONDEMNED, pa.table({"id": judged.expired_ids()}))
