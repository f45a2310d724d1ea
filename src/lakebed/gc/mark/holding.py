"""Apply legal holds in plans and sweeps: keep commits from expiring, and objects from being deleted.

A plan leaves out the objects that are held when it is made. The sweep applies a later hold:

1. the flow reads the holds, and records the objects that the holds keep (`Held`)
2. before each delete the sweep checks whether the holds have changed; after a change it deletes nothing more
3. a held object gets an error in the ledger

`gc/rules/holds.py` is the specification.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, Conflict, MetarangeId, RangeId, SublistId, count_of
from lakebed.gc.engines import Effort, Engine, Task
from lakebed.gc.engines.engine import METARANGES, PARTS, RANGE_IDS, decode, encode, parts_of, read_part, write_part
from lakebed.gc.messages import COMMITS, HOLDS_PREFIX, Cleared, Part, Pieces, Plan, RunKind, StartedRun, holds_mark
from lakebed.gc.rules import Holds, Selection, Spans
from lakebed.gc.runs.context import RunContext, folder_in
from lakebed.gc.runs.recording import HELD
from lakebed.objectstore import ObjectStore
from lakebed.ranges import KnownRanges, SublistList

from .inputs.named import Judged, LiveSet, Named, deal_live, merge_live, read_live, spare
from .inputs.ranges import (
    ListedRanges,
    from_ranges,
    get_metarange,
    get_range,
    get_sublist,
    ranges_in,
    read_ranges,
    without_sublists,
)
from .inputs.selecting import Flags, paths_of, read_rows, selected, selected_objects
from .sets.bucketed import Bucketed
from .sets.packing import Integers, is_set

_CHANGED: Final = "legal holds changed meanwhile: apply again (if nothing changed, a backup was restored: `gc adopt`)"


class HeldBack(Conflict):
    """Legal holds keep every object that the run would delete: the objects have no recorded path. Facts: `holds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Name the objects that a sweep must keep. Sent to tasks. `live` (LIVE) has the held objects of commits."""

    holds: Holds = field(default_factory=Holds)
    live: Pieces = field(default_factory=lambda: Pieces(folder=""))

    async def refuses(self, store: ObjectStore) -> str:
        """Return why no more objects may be deleted, or an empty text. Costs one listing, empty without new holds."""
        # Every change of the holds writes a mark with a higher version, so a later mark means a change.
        async for page in store.list(HOLDS_PREFIX, start_after=holds_mark(self.holds.version)):
            if page:
                return _CHANGED
        return ""

    async def among(self, store: ObjectStore, objects: pa.Table) -> dict[str, str]:
        """Return the ledger's error for each held object among these (GARBAGE), by address."""
        if not self.holds.holds or not objects.num_rows:
            return {}
        paths = self.holds.paths()
        by_path = selected_objects(objects, paths) if paths else np.zeros(objects.num_rows, np.bool_)
        by_commit = _named_rows(await read_live(store, self.live), objects)
        rows = objects.filter(pa.array(by_path | by_commit))
        facts = zip(rows["address"].to_pylist(), paths_of(rows), strict=True)
        # Like a failed delete, the error keeps the run from ending. So no other run may delete the object, and an apply
        # after the release of the hold deletes it.
        return {address: f"{HELD} {self._names(names)}" for address, names in facts}

    def _names(self, paths: Sequence[str]) -> str:
        names = self.holds.at_any(paths) or tuple(hold.name for hold in self.holds.holds)
        return " or ".join(names)


def check_uncommitted(holds: Holds, kind: RunKind) -> None:
    """Check that no hold keeps uncommitted objects, if the run deletes such objects.

    Raises:
        HeldBack: a hold on paths keeps objects that no commit names.
    """
    if not kind.publishes and (names := holds.keeping_uncommitted()):
        raise HeldBack(
            f"legal hold {', '.join(names)} keeps uncommitted objects, for their paths are on no record", holds=names
        )


def check_planned_holds(holds: Holds, plan: Plan) -> None:
    """Check that the holds are those that an erasure was planned by.

    Raises:
        Conflict: they changed, or a backup was restored.
    """
    if holds.version != plan.holds_version:
        raise Conflict(
            f"the legal holds changed since run {plan.run_id} was planned: make another plan by `lakebed erase plan`",
            run_id=plan.run_id,
        )


async def read_held(context: RunContext, plan: Plan, cleared: Cleared) -> Held:
    """Return the objects that the run must keep now. Call this last, before the run's first delete.

    Raises:
        HeldBack: see `check_uncommitted`.
        Corrupt: a tree is missing that may name a held object.
    """
    holds = await context.service.holds()
    check_uncommitted(holds, plan.kind)
    # Uncommitted objects have no path. Lakebed's own files are deleted only if no kept commit names them. A deleted
    # repository with holds is not collected at all.
    if not holds.holds or not plan.kind.takes_committed or not cleared.garbage.rows:
        return Held(holds=holds)
    context.progress(
        f"looking for what {count_of(len(holds.holds), 'legal hold')} {'keeps' if len(holds.holds) == 1 else 'keep'}"
    )
    commits = await context.read(cleared.commits, COMMITS)
    if not plan.kind.takes_named:
        # The plan already left out the objects of all other commits.
        commits = commits.filter(commits["expiring"])
    name = f"held.v{holds.version}"
    dealt = await deal_held(context, plan, commits, holds, name=name)
    return Held(holds=holds, live=await merge_live(context.engine, dealt, folder=folder_in(plan, name)))


async def deal_held(
    context: RunContext, run: StartedRun | Plan, commits: pa.Table, holds: Holds, *, name: str
) -> Bucketed:
    """Write LIVE of the objects that these COMMITS name and `holds` keep. A swept commit names nothing."""
    ranges = await _read_ranges(context.engine, commits, holds, folder=folder_in(run, f"{name}.ranges"))
    paths = holds.paths() or Selection()

    async def source(task: Task, share: pa.Table) -> AsyncIterator[Named]:
        listed = await ranges_in(task, share)
        async for named in from_ranges(task, listed.filter(listed["is_live"])):
            yield named
        async for _, rows in _selected_rows(task, listed.filter(pc.invert(listed["is_live"])), paths):
            slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy().astype(np.int64)
            own = slices != FOREIGN_SLICE

            foreign = rows["address"].filter(pa.array(~own)).combine_chunks()
            fill = partial(LiveSet.add_numbers, slices=slices[own], sequences=sequences[own])
            yield Named(fill, foreign if len(foreign) else None)

    return await deal_live(
        context.engine,
        source,
        ranges.rows,
        uri=run.namespace,
        folder=folder_in(run, f"{name}.tasks"),
        with_keys=True,
        effort=ranges.effort_of_whole,
    )


async def keep_held(context: RunContext, run: StartedRun, judged: Judged, holds: Holds) -> Judged:
    """Keep each commit from expiring that a hold names or that has an entry at a held path."""
    commits = judged.commits.filter(pa.array(judged.expired))
    if not holds.holds or not commits.num_rows:
        return judged
    is_named = pc.is_in(commits["id"], value_set=pa.array(sorted(holds.commit_ids()), pa.string()))
    held_ids = set(commits.filter(is_named)["id"].to_pylist())
    paths = holds.paths()
    if paths is not None:
        trees = await _trees_with(context.engine, commits, paths, folder=folder_in(run, "held.ranges"))
        held_ids |= set(commits.filter(pc.is_in(commits["metarange_id"], value_set=trees))["id"].to_pylist())
    if held_ids:
        context.progress(f"legal holds keep {count_of(len(held_ids), 'commit')} that would expire")
    return spare(judged, held_ids)


async def _read_ranges(engine: Engine, commits: pa.Table, holds: Holds, *, folder: str) -> ListedRanges:
    """Return the ranges that may name a held object; live: a held commit has the range, so every object is held."""
    paths = holds.paths()
    spans = None if paths is None else Spans(paths)
    whole = pc.is_in(commits["id"], value_set=pa.array(sorted(holds.commit_ids()), pa.string()))
    there = _is_there(commits)
    chosen = there if spans is not None else pc.and_(there, whole)
    trees = dict.fromkeys(commits.filter(chosen)["metarange_id"].to_pylist(), False)
    trees |= dict.fromkeys(commits.filter(pc.and_(there, whole))["metarange_id"].to_pylist(), True)

    def sort(min_key: bytes, max_key: bytes, is_live: bool) -> bool | None:
        if is_live:
            return True
        # Read a range only if its span meets a held path.
        return False if spans is not None and spans.meets(min_key, max_key) else None

    return await read_ranges(engine, metaranges_of(trees), folder=folder, sort=sort)


def _is_there(commits: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.invert(commits["swept"]), pc.not_equal(commits["metarange_id"], ""))


def metaranges_of(is_live: dict[str, bool]) -> pa.Table:
    """Return METARANGES without causes."""
    return METARANGES.rows({"metarange_id": [*is_live], "is_live": [*is_live.values()], **_no_cause(len(is_live))})


def _no_cause(count: int) -> dict[str, list[object]]:
    return {"seen_ms": [0] * count, "reason": [""] * count, "rule": [""] * count, "branch": [""] * count}


async def _selected_rows(task: Task, ranges: pa.Table, paths: Selection) -> AsyncIterator[tuple[str, pa.Table]]:
    """Yield each of these RANGES with an entry at one of the paths, and those entries."""
    counts = dict(zip(ranges["range_id"].to_pylist(), ranges["count"].to_pylist(), strict=True))
    async for name, data in task.ahead([*counts], lambda id_: get_range(task.store, RangeId(id_))):
        rows = read_rows(RangeId(name), data, counts[name], paths)
        chosen = selected(rows, paths)
        if chosen.any():
            yield name, rows.filter(pa.array(chosen))


async def _trees_with(engine: Engine, commits: pa.Table, paths: Selection, *, folder: str) -> pa.Array:
    """Return the ids of the metaranges of these COMMITS that have an entry at one of the paths.

    1. Read each range whose span meets a path, in one task.
    2. Read the sublists, and choose those that list such a range.
    3. Read the metaranges again, and choose those that list such a range or sublist.

    Commits share ranges and sublists, so each commit costs only its own metarange.
    """
    spans = Spans(paths)
    trees = set(commits.filter(_is_there(commits))["metarange_id"].to_pylist())
    metaranges = metaranges_of(dict.fromkeys(sorted(trees), False))

    def may_have(min_key: bytes, max_key: bytes, _: bool) -> bool | None:
        return False if spans.meets(min_key, max_key) else None

    listed = await read_ranges(engine, metaranges, folder=folder, with_sublists=True, sort=may_have)

    async def read_entries(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        ranges = without_sublists(await ranges_in(task, share))
        with_rows = [name async for name, _ in _selected_rows(task, ranges, paths)]
        if with_rows:
            yield await _write_ids(task, folder, with_rows)

    ranges = await engine.run(read_entries, listed.rows, PARTS, effort=listed.effort_of_whole)
    if not ranges.num_rows:
        return pa.array([], pa.string())

    async def open_sublists(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        read = await ranges_in(task, share)
        sublists = read.filter(pc.equal(read["count"], 0))["range_id"].to_pylist()
        wanted, with_rows = await _read_wanted(task, folder, ranges), list[str]()
        async for name, data in task.ahead(sublists, lambda id_: get_sublist(task.store, SublistId(id_))):
            # Sublists share almost no ranges, so one sublist's known ranges do not help with the next.
            known = KnownRanges()
            known.read_sublist(SublistId(name), data)
            if wanted.has(known.ids()).any():
                with_rows.append(name)
        if with_rows:
            yield await _write_ids(task, folder, with_rows)

    # A sublist is small, and decoding it takes several times as long as reading it.
    sublists = await engine.run(open_sublists, listed.rows, PARTS, effort=Effort(requests=4 * listed.sublists))
    either = pa.concat_tables([ranges, sublists])

    async def read_trees(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        wanted, known, with_rows = await _read_wanted(task, folder, either), KnownRanges(), list[str]()
        names = share["metarange_id"].to_pylist()
        async for name, data in task.ahead(names, lambda id_: get_metarange(task.store, MetarangeId(id_))):
            tree = known.read_metarange(MetarangeId(name), data)
            if wanted.has(tree.ids).any() if isinstance(tree, SublistList) else wanted.has_any(known, tree):
                with_rows.append(name)
        # RANGE_IDS has one column of ids. Here the ids are those of metaranges.
        yield RANGE_IDS.rows({"range_id": with_rows})

    done = await engine.run(read_trees, metaranges, RANGE_IDS, effort=Effort(requests=4 * metaranges.num_rows))
    return done["range_id"].combine_chunks()


class _Wanted:
    """Match ids by their first 60 bits, eight bytes each. Equal beginnings may hold one more commit, never one less."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._numbers = np.unique(_numbers_of(ids))
        self._of_known = np.zeros(0, np.bool_)

    def has(self, ids: Iterable[str]) -> Flags:
        numbers = _numbers_of(ids)
        at = np.searchsorted(self._numbers, numbers).clip(max=len(self._numbers) - 1)
        is_wanted: Flags = self._numbers[at] == numbers
        return is_wanted

    def has_any(self, known: KnownRanges, places: Integers) -> bool:
        """Return whether any range at these places is wanted. Always call it with the same `known`."""
        if new := known.ids(len(self._of_known)):
            self._of_known = np.concatenate([self._of_known, self.has(new)])
        return bool(self._of_known[places].any())


def _numbers_of(ids: Iterable[str]) -> Integers:
    return np.fromiter((int(id_[:15], 16) for id_ in ids), np.int64)


async def _write_ids(task: Task, folder: str, ids: Sequence[str]) -> pa.Table:
    """Write a file of RANGE_IDS, and return its row of PARTS."""
    data = encode(RANGE_IDS, RANGE_IDS.rows({"range_id": ids}))
    # The name is a digest of the content, so a repeated task writes the same file.
    name = f"held-{hashlib.sha256(data).hexdigest()[:24]}.parquet"
    return await write_part(task.store, folder, name, data, rows=len(ids), note=None)


async def _read_wanted(task: Task, folder: str, files: pa.Table) -> _Wanted:
    async def read(part: Part) -> Sequence[str]:
        ids: list[str] = decode(RANGE_IDS, await read_part(task.store, folder, part), part)["range_id"].to_pylist()
        return ids

    return _Wanted([id_ async for _, ids in task.ahead(parts_of(files), read) for id_ in ids])


def _named_rows(live: pa.Table, objects: pa.Table) -> Flags:
    """Return for each object (GARBAGE) whether LIVE names it."""
    flags = np.zeros(objects.num_rows, np.bool_)
    slices, sequences = objects["slice"].to_numpy(), objects["sequence"].to_numpy().astype(np.int64)
    for bucket, bitmap in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
        if bucket >= 0:
            here = slices == bucket
            flags[here] |= is_set(np.frombuffer(bitmap, np.uint8), sequences[here])
    keys = pc.list_flatten(live["addresses"].combine_chunks())
    if len(keys):
        is_named = pc.is_in(objects["address"].combine_chunks(), value_set=keys)
        flags |= (slices == FOREIGN_SLICE) & is_named.to_numpy(zero_copy_only=False)
    return flags
