"""A mode of uncommitted runs: delete unnamed objects outside of slices, which older systems or other tools wrote.

Lakebed writes no object there, and an address inside the namespace cannot be staged
(docs/design/0001-uncommitted-gc.md, "StageObject"). So only imports name such objects: in a commit, a cell or a copy's
record. The run lists first, and then reads names in the order of every uncommitted run.

Another tool may be about to import an unnamed object. So here, and nowhere else, clocks decide: an object that is
younger than the requested age stays. The sweep looks at each key once more, because others may write it again.

Listing costs one request for each 1,000 keys, and one for each skipped folder, one after the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa

from lakebed.base import Conflict, count_of, inner_namespace
from lakebed.gc import messages
from lakebed.gc.engines.files import store_clock_ms
from lakebed.gc.kinds import Look, SweepRule, begin_unpublished
from lakebed.gc.mark.inputs.listing import UNREFERENCED, unknown_files_of
from lakebed.gc.mark.inputs.named import check_live, deal_keys, from_tables, metaranges_of_all
from lakebed.gc.mark.inputs.ranges import from_ranges, read_ranges
from lakebed.gc.mark.mark import mark_keys
from lakebed.gc.mark.sets.bucketed import LISTED, Bucketed, BucketFile, by_bucket, write_bucketed
from lakebed.gc.mark.sets.places import is_elsewhere
from lakebed.gc.messages import Cleared, Found, Plan, PreparedCommits, RangeCounts, RunKind, RunMode, StartedRun
from lakebed.gc.rules import DAY_MS, slice_of
from lakebed.gc.runs.context import RunContext, counts_of, folder_in, plan_frame
from lakebed.gc.runs.resume import held_tables, runs_over
from lakebed.objectstore import ObjectStat, ObjectStore

GARBAGE_ELSEWHERE: Final = "garbage.elsewhere"
"""The only folder of a plan's table that may have keys of an old layout. It has no other keys."""

HELD_MAX: Final = 200_000
"""Write the listed objects once there are this many: they take some 100 MB."""

_BEHIND: Final = "\U0010ffff"
"""Sorts after every character of a key."""


class NamespaceInside(Conflict):
    """Another repository's storage namespace is, or may be, inside this one. Facts: `namespace`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    """Hold the keys that commits name, the number of ranges, and the answer that lists the commits."""

    prepared: PreparedCommits
    commits: pa.Table
    ranges: int
    keys: Bucketed


@dataclass(frozen=True, slots=True)
class OldLayout:
    """`age_ms`: keep objects that were written more recently than this."""

    age_ms: int
    name: ClassVar = RunKind.UNCOMMITTED
    rule: ClassVar = SweepRule(may_delete=is_elsewhere, look=Look.SAME)

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:
        """Bind the run to this apply. Its garbage cannot come back, however old the plan is."""
        return await begin_unpublished(context, plan, rules_version)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """Plan, and set the run's record to `marked`. Lists all keys outside of slices, and reads every commit.

        Raises:
            NamespaceInside: another repository's objects may be among the listed ones.
        """
        # The object store's clock dated the objects. Take the earlier clock, so that neither makes an object too old.
        dated_ms = min(run.now_ms, await store_clock_ms(context.store))
        keys_in = folder_in(run, "keys")
        over_before = runs_over(await context.service.runs())
        context.progress("listing what lies outside slices")
        listed, found = await self.listing(context, keys_in)
        context.progress(f"reading what is not committed; {count_of(found.objects, 'object')} listed")
        uncommitted = await context.service.uncommitted(run.run_id)

        async def read_commits(answer: PreparedCommits) -> _Committed:
            return await _read_commits(context, run, keys_in, answer)

        committed = await context.reread(lambda: context.service.commits(run.run_id), read_commits)
        held = await held_tables(context, await context.service.runs(), over_before)
        # These keys have no numbers, so compare them as text.
        garbage, totals = await mark_keys(
            context.engine,
            listed,
            [
                committed.keys,
                await _keys_in(context, keys_in, [uncommitted], messages.UNCOMMITTED),
                await _keys_in(context, keys_in, [*held.values()], messages.GARBAGE),
            ],
            into=folder_in(run, GARBAGE_ELSEWHERE),
            cause=UNREFERENCED,
            now_ms=run.now_ms,
            young_since_ms=dated_ms - self.age_ms,
        )
        await context.service.marked(run.run_id, garbage)
        return Plan(
            **plan_frame(context, run, committed.prepared),
            uncommitted=uncommitted,
            listing=found,
            mode=RunMode.OLD_LAYOUT,
            beside=tuple(held),
            mode_note=f"outside slices, written more than {self.age_ms / DAY_MS:g} days before",
            commit_counts=counts_of(committed.commits),
            range_counts=RangeCounts(live=committed.ranges, expired=0),
            garbage=garbage,
            totals=totals,
            **unknown_files_of(found).facts(),
        )

    async def listing(self, context: RunContext, folder: str) -> tuple[Bucketed, Found]:
        return await list_elsewhere(context.store, folder)


async def _read_commits(context: RunContext, run: StartedRun, keys_in: str, prepared: PreparedCommits) -> _Committed:
    commits = await context.read(prepared.commits, messages.COMMITS)
    metaranges = metaranges_of_all(commits)
    ranges = await read_ranges(context.engine, metaranges, folder=folder_in(run, "ranges.tasks"))
    check_live(metaranges, ranges.count)
    in_ranges = count_of(ranges.count, "range")
    context.progress(f"marking against {count_of(commits.num_rows, 'commit')} in {in_ranges}")
    effort = ranges.effort_of_ends
    keys = await deal_keys(context.engine, from_ranges, ranges.rows, uri=run.namespace, folder=keys_in, effort=effort)
    return _Committed(prepared=prepared, commits=commits, ranges=ranges.count, keys=keys)


async def _keys_in(
    context: RunContext, folder: str, tables: list[messages.Manifest], table: messages.Table
) -> Bucketed:
    source, rows, effort = from_tables(tables, table)
    return await deal_keys(context.engine, source, rows, uri=context.store.uri, folder=folder, effort=effort)


async def list_elsewhere(store: ObjectStore, folder: str) -> tuple[Bucketed, Found]:
    """Write LISTED (gc/mark/sets/bucketed.py) into files in `folder`. Skip slices and Lakebed's folders.

    Raises:
        NamespaceInside: a key may belong to a namespace inside this one.
    """
    held: list[ObjectStat] = []
    files: list[BucketFile] = []
    found, start_after, ahead = Found(), "", ""
    while True:
        async with aclosing(_stats(store, start_after)) as stats:
            async for stat in stats:
                # List on behind the folder: a slice may have many keys, and none of them is a candidate.
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
    return Bucketed(folder=folder, files=tuple(files)), found


async def _stats(store: ObjectStore, start_after: str) -> AsyncGenerator[ObjectStat, None]:
    async for page in store.list("", start_after=start_after):
        for stat in page:
            yield stat


def _check_outside(store: ObjectStore, key: str) -> None:
    # Another installation may have made a repository inside, or a repository inside was deleted. Nothing here names its
    # objects, so a single key of it stops the plan.
    inner = inner_namespace(key)
    if inner is not None:
        uri = f"{store.uri}/{inner}"
        raise NamespaceInside(f"{uri} may be another repository's namespace, for there is {key}", namespace=uri)


def _behind_ours(key: str) -> str:
    """Return where to list on if this key is in a slice or a folder of Lakebed, or ""."""
    if key.startswith("_lakefs/"):
        return f"_lakefs/{_BEHIND}"
    name = slice_of(key)
    return "" if name is None else f"{messages.DATA_PREFIX}{name}/{_BEHIND}"


async def _flush(store: ObjectStore, folder: str, held: list[ObjectStat], files: list[BucketFile]) -> Found:
    """Write the held rows, and empty `held`. Report objects that no plan may delete as unknown."""
    ours: list[ObjectStat] = []
    unknown_files: list[ObjectStat] = []
    for stat in held:
        (ours if is_elsewhere(stat.key) else unknown_files).append(stat)
    columns = {
        "key": pa.array([stat.key for stat in ours], pa.string()),
        "size_bytes": [stat.size_bytes for stat in ours],
        "seen_ms": [stat.modified_ms for stat in ours],
    }
    if ours:
        files.append(await write_bucketed(store, folder, by_bucket(columns, LISTED)))
    held.clear()
    return Found(
        objects=len(ours),
        size_bytes=sum(stat.size_bytes for stat in ours),
        unknown_files=tuple(stat.key for stat in unknown_files[: messages.UNKNOWN_FILES_MAX]),
        unknown_files_count=len(unknown_files),
    )
