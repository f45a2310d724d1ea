"""A plan of one part in a store, as a sweep reads it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from lakebed.base import FOREIGN_SLICE, parse_address
from lakebed.gc import protocol
from lakebed.gc.protocol import Quarantine
from lakebed.gc.recording import Ledger
from lakebed.objectstore import MemoryObjectStore, ObjectMissing, ObjectStat, ObjectStore, ObjectStoreUnavailable

FOLDER = "_lakefs/retention/gc/committed/r1/doomed/"
PART = "part-00000.parquet"
SEEN = datetime(2026, 1, 1, tzinfo=UTC)
SEEN_MS = int(SEEN.timestamp() * 1000)
ASIDE = Quarantine(run_id="r1", ledger_date="2026-11-21", since_ms=1_000, until_ms=2_000, window="7d")
LEDGER = Ledger(run_id="r1", date="2026-11-21")

both_ways = pytest.mark.parametrize("quarantine", [None, ASIDE], ids=["deleted", "aside"])


class Dated(MemoryObjectStore):
    """What is put is dated with `ms`. Cannot be asked about some keys."""

    def __init__(self) -> None:
        super().__init__("mem://dated", now_ms=lambda: self.ms)
        self.ms = SEEN_MS
        self.unknown: set[str] = set()
        self.asked: list[str] = []

    async def stat(self, key: str) -> ObjectStat:
        self.asked.append(key)
        if key in self.unknown:
            raise ObjectStoreUnavailable("gone fishing")
        return await super().stat(key)


async def plan_of(
    store: ObjectStore,
    keys: Sequence[str],
    *,
    part: str = PART,
    with_paths: bool = True,
    folder: str = FOLDER,
    as_found: bool = True,
    seen: datetime | None = None,
) -> protocol.Manifest:
    """Every object has 4 bytes, was seen at SEEN, and has the path `events/<its place>` or none. `as_found`: it is as
    it lies there, if it does; `seen`: but for when it was seen."""
    facts = [await _facts(store, key) if as_found else (4, SEEN) for key in keys]
    places = [parse_address(key) or (FOREIGN_SLICE, 0) for key in keys]
    rows = pa.table(
        {
            "address": list(keys),
            "slice": [place[0] for place in places],
            "sequence": [place[1] for place in places],
            "size_bytes": [size_bytes for size_bytes, _ in facts],
            "reason": ["expired"] * len(keys),
            "rule": ["main: 1 days"] * len(keys),
            "last_seen_at": [seen or seen_at for _, seen_at in facts],
            "path": [f"events/{number}" if with_paths else "" for number in range(len(keys))],
        }
    )
    data = protocol.encode_part(protocol.DOOMED, rows.cast(protocol.arrow_schema(protocol.DOOMED)))
    await store.put(folder + part, data)
    return protocol.manifest_of(protocol.DOOMED, folder, [protocol.part_of(part, data, rows=len(keys))])


async def _facts(store: ObjectStore, key: str) -> tuple[int, datetime]:
    try:
        stat = await store.stat(key)
    except ObjectMissing:
        return 4, SEEN
    return stat.size_bytes, datetime.fromtimestamp(stat.modified_ms / 1000, UTC)
