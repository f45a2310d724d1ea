"""Uncommitted garbage: listed, and named by no commit, no staged cell, no open upload and no tracked copy.

docs/design/0001-uncommitted-gc.md, "Flow 1: Clean Run", step 4: `Store DF` − `Committed DF` − `Uncommitted DF`. Only
settled slices were listed, and before anything else was read: what a later upload wrote is in no listing here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from lakebed.base import NotFound
from lakebed.gc.failures import marked
from lakebed.gc.files import Lake, Work, ahead, in_tasks, whole
from lakebed.gc.here import run_here
from lakebed.gc.parts import check_numbered, decode, encode, parts_of, read_part, rows_by_key, spread, write_part
from lakebed.gc.protocol import Manifest, Part, Pieces
from lakebed.gc.read import SIZE_UNKNOWN, read_live
from lakebed.gc.runs import Totals
from lakebed.gc.tables import CANDIDATES, PARTS, VERDICTS, check_whole
from lakebed.gc.verdicts import sum_parts, write_portions
from lakebed.objectstore import ObjectStat, ObjectStore

from .keeping import kept_of
from .subtract import subtract, verdicts_of
from .unpacking import Unpacked, named_by, unpack

_KEPT: Final = msgspec.json.encode("kept")
"""The note of a part that holds what stays; that of a part of doomed objects is its totals."""


class Marked(NamedTuple):
    """The doomed objects, as parts of the table DOOMED, and what stays for a later run to look at (keeping.py)."""

    doomed: Manifest
    totals: Totals
    kept: Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """All that is named, as parts of LIVE: by commits, by whatever is in no commit, and what unfinished runs hold."""

    committed: Pieces
    uncommitted: Pieces
    held: Pieces = field(default_factory=lambda: Pieces(folder=""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The folders that a mark writes to, and how much it may read through on the driver."""

    doomed: str
    kept: str
    bytes_here: int = 0


def mark_unreferenced(
    spark: SparkSession,
    lake: Lake,
    *,
    candidates: Sequence[Pieces],
    live: Live,
    into: Places,
    tasks: int,
    now_ms: int,
    young_since_ms: int | None = None,
) -> Marked:
    """What of the candidates (CANDIDATES of slices, all there are of an object in one part) nothing names. `live` need
    not have foreign keys.

    What was written at or after `young_since_ms` stays for its age. Reading, subtracting and writing are one task's
    work: neither what was listed nor what is doomed crosses a shuffle, or passes through the JVM. A part that is
    missing or differs stops the job, named.
    """
    rows = rows_by_key(candidates)
    work = _mark(live, into, now_ms, young_since_ms)
    if sum(pieces.size_bytes for pieces in candidates) <= into.bytes_here:
        written = run_here(lake, work, rows, PARTS)
    else:
        written = spread(spark, PARTS, rows, tasks=tasks).mapInArrow(in_tasks(lake, work, PARTS), PARTS.spark).toArrow()
    is_kept = pc.equal(written["note"], _KEPT)
    doomed, totals = sum_parts(written.filter(pc.invert(is_kept)), into.doomed)
    kept = parts_of(written.filter(is_kept).sort_by("name"))
    return Marked(doomed, totals, Pieces(folder=into.kept, parts=tuple(kept)))


def _mark(live: Live, into: Places, now_ms: int, young_since_ms: int | None) -> Work:
    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        kept: list[pa.Table] = []

        async def verdicts() -> AsyncIterator[pa.Table]:
            sides = [await read_live(store, named) for named in (live.committed, live.uncommitted, live.held)]
            for named in sides:
                check_whole(named, "live objects")
            committed, uncommitted, held = sides
            for part in parts_of(whole(share)):
                objects = _unpack(decode(CANDIDATES, await read_part(store, "", part), part), part)
                by_commits, by_others = named_by(committed, objects), named_by(uncommitted, objects)
                # It goes with its run, so no later one has to look at it again.
                by_commits |= named_by(held, objects)
                objects, unnamed = await _looked_for(store, objects, ~(by_commits | by_others))
                stays = kept_of(objects, by_commits, by_others, young_since_ms=young_since_ms)
                if stays.num_rows:
                    name = part.name.rpartition("/")[2]
                    data = encode(CANDIDATES, stays)
                    kept.append(await write_part(store, into.kept, name, data, rows=stays.num_rows, note="kept"))
                found = verdicts_of(objects, unnamed)
                yield found if young_since_ms is None else without_young(found, since_ms=young_since_ms)

        async for row in write_portions(store, into.doomed, verdicts(), now_ms=now_ms):
            yield row
        for row in kept:
            yield row

    return work


def _unpack(candidates: pa.Table, part: Part) -> Unpacked:
    """
    Raises:
        BadInput: a null, arrays that do not run in parallel, or an object that is in no slice: what is live of those is
            not told apart here.
    """
    check_whole(candidates, part.name)
    check_numbered(candidates, part.name)
    return unpack(candidates)


async def _looked_for(
    store: ObjectStore, objects: Unpacked, unnamed: npt.NDArray[np.bool_]
) -> tuple[Unpacked, npt.NDArray[np.bool_]]:
    """Of what nothing names, what did not lie there when its slice was listed is looked for once more: it has the size
    and the date that it has now, and is left out where it is still not there."""
    unknown = np.flatnonzero(unnamed & (objects.sizes == SIZE_UNKNOWN))
    if not len(unknown):
        return objects, unnamed
    sizes, seen_ms, unnamed = objects.sizes.copy(), objects.seen_ms.copy(), unnamed.copy()
    places = iter(unknown.tolist())
    async for _, stat in ahead(objects.addresses(unknown), lambda key: _find(store, key)):
        place = next(places)
        unnamed[place] = stat is not None
        if stat is not None:
            sizes[place], seen_ms[place] = stat.size_bytes, stat.modified_ms
    return replace(objects, sizes=sizes, seen_ms=seen_ms), unnamed


async def _find(store: ObjectStore, key: str) -> ObjectStat | None:
    try:
        return await store.stat(key)
    except NotFound:
        return None


def without_young(verdicts: pa.Table, *, since_ms: int) -> pa.Table:
    """VERDICTS but those written at or after this instant: what the rules let stay for its age."""
    instant = pa.scalar(since_ms * 1000, pa.timestamp("us", tz="UTC"))
    return verdicts.filter(pc.less(verdicts["last_seen_at"], instant))


def minus(candidates: DataFrame, live: DataFrame) -> DataFrame:
    """VERDICTS: `subtract` for each bucket."""
    together = candidates.groupBy("bucket").cogroup(live.groupBy("bucket"))
    return VERDICTS.of(together.applyInArrow(_subtract, VERDICTS.spark))


def _subtract(candidates: pa.Table, live: pa.Table) -> pa.Table:
    with marked():
        return subtract(candidates, live).cast(VERDICTS.schema)
