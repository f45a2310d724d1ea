"""Keep the commit fields that collections need, in columns: 130 bytes a commit. A commit record has 1,000.

An id is a SHA-256, kept as 32 bytes. It becomes text only where a caller asks for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import CommitId, Corrupt, MetarangeId
from lakebed.versions import Commit, Record, Versions

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
    if octets.hex() != digits or any(len(id_) not in (0, 2 * ID_BYTES) for id_ in ids):
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


async def read_commits(versions: Versions) -> CommitColumns:
    """Read every commit record, published or not.

    Raises:
        Corrupt: a record has an invalid commit or tree id.
    """
    # Page by page: a repository may have a million commits, and only one page of records is in memory.
    columns = _Columns()
    async for page in versions.inventory.pages(CommitFacts, of=Commit):
        columns.add(page.names, page.records)
    return await versions.ports.tasks.apart(columns.sorted)


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
