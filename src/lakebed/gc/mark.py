"""Mark the objects that go. Each of three marks writes its verdicts as parts of a plan. Nothing here deletes.

    mark_listed    uncommitted data: what was listed in slices, and nothing names
    mark_keys      old layouts: what was listed elsewhere, and nothing names
    mark_expired   committed data: what expired commits had, and nothing that stays names

The first goes through the listing where it lies, and holds all that is named beside it. The others join both sides by
buckets (bucketed.py). A part that is missing or differs stops the run, named.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, NotFound
from lakebed.gc.protocol import Manifest, Part, Pieces, Totals
from lakebed.objectstore import ObjectStat, ObjectStore

from .bucketed import LISTED, NAMED, Bucketed, effort_of, in_shares, keep_unnamed, rows_of_shares
from .engines import Effort, Engine, Task
from .listing import SIZE_UNKNOWN
from .named import read_live
from .packing import Cause, Unpacked, named_by, unpack
from .subtract import subtract, verdicts_of
from .tables import (
    CANDIDATES,
    LIVE,
    PARTS,
    VERDICTS,
    check_numbered,
    check_whole,
    decode,
    encode,
    parts_of,
    read_part,
    rows_by_key,
    write_part,
)
from .verdicts import sum_parts, write_portions

_KEPT: Final = msgspec.json.encode("kept")
"""The note of a part that holds what stays; that of a part of garbage is its totals."""


class Marked(NamedTuple):
    """The garbage, as parts of the table GARBAGE, and what stays for a later run to look at again."""

    garbage: Manifest
    totals: Totals
    kept: Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """All that is named, as parts of LIVE: by commits, by whatever is in no commit, and what unfinished runs hold."""

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
    """Find what of the candidates (CANDIDATES of slices, all there are of an object in one part) nothing names.

    `live` need not have foreign keys. What was written at or after `young_since_ms` stays for its age.
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
                # It goes with its run, so no later one has to look at it again.
                by_commits |= named_by(held, objects)
                objects, unnamed = await _look_for_unlisted(task, objects, ~(by_commits | by_others))
                stays = kept_of(objects, by_commits, by_others, young_since_ms=young_since_ms)
                if stays.num_rows:
                    name = part.name.rpartition("/")[2]
                    data = encode(CANDIDATES, stays)
                    kept.append(await write_part(task.store, kept_into, name, data, rows=stays.num_rows, note="kept"))
                found = verdicts_of(objects, unnamed)
                yield found if young_since_ms is None else without_young(found, since_ms=young_since_ms)

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
    """Find what was LISTED and none of the others names. What was written at or after `young_since_ms` stays."""

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
    engine: Engine, expired: Bucketed, live: Sequence[Bucketed], *, into: str, now_ms: int
) -> tuple[Manifest, Totals]:
    """Find what of the candidates (CANDIDATES) no side of LIVE names."""

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async def verdicts() -> AsyncIterator[pa.Table]:
            async for _, (ours, theirs) in in_shares(task, share, ([expired], CANDIDATES), (live, LIVE)):
                named = pa.concat_tables([LIVE.schema.empty_table(), *theirs])
                yield subtract(pa.concat_tables(ours), named).cast(VERDICTS.schema)

        async for part in write_portions(task, into, verdicts(), now_ms=now_ms):
            yield part

    rows = rows_of_shares(expired, live)
    return sum_parts(await engine.run(work, rows, PARTS, effort=effort_of(expired, *live)), into)


def _unpack(candidates: pa.Table, part: Part) -> Unpacked:
    """
    Raises:
        BadInput: a null, arrays that do not run in parallel, or an object that is in no slice: what is live of those is
            not compared here.
    """
    check_whole(candidates, part.name)
    check_numbered(candidates, part.name)
    return unpack(candidates)


async def _look_for_unlisted(
    task: Task, objects: Unpacked, unnamed: npt.NDArray[np.bool_]
) -> tuple[Unpacked, npt.NDArray[np.bool_]]:
    """Look once more for what nothing names and no listing showed: it takes the size and the date that it has now, and
    is left out where it is still missing."""
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


async def _find_stat(store: ObjectStore, key: str) -> ObjectStat | None:
    try:
        return await store.stat(key)
    except NotFound:
        return None


def without_young(verdicts: pa.Table, *, since_ms: int) -> pa.Table:
    """Leave out VERDICTS written at or after this instant: the rules let them stay for their age."""
    instant = pa.scalar(since_ms * 1000, pa.timestamp("us", tz="UTC"))
    return verdicts.filter(pc.less(verdicts["last_seen_at"], instant))


def kept_of(
    objects: Unpacked,
    by_commits: npt.NDArray[np.bool_],
    by_others: npt.NDArray[np.bool_],
    *,
    young_since_ms: int | None,
) -> pa.Table:
    """CANDIDATES that stay although no commit names them: a later run has to look at them again.

    An object that a commit names is no candidate any more: it goes, if ever, with its commits. What something
    uncommitted names, and what is too young by the rules, may be garbage next time.
    """
    stays = by_others if young_since_ms is None else by_others | (objects.seen_ms >= young_since_ms)
    return _only(objects, np.flatnonzero(stays & ~by_commits))


def _only(objects: Unpacked, kept: npt.NDArray[np.int64]) -> pa.Table:
    """The objects at these positions, packed again."""
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
        | {
            "address": rows["key"],
            "slice": np.full(rows.num_rows, FOREIGN_SLICE, np.int64),
            "sequence": np.zeros(rows.num_rows, np.int32),
            "size_bytes": rows["size_bytes"],
            "last_seen_at": seen_us.cast(pa.timestamp("us", tz="UTC")),
        }
    )
