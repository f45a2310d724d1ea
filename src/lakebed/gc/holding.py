"""Legal holds in plans and sweeps: which commits may not expire, and which objects may not go.

A plan leaves out what is held when it is made. A hold that comes later is met by the sweep, which asks last:

1. the flow reads the holds, and writes down the objects that they keep (`Held`)
2. before each delete the sweep looks whether the holds have changed since; if so, it deletes nothing more
3. what is held stays with an error in the ledger, as what could not be deleted. So the run does not end, what it holds
   is no other run's, and an apply after the release deletes it

`gc/rules/holds.py` is the specification. Ranges are read only where their span meets a held path. A tree that is
missing stops the run: what it named may be held.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, Conflict, RangeId, count_of
from lakebed.gc.protocol import COMMITS, HOLDS_PREFIX, Pieces, Plan, RunKind, StartedRun, holds_mark
from lakebed.gc.rules import Hold, Holds, Selection, Spans
from lakebed.objectstore import ObjectStore
from lakebed.ranges import KnownRanges

from .engines import Effort, Engine, Task
from .inputs.history import Judged, spare
from .inputs.named import LiveSet, Named, deal_live, merge_live, read_live
from .inputs.ranges import each_tree, effort_of_whole, find_ranges, from_ranges, get_range
from .inputs.selecting import Flags, paths_of, read_rows, selected, selected_objects
from .runs.context import Cleared, RunContext, folder_in
from .runs.recording import HELD
from .sets.bucketed import Bucketed
from .sets.packing import is_set
from .tables import METARANGES, RANGE_IDS, RANGES

_CHANGED: Final = "legal holds changed meanwhile: apply again (if nothing changed, a backup was restored: `gc adopt`)"


class HeldBack(Conflict):
    """Legal holds keep all that the run would take, for its paths are on no record. Facts: `holds`, their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Name what a sweep must leave. Travels to tasks. `live` (LIVE) has what commits name that is held."""

    holds: Holds = field(default_factory=Holds)
    live: Pieces = field(default_factory=lambda: Pieces(folder=""))

    async def refuses(self, store: ObjectStore) -> str:
        """Return why nothing more may be deleted, or nothing. Costs one listing, which is empty unless a hold came."""
        async for page in store.list(HOLDS_PREFIX, start_after=holds_mark(self.holds.version)):
            if page:
                return _CHANGED
        return ""

    async def among(self, store: ObjectStore, objects: pa.Table) -> dict[str, str]:
        """Return for each of these objects (GARBAGE) that is held, by address, what the ledger says of it."""
        if not self.holds.holds or not objects.num_rows:
            return {}
        paths = self.holds.paths()
        by_path = selected_objects(objects, paths) if paths else np.zeros(objects.num_rows, np.bool_)
        by_commit = _named_rows(await read_live(store, self.live), objects)
        rows = objects.filter(pa.array(by_path | by_commit))
        facts = zip(rows["address"].to_pylist(), paths_of(rows), strict=True)
        return {address: f"{HELD} {self._names(names)}" for address, names in facts}

    def _names(self, paths: Sequence[str]) -> str:
        names = self.holds.at_any(paths) or tuple(hold.name for hold in self.holds.holds)
        return " or ".join(names)


def check_uncommitted(holds: Holds, kind: RunKind) -> None:
    """
    Raises:
        HeldBack: a hold on paths keeps what is in no commit.
    """
    if kind is RunKind.UNCOMMITTED and (names := holds.keeping_uncommitted()):
        raise HeldBack(
            f"legal hold {', '.join(names)} keeps uncommitted objects, for their paths are on no record", holds=names
        )


async def read_held(context: RunContext, plan: Plan, cleared: Cleared) -> Held:
    """Return what the run must leave as things are now. To be asked last, before its first delete.

    Raises:
        HeldBack: see `check_uncommitted`.
        Corrupt: a tree is missing that may name something held.
    """
    holds = await context.service.holds()
    check_uncommitted(holds, plan.kind)
    # What no commit names has no path; files of Lakebed's own go only where no commit that stays has them; a deleted
    # repository with holds is not collected at all.
    if (
        not holds.holds
        or plan.kind in {RunKind.UNCOMMITTED, RunKind.METADATA, RunKind.DELETED}
        or not cleared.garbage.rows
    ):
        return Held(holds=holds)
    context.progress(
        f"looking for what {count_of(len(holds.holds), 'legal hold')} {'keeps' if len(holds.holds) == 1 else 'keep'}"
    )
    commits = await context.read(cleared.commits, COMMITS)
    if plan.kind is RunKind.COMMITTED:
        # Objects of all others were let off already.
        commits = commits.filter(commits["expiring"])
    name = f"held.v{holds.version}"
    dealt = await deal_held(context, plan, commits, holds, name=name)
    return Held(holds=holds, live=await merge_live(context.engine, dealt, folder=folder_in(plan, name)))


async def deal_held(
    context: RunContext, run: StartedRun | Plan, commits: pa.Table, holds: Holds, *, name: str
) -> Bucketed:
    """Write LIVE of the objects that these COMMITS name and `holds` keep. A swept commit names nothing."""
    ranges = await _ranges_of(context.engine, commits, holds, folder=folder_in(run, f"{name}.ranges"))
    paths = holds.paths() or Selection()

    async def source(task: Task, share: pa.Table) -> AsyncIterator[Named]:
        async for named in from_ranges(task, share.filter(share["is_live"])):
            yield named
        async for rows in _selected_rows(task, share.filter(pc.invert(share["is_live"])), paths):
            slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy().astype(np.int64)
            own = slices != FOREIGN_SLICE

            foreign = rows["address"].filter(pa.array(~own)).combine_chunks()
            fill = partial(LiveSet.add_numbers, slices=slices[own], sequences=sequences[own])
            yield Named(fill, foreign if len(foreign) else None)

    return await deal_live(
        context.engine,
        source,
        ranges,
        uri=run.namespace,
        folder=folder_in(run, f"{name}.tasks"),
        with_keys=True,
        effort=effort_of_whole(ranges),
    )


async def keep_held(context: RunContext, run: StartedRun, judged: Judged, holds: Holds) -> Judged:
    """Let no commit expire that a hold names, or that has an entry at a held path."""
    commits = judged.commits.filter(pa.array(judged.expired))
    if not holds.holds or not commits.num_rows:
        return judged
    found = pc.is_in(commits["id"], value_set=pa.array(sorted(holds.commit_ids()), pa.string()))
    held = set(commits.filter(found)["id"].to_pylist())
    paths = holds.paths()
    if paths is not None:
        by_path = Holds(holds=(Hold(name="paths", globs=paths.globs, why="all"),))
        folder = folder_in(run, "held.ranges")
        ranges = await _ranges_of(context.engine, commits, by_path, folder=folder)
        trees = await _trees_with(context.engine, commits, await _with_rows(context.engine, ranges, paths))
        held |= set(commits.filter(pc.is_in(commits["metarange_id"], value_set=trees))["id"].to_pylist())
    if held:
        context.progress(f"legal holds keep {count_of(len(held), 'commit')} that would expire")
    return spare(judged, held)


async def _ranges_of(engine: Engine, commits: pa.Table, holds: Holds, *, folder: str) -> pa.Table:
    """RANGES that may name something held, each once; live: all of it is, for a held commit has it."""
    paths = holds.paths()
    spans = None if paths is None else Spans(paths)
    whole = pc.is_in(commits["id"], value_set=pa.array(sorted(holds.commit_ids()), pa.string()))
    there = pc.and_(pc.invert(commits["swept"]), pc.not_equal(commits["metarange_id"], ""))
    chosen = there if spans is not None else pc.and_(there, whole)
    trees = dict.fromkeys(commits.filter(chosen)["metarange_id"].to_pylist(), False)
    trees |= dict.fromkeys(commits.filter(pc.and_(there, whole))["metarange_id"].to_pylist(), True)

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        is_whole = dict(zip(share["metarange_id"].to_pylist(), share["is_live"].to_pylist(), strict=True))
        known, held = KnownRanges(), set[int]()
        async for name, places in each_tree(task, [*is_whole], known):
            if is_whole[name]:
                held.update(places.tolist())
        chosen = [
            place
            for place in range(len(known))
            if place in held or (spans is not None and spans.meets(*known.span(place)))
        ]
        counts, sizes = known.numbers()
        yield ranges_of({known.id(place): (counts[place], sizes[place], place in held) for place in chosen})

    found = await find_ranges(engine, work, metaranges_of(trees), folder=folder)
    return found.sort_by("range_id")


def metaranges_of(is_live: dict[str, bool]) -> pa.Table:
    """METARANGES without causes."""
    return METARANGES.rows({"metarange_id": [*is_live], "is_live": [*is_live.values()], **_no_cause(len(is_live))})


def ranges_of(found: dict[str, tuple[int, int, bool]]) -> pa.Table:
    """RANGES without causes: of each id count, size, and whether it is live."""
    counts, sizes, flags = zip(*found.values(), strict=True) if found else ((), (), ())
    facts = {"range_id": [*found], "count": counts, "file_bytes": sizes, "is_live": flags}
    return RANGES.rows({**facts, **_no_cause(len(found))})


def _no_cause(count: int) -> dict[str, list[object]]:
    return {"seen_ms": [0] * count, "reason": [""] * count, "rule": [""] * count, "branch": [""] * count}


async def _selected_rows(task: Task, ranges: pa.Table, paths: Selection) -> AsyncIterator[pa.Table]:
    counts = dict(zip(ranges["range_id"].to_pylist(), ranges["count"].to_pylist(), strict=True))
    async for name, data in task.ahead([*counts], lambda id_: get_range(task.store, RangeId(id_))):
        rows = read_rows(RangeId(name), data, counts[name], paths)
        chosen = selected(rows, paths)
        if chosen.any():
            yield rows.filter(pa.array(chosen))


async def _with_rows(engine: Engine, ranges: pa.Table, paths: Selection) -> frozenset[str]:
    """Return the ids of those RANGES that have an entry at one of the paths."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        counts = dict(zip(share["range_id"].to_pylist(), share["count"].to_pylist(), strict=True))
        found: list[str] = []
        async for name, data in task.ahead([*counts], lambda id_: get_range(task.store, RangeId(id_))):
            if selected(read_rows(RangeId(name), data, counts[name], paths), paths).any():
                found.append(name)
        yield RANGE_IDS.rows({"range_id": found})

    rows = await engine.run(work, ranges, RANGE_IDS, effort=effort_of_whole(ranges))
    return frozenset(rows["range_id"].to_pylist())


async def _trees_with(engine: Engine, commits: pa.Table, ranges: frozenset[str]) -> pa.Array:
    """Return the ids of the metaranges of these COMMITS that have one of the ranges."""
    if not ranges:
        return pa.array([], pa.string())
    names = sorted(set(commits["metarange_id"].to_pylist()) - {""})

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        known, is_wanted, found = KnownRanges(), list[bool](), list[str]()
        async for name, places in each_tree(task, share["metarange_id"].to_pylist(), known):
            is_wanted += [id_ in ranges for id_ in known.ids(len(is_wanted))]
            if any(is_wanted[place] for place in places.tolist()):
                found.append(name)
        # The table has one column of ids, which these are.
        yield RANGE_IDS.rows({"range_id": found})

    rows = metaranges_of(dict.fromkeys(names, False))
    done = await engine.run(work, rows, RANGE_IDS, effort=Effort(requests=4 * len(names)))
    return done["range_id"].combine_chunks()


def _named_rows(live: pa.Table, objects: pa.Table) -> Flags:
    """Return for each object (GARBAGE) whether LIVE rows name it."""
    found = np.zeros(objects.num_rows, np.bool_)
    slices, sequences = objects["slice"].to_numpy(), objects["sequence"].to_numpy().astype(np.int64)
    for bucket, bitmap in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
        if bucket >= 0:
            here = slices == bucket
            found[here] |= is_set(np.frombuffer(bitmap, np.uint8), sequences[here])
    keys = pc.list_flatten(live["addresses"].combine_chunks())
    if len(keys):
        is_named = pc.is_in(objects["address"].combine_chunks(), value_set=keys)
        found |= (slices == FOREIGN_SLICE) & is_named.to_numpy(zero_copy_only=False)
    return found
