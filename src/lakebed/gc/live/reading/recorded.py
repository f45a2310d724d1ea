"""Look up in the ledger whether a missing object was already deleted and recorded."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from lakebed.gc.messages import LEDGER_PREFIX, decode_record, deleted_in, ledger_folder, ledger_records
from lakebed.gc.rules import DAY_MS
from lakebed.objectstore import ObjectStore

SLACK_MS: Final = 600_000
"""Allowed clock difference between servers and object store. Reading an older file than needed does no harm."""


async def recorded_since(
    store: ObjectStore, addresses: Set[str], since_ms: int, *, began_ms: int | None = None
) -> dict[Sequence[str], Set[str]]:
    """Return the addresses that ledger files written since `since_ms` record as deleted, by record.

    Costs a listing of the ledger from the day before on, and a read of each such file. A run's files are stored under
    the day on which its first sweep began. `began_ms` is that time, for a run that stopped for days in between.
    """
    first_ms = since_ms if began_ms is None else min(since_ms, began_ms)
    changed_ms: dict[str, int] = {}
    async for page in store.list(LEDGER_PREFIX, start_after=ledger_folder(first_ms - DAY_MS)):
        changed_ms |= {stat.key: stat.modified_ms for stat in page}
    recorded: dict[Sequence[str], Set[str]] = {}
    for names in ledger_records(changed_ms):
        # A record may have several files, and a later file may change an earlier one: read all or none.
        if max(changed_ms[name] for name in names) >= since_ms - SLACK_MS:
            rows = decode_record(names, [await store.get(name) for name in names])
            if deleted := addresses & deleted_in(rows):
                recorded[names] = deleted
    return recorded
