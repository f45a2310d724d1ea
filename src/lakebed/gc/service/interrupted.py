"""What an apply moved aside and wrote no ledger of: it was killed within a part, or is in it just now.

A part has up to 100,000 objects, and its rows are written when all of them are moved (lakebed.gc, sweep.py). Until then
the quarantine's record says which table is moved: a part of it without a ledger file is begun, or not, and what of it
lies aside was moved. Whoever applies the run again writes the ledger; nothing here does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lakebed.gc.protocol import (
    DOOMED,
    LEDGER,
    QUARANTINED_PREFIX,
    LedgerState,
    Part,
    Quarantine,
    arrow_schema,
    decode_quarantine,
    quarantine_path,
    quarantined_run,
    read_part,
)
from lakebed.objectstore import ObjectMissing, ObjectStore


class Interrupted:
    def __init__(self, objectstore: ObjectStore) -> None:
        self._objectstore = objectstore

    async def parts(self) -> list[tuple[Quarantine, Part]]:
        """Of every quarantine; most have none.

        Raises:
            BadInput: a quarantine's record is unreadable.
        """
        names = [stat.key async for page in self._objectstore.list(QUARANTINED_PREFIX) for stat in page]
        found: list[tuple[Quarantine, Part]] = []
        for run_id in filter(None, (quarantined_run(name.removeprefix(QUARANTINED_PREFIX)) for name in names)):
            try:
                quarantine = decode_quarantine(await self._objectstore.get(quarantine_path(run_id)), run_id)
            except ObjectMissing:
                continue
            if quarantine.doomed is not None:
                listed = [stat.key async for page in self._objectstore.list(quarantine.ledger_prefix) for stat in page]
                known = frozenset(listed)
                parts = quarantine.doomed.parts
                found += [(quarantine, part) for part in parts if quarantine.ledger_key(part.name) not in known]
        return found

    async def moved(self, is_asked: Callable[[pa.Table], pa.ChunkedArray]) -> pa.Table:
        """LEDGER: of every quarantine, what of the rows that are asked for (DOOMED) lies aside."""
        found: list[dict[str, Any]] = []
        for quarantine, part in await self.parts():
            rows = await self.rows(quarantine, quarantine.ledger_key(part.name))
            if rows is not None:
                rows = rows.filter(is_asked(rows))
                found += [row for _, row in await self.aside(quarantine, rows, limit=rows.num_rows)]
        return pa.Table.from_pylist(found, schema=arrow_schema(LEDGER))

    async def rows(self, quarantine: Quarantine, key: str) -> pa.Table | None:
        """DOOMED, by address: the part that has no ledger file of this name. None where no table, or none that is there
        still, has such a part.

        Raises:
            BadInput: the part is not what the quarantine's record says.
        """
        doomed = quarantine.doomed
        parts = doomed.parts if doomed is not None else ()
        part = next((part for part in parts if quarantine.ledger_key(part.name) == key), None)
        if part is None or doomed is None:
            return None
        try:
            data = await self._objectstore.get(doomed.folder + part.name)
        except ObjectMissing:
            return None
        return read_part(doomed, DOOMED, part, data).sort_by("address")

    async def aside(self, quarantine: Quarantine, rows: pa.Table, *, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """Of these rows (DOOMED, by address) the first whose objects lie aside, at most so many: their places, and they
        as rows of LEDGER. Costs a listing of what lies aside between the first address and the last.
        """
        addresses: list[str] = rows["address"].to_pylist()
        found: list[int] = []
        if addresses:
            places = {quarantine.key(address): place for place, address in enumerate(addresses)}
            begin, end = quarantine.key(addresses[0]), quarantine.key(addresses[-1])
            async for page in self._objectstore.list(quarantine.key(""), start_after=begin[:-1]):
                found += [places[stat.key] for stat in page if stat.key in places]
                if len(found) >= limit or (page and page[-1].key >= end):
                    break
        return [(place, _as_ledger(quarantine, rows.slice(place, 1).to_pylist()[0])) for place in found[:limit]]


def _as_ledger(quarantine: Quarantine, row: dict[str, Any]) -> dict[str, Any]:
    facts = {"state": LedgerState.QUARANTINED.value, "error": "", "run_id": quarantine.run_id}
    dates = {"deleted_at": quarantine.since_ms, "kept_until": quarantine.until_ms}
    names = ("address", "size_bytes", "reason", "path", "rule", "last_seen_at")
    return {name: row[name] for name in names} | facts | dates
