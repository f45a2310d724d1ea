"""List the contents of commits: metaranges, then the distinct ranges in them, then the objects of the ranges.

Commits share ranges, and each range is read once. A range that is both kept and expired is live, and is never read for
candidates (docs/design/0004-committed-retention.md, step 5). A file that is missing, cut short or changed stops the run
with an error that names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, MetarangeId, NotFound, RangeId, SublistId
from lakebed.gc.engines import Effort, Engine, Task, Work
from lakebed.gc.engines.engine import (
    CANDIDATES,
    PARTS,
    RANGES,
    Table,
    decode,
    encode,
    parts_of,
    read_part,
    rows_of_parts,
)
from lakebed.gc.mark.sets.bucketed import (
    Bucketed,
    Dealer,
    dealt,
    effort_of,
    files_of,
    in_shares,
    in_side,
    rows_of_shares,
)
from lakebed.gc.mark.sets.packing import Cause, Integers, pack_foreign, pack_numbered
from lakebed.gc.mark.sets.places import Namespace, first_folders, may_be_deleted
from lakebed.gc.messages import Part, Plan, StartedRun, part_of
from lakebed.gc.runs.context import RunContext
from lakebed.objectstore import ObjectStore
from lakebed.ranges import (
    KnownRanges,
    MetarangeCorrupt,
    RangeCorrupt,
    SliceSummary,
    SublistCorrupt,
    SublistList,
    decode_range,
    metarange_key,
    range_key,
    range_number,
    read_end,
    sublist_key,
    summary_of,
)

from .named import LiveSet, Named, deal_live

IN_ROWS_MAX: Final = 100_000
"""A run holds up to this many ranges in its process. With Spark a million would take 0.7 GiB of the driver."""
FILE_RANGES: Final = 1_000
"""A file has at most this many ranges: a step deals whole files to tasks."""
FILES_WANTED: Final = 32
"""Each share cuts its live ranges, and its other ranges, into this many files before files grow. So a few expired
ranges, too, are work for many tasks."""
HELD_FILES: Final = 256
"""A run holds the ranges of at most this many files in its process at a time."""

ROWS_AT_ONCE: Final = 65_536
"""Turn this many Python objects into columns at once: a million would take 0.5 GiB."""

SUBLISTS_A_SHARE: Final = 1_000
SUBLIST_SHARES: Final = 256
"""Cut sublists into at most this many shares if each share has more than SUBLISTS_A_SHARE."""

_RANGES: Final = "ranges/"
_SUBLISTS: Final = "sublists/"

_MISSING: Final = "missing; `lakebed gc missing` lists the commits that lack files"
_CAUSE: Final = ("seen_ms", "reason", "rule", "branch")


Sort: TypeAlias = Callable[[bytes, bytes, bool], bool | None]
"""From the first and last key of a range, and whether a live metarange names it, to whether it is live. None leaves it
out."""


class FileNote(msgspec.Struct, frozen=True):
    """Describe a file of ranges: all live or none, the number of ranges without sublists, about their bytes, and the
    number of their entries.
    """

    is_live: bool
    ranges: int
    file_bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class ListedRanges:
    """Hold ranges, each once. `rows` are RANGES (or a table with its first three columns), or PARTS of files of RANGES,
    named by whole keys.
    """

    rows: pa.Table

    @property
    def in_files(self) -> bool:
        return bool(self.rows.schema.names == PARTS.schema.names)

    @property
    def count(self) -> int:
        """Return the number of ranges, without sublists."""
        if self.in_files:
            return sum(note.ranges for note in self._notes())
        return int(pc.sum(pc.greater(self.rows["count"], 0)).as_py() or 0)

    @property
    def sublists(self) -> int:
        """Return the number of sublists."""
        all_rows = (pc.sum(self.rows["rows"]).as_py() or 0) if self.in_files else self.rows.num_rows
        return int(all_rows) - self.count

    @property
    def entries(self) -> int:
        """Return the number of entries of all ranges."""
        if self.in_files:
            return sum(note.entries for note in self._notes())
        return int(pc.sum(self.rows["count"]).as_py() or 0)

    @property
    def effort_of_ends(self) -> Effort:
        """Estimate the effort of reading the end of each range."""
        return Effort(requests=self.count)

    @property
    def effort_of_whole(self) -> Effort:
        if self.in_files:
            return Effort(requests=self.count, size_bytes=sum(note.file_bytes for note in self._notes()))
        return Effort(requests=self.count, size_bytes=effort_of_whole(self.rows).size_bytes)

    def of(self, *, live: bool) -> ListedRanges:
        """Return the live ranges, or all others."""
        if self.in_files:
            return ListedRanges(
                self.rows.filter(pa.array([note.is_live is live for note in self._notes()], pa.bool_()))
            )
        return ListedRanges(self.rows.filter(self.rows["is_live"] if live else pc.invert(self.rows["is_live"])))

    async def each(self, context: RunContext) -> AsyncIterator[pa.Table]:
        """Yield RANGES, some at a time, or raise BadInput."""
        if not self.in_files:
            yield self.rows
            return
        held: list[pa.Table] = []
        parts, read = parts_of(self.rows), partial(_read_file, context.store)
        async for _, rows in context.ports.tasks.ahead(parts, read):
            held.append(rows)
            if len(held) >= HELD_FILES:
                yield pa.concat_tables(held)
                held = []
        if held:
            yield pa.concat_tables(held)

    def _notes(self) -> list[FileNote]:
        return [msgspec.json.decode(note, type=FileNote) for note in self.rows["note"].to_pylist()]


async def ranges_in(task: Task, share: pa.Table) -> pa.Table:
    """Return the ranges of a share of `ListedRanges.rows`, or raise BadInput."""
    if not ListedRanges(share).in_files:
        return share
    found = [rows async for _, rows in task.ahead(parts_of(share), partial(_read_file, task.store))]
    return pa.concat_tables([RANGES.schema.empty_table(), *found])


async def _read_file(store: ObjectStore, part: Part) -> pa.Table:
    return decode(RANGES, await read_part(store, "", part), part)


async def read_ranges(
    engine: Engine, metaranges: pa.Table, *, folder: str, with_sublists: bool = False, sort: Sort | None = None
) -> ListedRanges:
    """List the ranges, each once. A range is live if any live metarange names it. Otherwise it has the cause of the
    newest metarange. `sort` decides by keys instead.

    With `with_sublists`, add the sublists of wide trees, as RANGES without entries. More than IN_ROWS_MAX rows stay in
    files that tasks write into `folder`.
    """

    dealt = await _deal_lists(engine, metaranges, folder=folder, sort=sort)
    shares, effort = rows_of_shares(dealt), effort_of(dealt)
    if dealt.rows <= IN_ROWS_MAX:
        found = await engine.run(_bring_together(dealt), shares, RANGES, effort=effort)
        return ListedRanges(found if with_sublists else without_sublists(found))

    async def write(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async for found in _bring_together(dealt)(task, share):
            rows = found if with_sublists else without_sublists(found)
            for live in (True, False):
                of_side = rows.filter(rows["is_live"] if live else pc.invert(rows["is_live"]))
                for some in cut_for_files(of_side):
                    yield await write_file(task, folder, RANGES, some, note_of(some, live=live))

    async def read(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        yield await ranges_in(task, share)

    files = await engine.run(write, shares, PARTS, effort=effort)
    # Each task that reads a range deals it, so far fewer ranges may be left than were dealt.
    if (pc.sum(files["rows"]).as_py() or 0) > IN_ROWS_MAX:
        return ListedRanges(files)
    return ListedRanges(await engine.run(read, files, RANGES, effort=Effort(requests=files.num_rows)))


def without_sublists(ranges: pa.Table) -> pa.Table:
    return ranges.filter(pc.greater(ranges["count"], 0))


def cut_for_files(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of each file that a task writes."""
    size = max(1, min(FILE_RANGES, -(-rows.num_rows // FILES_WANTED)))
    for at in range(0, rows.num_rows, size):
        yield rows.slice(at, size)


def note_of(rows: pa.Table, *, live: bool) -> FileNote:
    return FileNote(
        is_live=live,
        ranges=without_sublists(rows).num_rows,
        file_bytes=effort_of_whole(rows).size_bytes,
        entries=pc.sum(rows["count"]).as_py() or 0,
    )


async def write_file(task: Task, folder: str, table: Table, rows: pa.Table, note: FileNote) -> pa.Table:
    """Store the rows, and return a row of PARTS with the whole key."""
    data = encode(table, rows)
    # A task may run twice: it then writes equal bytes under equal names.
    part = part_of(f"{folder}ranges-{hashlib.sha256(data).hexdigest()[:24]}.parquet", data, rows=rows.num_rows)
    await task.store.put(part.name, data)
    return rows_of_parts([part], notes=[msgspec.json.encode(note)])


def _bring_together(dealt: Bucketed) -> Work:
    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async for _, (tables,) in in_shares(task, share, ([dealt], RANGES)):
            yield _each_once(pa.concat_tables(tables))

    return work


def _each_once(ranges: pa.Table) -> pa.Table:
    if len(pc.unique(ranges["range_id"])) == ranges.num_rows:
        return ranges
    # The last row of an id is a live one if there is any, else the one with the newest cause.
    ordered = ranges.sort_by([(name, "ascending") for name in ("range_id", "is_live", *_CAUSE)])
    ids = ordered["range_id"].combine_chunks()
    is_last = pc.not_equal(ids.slice(0, len(ids) - 1), ids.slice(1))
    return ordered.filter(pa.concat_arrays([is_last, pa.array([True])]))


Candidates: TypeAlias = Callable[[Task, pa.Table, Namespace], AsyncIterator[pa.Table]]
"""Yield CANDIDATES of some rows of RANGES."""


async def deal_expired(
    engine: Engine, ranges: ListedRanges, *, uri: str, folder: str, closed: Collection[int]
) -> Bucketed:
    """Write CANDIDATES into `folder`: every object that the ranges name and a collector may delete.

    Leave out slices that are not closed.
    """
    return await deal_candidates(engine, ranges, _read_expired, uri=uri, folder=folder, closed=closed)


async def deal_candidates(
    engine: Engine, ranges: ListedRanges, read: Candidates, *, uri: str, folder: str, closed: Collection[int]
) -> Bucketed:
    """Write the CANDIDATES that `read` yields of the ranges into `folder`. Leave out slices that are not closed."""
    # A server may be about to write a cell for an object in an open slice.
    namespace, slices = Namespace(uri), pa.array(sorted(closed), pa.int64())

    async def work(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        found = read(task, await ranges_in(task, share), namespace)
        candidates = (in_closed_slices(packed, slices) async for packed in found)
        async for part in dealt(CANDIDATES, candidates, task.store, folder):
            yield part

    return files_of(folder, await engine.run(work, ranges.rows, PARTS, effort=ranges.effort_of_whole))


def in_closed_slices(candidates: pa.Table, slices: pa.Array) -> pa.Table:
    """Return the CANDIDATES of these slices, and all foreign keys, which are in no slice."""
    buckets = candidates["bucket"]
    return candidates.filter(pc.or_(pc.less(buckets, 0), pc.is_in(buckets, value_set=slices)))


def effort_of_whole(ranges: pa.Table) -> Effort:
    return Effort(requests=ranges.num_rows, size_bytes=pc.sum(ranges["file_bytes"]).as_py() or 0)


async def _deal_lists(engine: Engine, metaranges: pa.Table, *, folder: str, sort: Sort | None) -> Bucketed:
    """Write RANGES of all ranges and sublists that METARANGES name into `folder`. Commits share most ranges, so the
    tasks together write a range many times.
    """

    async def deal(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        for side, found in zip((_RANGES, _SUBLISTS), await read_metaranges(task, share, sort), strict=True):
            if found.num_rows:
                yield in_side(side, await _dealt(task, found, folder))

    async def open_sublists(task: Task, share: pa.Table) -> AsyncIterator[pa.Table]:
        async for found in _bring_together(sublists)(task, share):
            yield await _dealt(task, await read_sublists(task, found, sort), folder)

    # A metarange is small, and decoding it takes several times as long as reading it.
    effort = Effort(requests=4 * metaranges.num_rows)
    written = await engine.run(deal, metaranges, PARTS, effort=effort)
    ranges, sublists = (
        files_of(folder, written.filter(pc.starts_with(written["name"], side))) for side in (_RANGES, _SUBLISTS)
    )
    # Metaranges share sublists, and several tasks may list the same one. So the tasks above open no sublist: buckets
    # bring the rows of each sublist together, and one task reads it. Without a wide tree no task runs.
    shares = rows_of_shares(sublists, most=max(SUBLISTS_A_SHARE, sublists.rows // SUBLIST_SHARES))
    opened = files_of(folder, await engine.run(open_sublists, shares, PARTS, effort=Effort(requests=4 * sublists.rows)))
    files = {file.name: file for side in (ranges, sublists, opened) for file in side.files}
    return Bucketed(folder=folder, files=tuple(files[name] for name in sorted(files)))


async def _dealt(task: Task, rows: pa.Table, folder: str) -> pa.Table:
    dealer = Dealer(RANGES)
    dealer.add(rows)
    return await dealer.write(task.store, folder)


async def read_metaranges(task: Task, share: pa.Table, sort: Sort | None = None) -> tuple[pa.Table, pa.Table]:
    """Return RANGES of METARANGES, each once: the ranges that they list themselves, and the sublists of wide trees."""
    ranks = {row["metarange_id"]: _rank_of(row) for row in share.to_pylist()}
    known, sublists = KnownRanges(), dict[SublistId, _Rank]()
    causes: list[_Rank] = []
    # Read the best first: then the first metarange that has a range gives its cause.
    names = sorted(ranks, key=ranks.__getitem__, reverse=True)
    async for name, data in task.ahead(names, lambda id_: get_metarange(task.store, MetarangeId(id_))):
        listed = known.read_metarange(MetarangeId(name), data)
        if isinstance(listed, SublistList):
            for sublist in listed.ids:
                sublists.setdefault(SublistId(sublist), ranks[name])
        causes += [ranks[name]] * (len(known) - len(causes))
    return _ranges_of(known, causes, sort), _rows_of([(id_, 0, 0, *rank) for id_, rank in sublists.items()])


async def read_sublists(task: Task, sublists: pa.Table, sort: Sort | None = None) -> pa.Table:
    """Return RANGES of these sublists, each once. `sublists` are RANGES, too."""
    ranks = {row["range_id"]: _rank_of(row) for row in sublists.to_pylist()}
    known, causes = KnownRanges(), list[_Rank]()
    # The best first, as in `read_metaranges`.
    names = sorted(ranks, key=ranks.__getitem__, reverse=True)
    async for name, data in task.ahead(names, lambda id_: get_sublist(task.store, SublistId(id_))):
        known.read_sublist(SublistId(name), data)
        causes += [ranks[name]] * (len(known) - len(causes))
    return _ranges_of(known, causes, sort)


_Rank: TypeAlias = tuple[Any, ...]
"""(is a metarange live, its cause). If several name a range, the greatest applies."""


def _rank_of(row: Mapping[str, Any]) -> _Rank:
    return row["is_live"], *(row[column] for column in _CAUSE)


def _ranges_of(known: KnownRanges, ranks: Sequence[_Rank], sort: Sort | None) -> pa.Table:
    sorted_ = (rank[0] if sort is None else sort(*known.span(place), rank[0]) for place, rank in enumerate(ranks))
    facts = zip(known.ids(), *known.numbers(), sorted_, ranks, strict=True)
    rows = (
        (id_, count, file_bytes, live, *rank[1:]) for id_, count, file_bytes, live, rank in facts if live is not None
    )
    found = [RANGES.schema.empty_table()]
    while some := list(islice(rows, ROWS_AT_ONCE)):
        found.append(_rows_of(some))
    return pa.concat_tables(found)


def _rows_of(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return RANGES.rows(dict(zip(RANGES.schema.names, columns, strict=True))) if rows else RANGES.schema.empty_table()


async def get_metarange(store: ObjectStore, id_: MetarangeId) -> bytes:
    try:
        return await store.get(metarange_key(id_))
    except NotFound as error:
        raise MetarangeCorrupt(id_, _MISSING).in_namespace(store.uri) from error


async def get_sublist(store: ObjectStore, id_: SublistId) -> bytes:
    try:
        return await store.get(sublist_key(id_))
    except NotFound as error:
        raise SublistCorrupt(id_, _MISSING).in_namespace(store.uri) from error


async def get_range(store: ObjectStore, id_: RangeId, *, start: int = 0) -> bytes:
    try:
        return await store.get(range_key(id_), start=start)
    except NotFound as error:
        raise RangeCorrupt(id_, _MISSING).in_namespace(store.uri) from error


async def from_ranges(task: Task, share: pa.Table) -> AsyncIterator[Named]:
    """Yield all objects (a source, named.py) that `ListedRanges.rows` name, marked live or not."""
    share = await ranges_in(task, share)
    ids = share["range_id"].to_pylist()
    sizes = dict(zip(ids, share["file_bytes"].to_pylist(), strict=True))

    async def read(name: str) -> tuple[SliceSummary, pa.Array | None]:
        return await read_summary(task.store, RangeId(name), sizes[name])

    async for _, (summary, addresses) in task.ahead(ids, read):
        yield Named(_filler(summary), addresses)


async def deal_ranges(context: RunContext, run: StartedRun | Plan, ranges: ListedRanges, *, folder: str) -> Bucketed:
    return await deal_live(
        context.engine,
        from_ranges,
        ranges.rows,
        uri=run.namespace,
        folder=folder,
        with_keys=True,
        effort=ranges.effort_of_ends,
    )


def _filler(summary: SliceSummary) -> Callable[[LiveSet], None]:
    def fill(live: LiveSet) -> None:
        for bitmap in summary.bitmaps:
            bitmap.or_into(live.room(bitmap.slice, bitmap.words_needed))

    return fill


async def read_summary(store: ObjectStore, id_: RangeId, file_bytes: int) -> tuple[SliceSummary, pa.Array | None]:
    """Return the summary at a range's end, and its foreign addresses if it has any."""
    # The end of the file has one bitmap a slice, which is enough for own addresses. Only foreign ones need the whole
    # file.
    summary = await _summary(store, id_, file_bytes)
    return summary, await _foreign_addresses(store, id_) if summary.foreign else None


async def _summary(store: ObjectStore, id_: RangeId, file_bytes: int) -> SliceSummary:
    return summary_of(id_, await read_end(id_, file_bytes, lambda start: get_range(store, id_, start=start)))


async def _foreign_addresses(store: ObjectStore, id_: RangeId) -> pa.Array:
    rows = decode_range(id_, await get_range(store, id_), ["slice", "address"])
    is_foreign = pc.equal(rows["slice"], FOREIGN_SLICE)
    if not pc.all(is_foreign).as_py():
        rows = rows.filter(is_foreign)
    return rows["address"].combine_chunks()


async def _read_expired(task: Task, share: pa.Table, namespace: Namespace) -> AsyncIterator[pa.Table]:
    async for fact, rows, data in read_entries(task, share, ["key", "slice", "sequence", "address", "size_bytes"]):
        cause = Cause(reason=fact["reason"], rule=fact["rule"], branch=fact["branch"])
        seen_ms = np.full(rows.num_rows, fact["seen_ms"], np.int64)
        written_ms = _written_ms(rows, fact["range_id"], data, seen_ms)
        seen_in = range_number(RangeId(fact["range_id"]))
        for packed in pack_rows(rows, cause, seen_ms, namespace, keys_seen_ms=written_ms, seen_in=seen_in):
            yield packed


async def read_entries(
    task: Task, share: pa.Table, columns: Sequence[str]
) -> AsyncIterator[tuple[Mapping[str, Any], pa.Table, bytes]]:
    """Yield each row of RANGES with these columns of the range's entries, and with the file.

    Raises:
        RangeCorrupt: a file has another number of entries than its metarange states: never delete on it.
    """
    facts = {row["range_id"]: row for row in share.to_pylist()}
    async for name, data in task.ahead([*facts], lambda id_: get_range(task.store, RangeId(id_))):
        fact = facts[name]
        rows = decode_range(RangeId(name), data, columns)
        if rows.num_rows != fact["count"]:
            raise RangeCorrupt(name, f"has {rows.num_rows} entries instead of {fact['count']}")
        yield fact, rows, data


def _written_ms(rows: pa.Table, name: str, data: bytes, seen_ms: Integers) -> Integers | None:
    """Return when each entry was written, at the latest its commit's date; None without foreign addresses."""
    # Other programs may write a foreign key again. So take the entry's own date as last seen: a younger object at the
    # key is another object (sweep.py).
    if not pc.any(pc.equal(rows["slice"], FOREIGN_SLICE)).as_py():
        return None
    dates = decode_range(RangeId(name), data, ["modified_ms"])
    written: Integers = np.minimum(dates["modified_ms"].to_numpy(), seen_ms)
    return written


def pack_rows(
    rows: pa.Table,
    cause: Cause,
    seen_ms: Integers,
    namespace: Namespace,
    *,
    keys_seen_ms: Integers | None = None,
    seen_in: Integers | int | None = None,
) -> Iterator[pa.Table]:
    """Return CANDIDATES of a range, in one table for each first folder.

    `seen_ms` and `keys_seen_ms` are parallel with the rows. `keys_seen_ms` applies to keys outside of slices.
    `seen_in`: the `range_number` of all rows, or of each.
    """
    slices, sequences = rows["slice"].to_numpy(), rows["sequence"].to_numpy().astype(np.int64)
    sizes, paths = rows["size_bytes"].to_numpy(), texts_of(rows["key"])
    keys_seen_ms = seen_ms if keys_seen_ms is None else keys_seen_ms
    ranges = None if seen_in is None else np.broadcast_to(np.asarray(seen_in, np.int64), len(slices))
    for prefix, start, stop in first_folders(rows["key"]):
        part = slice(start, stop)
        own, seen = slices[part] != FOREIGN_SLICE, seen_ms[part]
        named = paths.slice(start, stop - start)
        yield pack_numbered(
            slices[part][own],
            sequences[part][own],
            sizes[part][own],
            seen[own],
            cause,
            prefix,
            named if own.all() else named.filter(pa.array(own)),
            None if ranges is None else ranges[part][own],
        )
        if not own.all():
            facts = rows.select(["address", "size_bytes"]).slice(start, stop - start)
            foreign = facts.append_column("path", named).filter(pa.array(~own))
            in_ranges = np.zeros(int((~own).sum()), np.int64) if ranges is None else ranges[part][~own]
            numbers = np.stack((seen[~own], keys_seen_ms[part][~own], in_ranges))
            yield from _pack_foreign(foreign, numbers, cause, prefix, namespace)


def _pack_foreign(
    rows: pa.Table, numbers: Integers, cause: Cause, prefix: str, namespace: Namespace
) -> Iterator[pa.Table]:
    """`numbers`: for each row the date if it is in a slice, the date if not, and its range or 0."""
    addresses, sizes, paths = (rows[name].to_pylist() for name in ("address", "size_bytes", "path"))
    facts = zip(sizes, paths, *numbers.tolist(), strict=True)
    places = [(namespace.place_of(address), *fact) for address, fact in zip(addresses, facts, strict=True)]
    keys = [(place, *fact) for place, *fact in places if isinstance(place, str) and may_be_deleted(place)]
    if keys:
        names, bytes_, texts, _, seen_ms, seen_in = zip(*keys, strict=True)
        yield pack_foreign(
            names, bytes_, seen_ms, cause, prefix, pa.array(texts, pa.string()), np.array(seen_in, np.int64)
        )
    own = [(*place, *fact) for place, *fact in places if isinstance(place, tuple)]
    if own:
        named = pa.array([each[3] for each in own], pa.string())
        columns = np.array([(*each[:3], each[4], each[6]) for each in own], np.int64).T
        yield pack_numbered(columns[0], columns[1], columns[2], columns[3], cause, prefix, named, columns[4])


def texts_of(keys: pa.ChunkedArray) -> pa.Array:
    """Return paths as text, for people. Bytes that are not UTF-8 (Lakebed writes none) become replacement marks."""
    try:
        texts = keys.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
