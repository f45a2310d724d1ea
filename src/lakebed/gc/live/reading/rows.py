"""Addresses on their way into the table `uncommitted`: gathered as numbers, written as Arrow columns.

Five million of them are to be written in half a minute, so no object is made for each: numbers go into numpy arrays as
they come, and the 27 characters of our own addresses are made for a whole row group at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, ROW_FIELDS, StagingToken, key_inside, parse_address, slice_name
from lakebed.gc.messages import PartWriter
from lakebed.kv import Page
from lakebed.versions import TOMBSTONE, cell_columns

Numbers: TypeAlias = npt.NDArray[np.int64]

_SLICE, _SEQUENCE, _ADDRESS, _MODIFIED = (
    ROW_FIELDS.index(name) for name in ("slice", "sequence", "address", "modified_ms")
)


class Address(NamedTuple):
    """`foreign` is the address itself where `slice_` is FOREIGN_SLICE, else empty."""

    slice_: int
    sequence: int
    foreign: str
    created_ms: int


class Rows(Protocol):
    """Takes what a reading finds."""

    def add(self, address: Address, *, source: str, branch: str) -> None: ...
    def add_cells(self, page: Page, *, branch: str, token: StagingToken, namespace: str) -> None: ...


class AddressRows:
    """Gathers rows and hands them to the writer in groups."""

    def __init__(self, writer: PartWriter, *, group_rows: int) -> None:
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
        """Add cells as they are stored, but for tombstones. One that is being deleted online counts: doubt means keep.

        An absolute address inside the namespace is written as the key that it names.
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
        if self._waiting >= self._group_rows:
            self.flush()

    def flush(self) -> None:
        if self._chunks:
            self._writer.write(pa.concat_tables(self._chunks))
        self._chunks.clear()
        self._waiting = 0


def address_of(text: str, *, namespace: str, created_ms: int) -> Address:
    """An address as the table wants it: by number where it is one of ours, whichever way it is spelled."""
    key = key_inside(text, namespace)
    place = parse_address(key) if key is not None else None
    slice_, sequence = place or (FOREIGN_SLICE, 0)
    return Address(slice_, sequence, "" if place else (key or text), created_ms)


def address_texts(slices: Numbers, sequences: Numbers, foreign: Sequence[str]) -> pa.Array:
    """Return what `format_address` gives for each, and the text itself where the address is foreign."""
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
    """`data/`, 13 digits, `/`, 8 digits: 27 bytes each, written column by column."""
    count = len(slices)
    text = np.empty((count, 27), np.uint8)
    numbers, which = np.unique(slices, return_inverse=True)
    heads = [list(f"data/{slice_name(int(number))}/".encode()) for number in numbers]
    text[:, :19] = np.array(heads, np.uint8).reshape(-1, 19)[which]
    left = sequences
    for column in range(26, 18, -1):
        left, digit = np.divmod(left, 10)
        text[:, column] = digit + ord("0")
    offsets = np.arange(0, 27 * count + 1, 27, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))
