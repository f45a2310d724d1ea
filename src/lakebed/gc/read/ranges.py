"""What commits name: metaranges, then the distinct ranges in them, then the objects of those.

Ranges are shared: however many commits there are, a range is read once. Of a range whose objects stay, the end of the
file is enough (its slice summary is one bitmap a slice); only one with foreign addresses is read as a whole. Of a range
whose objects may go, the address and the size of each entry are read, and of its paths the first folder. A range both
kept and expired counts as kept and is never read for what may go (docs/design/0004-committed-retention.md, step 5).

A file that is missing, cut short or changed stops the job with an error that names it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all Spark code uses

from lakebed.base import FOREIGN_SLICE, MetarangeId, NotFound, RangeId
from lakebed.gc.files import Lake, Work, ahead, in_tasks, whole
from lakebed.gc.here import METARANGES_HERE, run_here
from lakebed.gc.keys import HELD_MAX, KeyFiles, KeySet, files_of
from lakebed.gc.packing import Cause, LiveSet, pack_foreign, pack_numbered
from lakebed.gc.parts import spread
from lakebed.gc.places import Namespace, may_be_deleted
from lakebed.gc.tables import CANDIDATES, LIVE, METARANGES, PARTS, RANGES
from lakebed.objectstore import ObjectStore
from lakebed.ranges import (
    MetarangeCorrupt,
    RangeCorrupt,
    SliceSummary,
    decode_metarange,
    decode_range,
    metarange_key,
    range_key,
    read_end,
    summary_of,
)

PREFIXES_MAX: Final = 64
"""A range with more first folders than this is counted under none: totals by prefix are to help people, not to fill
memory."""

_CAUSE: Final = ("seen_ms", "reason", "rule", "branch")


def named_ranges(spark: SparkSession, lake: Lake, metaranges: pa.Table, *, tasks: int) -> DataFrame:
    """RANGES, each range once: live if any metarange that names it is, else with what is known of the newest."""
    found = spread(spark, METARANGES, metaranges, tasks=tasks).mapInArrow(
        in_tasks(lake, read_metaranges, RANGES), RANGES.spark
    )
    newest = F.max(F.struct(*_CAUSE)).alias("newest")
    each = found.groupBy("range_id").agg(
        F.max("count").alias("count"),
        F.max("file_bytes").alias("file_bytes"),
        F.max("is_live").alias("is_live"),
        newest,
    )
    return RANGES.of(each.select("range_id", "count", "file_bytes", "is_live", "newest.*"))


def read_ranges(spark: SparkSession, lake: Lake, metaranges: pa.Table, *, tasks: int) -> pa.Table:
    """The same, read: by the driver itself where the metaranges are few."""
    if metaranges.num_rows <= METARANGES_HERE:
        return run_here(lake, read_metaranges, metaranges, RANGES)
    return named_ranges(spark, lake, metaranges, tasks=tasks).toArrow()


def live_objects(spark: SparkSession, lake: Lake, ranges: pa.Table, *, tasks: int, with_keys: bool) -> DataFrame:
    """LIVE: all that the ranges (RANGES) name, whether marked live or not; foreign keys only if they are wanted."""
    named = spread(spark, RANGES, ranges, tasks=tasks)
    work = reading_live(lake.uri, with_keys=with_keys)
    return LIVE.of(named.mapInArrow(in_tasks(lake, work, LIVE), LIVE.spark))


def named_keys(spark: SparkSession, lake: Lake, ranges: pa.Table, *, tasks: int, folder: str) -> KeyFiles:
    """Run the job: the foreign keys alone that the ranges (RANGES) name, written into `folder` (gc/keys.py)."""
    named = spread(spark, RANGES, ranges, tasks=tasks)
    work = in_tasks(lake, _reading_keys(lake.uri, folder), PARTS)
    return files_of(folder, named.mapInArrow(work, PARTS.spark).toArrow())


def expired_objects(spark: SparkSession, lake: Lake, ranges: pa.Table, *, tasks: int) -> DataFrame:
    """CANDIDATES: every object that the ranges (RANGES) name and a collector may ever take."""
    named = spread(spark, RANGES, ranges, tasks=tasks)
    return CANDIDATES.of(named.mapInArrow(in_tasks(lake, _read_expired(lake.uri), CANDIDATES), CANDIDATES.spark))


async def read_metaranges(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
    """From METARANGES to RANGES, each range of the share once."""
    rows = {row["metarange_id"]: row for row in whole(share).to_pylist()}
    best: dict[str, tuple[Any, ...]] = {}
    async for name, data in ahead([*rows], lambda id_: _get_metarange(store, MetarangeId(id_))):
        row = rows[name]
        rank = (row["is_live"], *(row[column] for column in _CAUSE))
        for info in decode_metarange(MetarangeId(name), data):
            have = best.get(info.id)
            if have is None or have[2:] < rank:
                best[info.id] = (info.count, info.file_bytes, *rank)
    columns = zip(*((id_, *facts) for id_, facts in best.items()), strict=True)
    yield RANGES.rows(dict(zip(RANGES.schema.names, columns, strict=True))) if best else RANGES.schema.empty_table()


async def _get_metarange(store: ObjectStore, id_: MetarangeId) -> bytes:
    try:
        return await store.get(metarange_key(id_))
    except NotFound as error:
        raise MetarangeCorrupt(id_, "missing").in_namespace(store.uri) from error


async def _get_range(store: ObjectStore, id_: RangeId, *, start: int = 0) -> bytes:
    try:
        return await store.get(range_key(id_), start=start)
    except NotFound as error:
        raise RangeCorrupt(id_, "missing").in_namespace(store.uri) from error


def reading_live(uri: str, *, with_keys: bool) -> Work:
    """The work of `live_objects`: from RANGES to LIVE, a slice of the share in one row. A task holds a bitmap for each
    slice, and HELD_MAX keys if they are wanted; an address that is a slice and a sequence in another spelling is found
    in either case."""
    namespace = Namespace(uri)

    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        table = whole(share)
        ids = table["range_id"].to_pylist()
        sizes = dict(zip(ids, table["file_bytes"].to_pylist(), strict=True))
        live = LiveSet()

        async def read(name: str) -> tuple[SliceSummary, pa.Array | None]:
            summary = await _summary(store, RangeId(name), sizes[name])
            return summary, await _foreign_addresses(store, RangeId(name)) if summary.foreign else None

        async for _, (summary, addresses) in ahead(ids, read):
            for bitmap in summary.bitmaps:
                bitmap.or_into(live.room(bitmap.slice, bitmap.words_needed))
            if addresses is not None and with_keys:
                live.add_addresses(addresses, namespace)
                if live.keys_held >= HELD_MAX:
                    yield live.take_keys()
            elif addresses is not None:
                live.add_numbers_among(addresses, namespace)
        yield live.rows()

    return work


def _reading_keys(uri: str, folder: str) -> Work:
    """The work of `named_keys`: from RANGES to PARTS."""
    namespace = Namespace(uri)

    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        table = whole(share)
        ids = table["range_id"].to_pylist()
        sizes = dict(zip(ids, table["file_bytes"].to_pylist(), strict=True))
        keys = KeySet()

        async def read(name: str) -> pa.Array | None:
            summary = await _summary(store, RangeId(name), sizes[name])
            return await _foreign_addresses(store, RangeId(name)) if summary.foreign else None

        async for _, addresses in ahead(ids, read):
            if addresses is not None:
                keys.add(namespace.places_of(addresses)[0])
                if keys.held >= HELD_MAX:
                    yield await keys.write(store, folder)
        if keys.held:
            yield await keys.write(store, folder)

    return work


async def _summary(store: ObjectStore, id_: RangeId, file_bytes: int) -> SliceSummary:
    return summary_of(id_, await read_end(id_, file_bytes, lambda start: _get_range(store, id_, start=start)))


async def _foreign_addresses(store: ObjectStore, id_: RangeId) -> pa.Array:
    rows = decode_range(id_, await _get_range(store, id_), ["slice", "address"])
    is_foreign = pc.equal(rows["slice"], FOREIGN_SLICE)
    if not pc.all(is_foreign).as_py():
        rows = rows.filter(is_foreign)
    return rows["address"].combine_chunks()


def _read_expired(uri: str) -> Work:
    namespace = Namespace(uri)

    async def work(store: ObjectStore, share: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.Table]:
        facts = {row["range_id"]: row for row in whole(share).to_pylist()}
        async for name, data in ahead([*facts], lambda id_: _get_range(store, RangeId(id_))):
            fact = facts[name]
            rows = decode_range(RangeId(name), data, ["key", "slice", "sequence", "address", "size_bytes"])
            if rows.num_rows != fact["count"]:
                raise RangeCorrupt(name, f"has {rows.num_rows} entries instead of {fact['count']}")
            cause = Cause(reason=fact["reason"], rule=fact["rule"], branch=fact["branch"])
            for packed in _pack(_with_dates(rows, name, data), cause, fact["seen_ms"], namespace):
                yield packed

    return work


def _with_dates(rows: pa.Table, name: str, data: bytes) -> pa.Table:
    """Also the column modified_ms, if there are foreign addresses: for no other ones it is wanted."""
    if not pc.any(pc.equal(rows["slice"], FOREIGN_SLICE)).as_py():
        return rows
    dates = decode_range(RangeId(name), data, ["modified_ms"])
    return rows.append_column("modified_ms", dates["modified_ms"])


def _pack(rows: pa.Table, cause: Cause, seen_ms: int, namespace: Namespace) -> Iterator[pa.Table]:
    """CANDIDATES of a range, in one table for each first folder."""
    slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy().astype(np.int64)
    sizes, paths = rows["size_bytes"].to_numpy(), _texts(rows["key"])
    for prefix, start, stop in _prefixes(rows["key"]):
        part = slice(start, stop)
        own = slices[part] != FOREIGN_SLICE
        seen = np.full(int(own.sum()), seen_ms, np.int64)
        named = paths.slice(start, stop - start)
        yield pack_numbered(
            slices[part][own],
            sequences[part][own],
            sizes[part][own],
            seen,
            cause,
            prefix,
            named if own.all() else named.filter(pa.array(own)),
        )
        if not own.all():
            facts = rows.select(["address", "size_bytes", "modified_ms"]).slice(start, stop - start)
            foreign = facts.append_column("path", named).filter(pa.array(~own))
            yield from _pack_foreign(foreign, seen_ms, cause, prefix, namespace)


def _pack_foreign(rows: pa.Table, seen_ms: int, cause: Cause, prefix: str, namespace: Namespace) -> Iterator[pa.Table]:
    """Others may write such a key again, so it was last seen when its entry says that it was written: what lies there
    and is younger is something else (sweep.py). Later than the commit it was not."""
    addresses, sizes, paths = (rows[name].to_pylist() for name in ("address", "size_bytes", "path"))
    written_ms = np.minimum(rows["modified_ms"].to_numpy(), seen_ms).tolist()
    facts = zip(sizes, paths, written_ms, strict=True)
    places = [(namespace.place_of(address), *fact) for address, fact in zip(addresses, facts, strict=True)]
    keys = [(place, *fact) for place, *fact in places if isinstance(place, str) and may_be_deleted(place)]
    if keys:
        names, bytes_, texts, dates = zip(*keys, strict=True)
        yield pack_foreign(names, bytes_, dates, cause, prefix, pa.array(texts, pa.string()))
    numbers = [(*place, *fact) for place, *fact in places if isinstance(place, tuple)]
    if numbers:
        named = pa.array([number[3] for number in numbers], pa.string())
        columns = np.array([number[:3] for number in numbers], np.int64).T
        seen = np.full(len(numbers), seen_ms)
        yield pack_numbered(columns[0], columns[1], columns[2], seen, cause, prefix, named)


def _texts(keys: pa.ChunkedArray) -> pa.Array:
    """Paths as text, for people: what is not UTF-8 (none that we wrote) has a mark in its place."""
    try:
        texts = keys.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts


def _prefixes(keys: pa.ChunkedArray) -> list[tuple[str, int, int]]:
    """(first folder with its slash, or nothing; start; end) for each run of keys that share it. `keys` ascend."""
    first = _folder(keys[0].as_py())
    if first and first == _folder(keys[-1].as_py()):
        return [(first.decode(errors="replace"), 0, len(keys))]
    folders = [_folder(key) for key in keys.to_pylist()]
    starts = [0, *(at for at in range(1, len(folders)) if folders[at] != folders[at - 1])]
    if len(starts) > PREFIXES_MAX:
        return [("", 0, len(keys))]
    return [
        (folders[start].decode(errors="replace"), start, stop)
        for start, stop in zip(starts, [*starts[1:], len(keys)], strict=True)
    ]


def _folder(key: bytes) -> bytes:
    return key[: key.find(b"/") + 1]
