"""Objects that were moved aside instead of deleted: where they lie, and until when (docs/formats/gc-quarantine.md).

    _lakefs/retention/gc/quarantine/<run_id>/<address>     the object, copied before it was deleted
    _lakefs/retention/gc/quarantined/<run_id>.json         the run's record: since when and until when; gone when all is

The record is written before the first object is moved and says when the window ends: an instant of that day's clocks,
which no later reading of a clock makes earlier.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.base import RunId

from .ledger import LEDGER_PREFIX
from .manifests import BadInput, Manifest
from .paths import GC_PREFIX
from .runs import InvalidRunId, check_run_id

QUARANTINE_PREFIX: Final = f"{GC_PREFIX}quarantine/"
QUARANTINED_PREFIX: Final = f"{GC_PREFIX}quarantined/"
QUARANTINE_FORMAT: Final = 1


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """What one run moves aside. `ledger_date` (YYYY-MM-DD) says in which folder of the ledger its rows lie; `since_ms`
    is when it first did so, and `until_ms` when the window of what it moved last ends: then all of it may be purged.
    `window` is the duration as somebody asked for it. `doomed` is the table that is moved aside, so that what an apply
    moved before it died, and wrote no ledger of, is found: its parts are called as the ledger's are. Records that older
    programs wrote have none.
    """

    format: int = QUARANTINE_FORMAT
    run_id: str
    ledger_date: str
    since_ms: int
    until_ms: int
    window: str
    doomed: Manifest | None = None

    def key(self, address: str) -> str:
        """Where an object of this run lies."""
        return f"{QUARANTINE_PREFIX}{self.run_id}/{address}"

    @property
    def ledger_prefix(self) -> str:
        """What the names of all ledger files of this run's deletions begin with."""
        return self.ledger_key("part-")

    def ledger_key(self, part: str) -> str:
        """The ledger file of this part of `doomed`."""
        return f"{LEDGER_PREFIX}date={self.ledger_date}/{self.run_id}-{part}"


def quarantine_path(run_id: str) -> str:
    return f"{QUARANTINED_PREFIX}{run_id}.json"


def encode_quarantine(quarantine: Quarantine) -> bytes:
    return msgspec.json.encode(quarantine)


def decode_quarantine(data: bytes, run_id: str) -> Quarantine:
    """
    Raises:
        BadInput: unreadable, of an unknown format, or another run's. Nothing of it may be purged then.
    """
    name = quarantine_path(run_id)
    try:
        found = msgspec.json.decode(data, type=Quarantine)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{name} is unreadable: {error}", input="quarantine") from error
    if found.format != QUARANTINE_FORMAT:
        raise BadInput(f"{name} has the unknown format {found.format}", input="quarantine")
    if found.run_id != run_id:
        raise BadInput(f"{name} is that of run {found.run_id}", input="quarantine")
    return found


def quarantined_run(name: str) -> RunId | None:
    """The run whose record has this name below QUARANTINED_PREFIX; None for a file of somebody else's."""
    stem = name.removesuffix(".json")
    try:
        return check_run_id(stem) if stem != name else None
    except InvalidRunId:
        return None
