"""Parquet parts in a run's folder: written by tasks, named and digested for a manifest, and checked when read back.

Whatever a run writes between two of its steps goes through here, so a part that is missing, cut short or changed stops
the run with its name, in whichever attempt it was made.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakebed.base import NotFound
from lakebed.gc import protocol
from lakebed.objectstore import ObjectStore

from .tables import PARTS, Table


async def write_part(store: ObjectStore, folder: str, name: str, data: bytes, *, rows: int, note: object) -> pa.Table:
    """Store the part, and return its PARTS row. A task that is run again writes the same bytes under the same name."""
    part = protocol.part_of(name, data, rows=rows)
    await store.put(folder + name, data)
    return rows_of_parts([part], notes=[msgspec.json.encode(note)])


async def read_part(store: ObjectStore, folder: str, part: protocol.Part) -> bytes:
    """The bytes of a part, as its manifest describes them.

    Raises:
        BadInput: missing, of another size, or of another digest.
    """
    try:
        data = await store.get(folder + part.name)
    except NotFound as error:
        raise protocol.BadInput(f"{folder}{part.name} is missing", part=part.name) from error
    if protocol.part_of(part.name, data, rows=part.rows) != part:
        raise protocol.BadInput(f"{folder}{part.name} contradicts its size or digest", part=part.name)
    return data


def encode(table: Table, rows: pa.Table) -> bytes:
    """LZ4: a packed listing is half as large with it and reads in 8 ms a million objects; with zstd a third, and 26."""
    buffer = io.BytesIO()
    pq.write_table(rows.cast(table.schema), buffer, compression="lz4", use_dictionary=False)
    return buffer.getvalue()


def decode(table: Table, data: bytes, part: protocol.Part) -> pa.Table:
    """
    Raises:
        BadInput: not Parquet, not this table, or another number of rows.
    """
    try:
        rows = pq.read_table(pa.BufferReader(data)).select(table.schema.names).cast(table.schema)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise protocol.BadInput(f"{part.name} is no table of {table.meaning}: {error}", part=part.name) from error
    if rows.num_rows != part.rows:
        raise protocol.BadInput(f"{part.name} has {rows.num_rows} rows instead of {part.rows}", part=part.name)
    return rows


def check_numbered(packed: pa.Table, name: str) -> None:
    """
    Raises:
        BadInput: CANDIDATES or LIVE hold a foreign key, where only slices can be judged.
    """
    if not pc.all(pc.greater_equal(packed["bucket"], 0), min_count=0).as_py():
        raise protocol.BadInput(f"{name} holds objects that are in no slice", part=name)


def rows_of_parts(parts: Sequence[protocol.Part], notes: Sequence[bytes] = ()) -> pa.Table:
    return PARTS.rows(
        {
            "name": [part.name for part in parts],
            "rows": [part.rows for part in parts],
            "size_bytes": [part.size_bytes for part in parts],
            "sha256": [part.sha256 for part in parts],
            "note": list(notes) or [b""] * len(parts),
        }
    )


def rows_by_key(tables: Iterable[protocol.Manifest | protocol.Pieces]) -> pa.Table:
    """PARTS of several folders, each named by its whole key."""
    return rows_of_parts(
        [msgspec.structs.replace(part, name=table.folder + part.name) for table in tables for part in table.parts]
    )


def parts_of(rows: pa.Table) -> list[protocol.Part]:
    columns = rows.select(["name", "rows", "size_bytes", "sha256"]).to_pylist()
    return [protocol.Part(**row) for row in columns]
