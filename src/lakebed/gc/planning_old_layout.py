"""Plan a collection of what lies outside slices: objects that an older system or another tool laid out elsewhere.

Nothing of ours writes there. Uploads and links go to slices, and an address inside the namespace cannot be staged
(docs/design/0001-uncommitted-gc.md, "StageObject"); so such an object can only be named by what was imported, and that
by a commit, a cell or a copy's record. Listed first and then read in the order of every run of uncommitted data, what
none of them names is garbage to us.

But whether it is garbage to others, nobody can know: the tool that wrote it may be about to import it. So here, and
nowhere else, clocks decide: what was written within the age asked for stays, by the earlier of the server's clock and
the object store's, which dated the objects. And unlike an address of ours such a key may be written again, so the sweep
looks once more at each (sweep.py). Keys are compared as text (mark/foreign.py).

Another repository may lie inside this namespace, made by another installation or deleted since: nothing here names what
it holds. A single key that can be one of it stops the plan.

Listing is one request for each 1,000 keys and one for each folder that is passed over, one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import Conflict, count_of, inner_namespace
from lakebed.gc import protocol
from lakebed.gc.protocol import PreparedCommits, RunMode, StartedRun, UncommittedOptions
from lakebed.gc.rules import DAY_MS, slice_of
from lakebed.objectstore import ObjectStat, ObjectStore

from .clocks import store_clock_ms
from .files import Files
from .history import check_live, metaranges_of_all
from .keys import LISTED, KeyFile, KeyFiles, by_bucket, write_keys
from .mark.foreign import mark_foreign
from .places import DOOMED_ELSEWHERE, is_elsewhere
from .read import UNREFERENCED, Found, held_keys, named_keys, read_ranges, uncommitted_keys
from .rereading import reread
from .runs import CommitCounts, Plan, RangeCounts, plan_frame
from .strays import strays_of
from .unfinished import held_tables, runs_over
from .workshop import Workshop, read_input

HELD_MAX: Final = 200_000
"""How many listed objects are held before they are written down: some 100 MB."""

_BEHIND: Final = "\U0010ffff"
"""Sorts behind every character that a key has."""


class NamespaceInside(Conflict):
    """Another repository's storage namespace lies, or may lie, inside this one. Facts: `namespace`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    """What commits name, in how many ranges; and the answer that it was read by."""

    prepared: PreparedCommits
    commits: pa.Table
    ranges: int
    keys: KeyFiles


def plan_old_layout(shop: Workshop, run: StartedRun, files: Files, options: UncommittedOptions) -> Plan:
    """Up to and with `marked`. Costs a listing of all but the slices, and reading every commit.

    Raises:
        NamespaceInside: there may be another repository's objects among what was listed.
    """
    dated_ms = min(run.now_ms, files.act(store_clock_ms))
    keys_in = f"{run.folder}keys/"
    over_before = runs_over(shop.live_side.runs())
    shop.progress("listing what lies outside slices")
    listed, found = files.act(lambda store: list_elsewhere(store, keys_in))
    shop.progress(f"reading what is not committed; {count_of(found.objects, 'object')} listed")
    uncommitted = shop.live_side.uncommitted(run.run_id)
    committed = reread(
        shop, files, lambda: shop.live_side.commits(run.run_id), lambda answer: _read_commits(shop, run, files, answer)
    )
    commits, prepared = committed.commits, committed.prepared
    held = held_tables(files, shop.live_side.runs(), over_before)
    doomed, totals = mark_foreign(
        shop.spark,
        shop.lake,
        listed=listed,
        named=[
            committed.keys,
            uncommitted_keys(shop.spark, shop.lake, uncommitted, tasks=shop.tasks, folder=keys_in),
            held_keys(shop.spark, shop.lake, [*held.values()], tasks=shop.tasks, folder=keys_in),
        ],
        into=f"{run.folder}{DOOMED_ELSEWHERE}/",
        cause=UNREFERENCED,
        tasks=shop.tasks,
        now_ms=run.now_ms,
        young_since_ms=dated_ms - options.old_layout_age_ms,
    )
    shop.live_side.marked(run.run_id, doomed)
    swept = int(pc.sum(commits["swept"]).as_py() or 0)
    return Plan(
        **plan_frame(run, prepared, shop.live_side.repository),
        uncommitted=uncommitted,
        listing=found,
        mode=RunMode.OLD_LAYOUT,
        beside=tuple(held),
        mode_note=f"outside slices, written more than {options.old_layout_age_ms / DAY_MS:g} days before",
        commit_counts=CommitCounts(all=commits.num_rows, kept=commits.num_rows - swept, expired=0, swept=swept),
        range_counts=RangeCounts(live=committed.ranges, expired=0),
        doomed=doomed,
        totals=totals,
        **strays_of(found).facts(),
    )


def _read_commits(shop: Workshop, run: StartedRun, files: Files, prepared: PreparedCommits) -> _Committed:
    commits = read_input(files, prepared.commits, protocol.COMMITS)
    metaranges = metaranges_of_all(commits)
    ranges = read_ranges(shop.spark, shop.lake, metaranges, tasks=shop.tasks)
    check_live(metaranges, ranges.num_rows)
    shop.progress(f"marking against {count_of(commits.num_rows, 'commit')} in {count_of(ranges.num_rows, 'range')}")
    keys = named_keys(shop.spark, shop.lake, ranges, tasks=shop.tasks, folder=f"{run.folder}keys/")
    return _Committed(prepared=prepared, commits=commits, ranges=ranges.num_rows, keys=keys)


async def list_elsewhere(store: ObjectStore, folder: str) -> tuple[KeyFiles, Found]:
    """Files of LISTED (keys.py) in `folder`. Slices and our own folders are passed over, a request each.

    Raises:
        NamespaceInside: a key may be that of a namespace inside this one.
    """
    held: list[ObjectStat] = []
    files: list[KeyFile] = []
    found, start_after, ahead = Found(), "", ""
    while True:
        async with aclosing(_stats(store, start_after)) as stats:
            async for stat in stats:
                ahead = _behind_ours(stat.key)
                if ahead > start_after:
                    break
                _check_outside(store, stat.key)
                held.append(stat)
                if len(held) >= HELD_MAX:
                    found = found.plus(await _flush(store, folder, held, files))
            else:
                break
        start_after = ahead
    found = found.plus(await _flush(store, folder, held, files))
    return KeyFiles(folder=folder, files=tuple(files)), found


async def _stats(store: ObjectStore, start_after: str) -> AsyncGenerator[ObjectStat, None]:
    async for page in store.list("", start_after=start_after):
        for stat in page:
            yield stat


def _check_outside(store: ObjectStore, key: str) -> None:
    inner = inner_namespace(key)
    if inner is not None:
        uri = f"{store.uri}/{inner}"
        raise NamespaceInside(f"{uri} may be another repository's namespace, for there is {key}", namespace=uri)


def _behind_ours(key: str) -> str:
    """Where to go on if this key lies in a slice or a folder of ours; else empty."""
    if key.startswith("_lakefs/"):
        return f"_lakefs/{_BEHIND}"
    name = slice_of(key)
    return "" if name is None else f"{protocol.DATA_PREFIX}{name}/{_BEHIND}"


async def _flush(store: ObjectStore, folder: str, held: list[ObjectStat], files: list[KeyFile]) -> Found:
    """Write down what is held, and hold nothing. What no plan may take is told as stray."""
    ours: list[ObjectStat] = []
    strays: list[ObjectStat] = []
    for stat in held:
        (ours if is_elsewhere(stat.key) else strays).append(stat)
    columns = {
        "key": pa.array([stat.key for stat in ours], pa.string()),
        "size_bytes": [stat.size_bytes for stat in ours],
        "seen_ms": [stat.modified_ms for stat in ours],
    }
    if ours:
        files.append(await write_keys(store, folder, by_bucket(columns, LISTED)))
    held.clear()
    return Found(
        objects=len(ours),
        size_bytes=sum(stat.size_bytes for stat in ours),
        strays=tuple(stat.key for stat in strays[: protocol.STRAYS_MAX]),
        strays_count=len(strays),
    )
