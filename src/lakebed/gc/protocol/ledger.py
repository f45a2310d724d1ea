"""The ledger: one row for what a run did with one object, in a folder for each day, for ever.

    _lakefs/retention/gc/ledger/date=<YYYY-MM-DD>/<run>-<part>.parquet

No manifest names its files; each stands for itself. A file of an older release is refused.
"""

from __future__ import annotations

import enum
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed.gc.rules import DAY_MS

from .parquet import decode_part, encode_part, group_rows_of
from .paths import GC_PREFIX
from .tables import LEDGER

LEDGER_PREFIX: Final = f"{GC_PREFIX}ledger/"
GROUP_ROWS: Final = 1 << 14
"""A server that looks for one row decodes so many at a time: in about 5 ms, where the whole of a part takes 80."""


class LedgerState(enum.StrEnum):
    """What became of the object. `failed`: nothing, and its error says why. `kept`: it is not the one that was planned
    for, or it came to be named, and stays.
    """

    DELETED = "deleted"
    RESTORED = "restored"
    FAILED = "failed"
    KEPT = "kept"


def ledger_folder(at_ms: int) -> str:
    """Return the folder for rows of that day, in UTC. Ends with a slash."""
    return f"{LEDGER_PREFIX}date={np.datetime64(at_ms // DAY_MS, 'D')}/"


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
    """LEDGER rows of one file, or of one of its row groups.

    Raises:
        BadInput: it is no ledger file, or one of an older release. `name` is what the error calls it.
    """
    return decode_part(LEDGER, data, name=name, group=group)
