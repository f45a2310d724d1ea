"""The ledger: one row for what a run did with one object, in a folder for each day, for ever.

    _lakefs/retention/gc/ledger/date=<YYYY-MM-DD>/<run>-<part>.parquet

No manifest names its files; each stands for itself. A file of version 1 has no states: a row of it with an error
failed, the others are gone. One of version 2 does not say when an object was seen last.
"""

from __future__ import annotations

import enum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .manifests import BadInput
from .parquet import decode_part, encode_part, group_rows_of
from .paths import GC_PREFIX
from .tables import LEDGER

LEDGER_PREFIX: Final = f"{GC_PREFIX}ledger/"
GROUP_ROWS: Final = 1 << 14
"""A server that looks for one row decodes so many at a time: in about 5 ms, where the whole of a part takes 80."""


class LedgerState(enum.StrEnum):
    """What became of the object. `failed` says that nothing did: its error tells why. `kept`: it is not the one that
    was planned for, and stays.
    """

    DELETED = "deleted"
    QUARANTINED = "quarantined"
    PURGED = "purged"
    RESTORED = "restored"
    FAILED = "failed"
    KEPT = "kept"


def encode_ledger(rows: pa.Table) -> bytes:
    """One file of LEDGER rows, which can be read a row group at a time."""
    return encode_part(LEDGER, rows, group_rows=GROUP_ROWS)


def ledger_groups(data: bytes, *, name: str) -> list[int]:
    """How many rows each row group of a file has.

    Raises:
        BadInput: it is no ledger file.
    """
    return group_rows_of(data, name=name)


def decode_ledger(data: bytes, *, name: str, group: int | None = None) -> pa.Table:
    """LEDGER rows of one file, of any version that there was, or of one of its row groups.

    Raises:
        BadInput: it is no ledger file. `name` is what the error calls it.
    """
    try:
        names = pq.read_schema(pa.BufferReader(data)).names
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{name} is no ledger table: {error}", part=name) from error
    version = 1 if "state" not in names else LEDGER.version if "last_seen_at" in names else 2
    rows = decode_part(LEDGER, data, name=name, version=version, group=group)
    derived = pc.if_else(pc.equal(rows["error"], ""), LedgerState.DELETED.value, LedgerState.FAILED.value)
    state = pc.if_else(pc.equal(rows["state"], ""), derived, rows["state"])
    place = rows.schema.get_field_index("state")
    return rows.set_column(place, rows.schema.field("state"), state)
