"""A plan of one part in a store, as a sweep reads it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa

from lakebed import handoff
from lakebed.base import FOREIGN_SLICE, parse_address
from lakebed.blocks import BlockStore

FOLDER = "_lakefs/retention/gc/committed/r1/doomed/"
PART = "part-00000.parquet"
SEEN = datetime(2026, 1, 1, tzinfo=UTC)


async def plan_of(
    store: BlockStore, keys: Sequence[str], *, part: str = PART, with_paths: bool = True, folder: str = FOLDER
) -> handoff.Manifest:
    """Every object has 4 bytes, was seen at SEEN, and has the path `events/<its place>` or none."""
    places = [parse_address(key) or (FOREIGN_SLICE, 0) for key in keys]
    rows = pa.table(
        {
            "address": list(keys),
            "slice": [place[0] for place in places],
            "sequence": [place[1] for place in places],
            "size_bytes": [4] * len(keys),
            "reason": ["expired"] * len(keys),
            "rule": ["main: 1 days"] * len(keys),
            "last_seen_at": [SEEN] * len(keys),
            "path": [f"events/{number}" if with_paths else "" for number in range(len(keys))],
        }
    )
    data = handoff.encode_part(handoff.DOOMED, rows.cast(handoff.arrow_schema(handoff.DOOMED)))
    await store.put(folder + part, data)
    return handoff.manifest_of(handoff.DOOMED, folder, [handoff.part_of(part, data, rows=len(keys))])
