"""Entries as Arrow columns, and a decoded range in memory, for reading single rows and pages of them.

Entries move in bulk as tables of two shapes: ENTRIES_SCHEMA (a key, then `base.ROW_FIELDS`), and CHANGES_SCHEMA, the
same with `tombstone` behind, which is true for a key to remove. Tables between functions of this part are sorted by
key, bytewise, and name each key once, unless a function says that it accepts other tables. No column holds nulls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, ROW_FIELDS, Row

from .sealed import KeyColumn, chunk, object_array

__all__ = [
    "CHANGES_SCHEMA",
    "ENTRIES_SCHEMA",
    "TOMBSTONE_ROW",
    "RangeView",
    "changes_from_rows",
    "rows_from_table",
    "table_from_rows",
]

# Only this file makes an object for each row, at the edges. numpy object arrays are the bridge: pyarrow fills one with
# bytes in 15 ns an element. Their stable sort finds sorted runs, so that merging sorted keys costs one comparison
# each.

ENTRIES_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("digest", pa.int64(), nullable=False),
        pa.field("slice", pa.int64(), nullable=False),
        pa.field("sequence", pa.int32(), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("modified_ms", pa.int64(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False),
    ]
)
assert tuple(ENTRIES_SCHEMA.names[1:]) == ROW_FIELDS

CHANGES_SCHEMA: Final = ENTRIES_SCHEMA.append(pa.field("tombstone", pa.bool_(), nullable=False))

TOMBSTONE_ROW: Final[Row] = (0, FOREIGN_SLICE, 0, "", 0, "", 0, "", b"")
"""Fill the columns of a tombstone. No reader uses the values."""


def table_from_rows(keys: Sequence[bytes], rows: Sequence[Row]) -> pa.Table:
    """Make entries of these keys, in the order given. Costs about 1 µs a row."""
    columns = zip(*rows, strict=True) if rows else [()] * len(ROW_FIELDS)
    return pa.Table.from_arrays(_arrays([keys, *columns], ENTRIES_SCHEMA), schema=ENTRIES_SCHEMA)


def changes_from_rows(keys: Sequence[bytes], rows: Sequence[Row | None]) -> pa.Table:
    """Make changes of these keys, in the order given; None is a tombstone."""
    columns = zip(*(row or TOMBSTONE_ROW for row in rows), strict=True) if rows else [()] * len(ROW_FIELDS)
    return changes_from_columns(keys, tuple(columns), [row is None for row in rows])


def changes_from_columns(
    keys: Sequence[bytes], columns: Sequence[Sequence[Any]], tombstones: Sequence[bool]
) -> pa.Table:
    """Make changes from columns in the order of ROW_FIELDS, as `zip(*rows)` returns them. Costs about 30 ns a value.

    The row of a tombstone may hold any values of the columns' types, such as TOMBSTONE_ROW.
    """
    return pa.Table.from_arrays(_arrays([keys, *columns, tombstones], CHANGES_SCHEMA), schema=CHANGES_SCHEMA)


def rows_from_table(table: pa.Table) -> list[tuple[bytes, Row]]:
    """Return (key, row) of every entry, in order, without further columns.

    Costs 0.3 µs a row for a page, and 1 µs where the rows are too many for the processor's cache.
    """
    keys = object_array(table.column("key")).tolist()
    columns = [values_of(table.column(name)) for name in ROW_FIELDS]
    return list(zip(keys, zip(*columns, strict=True), strict=True))


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as Python objects, many times faster than one scalar at a time."""
    values: list[Any] = column.to_numpy().tolist()
    return values


def _arrays(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]


DENSE: Final = 8
"""Looking a key up costs about as much as reading this many rows of a page."""


class RangeView:
    """Read the entries of a range, in key order. A view is immutable; any number of readers may share it.

    A point read bisects over the Arrow buffers. It makes objects only of the keys that it compares (about 2 µs among
    8,000 keys), and of the one row that it finds.
    """

    def __init__(self, entries: pa.Table) -> None:
        self.entries = entries.combine_chunks()
        self.nbytes: int = self.entries.nbytes
        self.keys = KeyColumn(chunk(self.entries, "key"))
        self._columns = [_values(chunk(self.entries, name)) for name in ROW_FIELDS]

    def __len__(self) -> int:
        rows: int = self.entries.num_rows
        return rows

    def position(self, key: bytes) -> int:
        """Count the keys that are smaller."""
        return self.keys.position(key)

    def position_behind(self, key: bytes) -> int:
        """Count the keys that are smaller or equal."""
        return bisect_right(self.keys, key)

    def find(self, start: bytes) -> tuple[int, bytes | None]:
        """Count the keys before `start`, and return the first one from there on; None where all are smaller."""
        at = self.position(start)
        return at, self.keys[at] if at < len(self) else None

    def between(self, start: int, stop: int) -> pa.Table:
        """Return the entries from a position to before another."""
        return self.entries.slice(start, stop - start)

    def get(self, key: bytes) -> Row | None:
        at = self.keys.position(key)
        if at == len(self.keys) or self.keys[at] != key:
            return None
        return self.row(at)

    def get_many(self, keys: Sequence[bytes]) -> list[tuple[bytes, Row]]:
        """Return (key, row) of those keys that are here. They are ascending, and at least one.

        Where they lie close together, the rows between them are read too.
        """
        start, stop = self.position(keys[0]), self.position_behind(keys[-1])
        if stop - start <= DENSE * len(keys):
            wanted = {*keys}
            return [entry for entry in self.rows(start, stop) if entry[0] in wanted]
        return [(key, row) for key in keys if (row := self.get(key)) is not None]

    def row(self, position: int) -> Row:
        row: Any = tuple([column[position] for column in self._columns])
        return row  # type: ignore[no-any-return]  # a tuple of these columns is a Row; mypy sees a tuple of Any

    def rows(self, start: int, stop: int) -> list[tuple[bytes, Row]]:
        """Return (key, row) of the positions from `start` to before `stop`. Costs about 0.4 µs a row."""
        return rows_from_table(self.entries.slice(start, max(0, stop - start)))

    def total(self, start: bytes, end: bytes | None) -> tuple[int, int]:
        """Return how many entries lie between two keys, and the sum of their sizes."""
        first, stop = self.position(start), len(self) if end is None else self.position(end)
        return stop - first, int(chunk(self.entries, "size_bytes").to_numpy()[first:stop].sum())

    def rows_at(self, rows: npt.NDArray[np.int64]) -> list[tuple[bytes, Row]]:
        """Return (key, row) at these positions."""
        return [(self.keys[row], self.row(row)) for row in rows.tolist()]

    @property
    def digests(self) -> npt.NDArray[np.int64]:
        digests: npt.NDArray[np.int64] = chunk(self.entries, "digest").to_numpy()
        return digests

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the entries at these positions, or some columns."""
        entries = self.entries if columns is None else self.entries.select(columns)
        return entries.take(pa.array(rows))


class _Text(KeyColumn):
    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return str(self._data[self._offsets[index] : self._offsets[index + 1]], "utf-8")


def _values(array: pa.Array) -> Any:
    if pa.types.is_string(array.type):
        return _Text(array)
    if pa.types.is_binary(array.type):
        return KeyColumn(array)
    return memoryview(array.to_numpy())
