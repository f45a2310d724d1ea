"""A metadata run deletes files of trees that no commit names, folders of old runs, and old dumps and symlinks.

A plan lists `_lakefs/` first. Then it reads every commit record, and the metarange of each commit that was not swept.
It publishes nothing and delays no writer.

When a plan is applied, the service retires every id of its list for ever, ends listed plans without an apply, and bumps
every branch. Then it reads every commit record again (docs/design/protocols.md, "A collection of metadata"). Files that
commits name since the plan stay, and so do folders of runs at work.

`gc/rules/metadata.py` is the specification; the tests compare both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, MetarangeId, RangeId, RunId, SublistId, count_of
from lakebed.gc import messages
from lakebed.gc.engines import Effort, Task
from lakebed.gc.engines.engine import PARTS, RANGE_IDS, VERDICTS, no_others
from lakebed.gc.kinds import Limits, Look, SweepRule
from lakebed.gc.mark.inputs.listing import (
    DUMPS,
    LAST_FILE,
    SPECIAL_PREFIX,
    TREE_FILES,
    Special,
    find_unknown_files_around,
    is_metadata,
    list_special,
    run_file,
)
from lakebed.gc.mark.inputs.named import check_live, metaranges_of_all, newly_kept
from lakebed.gc.mark.inputs.ranges import ListedRanges, read_ranges
from lakebed.gc.mark.mark import sum_parts, write_portions
from lakebed.gc.messages import (
    GC_PREFIX,
    LEFTOVERS,
    BadInput,
    Cleared,
    LeftoversRetired,
    Part,
    Plan,
    PreparedCommits,
    RangeCounts,
    RetireLeftovers,
    RunKind,
    RunView,
    StartedRun,
    run_folder,
)
from lakebed.gc.rules import MetadataRule, RunFacts, WrittenFacts, old_runs, old_written, unnamed_files
from lakebed.gc.runs.context import RunContext, counts_of, folder_in, plan_frame, read_garbage, write_input
from lakebed.objectstore import ObjectCorrupt, ObjectStat, ObjectStore
from lakebed.ranges import metarange_key, range_key, sublist_key

UNNAMED: Final = "unnamed"
OLD_RUN: Final = "old-run"
OLD_DUMP: Final = "old-dump"
OLD_SYMLINKS: Final = "old-symlinks"
_FILES_OF_A_DUMP: Final = 3
_OF_TREES: Final = ("_lakefs/ranges/", "_lakefs/sublists/")
"""Folders of files that other files of a tree name. If a tree is lost, all files in these folders stay."""


class SymlinksFile(msgspec.Struct, frozen=True):
    """Read the facts that a collection needs from the last file of symlinks (docs/formats/addresses.md)."""

    branch: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """Apply the rule `by`, which gives the minimal ages of files. Keep the folder of the run `spares`."""

    by: MetadataRule
    spares: str = ""
    name: ClassVar = RunKind.METADATA
    rule: ClassVar = SweepRule(may_delete=is_metadata, look=Look.NONE)

    async def plan(self, context: RunContext, run: StartedRun) -> Plan:
        """Return the plan, with the list of ids to retire (table LEFTOVERS)."""
        # List before reading commits, so that a file which a commit names meanwhile stays.
        context.progress("listing ranges, metaranges and run folders")
        special = await list_special(context.engine, context.store, folder=folder_in(run, "special"))

        async def decide(prepared: PreparedCommits) -> Plan:
            return await self._plan(context, run, special, prepared)

        return await context.reread(lambda: context.service.commits_for(run.run_id, run.kind), decide)

    async def _plan(self, context: RunContext, run: StartedRun, special: Special, prepared: PreparedCommits) -> Plan:
        commits = await context.read(prepared.commits, messages.COMMITS)
        metaranges = metaranges_of_all(commits)
        trees = count_of(metaranges.num_rows, "metarange")
        context.progress(f"reading {trees} of {count_of(commits.num_rows, 'commit')}")
        folder = folder_in(run, "ranges.tasks")
        listed = await read_ranges(context.engine, metaranges, folder=folder, with_sublists=True)
        ranges = listed.count
        check_live(metaranges, ranges)
        nameless = await without_ids(context, special, metaranges["metarange_id"], listed)
        # Nothing shows which files a lost tree names.
        if prepared.has_lost_trees:
            for folder in _OF_TREES:
                nameless = nameless.filter(pc.invert(pc.starts_with(nameless["key"], folder)))
        written_ms = dict(zip(nameless["id"].to_pylist(), nameless["modified_ms"].to_pylist(), strict=True))
        ids = unnamed_files(written_ms, (), rule=self.by, now_ms=run.now_ms)
        facts = facts_of(special, await context.service.runs())
        runs = old_runs(facts, rule=self.by, now_ms=run.now_ms) - {run.run_id, self.spares}
        refs = await context.read(prepared.refs, messages.REFS)
        old = await self._old(context.store, special, refs, run.now_ms)
        garbage, totals = await _write(context, run, _garbage(nameless, special, ids, runs, old))
        around = await find_unknown_files_around(context.store)
        return Plan(
            **plan_frame(context, run, prepared),
            leftovers=await _write_leftovers(context.store, run, sorted(ids), sorted(runs)),
            commit_counts=counts_of(commits),
            range_counts=RangeCounts(live=ranges, expired=len(ids)),
            garbage=garbage,
            totals=totals,
            **around.plus(special.unknown_files).facts(),
        )

    async def _old(self, store: ObjectStore, special: Special, refs: pa.Table, now_ms: int) -> list[ObjectStat]:
        """Return the old files of dumps and symlinks."""
        # Their names are never given again, so no recheck is needed. A branch that is made again gets new symlinks.
        branches = set(refs.filter(pc.equal(refs["kind"], "branch"))["name"].to_pylist())
        facts = []
        for (group, id_), stats in special.written.items():
            last = next((stat for stat in stats if stat.key.endswith(f"/{id_}/{LAST_FILE}")), None)
            touched_ms = max(stat.modified_ms for stat in stats)
            is_old = touched_ms < now_ms - self.by.run_age_ms_min
            facts.append(
                WrittenFacts(
                    group=group,
                    id=id_,
                    touched_ms=touched_ms,
                    is_whole=last is not None or (group == DUMPS and len(stats) >= _FILES_OF_A_DUMP),
                    # Read the branch only of old symlinks, a request each.
                    is_wanted=not (is_old and last) or await _branch_of(store, last) in branches,
                )
            )
        old = old_written(facts, rule=self.by, now_ms=now_ms)
        return [stat for key in sorted(old) for stat in special.written[key]]

    async def clear(self, context: RunContext, plan: Plan, rules_version: int) -> Cleared:  # noqa: ARG002 - no rules
        assert plan.leftovers is not None, "plans of metadata have one"
        context.progress(f"retiring {count_of(plan.leftovers.rows, 'file or run', 'files and runs')}")
        request = RetireLeftovers(leftovers=plan.leftovers, uid=plan.uid)

        async def look_again(answer: LeftoversRetired) -> tuple[LeftoversRetired, pa.Array]:
            return answer, await _named_since(context, plan, answer)

        answer, spared = await context.reread(lambda: context.service.retire(plan.run_id, request), look_again)
        folder = folder_in(plan, f"{messages.GARBAGE.name}.{answer.commits.digest()[:16]}")
        alive = [run_folder(kind, RunId(run_id)) for kind in RunKind for run_id in answer.runs_alive]
        alive += await _taken_up(context.store, plan)
        # Nothing shows which files a lost tree names.
        if answer.has_lost_trees:
            alive += _OF_TREES
        parts = await _filter(context.store, plan, folder, spared, alive)
        return Cleared(garbage=messages.manifest_of(messages.GARBAGE, folder, parts), commits=answer.commits)


def make(limits: Limits) -> Metadata:
    return Metadata(limits.metadata, spares=limits.again)


async def _branch_of(store: ObjectStore, last: ObjectStat) -> str:
    """Return the branch that the last file of symlinks names."""
    try:
        return msgspec.json.decode(await store.get(last.key), type=SymlinksFile).branch
    except msgspec.MsgspecError as error:
        raise ObjectCorrupt(f"{last.key} does not say which branch it is of: {error}", key=last.key) from error


async def without_ids(
    context: RunContext, special: Special, metaranges: pa.ChunkedArray, ranges: ListedRanges
) -> pa.Table:
    """Return the TREE_FILES whose ids are not among these, or raise BadInput. Reads each input once, and keeps 8 bytes
    of each id.
    """
    named = [_beginnings(metaranges), *[_beginnings(some["range_id"]) async for some in ranges.each(context)]]
    in_order = np.sort(np.concatenate(named))
    # A file whose id only begins like a named id stays, too. With 64 bits this is very rare.
    left = [
        files.filter(pa.array(~_is_among(in_order, _beginnings(files["id"]))))
        async for files in special.tree_files(context.store)
    ]
    return pa.concat_tables([TREE_FILES.schema.empty_table(), *left])


_ID_DIGITS: Final = 64
_BEGINNING_DIGITS: Final = 16


def _beginnings(ids: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return the first 64 bits of each id."""
    is_whole = pc.all(pc.equal(pc.binary_length(ids), _ID_DIGITS), min_count=0).as_py()
    digits = pc.binary_slice(ids.cast(pa.binary()), 0, _BEGINNING_DIGITS)
    width = _BEGINNING_DIGITS
    text = b"".join(one.buffers()[2][width * one.offset : width * (one.offset + len(one))] for one in digits.chunks)
    try:
        numbers = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        numbers = b""
    # `fromhex` skips spaces. The numbers of all later ids would be wrong, and their files would be deleted.
    if not is_whole or len(numbers) * 2 != width * len(ids):
        raise BadInput(
            f"a file of a tree is named by something that is not a number of {_ID_DIGITS} hexadecimal digits"
        )
    return np.frombuffer(numbers, np.dtype(">u8")).astype(np.uint64)


def _is_among(in_order: npt.NDArray[np.uint64], numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    at = np.searchsorted(in_order, numbers)
    found: npt.NDArray[np.bool_] = at < len(in_order)
    found[found] = in_order[at[found]] == numbers[found]
    return found


def facts_of(special: Special, views: Sequence[RunView]) -> list[RunFacts]:
    """Return the facts of every run that has a folder or a record."""
    known = {(view.kind.value, view.run_id): view for view in views}
    facts = []
    for kind, run_id in sorted({*known, *special.runs}):
        stats, view = special.runs.get((kind, run_id), []), known.get((kind, run_id))
        started_ms = [] if view is None else [view.started_ms]
        facts.append(
            RunFacts(
                id=run_id,
                kind=kind,
                state="" if view is None else view.state.value,
                touched_ms=max([*started_ms, *(stat.modified_ms for stat in stats)]),
                has_begun=any(stat.key.endswith((f"/{run_id}/apply.json", f"/{run_id}/sweep.json")) for stat in stats),
                has_saved=any(stat.key.endswith(f"/{run_id}/saved.json") for stat in stats),
            )
        )
    return facts


def _garbage(
    files: pa.Table, special: Special, ids: Collection[str], runs: Collection[str], written: Sequence[ObjectStat]
) -> pa.Table:
    """Return VERDICTS of the files to delete: TREE_FILES with these `ids`, folders of `runs`, and `written` files."""
    gone = (
        files.filter(pc.is_in(files["id"], value_set=pa.array(sorted(ids), pa.string()))).drop_columns("id").to_pylist()
    )
    folders = [stat for (_, run_id), stats in special.runs.items() if run_id in runs for stat in stats]
    verdicts = [(ObjectStat(**row), UNNAMED) for row in gone]
    verdicts += [(stat, OLD_RUN) for stat in folders] + [
        (stat, OLD_DUMP if stat.key.startswith(f"{SPECIAL_PREFIX}{DUMPS}/") else OLD_SYMLINKS) for stat in written
    ]
    stats = sorted(verdicts, key=_key)
    count = len(stats)
    columns: dict[str, Any] = {
        "address": [stat.key for stat, _ in stats],
        "slice": [FOREIGN_SLICE] * count,
        "sequence": [0] * count,
        "size_bytes": [stat.size_bytes for stat, _ in stats],
        "reason": [reason for _, reason in stats],
        "last_seen_at": pa.array([stat.modified_ms * 1000 for stat, _ in stats], pa.timestamp("us", tz="UTC")),
        "prefix": [stat.key[: stat.key.index("/", len(SPECIAL_PREFIX)) + 1] for stat, _ in stats],
    }
    nothing = {name: [""] * count for name in VERDICTS.schema.names if name not in columns}
    return VERDICTS.rows({**columns, **nothing, **no_others(count)})


def _key(item: tuple[ObjectStat, str]) -> str:
    return item[0].key


async def _write(context: RunContext, run: StartedRun, garbage: pa.Table) -> tuple[messages.Manifest, messages.Totals]:
    """Write the VERDICTS as parts of the plan."""
    folder = folder_in(run, messages.GARBAGE.name)

    async def work(task: Task, _: pa.Table) -> AsyncIterator[pa.Table]:
        async for part in write_portions(task, folder, _once(garbage), now_ms=run.now_ms):
            yield part

    # Pass one row and no effort, so that one task writes all: the rows are in this process already.
    one = RANGE_IDS.rows({"range_id": [""]})
    return sum_parts(await context.engine.run(work, one, PARTS, effort=Effort()), folder)


async def _once(rows: pa.Table) -> AsyncIterator[pa.Table]:
    yield rows


async def _write_leftovers(
    store: ObjectStore, run: StartedRun, ids: Sequence[str], runs: Sequence[str]
) -> messages.Manifest:
    rows = pa.table({"kind": ["file"] * len(ids) + ["run"] * len(runs), "id": pa.array([*ids, *runs], pa.string())})
    rows = rows.cast(messages.arrow_schema(LEFTOVERS))
    return await write_input(store, folder_in(run, LEFTOVERS.name), LEFTOVERS, rows)


async def _named_since(context: RunContext, plan: Plan, answer: LeftoversRetired) -> pa.Array:
    """Return the keys of files in the trees of commits that the plan did not know, or knew as swept."""
    # No other commit can name a file of the plan.
    before = await context.read(plan.commits, messages.COMMITS)
    now = await context.read(answer.commits, messages.COMMITS)
    new, _ = newly_kept(before.filter(pc.invert(before["swept"])), now)
    if not new.num_rows:
        return pa.array([], pa.string())
    context.progress(f"rechecking against {count_of(new.num_rows, 'new metarange')}")
    folder = folder_in(plan, f"ranges.tasks.{answer.commits.digest()[:16]}")
    listed = await read_ranges(context.engine, new, folder=folder, with_sublists=True)
    found = [pa.array([metarange_key(MetarangeId(id_)) for id_ in new["metarange_id"].to_pylist()], pa.string())]
    async for some in listed.each(context):
        # `with_sublists` lists sublists as well, with a count of 0.
        rows = zip(some["range_id"].to_pylist(), some["count"].to_pylist(), strict=True)
        keys = [range_key(RangeId(id_)) if count else sublist_key(SublistId(id_)) for id_, count in rows]
        found.append(pa.array(keys, pa.string()))
    return pa.concat_arrays(found)


async def _taken_up(store: ObjectStore, plan: Plan) -> list[str]:
    """Return the folders of runs that wrote a file since the plan."""
    listed_ms: dict[str, int] = {}
    for part in plan.garbage.parts:
        rows = await read_garbage(store, plan, part)
        folders = rows.filter(pc.starts_with(rows["address"], GC_PREFIX))
        dates = folders["last_seen_at"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        listed_ms |= dict(zip(folders["address"].to_pylist(), dates.to_pylist(), strict=True))
    runs = sorted({run for run in map(run_file, listed_ms) if run is not None})
    found = []
    for folder in (run_folder(RunKind(kind), RunId(run_id)) for kind, run_id in runs):
        stats = [stat async for page in store.list(folder) for stat in page]
        if any(run_file(stat.key) and listed_ms.get(stat.key) != stat.modified_ms for stat in stats):
            found.append(folder)
    return found


async def _filter(store: ObjectStore, plan: Plan, folder: str, spared: pa.Array, alive: list[str]) -> list[Part]:
    """Write the plan's objects that are neither `spared` nor in a folder of `alive`, part by part."""
    written: list[Part] = []
    for part in plan.garbage.parts:
        rows = await read_garbage(store, plan, part)
        stays = pc.is_in(rows["address"], value_set=spared)
        for one in alive:
            stays = pc.or_(stays, pc.starts_with(rows["address"], one))
        left = rows.filter(pc.invert(stays))
        if left.num_rows:
            data = messages.encode_part(messages.GARBAGE, left)
            await store.put(folder + part.name, data)
            written.append(messages.part_of(part.name, data, rows=left.num_rows))
    return written
