"""Entries as Arrow columns, and the conversion between columns and rows.

Entries move in bulk as tables of two shapes: ENTRIES_SCHEMA (a key, then `base.ROW_FIELDS`), and CHANGES_SCHEMA, the
same with `tombstone` behind, which is true for a key to remove. Tables between functions of this part are sorted by
key, bytewise, and name each key once, unless a function says that it accepts other tables. No column holds nulls.

Only this file makes an object for each row, at the edges. numpy object arrays are the bridge: pyarrow fills one with
bytes in 15 ns an element. Their stable sort finds sorted runs, so that merging sorted keys costs one comparison each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, ROW_FIELDS, Row

__all__ = [
    "CHANGES_SCHEMA",
    "ENTRIES_SCHEMA",
    "TOMBSTONE_ROW",
    "changes_from_rows",
    "chunk",
    "rows_from_table",
    "table_from_rows",
]

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

ObjectArray = npt.NDArray[np.object_]


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


def object_array(column: pa.ChunkedArray) -> ObjectArray:
    """Return a binary column as an array of Python bytes: sortable, searchable, and cheap to index."""
    values: ObjectArray = column.to_numpy()
    return values


def chunk(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one contiguous array, without a copy where it is one already."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def text_buffers(array: pa.Array) -> tuple[npt.NDArray[np.int32], memoryview]:
    """Return offsets and bytes of a column of strings or bytes with at least one row.

    The offsets say where each value starts, and where the last one ends. The first need not be 0.
    """
    _, starts, data = array.buffers()
    offsets = np.frombuffer(starts, np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets, memoryview(data if data is not None else b"")[int(offsets[0]) : int(offsets[-1])]


def _arrays(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
