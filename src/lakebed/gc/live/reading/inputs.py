"""The inputs of a run: their files in its folder (parts first, manifest last), and their rows as columns.

Addresses are collected row by row, or by the page of cells. Commits are kept in columns, 130 bytes each where a record
has 1,000. An id is a SHA-256, kept as 32 bytes. It becomes text only where a caller asks for it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import (
    FOREIGN_SLICE,
    ROW_FIELDS,
    CommitId,
    Corrupt,
    MetarangeId,
    RunId,
    RunKind,
    StagingToken,
    Tasks,
    key_inside,
    parse_address,
    slice_name,
)
from lakebed.gc import messages
from lakebed.gc.live.errors import OutOfOrder
from lakebed.kv import Page
from lakebed.objectstore import ObjectMissing, ObjectStore
from lakebed.versions import TOMBSTONE, Commit, Record, Versions, cell_columns


class Inputs:
    """Access the inputs of one run. `name` is a table's name, or `<table>.<attempt>` for one of several attempts."""

    def __init__(self, objectstore: ObjectStore, kind: RunKind, run_id: RunId) -> None:
        self._objectstore = objectstore
        self.kind = kind
        self.run_id = run_id

    def folder(self, name: str) -> str:
        return messages.input_folder(self.kind, self.run_id, name)

    async def write_part(self, name: str, number: int, data: bytes, *, rows: int) -> messages.Part:
        part = messages.part_of(messages.part_name(number), data, rows=rows)
        await self._objectstore.put(self.folder(name) + part.name, data, size_bytes=len(data))
        return part

    async def write_page(
        self, table: messages.Table, name: str, page: int, writer: messages.PartWriter
    ) -> messages.Manifest:
        """End a page: write its part if it has rows, then its manifest."""
        rows = writer.rows
        data = writer.close()
        parts = [await self.write_part(name, page, data, rows=rows)] if rows else []
        # The manifest is last, so it never names a part that was not written.
        manifest = messages.manifest_of(table, self.folder(name), parts)
        await self._objectstore.put(
            messages.page_manifest_path(self.kind, self.run_id, name, page), messages.encode_manifest(manifest)
        )
        return manifest

    async def join_pages(self, table: messages.Table, name: str, pages: int, digest: str) -> messages.Manifest:
        """Complete the input: write one manifest from those of its first `pages` pages.

        Raises:
            BadInput: a page's manifest is missing or unreadable, or was replaced after a later page continued from it.
        """
        parts: list[messages.Part] = []
        found = ""
        for page in range(pages):
            path = messages.page_manifest_path(self.kind, self.run_id, name, page)
            try:
                data = await self._objectstore.get(path)
            except ObjectMissing as error:
                raise messages.BadInput(f"{path} is missing", input=name) from error
            manifest = messages.decode_manifest(data, name=path)
            found = digest_of_pages(found, manifest)
            parts += manifest.parts
        # A repeated page may have ended elsewhere, and its successor would then leave a gap.
        if found != digest:
            raise messages.BadInput(
                f"a page of {name} was written again while the reading went on: begin again", input=name
            )
        return await self.complete(table, name, parts)

    async def check_complete(self, name: str) -> None:
        """Check that this input was read to its end, or raise OutOfOrder."""
        if not await self._is_complete(name):
            raise OutOfOrder(f"run {self.run_id} must read {name} to its end first", run_id=self.run_id)

    async def check_not_complete(self, name: str) -> None:
        """Check that this input may still be written, or raise OutOfOrder."""
        if await self._is_complete(name):
            raise OutOfOrder(f"run {self.run_id} has read {name} already", run_id=self.run_id)

    async def _is_complete(self, name: str) -> bool:
        try:
            await self._objectstore.stat(messages.manifest_path(self.kind, self.run_id, name))
        except ObjectMissing:
            return False
        return True

    async def write_table(self, table: messages.Table, name: str, data: pa.Table) -> messages.Manifest:
        """Write a whole input that fits into memory, as one part."""
        parts = []
        if data.num_rows:
            parts.append(await self.write_part(name, 0, messages.encode_part(table, data), rows=data.num_rows))
        return await self.complete(table, name, parts)

    async def write_tables(
        self, table: messages.Table, name: str, tables: Iterable[pa.Table], tasks: Tasks
    ) -> messages.Manifest:
        """Write a whole input, a part for each table with rows. Other tasks run while a table is made and encoded."""
        parts: list[messages.Part] = []
        remaining = iter(tables)
        while (data := await tasks.apart(lambda: next(remaining, None))) is not None:
            if data.num_rows:
                encoded = await tasks.apart(partial(messages.encode_part, table, data))
                parts.append(await self.write_part(name, len(parts), encoded, rows=data.num_rows))
        return await self.complete(table, name, parts)

    async def complete(self, table: messages.Table, name: str, parts: list[messages.Part]) -> messages.Manifest:
        """Write the manifest of an input whose parts are written."""
        manifest = messages.manifest_of(table, self.folder(name), parts)
        await self._objectstore.put(
            messages.manifest_path(self.kind, self.run_id, name), messages.encode_manifest(manifest)
        )
        return manifest

    async def write_swept(self, commits: Iterable[CommitId], *, attempt: str = "") -> None:
        """Store the commits that were swept before a reading of staging, for the read of commits after it."""
        name = _swept_name(attempt)
        ids = pa.array(sorted(commits), pa.string())
        await self.write_table(messages.EXPIRED, name, pa.table([ids], schema=messages.arrow_schema(messages.EXPIRED)))

    async def read_swept(self, *, attempt: str = "") -> frozenset[CommitId]:
        """Return the commits that `write_swept` stored, or raise BadInput."""
        name = _swept_name(attempt)
        path = messages.manifest_path(self.kind, self.run_id, name)
        try:
            manifest = messages.decode_manifest(await self._objectstore.get(path), name=path)
        except ObjectMissing as error:
            raise messages.BadInput(f"{path} is missing", input=name) from error
        return frozenset(map(CommitId, (await self.read_table(messages.EXPIRED, manifest)).column("id").to_pylist()))

    async def write_loose(self, commits: Iterable[CommitId]) -> None:
        """Store the commits without a note of their publication, as a plan sees them."""
        await self._objectstore.put(self._loose_path(), msgspec.json.encode(sorted(commits)))

    async def read_loose(self) -> frozenset[CommitId]:
        """Return the commits that `write_loose` stored; none if it stored nothing, or the file is unreadable."""
        try:
            ids = msgspec.json.decode(await self._objectstore.get(self._loose_path()), type=tuple[str, ...])
        except (ObjectMissing, msgspec.MsgspecError):
            return frozenset()
        return frozenset(map(CommitId, ids))

    def _loose_path(self) -> str:
        return f"{messages.run_folder(self.kind, self.run_id)}loose.json"

    async def write_closed(self, attempt: str, slices: tuple[str, ...]) -> None:
        """Store the names of closed slices at the first page of a reading, for its last page."""
        await self._objectstore.put(self._closed_path(attempt), msgspec.json.encode(slices))

    async def read_closed(self, attempt: str) -> tuple[str, ...]:
        """Return the names that `write_closed` stored, or raise BadInput."""
        path = self._closed_path(attempt)
        try:
            return msgspec.json.decode(await self._objectstore.get(path), type=tuple[str, ...])
        except (ObjectMissing, msgspec.MsgspecError) as error:
            raise messages.BadInput(f"{path} is missing or unreadable: {error}", input="closed") from error

    def _closed_path(self, attempt: str) -> str:
        return f"{messages.run_folder(self.kind, self.run_id)}closed.{attempt}.json"

    async def read_table(self, table: messages.Table, manifest: messages.Manifest) -> pa.Table:
        """Return the rows of an input, or raise BadInput."""
        if messages.check_manifest(manifest, name=manifest.folder) is not table:
            raise messages.BadInput(f"{manifest.folder} is no {table.name} table", input=manifest.table)
        # Collectors send manifests: never read outside of the run's folder.
        if not manifest.folder.startswith(self.folder("")[:-1]):
            raise messages.BadInput(
                f"{manifest.folder} is not in the folder of run {self.run_id}", input=manifest.table
            )
        parts: list[pa.Table] = []
        for part in manifest.parts:
            try:
                data = await self._objectstore.get(manifest.folder + part.name)
            except ObjectMissing as error:
                raise messages.BadInput(f"{manifest.folder}{part.name} is missing", part=part.name) from error
            parts.append(messages.read_part(manifest, table, part, data))
        return messages.join_parts(manifest, table, parts)


def _swept_name(attempt: str) -> str:
    return f"swept.{attempt}" if attempt else "swept"


def digest_of_pages(before: str, manifest: messages.Manifest) -> str:
    """Return the digest of a page and all pages before it. `before` is their digest, empty for the first page."""
    return hashlib.sha256(f"{before} {manifest.digest()}".encode()).hexdigest()


Numbers: TypeAlias = npt.NDArray[np.int64]

_SLICE, _SEQUENCE, _ADDRESS, _MODIFIED = (
    ROW_FIELDS.index(name) for name in ("slice", "sequence", "address", "modified_ms")
)


class Address(NamedTuple):
    """Hold an address. `foreign` is its text where `slice_` is FOREIGN_SLICE, else empty."""

    slice_: int
    sequence: int
    foreign: str
    created_ms: int


class Rows(Protocol):
    """Take the addresses that a reading finds."""

    def add(self, address: Address, *, source: str, branch: str) -> None: ...
    def add_cells(self, page: Page, *, branch: str, token: StagingToken, namespace: str) -> None: ...
    async def settle(self, tasks: Tasks) -> None:
        """Write what was added, once it is enough for a row group."""


class AddressRows:
    """Gather rows and write them in row groups."""

    def __init__(self, writer: messages.PartWriter, *, group_rows: int) -> None:
        self.count = 0
        self._writer = writer
        self._group_rows = group_rows
        self._chunks: list[pa.Table] = []
        self._waiting = 0

    def add(self, address: Address, *, source: str, branch: str) -> None:
        columns = [np.array([number], np.int64) for number in (address.slice_, address.sequence, address.created_ms)]
        self._add_columns(columns[0], columns[1], [address.foreign], columns[2], source, branch)

    def add_cells(self, page: Page, *, branch: str, token: StagingToken, namespace: str) -> None:
        """Add the cells of a page of one token. See `add_values`."""
        del token
        self.add_values(page.values, branch=branch, namespace=namespace)

    def add_values(self, values: Sequence[bytes], *, branch: str, namespace: str) -> None:
        """Add stored cells, except tombstones. Include cells with an online delete in progress: doubt means keep.

        An absolute address inside the namespace is written as its key.
        """
        if not values:
            return
        columns = cell_columns(values)
        flags = np.array(columns[0], np.int64)
        slices, sequences, created = (
            np.array(columns[1 + field], np.int64) for field in (_SLICE, _SEQUENCE, _MODIFIED)
        )
        foreign: list[str] = list(columns[1 + _ADDRESS])
        is_live = flags & TOMBSTONE == 0
        if not is_live.all():
            slices, sequences, created = slices[is_live], sequences[is_live], created[is_live]
            foreign = [text for text, is_live_ in zip(foreign, is_live, strict=True) if is_live_]
        for row in np.flatnonzero(slices == FOREIGN_SLICE).tolist():
            address = address_of(foreign[row], namespace=namespace, created_ms=0)
            slices[row], sequences[row], foreign[row] = address.slice_, address.sequence, address.foreign
        if len(slices):
            self._add_columns(slices, sequences, foreign, created, "staging", branch)

    def _add_columns(
        self,
        slices: Numbers,
        sequences: Numbers,
        foreign: Sequence[str],
        created_ms: Numbers,
        source: str,
        branch: str,
    ) -> None:
        # Arrow columns without a Python object for each row: five million rows must be written in half a minute.
        count = len(slices)
        columns = {
            "address": address_texts(slices, sequences, foreign),
            "slice": slices,
            "sequence": sequences.astype(np.int32),
            "creation_date": pa.array(created_ms).cast(pa.timestamp("ms", tz="UTC")),
            "source": pa.repeat(source, count),
            "branch": pa.repeat(branch, count),
        }
        self._chunks.append(pa.table(columns))
        self.count += count
        self._waiting += count

    async def settle(self, tasks: Tasks) -> None:
        if self._waiting >= self._group_rows:
            await tasks.apart(self.flush, is_short=True)

    def flush(self) -> None:
        if self._chunks:
            self._writer.write(pa.concat_tables(self._chunks))
        self._chunks.clear()
        self._waiting = 0


def address_of(text: str, *, namespace: str, created_ms: int) -> Address:
    """Return the address as the table stores it: as numbers if Lakebed wrote the object, in any spelling."""
    key = key_inside(text, namespace)
    numbers = parse_address(key) if key is not None else None
    slice_, sequence = numbers or (FOREIGN_SLICE, 0)
    return Address(slice_, sequence, "" if numbers else (key or text), created_ms)


def address_texts(slices: Numbers, sequences: Numbers, foreign: Sequence[str]) -> pa.Array:
    """Return `format_address` of each, and the text itself where the address is foreign."""
    foreign_rows = np.flatnonzero(slices == FOREIGN_SLICE)
    if not len(foreign_rows):
        return _own_texts(slices, sequences)
    own_rows = np.flatnonzero(slices != FOREIGN_SLICE)
    texts = pa.array([foreign[row] for row in foreign_rows.tolist()], pa.string())
    both = pa.concat_arrays([_own_texts(slices[own_rows], sequences[own_rows]), texts])
    place = np.empty(len(slices), np.int64)
    place[own_rows], place[foreign_rows] = np.arange(len(own_rows)), np.arange(len(own_rows), len(slices))
    return both.take(pa.array(place))


def _own_texts(slices: Numbers, sequences: Numbers) -> pa.Array:
    """Return texts of 27 bytes: `data/`, 13 characters, `/`, 8 digits."""
    count = len(slices)
    text = np.empty((count, 27), np.uint8)
    numbers, which = np.unique(slices, return_inverse=True)
    # Column by column: a Python string for each of five million rows takes too long.
    heads = [list(f"data/{slice_name(int(number))}/".encode()) for number in numbers]
    text[:, :19] = np.array(heads, np.uint8).reshape(-1, 19)[which]
    left = sequences
    for column in range(26, 18, -1):
        left, digit = np.divmod(left, 10)
        text[:, column] = digit + ord("0")
    offsets = np.arange(0, 27 * count + 1, 27, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


# Commits


ID_BYTES: Final = 32
_PACKED: Final = pa.binary(ID_BYTES)
_NONE: Final = "00" * ID_BYTES
"""Stands for the empty tree, which has no id."""
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)

_SCHEMA: Final = pa.schema(
    [
        ("id", _PACKED),
        ("generation", pa.int64()),
        ("created_ms", pa.int64()),
        ("metarange_id", _PACKED),
        ("parents", pa.list_(_PACKED)),
        ("made_for", pa.dictionary(pa.int32(), pa.string())),
        ("published", pa.bool_()),
        ("tried", pa.bool_()),
    ]
)


class CommitFacts(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Decode the fields of a `Commit` record that the columns keep, and skip the others.

    The column `created_ms` has the later of `created_ms` and `counted_ms`: the date that retention uses.
    """

    generation: int
    created_ms: int
    metarange_id: MetarangeId
    parents: tuple[CommitId, ...]
    made_for: str = ""
    published: bool = False
    tried: bool = False
    counted_ms: int = 0


def packed(ids: Collection[str]) -> pa.Array:
    """Return the ids as bytes.

    Raises:
        Corrupt: an id is neither 64 hex digits nor empty.
    """
    return pa.Array.from_buffers(_PACKED, len(ids), [None, pa.py_buffer(_octets(ids))])


def texts(column: pa.Array) -> pa.Array:
    """Return the ids as text. The empty tree's id is an empty string."""
    octets = _view(column)
    is_some = octets.any(axis=1)
    digits = _HEX[np.stack((octets[is_some] >> 4, octets[is_some] & 15), axis=2)]
    ends = np.cumsum(np.append(0, np.where(is_some, 2 * ID_BYTES, 0)), dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(column), [None, pa.py_buffer(ends), pa.py_buffer(digits.tobytes())])


def text_lists(column: pa.ListArray) -> pa.ListArray:
    """Return lists of ids as lists of text."""
    ends = column.offsets.to_numpy()
    return pa.ListArray.from_arrays(pa.array(ends - ends[0]), texts(column.values.slice(ends[0], ends[-1] - ends[0])))


def _octets(ids: Collection[str]) -> bytes:
    digits = "".join([id_ or _NONE for id_ in ids])
    try:
        octets = bytes.fromhex(digits)
    except ValueError:
        octets = b""
    # Compare: `fromhex` skips spaces and accepts capitals.
    if octets.hex() != digits or not {*map(len, ids)} <= {0, 2 * ID_BYTES}:
        strange = next(id_ for id_ in ids if id_ and (len(id_) != 2 * ID_BYTES or id_.strip("0123456789abcdef")))
        raise Corrupt(f"{strange!r} is not an id", id=strange)
    return octets


def _view(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return a row of 32 bytes for each id."""
    start = column.offset * ID_BYTES
    buffer = column.buffers()[1]
    octets = np.frombuffer(b"" if buffer is None else buffer, np.uint8)
    return octets[start : start + len(column) * ID_BYTES].reshape(len(column), ID_BYTES)


@dataclass(frozen=True, slots=True)
class CommitColumns:
    """Hold commits ordered by generation, then id. Each column is one chunk, and ids are packed."""

    table: pa.Table

    @classmethod
    def of(cls, commits: Iterable[tuple[CommitId, CommitFacts]]) -> CommitColumns:
        columns, pairs = _Columns(), list(commits)
        columns.add([id_ for id_, _ in pairs], [facts for _, facts in pairs])
        return columns.sorted()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[tuple[CommitId, CommitFacts]]:
        for batch in self.table.to_batches(max_chunksize=1_000):
            for row in batch.to_pylist():
                id_, parents = row.pop("id").hex(), tuple([parent.hex() for parent in row.pop("parents")])
                tree = row.pop("metarange_id").hex()
                tree = MetarangeId("" if tree == _NONE else tree)
                yield CommitId(id_), CommitFacts(parents=parents, metarange_id=tree, **row)

    def column(self, name: str) -> pa.Array:
        return self.table.column(name).combine_chunks()

    def numbers(self, name: str) -> npt.NDArray[np.int64]:
        return np.asarray(self.column(name).to_numpy())


class CommitReading:
    """Read every commit record, published or not: its pages, then its columns.

    A repository may have a million commits, so only one page of records is in memory.
    """

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._columns = _Columns()

    async def pages(self) -> AsyncIterator[int]:
        """Yield the number of records of each page.

        Raises:
            Corrupt: a record has an invalid commit or tree id.
        """
        async for page in self._versions.inventory.pages(CommitFacts, of=Commit):
            self._columns.add(page.names, page.records)
            yield len(page.names)

    async def columns(self) -> CommitColumns:
        return await self._versions.ports.tasks.apart(self._columns.sorted)


class _Columns:
    """Build the columns from pages of records."""

    def __init__(self) -> None:
        self._ids, self._trees, self._parents = bytearray(), bytearray(), bytearray()
        self._ends, self._branches = array("i", [0]), array("i")
        self._generations, self._dates = array("q"), array("q")
        self._published, self._tried = bytearray(), bytearray()
        self._names: dict[str, int] = {}

    def add(self, ids: Sequence[str], commits: Sequence[CommitFacts]) -> None:
        self._ids += _octets(ids)
        self._trees += _octets([commit.metarange_id for commit in commits])
        self._parents += _octets([*chain.from_iterable([commit.parents for commit in commits])])
        end = self._ends[-1]
        self._ends.extend((end + np.cumsum([len(commit.parents) for commit in commits], dtype=np.int64)).tolist())
        self._generations.extend([commit.generation for commit in commits])
        self._dates.extend([max(commit.created_ms, commit.counted_ms) for commit in commits])
        self._branches.extend([self._names.setdefault(commit.made_for, len(self._names)) for commit in commits])
        self._published += bytes([commit.published for commit in commits])
        self._tried += bytes([commit.tried for commit in commits])

    def sorted(self) -> CommitColumns:
        """Return the columns in order, and empty this builder. At most one column is in memory twice."""
        # Records arrive ordered by id, and a stable sort keeps that order within a generation.
        generations = np.frombuffer(self._generations, np.int64)
        order = np.argsort(generations, kind="stable")
        ids, self._ids = _packed_of(self._ids, order), bytearray()
        trees, self._trees = _packed_of(self._trees, order), bytearray()
        ends = pa.array(np.frombuffer(self._ends, np.int32))
        parents, self._parents = pa.ListArray.from_arrays(ends, _packed_of(self._parents)), bytearray()
        parents = parents.take(pa.array(order))
        codes = pa.array(np.frombuffer(self._branches, np.int32)[order])
        columns = [
            ids,
            pa.array(generations[order]),
            pa.array(np.frombuffer(self._dates, np.int64)[order]),
            trees,
            parents,
            pa.DictionaryArray.from_arrays(codes, pa.array([*self._names], pa.string())),
            pa.array(np.frombuffer(self._published, np.bool_)[order]),
            pa.array(np.frombuffer(self._tried, np.bool_)[order]),
        ]
        return CommitColumns(pa.table(columns, schema=_SCHEMA))


def _packed_of(octets: bytearray, order: npt.NDArray[np.int64] | None = None) -> pa.Array:
    rows = np.frombuffer(octets, np.uint8).reshape(-1, ID_BYTES)
    rows = rows if order is None else rows[order]
    return pa.Array.from_buffers(_PACKED, len(rows), [None, pa.py_buffer(rows)])
