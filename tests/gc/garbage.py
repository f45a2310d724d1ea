"""A plan of one part in a store, as a sweep reads it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

import pyarrow as pa
import pytest

from lakebed.base import FOREIGN_SLICE, Clock, Ports, parse_address
from lakebed.gc import messages
from lakebed.gc.engines import LocalEngine, Task
from lakebed.gc.engines.engine import RANGES, no_others
from lakebed.gc.kinds import SweepRule
from lakebed.gc.kinds.committed.plan import Committed
from lakebed.gc.kinds.metadata.plan import Metadata
from lakebed.gc.kinds.uncommitted.old_layout import OldLayout
from lakebed.gc.machine import sweep
from lakebed.gc.mark.holding import Held
from lakebed.gc.messages import Service
from lakebed.gc.rules import MetadataRule
from lakebed.gc.runs.context import Fence, RunContext
from lakebed.gc.runs.recording import Gone, Ledger, Swept
from lakebed.objectstore import (
    Deleter,
    MemoryObjectStore,
    ObjectMissing,
    ObjectStat,
    ObjectStore,
    ObjectStoreUnavailable,
)
from lakebed.runtime import live_ports

FOLDER = "_lakefs/retention/gc/committed/r1/garbage/"
PART = "part-00000.parquet"
SEEN = datetime(2026, 1, 1, tzinfo=UTC)
SEEN_MS = int(SEEN.timestamp() * 1000)
LEDGER = Ledger(run_id="r1", date="2026-11-21")


def forged(addresses: Sequence[str], *, seen_ms: int) -> pa.Table:
    """Return GARBAGE that lists these objects, as a planner could forge it."""
    places = [parse_address(address) or (-1, 0) for address in addresses]
    count = len(addresses)
    rows = {
        "address": list(addresses),
        "slice": [place[0] for place in places],
        "sequence": [place[1] for place in places],
        "size_bytes": [4] * count,
        "reason": ["forged"] * count,
        "rule": [""] * count,
        "last_seen_at": [seen_ms] * count,
        "path": [""] * count,
        "other_paths": [None] * count,
        "other_rules": [None] * count,
        "seen_in": [None] * count,
    }
    return pa.table(rows, messages.arrow_schema(messages.GARBAGE))


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


def task_of(store: ObjectStore) -> Task:
    return Task(store=store, ports=live_ports())


def context_of(store: ObjectStore, *, clock: Clock | None = None, deleter: Deleter | None = None) -> RunContext:
    """Of a run that asks no service."""
    live = live_ports()
    ports = Ports(clock or live.clock, live.ids, live.tasks)
    engine = LocalEngine(store, ports, open_deleter=lambda: deleter or pytest.fail("nothing is deleted here"))
    no_service = cast("Service", None)
    return RunContext(
        repository="repo", service=no_service, engine=engine, store=store, ports=ports, progress=lambda _: None
    )


def rule_of(folder: str) -> SweepRule:
    """That of the kind whose plans lie there."""
    if folder.startswith("_lakefs/retention/gc/metadata/"):
        return Metadata(MetadataRule()).rule
    return OldLayout(age_ms=0).rule if folder.endswith(".elsewhere/") else Committed().rule


async def sweep_part(
    store: ObjectStore,
    deleter: Deleter,
    plan: messages.Manifest,
    part: messages.Part,
    ledger: Ledger,
    fence: Fence | None = None,
    gone: Gone | None = None,
) -> Swept:
    rule, fence = rule_of(plan.folder), fence or Fence(key=messages.next_claim([]))
    return await sweep.sweep_part(
        task_of(store), deleter, plan, part, ledger, rule=rule, fence=fence, held=Held(), gone=gone or Gone()
    )


async def plan_of(
    store: ObjectStore,
    keys: Sequence[str],
    *,
    part: str = PART,
    with_paths: bool = True,
    paths: Sequence[str] = (),
    folder: str = FOLDER,
    as_found: bool = True,
    seen: datetime | None = None,
    others: Sequence[str] | None = None,
) -> messages.Manifest:
    """Every object has 4 bytes, was seen at SEEN, and has the path that is given, `events/<its place>` or none.
    `as_found`: it is as it lies there, if it does; `seen`: but for when it was seen. `others`: more paths of each."""
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
            "path": paths or [f"events/{number}" if with_paths else "" for number in range(len(keys))],
            **no_others(len(keys)),
            "other_paths": [others] * len(keys),
        }
    )
    data = messages.encode_part(messages.GARBAGE, rows.cast(messages.arrow_schema(messages.GARBAGE)))
    await store.put(folder + part, data)
    return messages.manifest_of(messages.GARBAGE, folder, [messages.part_of(part, data, rows=len(keys))])


async def _facts(store: ObjectStore, key: str) -> tuple[int, datetime]:
    try:
        stat = await store.stat(key)
    except ObjectMissing:
        return 4, SEEN
    return stat.size_bytes, datetime.fromtimestamp(stat.modified_ms / 1000, UTC)


def ranges_of(found: dict[str, tuple[int, int, bool]]) -> pa.Table:
    """RANGES without causes: of each id count, size, and whether it is live."""
    counts, sizes, flags = zip(*found.values(), strict=True) if found else ((), (), ())
    none = [""] * len(found)
    facts = {"range_id": [*found], "count": counts, "file_bytes": sizes, "is_live": flags, "seen_ms": [0] * len(found)}
    return RANGES.rows({**facts, "reason": none, "rule": none, "branch": none})
