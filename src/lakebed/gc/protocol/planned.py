"""The single objects of a plan, and the commits whose data it gives up, as people and programs are shown them.

    GET  plans/{run}/objects      -> GarbagePage      ?prefix=PREFIX&amount=N, then &after=TOKEN

below `/api/v1/repositories/{repository}/gc`. A plan's table GARBAGE is read a part at a time, in its order: by slice,
sequence and address within a part.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc


class GarbageObject(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `garbage`. `path` is empty for uncommitted data; `last_seen_ms` as there."""

    address: str
    size_bytes: int
    reason: str
    rule: str
    last_seen_ms: int
    path: str


class GarbagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a plan's objects. More, or a look into more of the plan, with the token."""

    objects: tuple[GarbageObject, ...]
    continuation_token: str | None = None


class ExpiringCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit whose data a plan gives up. `branch` is the one whose rule would have kept it longest, empty for one on
    no branch; `message` the first line, empty where it cannot be read."""

    id: str
    created_ms: int
    reason: str
    branch: str
    rule: str
    message: str = ""


def below(rows: pa.Table, prefix: str) -> pa.Table:
    """Those of GARBAGE rows whose path, or whose address, begins with `prefix`."""
    if not prefix:
        return rows
    return rows.filter(pc.or_(pc.starts_with(rows["path"], prefix), pc.starts_with(rows["address"], prefix)))


def garbage_rows(rows: pa.Table) -> list[GarbageObject]:
    """GARBAGE rows as records."""
    names = [name for name in GarbageObject.__struct_fields__ if name != "last_seen_ms"]
    seen_ms = rows["last_seen_at"].cast(pa.int64()).to_pylist()
    return [
        GarbageObject(last_seen_ms=seen, **dict(zip(names, row, strict=True)))
        for seen, *row in zip(seen_ms, *(rows[name].to_pylist() for name in names), strict=True)
    ]
