"""Mark garbage, and write the verdicts as parts of a plan, with its totals. No function here deletes.

    mark_listed    uncommitted data: objects listed in slices that no record names
    mark_keys      old layouts: objects listed elsewhere that no record names
    mark_expired   committed data: objects of expired commits that nothing else names

`mark_listed` reads the listing part by part, and holds all named addresses in memory. The others join both sides by
buckets (gc/mark/sets/bucketed.py). A missing or altered part stops the run, and the error names it. `look_again` marks
a plan's garbage once more before its deletion, and leaves out the objects that a record has named since.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, NotFound, count_of, slice_name
from lakebed.gc import messages
from lakebed.gc.engines import Effort, Engine, Task, Work
from lakebed.gc.engines.engine import (
    CANDIDATES,
    LIVE,
    OTHERS,
    PARTS,
    VERDICTS,
    check_numbered,
    check_whole,
    decode,
    encode,
    no_others,
    parts_of,
    read_part,
    rows_by_key,
    rows_of_parts,
    without,
    write_part,
)
from lakebed.gc.messages import Manifest, Part, Pieces, Plan, Total, Totals
from lakebed.gc.rules import DAY_MS
from lakebed.gc.runs.context import RunContext, folder_in
from lakebed.objectstore import ObjectStat, ObjectStore

from .inputs.listing import SIZE_UNKNOWN
from .inputs.named import deal_tables, newly_kept, read_live
from .inputs.ranges import deal_ranges, in_closed_slices, read_ranges
from .sets.bucketed import LISTED, NAMED, Bucketed, dealt, effort_of, files_of, in_shares, keep_unnamed, rows_of_shares
from .sets.packing import Cause, Unpacked, named_by, pack_foreign, pack_numbered, subtract, unpack, verdicts_of

_KEPT: Final = msgspec.json.encode("kept")
"""The note of a part of kept objects. The note of a part of garbage is its totals."""


class Marked(NamedTuple):
    """Hold the garbage, as parts of the table GARBAGE, and the kept objects that a later run judges again."""

    garbage: Manifest
    totals: Totals
    kept: Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Hold all named addresses, as parts of LIVE: by commits, by records outside of commits, and by unfinished runs."""

    committed: Pieces
    uncommitted: Pieces
    held: Pieces = field(default_factory=lambda: Pieces(folder=""))


async def mark_listed(
    engine: Engine,
    candidates: Sequence[Pieces],
    live: Live,
    *,
    into: str,
    kept_into: str,
    now_ms: int,
    young_since_ms: int | None = None,
) -> Marked:
    """Mark the candidates (CANDIDATES of slices, all rows of an object in one part) that no record names.

    `live` may lack foreign keys. Objects written at or after `young_since_ms` are kept for their age.
    """

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        kept: list[pa.Table] = []

        async def verdicts() -> AsyncIterator[pa.Table]:
            sides = [await read_live(task.store, named) for named in (live.committed, live.uncommitted, live.held)]
            for named in sides:
                check_whole(named, "live objects")
            committed, uncommitted, held = sides
            for part in parts_of(share):
                objects = _unpack(decode(CANDIDATES, await read_part(task.store, "", part), part), part)
                by_commits, by_others = named_by(committed, objects), named_by(uncommitted, objects)
                # The unfinished run deletes these objects, so no later run has to judge them again.
                by_commits |= named_by(held, objects)
                objects, unnamed = await _look_for_unlisted(task, objects, ~(by_commits | by_others))
                stays = kept_of(objects, by_commits, by_others, young_since_ms=young_since_ms)
                if stays.num_rows:
                    # Named after the listed part, so a repeated task writes the same name.
                    name = part.name.rpartition("/")[2]
                    data = encode(CANDIDATES, stays)
                    kept.append(await write_part(task.store, kept_into, name, data, rows=stays.num_rows, note="kept"))
                verdict_rows = verdicts_of(objects, unnamed)
                yield verdict_rows if young_since_ms is None else without_young(verdict_rows, since_ms=young_since_ms)

        async for row in write_portions(task, into, verdicts(), now_ms=now_ms):
            yield row
        for row in kept:
            yield row

    effort = Effort(size_bytes=sum(pieces.size_bytes for pieces in candidates))
    written = await engine.run(work, rows_by_key(candidates), PARTS, effort=effort)
    is_kept = pc.equal(written["note"], _KEPT)
    garbage, totals = sum_parts(written.filter(pc.invert(is_kept)), into)
    kept = parts_of(written.filter(is_kept).sort_by("name"))
    return Marked(garbage, totals, Pieces(folder=kept_into, parts=tuple(kept)))


async def mark_keys(
    engine: Engine,
    listed: Bucketed,
    named: Sequence[Bucketed],
    *,
    into: str,
    cause: Cause,
    now_ms: int,
    young_since_ms: int | None = None,
) -> tuple[Manifest, Totals]:
    """Mark LISTED objects that no other side names. Keep those written at or after `young_since_ms`."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async def verdicts() -> AsyncIterator[pa.Table]:
            async for buckets, (ours, theirs) in in_shares(task, share, ([listed], LISTED), (named, NAMED)):
                left = keep_unnamed(ours, theirs, buckets)
                if young_since_ms is not None:
                    left = left.filter(pc.less(left["seen_ms"], young_since_ms))
                yield _verdicts_of_keys(left, cause)

        async for part in write_portions(task, into, verdicts(), now_ms=now_ms):
            yield part

    rows = rows_of_shares(listed, named)
    return sum_parts(await engine.run(work, rows, PARTS, effort=effort_of(listed, *named)), into)


async def mark_expired(
    engine: Engine,
    expired: Bucketed,
    live: Sequence[Bucketed],
    *,
    into: str,
    now_ms: int,
    all_names: bool = False,
    unasked: Collection[str] | None = None,
) -> tuple[Manifest, Totals]:
    """Mark the candidates (CANDIDATES) that no side of LIVE names; by `all_names` with all their paths and rules.

    Unless `unasked` is None, ask the store for each address outside of `unasked`, and leave out missing objects.
    """

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async def verdicts() -> AsyncIterator[pa.Table]:
            async for _, (ours, theirs) in in_shares(task, share, ([expired], CANDIDATES), (live, LIVE)):
                named = pa.concat_tables([LIVE.schema.empty_table(), *theirs])
                verdict_rows = subtract(pa.concat_tables(ours), named, all_names=all_names).cast(VERDICTS.schema)
                yield verdict_rows if unasked is None else await _only_there(task, verdict_rows, unasked)

        async for part in write_portions(task, into, verdicts(), now_ms=now_ms):
            yield part

    rows = rows_of_shares(expired, live)
    return sum_parts(await engine.run(work, rows, PARTS, effort=effort_of(expired, *live)), into)


def _unpack(candidates: pa.Table, part: Part) -> Unpacked:
    """Unpack CANDIDATES of slices.

    Raises:
        BadInput: a null, arrays that are not parallel, or an object outside of slices: `live` has no keys to compare.
    """
    check_whole(candidates, part.name)
    check_numbered(candidates, part.name)
    return unpack(candidates)


async def _look_for_unlisted(
    task: Task, objects: Unpacked, unnamed: npt.NDArray[np.bool_]
) -> tuple[Unpacked, npt.NDArray[np.bool_]]:
    """Ask the store for each unnamed object that was not listed. Set its present size and date, or leave it out if it
    is still missing."""
    unknown = np.flatnonzero(unnamed & (objects.sizes == SIZE_UNKNOWN))
    if not len(unknown):
        return objects, unnamed
    sizes, seen_ms, unnamed = objects.sizes.copy(), objects.seen_ms.copy(), unnamed.copy()
    places = iter(unknown.tolist())
    async for _, stat in task.ahead(objects.addresses(unknown), lambda key: _find_stat(task.store, key)):
        place = next(places)
        unnamed[place] = stat is not None
        if stat is not None:
            sizes[place], seen_ms[place] = stat.size_bytes, stat.modified_ms
    return replace(objects, sizes=sizes, seen_ms=seen_ms), unnamed


async def _only_there(task: Task, verdicts: pa.Table, unasked: Collection[str]) -> pa.Table:
    asked = [key for key in verdicts["address"].to_pylist() if key not in unasked]
    gone = [key async for key, stat in task.ahead(asked, lambda key: _find_stat(task.store, key)) if stat is None]
    return without(verdicts, gone)


async def _find_stat(store: ObjectStore, key: str) -> ObjectStat | None:
    try:
        return await store.stat(key)
    except NotFound:
        return None


def without_young(verdicts: pa.Table, *, since_ms: int) -> pa.Table:
    """Leave out VERDICTS written at or after this instant: the rules keep them for their age."""
    instant = pa.scalar(since_ms * 1000, pa.timestamp("us", tz="UTC"))
    return verdicts.filter(pc.less(verdicts["last_seen_at"], instant))


def kept_of(
    objects: Unpacked,
    by_commits: npt.NDArray[np.bool_],
    by_others: npt.NDArray[np.bool_],
    *,
    young_since_ms: int | None,
) -> pa.Table:
    """Return the CANDIDATES that are kept although no commit names them: a later run judges them again."""
    # A commit's object is no candidate any more: it is deleted only with its commits. An object that an uncommitted
    # record names, or that is too young by the rules, may be garbage in the next run.
    stays = by_others if young_since_ms is None else by_others | (objects.seen_ms >= young_since_ms)
    return _only(objects, np.flatnonzero(stays & ~by_commits))


def _only(objects: Unpacked, kept: npt.NDArray[np.int64]) -> pa.Table:
    """Pack the objects at these positions again."""
    left = np.bincount(np.searchsorted(objects.ends, kept, side="right"), minlength=len(objects.counts))
    arrays: dict[str, npt.NDArray[Any]] = {
        "sequences": objects.sequences[kept],
        "sizes": objects.sizes[kept],
        "seen_ms": objects.seen_ms[kept],
    }
    ends = np.concatenate(([0], np.cumsum(left[left > 0])))
    others = objects.candidates.drop_columns([*arrays]).filter(pa.array(left > 0))
    columns: dict[str, object] = {name: others[name] for name in others.column_names}
    for name, array in arrays.items():
        offsets = (ends * array.itemsize).astype(np.int32)
        columns[name] = pa.Array.from_buffers(
            pa.binary(), others.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(array)]
        )
    return CANDIDATES.rows(columns)


def _verdicts_of_keys(rows: pa.Table, cause: Cause) -> pa.Table:
    texts = {"reason": cause.reason, "rule": cause.rule, "branch": cause.branch, "prefix": "", "path": ""}
    same: dict[str, object] = {name: pa.repeat(text, rows.num_rows) for name, text in texts.items()}
    seen_us = pc.multiply(rows["seen_ms"], 1000)
    return VERDICTS.rows(
        same
        | no_others(rows.num_rows)
        | {
            "address": rows["key"],
            "slice": np.full(rows.num_rows, FOREIGN_SLICE, np.int64),
            "sequence": np.zeros(rows.num_rows, np.int32),
            "size_bytes": rows["size_bytes"],
            "last_seen_at": seen_us.cast(pa.timestamp("us", tz="UTC")),
        }
    )


TOTALS_MAX: Final = 1000
"""Plans list at most this many branches, prefixes and slices. The smallest beyond are summed under `…`."""

WAYS: Final = ("reason", "rule", "branch", "prefix", "slice", "age")


def sum_parts(written: pa.Table, folder: str) -> tuple[Manifest, Totals]:
    """Add up the PARTS that all tasks wrote into `folder` with `write_portions`."""
    # Tasks finish in any order, and a plan must not depend on it.
    parts = written.sort_by("name")
    totals = sum_totals(msgspec.json.decode(note, type=Totals) for note in parts["note"].to_pylist())
    return messages.manifest_of(messages.GARBAGE, folder, parts_of(parts)), totals


async def deal_again(engine: Engine, manifest: Manifest, *, folder: str, closed: Collection[int]) -> Bucketed:
    """Write CANDIDATES into `folder`: the objects of a plan (table GARBAGE), to be marked once more.

    Leave out the objects of slices that are not closed now: they may not be deleted.
    """
    slices = pa.array(sorted(closed), pa.int64())

    async def candidates(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async for rows in read_rows(manifest)(task, share):
            for packed in _pack(rows):
                yield in_closed_slices(packed, slices)

    def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        return dealt(CANDIDATES, candidates(task, share), task.store, folder)

    effort = Effort(size_bytes=manifest.size_bytes)
    return files_of(folder, await engine.run(work, rows_of_parts(manifest.parts), PARTS, effort=effort))


async def look_again(
    context: RunContext,
    plan: Plan,
    garbage: Manifest,
    *,
    kept: pa.Table,
    commits: Manifest,
    uncommitted: Manifest,
    closed: Sequence[int],
) -> tuple[Manifest, Totals]:
    """Write the unnamed rows of `garbage` as a new table, named after `commits`.

    `kept` are the ids of commits whose objects were live in the plan. `commits` and `uncommitted` are all that names
    objects now. Leave out the objects of slices that are not `closed`. Read only ranges that were not live in the plan:
    those of new commits, and of commits that are kept after all.
    """
    name = commits.digest()[:16]
    now = await context.read(commits, messages.COMMITS)
    new, old = newly_kept(kept, now)
    # The reverse of planning: here a range is "live" if the plan kept it. So `live=False` selects the new ranges.
    # Without new commits there are no new ranges, so read no old ones.
    either = pa.concat_tables([_flag(new, live=False), _flag(old, live=True)]) if new.num_rows else new
    ranges = await read_ranges(context.engine, either, folder=folder_in(plan, f"ranges.tasks.{name}"))
    fresh = ranges.of(live=False) if new.num_rows else ranges
    objects, new_ranges = count_of(garbage.rows, "object"), count_of(fresh.count, "new range")
    context.progress(f"rechecking {objects} against {new_ranges} and what is staged")
    staged = await deal_tables(context, plan, [uncommitted], messages.UNCOMMITTED, f"uncommitted.{name}")
    sides = [await deal_ranges(context, plan, fresh, folder=folder_in(plan, f"live.tasks.{name}")), staged]
    return await mark_again(context, plan, garbage, sides, name=name, closed=closed)


async def mark_again(
    context: RunContext,
    plan: Plan,
    garbage: Manifest,
    live: Sequence[Bucketed],
    *,
    name: str,
    closed: Collection[int],
    all_names: bool = True,
) -> tuple[Manifest, Totals]:
    """Write the rows of `garbage` that no side of LIVE names now as a new table, `name` behind those of the plan.

    Leave out the objects of slices that are not `closed`.
    """
    again = await deal_again(context.engine, garbage, folder=folder_in(plan, f"again.tasks.{name}"), closed=closed)
    into = folder_in(plan, f"{messages.GARBAGE.name}.{name}")
    return await mark_expired(context.engine, again, live, into=into, now_ms=plan.now_ms, all_names=all_names)


def _flag(metaranges: pa.Table, *, live: bool) -> pa.Table:
    place = metaranges.schema.get_field_index("is_live")
    flags = pa.repeat(pa.scalar(live), metaranges.num_rows)
    return metaranges.set_column(place, metaranges.schema.field("is_live"), flags)


def read_rows(manifest: Manifest) -> Work:
    """Return the work from PARTS of a plan to its rows. A part that differs from the manifest stops it, named."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        for part in parts_of(share):
            data = await read_part(task.store, manifest.folder, part)
            yield messages.read_part(manifest, messages.GARBAGE, part, data)

    return work


async def write_portions(
    task: Task, folder: str, verdicts: AsyncIterator[pa.Table], *, now_ms: int
) -> AsyncIterator[pa.Table]:
    """Write VERDICTS as parts in `folder`, in a task. Yield a row of PARTS for each, with its `Totals` as the note."""
    number = 0
    async for rows in _portions(verdicts, rows_max=task.rows_per_part):
        yield await _write_part(task, folder, number, _ordered(rows), now_ms=now_ms)
        number += 1


async def write_ordered(
    task: Task, folder: str, verdicts: AsyncIterator[pa.Table], *, now_ms: int
) -> AsyncIterator[pa.Table]:
    """Do as `write_portions` for tables in the order of a part. Each becomes parts of its own."""
    number = 0
    async for rows in verdicts:
        for start in range(0, rows.num_rows, task.rows_per_part):
            yield await _write_part(task, folder, number, rows.slice(start, task.rows_per_part), now_ms=now_ms)
            number += 1


async def _write_part(task: Task, folder: str, number: int, rows: pa.Table, *, now_ms: int) -> pa.Table:
    name = f"part-{task.number:05d}-{number:05d}.parquet"
    data = messages.encode_part(messages.GARBAGE, rows.select(list(messages.GARBAGE.names())))
    return await write_part(task.store, folder, name, data, rows=rows.num_rows, note=totals_of(rows, now_ms=now_ms))


def _ordered(rows: pa.Table) -> pa.Table:
    """Sort by slice, sequence and address, the order of listings."""
    # Skip the sort for rows in order.
    slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy()
    same = slices[1:] == slices[:-1]
    if bool(((slices[1:] > slices[:-1]) | same & (sequences[1:] > sequences[:-1])).all()):
        return rows
    return rows.sort_by([("slice", "ascending"), ("sequence", "ascending"), ("address", "ascending")])


async def _portions(tables: AsyncIterator[pa.Table], *, rows_max: int) -> AsyncIterator[pa.Table]:
    pieces: list[pa.Table] = []
    rows = 0
    async for table in tables:
        while rows + table.num_rows >= rows_max:
            cut = rows_max - rows
            yield pa.concat_tables([*pieces, table.slice(0, cut)])
            pieces, rows, table = [], 0, table.slice(cut)  # noqa: PLW2901 - the rest of the table
        if table.num_rows:
            pieces.append(table)
            rows += table.num_rows
    if pieces:
        yield pa.concat_tables(pieces)


def totals_of(rows: pa.Table, *, now_ms: int) -> Totals:
    """Count VERDICTS in every way of WAYS."""
    ways: dict[str, dict[str, Total]] = {}
    rows = rows.append_column("age", _ages(rows, now_ms))
    for way in WAYS:
        sums = (
            rows.select([way, "size_bytes"]).group_by(way).aggregate([("size_bytes", "count"), ("size_bytes", "sum")])
        )
        columns = (sums[name].to_pylist() for name in (way, "size_bytes_count", "size_bytes_sum"))
        ways[f"by_{way}"] = {
            _label(name): Total(objects=count, size_bytes=size) for name, count, size in zip(*columns, strict=True)
        }
    size_bytes = pc.sum(rows["size_bytes"]).as_py() or 0
    return Totals(all=Total(objects=rows.num_rows, size_bytes=size_bytes), **ways)


def sum_totals(parts: Iterable[Totals]) -> Totals:
    """Add up the totals of many parts. The smallest of very many are summed under `…`."""
    whole = Total()
    ways: dict[str, dict[str, Total]] = {way: {} for way in WAYS}
    for part in parts:
        whole = whole.plus(part.all)
        for way, sums in ways.items():
            for name, total in getattr(part, f"by_{way}").items():
                sums[name] = sums.get(name, Total()).plus(total)
    return Totals(all=whole, **{f"by_{way}": _largest(sums) for way, sums in ways.items()})


def _largest(sums: dict[str, Total]) -> dict[str, Total]:
    ordered = sorted(sums.items(), key=lambda item: (-item[1].size_bytes, -item[1].objects, item[0]))
    rest = Total()
    for _, total in ordered[TOTALS_MAX:]:
        rest = rest.plus(total)
    return dict(ordered[:TOTALS_MAX]) | ({"…": rest} if rest.objects else {})


def _ages(rows: pa.Table, now_ms: int) -> pa.Array:
    """Return the name of each row's age (AGES). A row dated after now is young."""
    days = (now_ms - rows["last_seen_at"].cast(pa.int64()).to_numpy() // 1000) / DAY_MS
    bounds = [bound for _, bound in messages.AGES if bound is not None]
    places = pa.array(np.searchsorted(bounds, days, side="right").astype(np.int32))
    return pa.array([name for name, _ in messages.AGES]).take(places)


def _label(name: str | int) -> str:
    if isinstance(name, str):
        return name
    return "foreign" if name == FOREIGN_SLICE else slice_name(name)


def _pack(rows: pa.Table) -> Iterator[pa.Table]:
    """Turn GARBAGE into CANDIDATES again. Branch and prefix are empty: a plan's parts do not have them."""
    rows = with_others(rows)
    causes = rows.select(["reason", "rule"]).group_by(["reason", "rule"]).aggregate([]).to_pylist()
    # Arrow groups in any order. Sort the causes, so that a repeated task writes equal bytes.
    for cause in sorted(causes, key=lambda row: (row["reason"], row["rule"])):
        same = pc.and_(pc.equal(rows["reason"], cause["reason"]), pc.equal(rows["rule"], cause["rule"]))
        yield from pack_garbage(rows.filter(same), Cause(**cause))


_OWN: Final = ("path", "rule")


def with_others(rows: pa.Table) -> pa.Table:
    """Return these GARBAGE rows, and one more row for each other path or rule of an object."""
    return pa.concat_tables([rows, *(_others(rows, others, own) for others, own in zip(OTHERS, _OWN, strict=True))])


def _others(rows: pa.Table, others: str, own: str) -> pa.Table:
    """Return one row for each of the `others` of these GARBAGE rows, as its `own` path or rule."""
    lists = rows[others].combine_chunks()
    repeated = rows.take(pc.list_parent_indices(lists))
    # Dated a little earlier, so that the plan's own path and rule are chosen again for the object.
    seen_at = pc.subtract(repeated["last_seen_at"], pa.scalar(1, pa.duration("ms")))
    changed = {own: pc.list_flatten(lists), "last_seen_at": seen_at.cast(repeated.schema.field("last_seen_at").type)}
    if own == "path":
        # Another path may have been in another range.
        changed["seen_in"] = pa.nulls(repeated.num_rows, pa.int64())
    columns = {name: changed.get(name, repeated[name]) for name in repeated.schema.names}
    return pa.table(columns, schema=repeated.schema)


def pack_garbage(part: pa.Table, cause: Cause, prefix: str = "") -> Iterator[pa.Table]:
    """Turn GARBAGE into CANDIDATES of this cause, counted in the folder `prefix`."""
    seen_ms = part["last_seen_at"].cast(pa.int64()).to_numpy()
    slices, sizes = part["slice"].to_numpy(), part["size_bytes"].to_numpy()
    own = slices != FOREIGN_SLICE
    sequences = part["sequence"].to_numpy().astype(np.int64)
    paths = part["path"].combine_chunks()
    seen_in = None
    if part["seen_in"].null_count < part.num_rows:
        seen_in = part["seen_in"].fill_null(0).to_numpy()
    named, ranges = paths.filter(pa.array(own)), None if seen_in is None else seen_in[own]
    yield pack_numbered(slices[own], sequences[own], sizes[own], seen_ms[own], cause, prefix, named, ranges)
    keys: Sequence[str] = part["address"].filter(pa.array(~own)).to_pylist()
    named, ranges = paths.filter(pa.array(~own)), None if seen_in is None else seen_in[~own]
    yield pack_foreign(keys, sizes[~own].tolist(), seen_ms[~own].tolist(), cause, prefix, named, ranges)
