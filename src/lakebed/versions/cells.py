"""Cells: the records of a staging token's partition, one a path (docs/formats/records.md, "Cell").

A cell is the msgpack array `[2, flags, *row]`: format number, flags, then base's `Row`. Arrays of one shape laid end to
end behind one array header are themselves msgpack, so a page of a thousand decodes in a single call.

Flags: TOMBSTONE (the path is deleted; the row is all zeros), EXCLUSIVE (no other cell and no commit names this address;
without this mark it is shared, and only the offline collector may give it up), DOOMED (being deleted online), REPEATED
(its writer set it before, in a token that a commit sealed meanwhile), CONDITIONAL (its writer asked for a condition:
another such writer may yet look for it, so it outlasts its token for a while).

EXCLUSIVE is two bits. An older release knew the lower one alone, and could set it again after a copy had taken it off:
its marks are not believed. It takes off the lower bit when it copies, so a server of it beside this one is seen.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from lakebed.base import ROW_FIELDS, Row
from lakebed.ranges import CHANGES_SCHEMA

from .records import RecordFormat

FORMAT: Final = 2
TOMBSTONE: Final = 1
EXCLUSIVE: Final = 2 | 8
DOOMED: Final = 4
REPEATED: Final = 16
CONDITIONAL: Final = 32

_Cell: TypeAlias = tuple[int, int, int, int, int, str, int, str, int, str, bytes]
Cell: TypeAlias = tuple[int, Row]
"""Flags and row."""

TOMBSTONE_ROW: Final[Row] = (0, 0, 0, "", 0, "", 0, "", b"")

_encode = msgspec.msgpack.Encoder().encode
_decode_one = msgspec.msgpack.Decoder(_Cell).decode
_decode_many = msgspec.msgpack.Decoder(list[_Cell]).decode


def encode_cell(flags: int, row: Row) -> bytes:
    return _encode((FORMAT, flags, *row))


def decode_cell(value: bytes) -> Cell:
    """
    Raises:
        RecordFormat: another format number, or no cell.
    """
    try:
        cell = _decode_one(value)
    except msgspec.MsgspecError as error:
        raise RecordFormat(f"cell does not decode: {error}") from error
    if cell[0] != FORMAT:
        raise RecordFormat(f"cell of format {cell[0]}, known is {FORMAT}")
    return cell[1], cell[2:]


def decode_cells(values: Sequence[bytes]) -> list[Cell]:
    """The same for a page, at a third of a microsecond each."""
    return [(cell[1], cell[2:]) for cell in _decode(values)]


def cell_columns(values: Sequence[bytes]) -> list[tuple[Any, ...]]:
    """A page of at least one cell as columns: the flags, then a row's fields in order. No object for each cell."""
    with _collector_resting():
        return list(zip(*_decode(values), strict=True))[1:]


def is_exclusive(flags: int) -> bool:
    """Answer whether no other cell and no commit names the address of this cell. Doubt is no."""
    return flags & EXCLUSIVE == EXCLUSIVE


def tombstone_of(row: Row, name: str) -> Row:
    """Make the row of a tombstone that hides this one version of its path. `name` is of who puts it, and nonempty.

    A commit whose parent has another version at the path leaves that in place (committer.py).
    """
    return version_digest(row), 0, 0, "", 0, name, 0, "", b""


def version_digest(row: Row) -> int:
    """Tell versions of one path apart, also by their addresses. Never 0, which is the digest of other tombstones."""
    found = hashlib.blake2b(_encode(row[1:]), digest_size=8).digest()
    return int.from_bytes(found, "little", signed=True) or 1


def hides_one(cell: Cell) -> bool:
    """Answer whether a cell is a tombstone of one version alone (`tombstone_of`)."""
    flags, row = cell
    # Ordinary tombstones have no digest. A doomed cell, which columns show as a tombstone, has the date of its object.
    return bool(flags & TOMBSTONE) and row[0] != 0 and row[6] == 0


def hides_all(row: Row) -> Row:
    """Make the row of a tombstone one that hides whatever is beneath."""
    return 0, *row[1:]


def shown_over(cell: Cell, beneath: Cell | None) -> Cell:
    """Return the cell that stands for two of one path, `beneath` the older one, or for a cell over nothing staged."""
    # The newer cell stands. But a tombstone of one version lets another version through.
    if beneath is None or not hides_one(cell) or hides_one(beneath):
        return cell
    # It met its own version, or a deletion: it has done its work, and hides whatever the head has, too.
    is_met = is_gone(beneath[0]) or version_digest(beneath[1]) == cell[1][0]
    return (cell[0], hides_all(cell[1])) if is_met else beneath


def is_gone(flags: int) -> bool:
    """Return whether a reader takes the path for deleted."""
    return bool(flags & (TOMBSTONE | DOOMED))


def changes_table(keys: Sequence[bytes], values: Sequence[bytes]) -> pa.Table:
    """Cells as columns (`CHANGES_SCHEMA`), in the order given, for a commit to apply. No object for each row stays."""
    if not values:
        return CHANGES_SCHEMA.empty_table()
    with _collector_resting():
        _, flags, *columns = zip(*_decode(values), strict=True)
    gone = np.array(flags, np.uint8) & (TOMBSTONE | DOOMED)
    named = dict(zip(ROW_FIELDS, columns, strict=True), key=keys, tombstone=gone.astype(bool))
    return pa.table([pa.array(named[field.name], field.type) for field in CHANGES_SCHEMA], schema=CHANGES_SCHEMA)


@contextmanager
def _collector_resting() -> Iterator[None]:
    """No search for cycles inside. A tuple for each cell makes Python look for cycles every 700 of them; there are
    none, they are gone as soon as they are columns, and looking took almost half of the time. Await nothing inside."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _decode(values: Sequence[bytes]) -> list[_Cell]:
    try:
        cells = _decode_many(b"\xdd" + len(values).to_bytes(4, "big") + b"".join(values))
    except msgspec.MsgspecError as error:
        raise RecordFormat(f"cell does not decode: {error}") from error
    for cell in cells:
        if cell[0] != FORMAT:
            raise RecordFormat(f"cell of format {cell[0]}, known is {FORMAT}")
    return cells
