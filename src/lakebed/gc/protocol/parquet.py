"""Parts as bytes: one `Table` declaration turned into an Arrow schema, written and read back exactly.

zstd, dictionaries where they may pay, statistics on. The Arrow schema is not stored, so that any Parquet
reader sees plain columns.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from .manifests import BadInput, Manifest, Part, check_part, check_rows
from .tables import Table

_ARROW: Final = {
    "string": pa.string(),
    "int64": pa.int64(),
    "int32": pa.int32(),
    "bool": pa.bool_(),
    "timestamp_ms": pa.timestamp("ms", tz="UTC"),
    "list<string>": pa.list_(pa.field("element", pa.string(), nullable=False)),
}


_DISTINCT: Final = {"address", "path"}
"""A dictionary of values that hardly repeat is made in vain: a part of 100,000 rows takes 25 ms with it and 14 without,
and is half as large again."""


def arrow_schema(table: Table) -> pa.Schema:
    return pa.schema([pa.field(column.name, _ARROW[column.type], column.nullable) for column in table.columns])


def encode_part(table: Table, data: pa.Table, *, group_rows: int = 1 << 17) -> bytes:
    """Return a Parquet file of these rows, `group_rows` in a row group. `data` must have exactly the declared columns,
    in order and type.
    """
    assert data.schema.names == list(table.names()), (data.schema.names, table.name)
    buffer = io.BytesIO()
    rows, dictionaries = data.cast(arrow_schema(table)), _dictionaries(table)
    pq.write_table(rows, buffer, compression="zstd", row_group_size=group_rows, use_dictionary=dictionaries)
    return buffer.getvalue()


def _dictionaries(table: Table) -> list[str]:
    return [name for name in table.names() if name not in _DISTINCT]


class PartWriter:
    """The same row group by row group, for a part that is to be cut at a size: rows leave memory as they come."""

    def __init__(self, table: Table) -> None:
        self.rows = 0
        self._schema = arrow_schema(table)
        self._buffer = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._buffer, self._schema, compression="zstd", use_dictionary=_dictionaries(table)
        )

    def write(self, data: pa.Table) -> None:
        """One row group. `data` must have exactly the declared columns, in order."""
        self._writer.write_table(data.cast(self._schema), row_group_size=max(1, data.num_rows))
        self.rows += data.num_rows

    @property
    def size_bytes(self) -> int:
        """Return the size of what is written so far, without the footer."""
        return self._buffer.tell()

    def close(self) -> bytes:
        self._writer.close()
        return self._buffer.getvalue()


def group_rows_of(data: bytes, *, name: str) -> list[int]:
    """Return how many rows each row group has.

    Raises:
        BadInput: not Parquet. `name` is what the error calls it.
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{name} is no Parquet file: {error}", part=name) from error
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def decode_part(
    table: Table,
    data: bytes,
    *,
    name: str,
    columns: Sequence[str] | None = None,
    version: int | None = None,
    group: int | None = None,
) -> pa.Table:
    """All columns, or some of them, of a file of this version of the table (None: the newest), or of one row group.

    Raises:
        BadInput: not Parquet, cut short, or without the declared columns. `name` is what the error calls it.
    """
    try:
        names = list(table.names() if columns is None else columns)
        later = {column.name: column for column in table.later_than(version or table.version) if column.name in names}
        stored = [name for name in names if name not in later]
        if group is None:
            found = pq.read_table(pa.BufferReader(data), columns=stored)
        else:
            found = pq.ParquetFile(pa.BufferReader(data)).read_row_group(group, columns=stored)
        for name_, column in later.items():
            nothing = pa.nulls(found.num_rows, _ARROW[column.type]) if column.nullable else pa.repeat("", len(found))
            found = found.append_column(name_, nothing)
        return found.select(names).cast(pa.schema([arrow_schema(table).field(name) for name in names]))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise BadInput(f"{name} is no {table.name} table: {error}", part=name) from error


def read_part(
    manifest: Manifest, table: Table, part: Part, data: bytes, columns: Sequence[str] | None = None
) -> pa.Table:
    """One part, or some columns of it, checked against its manifest to the last byte and row.

    Raises:
        BadInput: it is not what the manifest says.
    """
    check_part(manifest, part, data)
    where = f"{manifest.folder}{part.name}"
    rows = decode_part(table, data, name=where, columns=columns, version=manifest.table_version)
    if rows.num_rows != part.rows:
        raise BadInput(f"{where} has {rows.num_rows} rows instead of {part.rows}", part=part.name)
    return rows


def join_parts(manifest: Manifest, table: Table, parts: list[pa.Table]) -> pa.Table:
    """All parts of an input as one table, in the manifest's order.

    Raises:
        BadInput: rows are missing.
    """
    whole = pa.concat_tables(parts) if parts else arrow_schema(table).empty_table()
    check_rows(manifest, whole.num_rows)
    return whole
