"""Find the names of an object: in every commit that was not swept, every staged cell, every upload and copy.

A search reads each distinct metarange and the end of each distinct range once, PARALLEL at a time. It keeps only their
ids in memory. Matches are put into the argument `found`. Each step yields its amount of work, so that searches.py can
cut a long search into pages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import (
    FOREIGN_SLICE,
    ROW_FIELDS,
    MetarangeId,
    RangeId,
    StagingToken,
    format_address,
    key_inside,
    key_to_path,
    parse_address,
)
from lakebed.gc.messages import UncommittedName
from lakebed.objectstore import ObjectMissing
from lakebed.ranges import (
    MetarangeCorrupt,
    RangeCorrupt,
    RangeInfo,
    RangeList,
    SliceSummary,
    decode_metarange,
    decode_range,
    metarange_key,
    range_key,
    read_end,
    sublist_key,
    summary_of,
)
from lakebed.versions import TOMBSTONE, BranchRecord, CopyRecord, UploadRecord, UploadState, Versions, cell_columns

__all__ = ["Search"]

Numbers = npt.NDArray[np.int64]
T = TypeVar("T")
R = TypeVar("R")
PARALLEL: Final = 32
SCAN_CELLS: Final = 5_000
CELLS_A_FILE: Final = 500
"""Reading this many cells costs about as much as reading the end of a range."""

BRANCHES_A_FILE: Final = 10
"""So does a look into this many empty branches."""

_COLUMNS: Final = ["key", "slice", "sequence", "address", "modified_ms", "size_bytes", "metadata"]
_SLICE, _SEQUENCE, _ADDRESS, _MODIFIED = (
    1 + ROW_FIELDS.index(name) for name in ("slice", "sequence", "address", "modified_ms")
)


class Named(NamedTuple):
    """Hold a wanted address, the path that names it, and the rest of its entry: `metadata` as encoded in ranges."""

    address: str
    path: str
    modified_ms: int = 0
    size_bytes: int = 0
    metadata: bytes = b""


class Work(NamedTuple):
    """Count the work of a search since its last report: `files` read (or equal work), and trees, branches or ledger
    files that it is `through` with.
    """

    files: int
    through: int


class Wanted:
    """Match entries against wanted addresses: keys of the namespace `uri`, or absolute addresses outside it."""

    def __init__(self, uri: str, addresses: Iterable[str]) -> None:
        self._uri = uri
        self.addresses = frozenset(addresses)
        self._sequences: dict[int, set[int]] = {}
        for slice_, sequence in filter(None, map(parse_address, sorted(self.addresses))):
            self._sequences.setdefault(slice_, set()).add(sequence)

    def is_in(self, summary: SliceSummary) -> bool:
        """Return whether a range with this summary names a wanted address by slice and sequence."""
        by_slice = ((self._sequences.get(bitmap.slice), bitmap) for bitmap in summary.bitmaps)
        return any(wanted and not wanted.isdisjoint(bitmap.sequences().tolist()) for wanted, bitmap in by_slice)

    def maybe(self, slices: Numbers, sequences: Numbers) -> list[int]:
        """Return the rows that may name a wanted address: rows with its slice and sequence, and all foreign rows."""
        # A foreign row may be a full URI of an object inside the namespace.
        flags = slices == FOREIGN_SLICE
        for slice_, wanted in self._sequences.items():
            flags |= (slices == slice_) & np.isin(sequences, np.array(sorted(wanted), np.int64))
        rows: list[int] = np.flatnonzero(flags).tolist()
        return rows

    def find(self, slice_: int, sequence: int, address: str) -> str | None:
        """Return the wanted address that this entry names, or None."""
        named = canonical(slice_, sequence, address, self._uri)
        return named if named in self.addresses else None


def canonical(slice_: int, sequence: int, address: str, uri: str) -> str:
    """Return one text for each object, however an entry spells its address."""
    if slice_ != FOREIGN_SLICE:
        return format_address(slice_, sequence)
    key = key_inside(address, uri)
    return address if key is None else key


class Search:
    """Search a repository. A missing or altered file of a commit raises a Corrupt error with its name."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._uri = versions.objectstore.uri

    # In commits

    async def addresses_at(
        self, path: bytes, metaranges: Sequence[MetarangeId], found: dict[str, None]
    ) -> AsyncIterator[Work]:
        """Find the distinct addresses of entries at this path, in the order of the metaranges."""
        entries: dict[MetarangeId, list[Named]] = {}
        async for work in self.entries_at([path], metaranges, entries):
            yield work
        found |= dict.fromkeys(named.address for rows in entries.values() for named in rows)

    async def entries_at(
        self, paths: Collection[bytes], metaranges: Sequence[MetarangeId], found: dict[MetarangeId, list[Named]]
    ) -> AsyncIterator[Work]:
        """Find the entries that these metaranges have at these paths."""
        looked: dict[RangeId, list[Named]] = {}
        async for id_, infos in self._metaranges(metaranges):
            at_path = [info for info in infos if any(info.min_key <= path <= info.max_key for path in paths)]
            fresh = [info for info in at_path if info.id not in looked]
            for info in fresh:
                rows = await self._rows(info)
                wanted = pc.is_in(rows["key"], value_set=pa.array(sorted(paths), rows["key"].type))
                looked[info.id] = [
                    _named(canonical(row["slice"], row["sequence"], row["address"], self._uri), row)
                    for row in rows.filter(wanted).to_pylist()
                ]
            found[id_] = [named for info in at_path for named in looked[info.id]]
            yield Work(1 + len(fresh), 1)

    async def committed(
        self, wanted: Wanted, metaranges: Sequence[MetarangeId], found: dict[MetarangeId, list[Named]]
    ) -> AsyncIterator[Work]:
        """Find which of these metaranges name wanted addresses, and where."""
        hits: dict[RangeId, list[Named]] = {}
        async for id_, infos in self._metaranges(metaranges):
            # Trees share most of their ranges: read each distinct range once.
            fresh = [info for info in infos if info.id not in hits]
            for batch in batches(fresh):
                looks = await self._together(batch, lambda info: self._look_into(info, wanted))
                hits |= {info.id: rows for info, rows in zip(batch, looks, strict=True)}
                yield Work(len(batch), 0)
            rows = [row for info in infos for row in hits[info.id]]
            if rows:
                found[id_] = rows
            yield Work(1, 1)

    async def files(
        self, names: Collection[str], metaranges: Sequence[MetarangeId], found: dict[MetarangeId, list[Named]]
    ) -> AsyncIterator[Work]:
        """Find the metaranges stored in these files, or with a sublist or range in them. The path is empty."""
        async for id_, infos in self._metaranges(metaranges):
            # A list that is not a RangeList was joined from sublists.
            sublists = () if isinstance(infos, RangeList) else await self._versions.trees.sublists(id_)
            files = {metarange_key(id_), *(range_key(info.id) for info in infos)}
            files |= {sublist_key(info.id) for info in sublists}
            if not files.isdisjoint(names):
                found[id_] = [Named(name, "") for name in sorted(files.intersection(names))]
            yield Work(1, 1)

    async def foreign(
        self, metaranges: Sequence[MetarangeId], found: dict[str, None], looked: set[RangeId]
    ) -> AsyncIterator[Work]:
        """Find every full URI that these metaranges name, but for ranges in `looked`. Add those that were read to it.

        Reads the ends of ranges, and the rows only of ranges with foreign addresses.
        """
        async for _, infos in self._metaranges(metaranges):
            for batch in batches(_others(infos, looked)):
                for addresses in await self._together(batch, self._foreign_in):
                    found.update(dict.fromkeys(addresses))
                # Only now: if a file of the batch is missing, another tree may still name the rest of it.
                looked.update(info.id for info in batch)
                yield Work(len(batch), 0)
            yield Work(1, 1)

    async def _foreign_in(self, info: RangeInfo) -> list[str]:
        if not (await self._summary(info)).foreign:
            return []
        rows = await self._rows(info)
        addresses: list[str] = rows.filter(pc.equal(rows["slice"], FOREIGN_SLICE))["address"].to_pylist()
        return addresses

    async def _summary(self, info: RangeInfo) -> SliceSummary:
        return summary_of(
            info.id, await read_end(info.id, info.file_bytes, lambda start: self._read_range(info, start=start))
        )

    async def _metaranges(self, ids: Sequence[MetarangeId]) -> AsyncIterator[tuple[MetarangeId, Sequence[RangeInfo]]]:
        for batch in batches(ids):
            files = await self._together(batch, self._read_metarange)
            for id_, data in zip(batch, files, strict=True):
                listed = decode_metarange(id_, data)
                yield id_, listed if isinstance(listed, RangeList) else await self._versions.trees.ranges(id_)
                # Let the server answer other requests between two files.
                await self._versions.ports.clock.sleep(0)

    async def _read_metarange(self, id_: MetarangeId) -> bytes:
        try:
            return await self._versions.objectstore.get(metarange_key(id_))
        except ObjectMissing as error:
            raise MetarangeCorrupt(id_, "the file is missing").in_namespace(self._uri) from error

    async def _read_range(self, info: RangeInfo, *, start: int = 0) -> bytes:
        try:
            return await self._versions.objectstore.get(range_key(info.id), start=start)
        except ObjectMissing as error:
            raise RangeCorrupt(info.id, "the file is missing").in_namespace(self._uri) from error

    async def _rows(self, info: RangeInfo) -> pa.Table:
        return decode_range(info.id, await self._read_range(info), _COLUMNS)

    async def _look_into(self, info: RangeInfo, wanted: Wanted) -> list[Named]:
        summary = await self._summary(info)
        # The end of a range has a bitmap for each slice. Read the rows only for a match, or for foreign addresses.
        if not summary.foreign and not wanted.is_in(summary):
            return []
        rows = await self._rows(info)
        rows = rows.take(wanted.maybe(rows["slice"].to_numpy(), rows["sequence"].to_numpy()))
        found = ((wanted.find(row["slice"], row["sequence"], row["address"]), row) for row in rows.to_pylist())
        return [_named(address, row) for address, row in found if address is not None]

    async def _together(self, items: Sequence[T], read: Callable[[T], Awaitable[R]]) -> list[R]:
        return await self._versions.ports.tasks.gather([read(item) for item in items])

    # In staging, uploads and copies

    async def uncommitted(self, wanted: Wanted, found: dict[str, list[UncommittedName]]) -> AsyncIterator[Work]:
        """Find each name of each address: cells of all branches, then uploads, then copies."""
        async for branches in self._versions.inventory.pages(BranchRecord):
            for number, (branch, record) in enumerate(branches):
                for token in record.tokens():
                    async for work in self._cells(branch, token, wanted, found):
                        yield work
                yield Work(number % BRANCHES_A_FILE == 0, 1)
        for address in sorted(wanted.addresses):
            upload = await self._versions.inventory.find(UploadRecord, address)
            if upload is not None and upload.state is not UploadState.EXPIRED:
                name = UncommittedName(source="upload", branch=upload.branch, since_ms=upload.issued_ms)
                found.setdefault(address, []).append(name)
        # Copies last, as in reading.py: an object renamed meanwhile is in its cell or in a copy record.
        async for _, copy in self._versions.inventory.every(CopyRecord):
            numbers = parse_address(copy.address) or (FOREIGN_SLICE, 0)
            named = wanted.find(*numbers, copy.address)
            if named is not None:
                name = UncommittedName(source="copy", branch=copy.branch, since_ms=copy.started_ms)
                found.setdefault(named, []).append(name)

    async def _cells(
        self, branch: str, token: StagingToken, wanted: Wanted, found: dict[str, list[UncommittedName]]
    ) -> AsyncIterator[Work]:
        start: bytes | None = b""
        while start is not None:
            page = await self._versions.inventory.cells(token, start, SCAN_CELLS)
            start = page.next_start
            if not page.keys:
                continue
            columns = cell_columns(page.values)
            for row in wanted.maybe(*(np.array(columns[field], np.int64) for field in (_SLICE, _SEQUENCE))):
                named = wanted.find(*(columns[field][row] for field in (_SLICE, _SEQUENCE, _ADDRESS)))
                if named is not None and not columns[0][row] & TOMBSTONE:
                    path, since_ms = key_to_path(page.keys[row]), columns[_MODIFIED][row]
                    name = UncommittedName(source="staging", branch=branch, path=path, since_ms=since_ms)
                    found.setdefault(named, []).append(name)
            await self._versions.ports.clock.sleep(0)
            yield Work(1 + len(page.keys) // CELLS_A_FILE, 0)


def _named(address: str, row: Mapping[str, Any]) -> Named:
    return Named(address, key_to_path(row["key"]), row["modified_ms"], row["size_bytes"], row["metadata"] or b"")


def _others(infos: Sequence[RangeInfo], looked: Collection[RangeId]) -> list[RangeInfo]:
    # Trees share most of their ranges: their ids are compared in a tenth of the time that objects of them take.
    ids = infos.ids if isinstance(infos, RangeList) else [info.id for info in infos]
    return [infos[at] for at, id_ in enumerate(ids) if id_ not in looked]


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), PARALLEL):
        yield items[start : start + PARALLEL]
