"""Plan a collection of committed data: objects that only expired commits name.

Commit records and rules give the commits that stay and those that go; their ranges give the objects. This publishes
nothing and makes nobody wait. Whether it still holds is asked when it is applied (applying.py).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Invalid, RunId, count_of, human_size
from lakebed.gc import protocol
from lakebed.gc.protocol import PreparedCommits, StartedRun, input_folder
from lakebed.gc.rules import Rules, check_rules

from .files import Files
from .history import Judged, check_live, judge
from .mark import mark_expired
from .read import expired_objects, live_objects, read_ranges
from .rereading import reread
from .runs import CommitCounts, Plan, RangeCounts, plan_frame
from .strays import find_strays
from .tables import LIVE
from .verdicts import write_verdicts
from .workshop import Workshop, read_input, write_input

NO_RULES: Final = "no retention rules are set: `lakebed gc rules set-default` says how long committed data stays"


class NoRules(Invalid):
    """No retention rules are set, so nothing of the committed data may go."""


def plan_committed(shop: Workshop, run: StartedRun, files: Files) -> Plan:
    """docs/design/0004-committed-retention.md, steps 1 to 6. Staged data is looked at when the plan is applied."""
    return reread(
        shop, files, lambda: shop.live_side.commits(run.run_id), lambda prepared: _plan(shop, run, files, prepared)
    )


def _plan(shop: Workshop, run: StartedRun, files: Files, prepared: PreparedCommits) -> Plan:
    rules = _rules_of(prepared)
    commits = read_input(files, prepared.commits, protocol.COMMITS)
    refs = read_input(files, prepared.refs, protocol.REFS)
    judged = judge(commits, refs, rules, now_ms=run.now_ms)
    shop.progress(
        f"{int(judged.expired.sum()):,} of {count_of(commits.num_rows, 'commit')} expired; reading their ranges"
    )
    ranges = read_ranges(shop.spark, shop.lake, judged.metaranges, tasks=shop.tasks)
    live, expired = ranges.filter(ranges["is_live"]), ranges.filter(pc.invert(ranges["is_live"]))
    check_live(judged.metaranges, live.num_rows)
    shop.progress(f"marking {count_of(expired.num_rows, 'expired range')} against {live.num_rows:,} live")
    verdicts = mark_expired(
        expired_objects(shop.spark, shop.lake, expired, tasks=shop.tasks),
        live_objects(shop.spark, shop.lake, live, tasks=shop.tasks, with_keys=True),
        shop.spark.createDataFrame(LIVE.schema.empty_table(), LIVE.spark),
        shop.settled(run.settled_slices),
    )
    folder = input_folder(run.kind, RunId(run.run_id), protocol.DOOMED.name)
    doomed, totals = write_verdicts(verdicts, shop.lake, folder=folder, now_ms=run.now_ms)
    shop.progress(
        f"{count_of(totals.all.objects, 'object')}, {human_size(totals.all.size_bytes)}, to go; writing the plan"
    )
    return Plan(
        **plan_frame(run, prepared, shop.live_side.repository),
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
        **find_strays(files).facts(),
    )


def _rules_of(prepared: PreparedCommits) -> Rules:
    if prepared.rules is None:
        raise NoRules(NO_RULES)
    return check_rules(prepared.rules)


def _write_condemned(files: Files, run: StartedRun, judged: Judged) -> protocol.Manifest:
    folder = input_folder(run.kind, RunId(run.run_id), protocol.CONDEMNED.name)
    return write_input(files, folder, protocol.CONDEMNED, pa.table({"id": judged.expired_ids()}))
