"""Addresses on their way into the table `uncommitted`: gathered as numbers, written as Arrow columns.

Five million of them are to be written in half a minute, so no object is made for each: numbers go into numpy arrays as
they come, and the 27 characters of our own addresses are made for a whole row group at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, Row, parse_address, slice_name
from lakebed.handoff import PartWriter, relative_address


class Address(NamedTuple):
    """`foreign` is the address itself where `slice_` is FOREIGN_SLICE, else empty."""

    slice_: int
    sequence: int
    foreign: str
    created_ms: int


class AddressRows:
    """Gathers rows and hands them to the writer in groups."""

    def __init__(self, writer: PartWriter, *, group_rows: int) -> None:
        self.count = 0
        self._writer = writer
        self._group_rows = group_rows
        self._chunks: list[pa.Table] = []
        self._waiting = 0

    def add(self, address: Address, *, source: str, branch: str) -> None:
        self._add_columns([address], source, branch)

    def add_rows(self, rows: Sequence[Row], *, source: str, branch: str, namespace: str) -> None:
        """Rows of cells. An absolute address inside the namespace is written as the key that it names."""
        if rows:
            self._add_columns([_from_row(row, namespace) for row in rows], source, branch)

    def _add_columns(self, addresses: Sequence[Address], source: str, branch: str) -> None:
        slices, sequences, foreign, created = zip(*addresses, strict=True)
        count = len(addresses)
        self._chunks.append(
            _table(
                np.array(slices, np.int64), np.array(sequences, np.int32), foreign, np.array(created), source, branch
            )
        )
        self.count += count
        self._waiting += count
        if self._waiting >= self._group_rows:
            self.flush()

    def flush(self) -> None:
        if self._chunks:
            self._writer.write(pa.concat_tables(self._chunks))
        self._chunks.clear()
        self._waiting = 0


def _from_row(row: Row, namespace: str) -> Address:
    if row[1] != FOREIGN_SLICE:
        return Address(row[1], row[2], "", row[6])
    key = relative_address(row[3], namespace)
    place = parse_address(key) if key is not None else None
    if place is None:
        return Address(FOREIGN_SLICE, 0, key or row[3], row[6])
    return Address(*place, "", row[6])


def _table(
    slices: npt.NDArray[np.int64],
    sequences: npt.NDArray[np.int32],
    foreign: Sequence[str],
    created_ms: npt.NDArray[np.int64],
    source: str,
    branch: str,
) -> pa.Table:
    count = len(slices)
    return pa.table(
        {
            "address": address_texts(slices, sequences, foreign),
            "slice": slices,
            "sequence": sequences,
            "creation_date": pa.array(created_ms).cast(pa.timestamp("ms", tz="UTC")),
            "source": pa.repeat(source, count),
            "branch": pa.repeat(branch, count),
        }
    )


def address_texts(slices: npt.NDArray[np.int64], sequences: npt.NDArray[np.int32], foreign: Sequence[str]) -> pa.Array:
    """What `format_address` gives for each, and the text itself where the address is foreign."""
    is_own = slices != FOREIGN_SLICE
    if not is_own.all():
        own = address_texts(slices[is_own], sequences[is_own], ()).to_pylist()
        mine = iter(own)
        return pa.array([next(mine) if own_ else text for own_, text in zip(is_own, foreign, strict=True)], pa.string())
    count = len(slices)
    text = np.empty((count, 27), np.uint8)
    numbers, which = np.unique(slices, return_inverse=True)
    heads = [list(f"data/{slice_name(int(number))}/".encode()) for number in numbers]
    text[:, :19] = np.array(heads, np.uint8).reshape(-1, 19)[which]
    left = sequences.astype(np.int64)
    for column in range(26, 18, -1):
        left, digit = np.divmod(left, 10)
        text[:, column] = digit + ord("0")
    offsets = np.arange(0, 27 * count + 1, 27, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))
