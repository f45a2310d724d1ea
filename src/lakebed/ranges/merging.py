"""The three-way merge of sorted tables of entries.

For each key: if both sides agree, take that. If one side left the base's entry alone, take the other side's. Else the
sides are in conflict, also where one changed an entry that the other removed. The same change on both sides is no
conflict.

A conflict at the record of a table stays one, with any strategy and choice: decided path by path, the side that wins
would lack files that its record needs, because the other side removed them.

So a merge applies to the destination the changes that the source made since the base, at each key where the destination
still has the base's entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import TABLE_RECORD

from .changing import apply_changes, differing, find_keys, overlay
from .sealed import ObjectArray, chunk, object_array
from .view import CHANGES_SCHEMA

__all__ = ["Choices", "MergedTable", "Strategy", "merge_tables"]

Strategy: TypeAlias = Literal["none", "source-wins", "dest-wins"]
"""Name the side that wins conflicts. With "none" a conflict stays one, and the destination keeps its entry there."""
Choices: TypeAlias = "Mapping[bytes, Literal['source-wins', 'dest-wins']]"
"""Name the side that wins the conflict at a key, whatever the strategy is. A key without a conflict is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTable:
    """Hold the merged entries. `conflicts` are keys, ascending, that neither a choice nor the strategy settles."""

    entries: pa.Table
    conflicts: list[bytes]


def merge_tables(
    *, base: pa.Table, source: pa.Table, destination: pa.Table, strategy: Strategy, choices: Choices | None = None
) -> MergedTable:
    """Merge source into destination. The caller may leave out rows that base and source share.

    Costs as much as `apply_changes` with the changes that the source made.
    """
    of_base, of_source = differing(chunk(base, "digest").to_numpy(), chunk(source, "digest").to_numpy())
    base, source = base.take(pa.array(of_base)), source.take(pa.array(of_source))
    changes = overlay([_as_changes(source, tombstone=False), _as_changes(base, tombstone=True)])
    keys = object_array(changes.column("key"))
    was, was_there = _digests_at(keys, base)
    is_, is_there = _digests_at(keys, destination)
    becomes, goes = chunk(changes, "digest").to_numpy(), chunk(changes, "tombstone").to_numpy(zero_copy_only=False)
    untouched = (was_there == is_there) & (was == is_)
    agreed = np.where(goes, ~is_there, is_there & (becomes == is_))
    conflict = ~untouched & ~agreed
    is_settled = np.full(len(keys), strategy != "none")
    takes_source = np.full(len(keys), strategy == "source-wins")
    for at in np.flatnonzero(conflict) if choices else ():
        if side := (choices or {}).get(keys[at]):
            is_settled[at], takes_source[at] = True, side == "source-wins"
    for at in np.flatnonzero(conflict & is_settled):
        is_settled[at] = not keys[at].endswith(TABLE_RECORD)
    entries = apply_changes(destination, changes.filter(pa.array(~conflict | takes_source))).entries
    conflicts: list[bytes] = keys[conflict & ~is_settled].tolist()
    return MergedTable(entries=entries, conflicts=conflicts)


def _as_changes(entries: pa.Table, *, tombstone: bool) -> pa.Table:
    flags = pa.array(np.full(entries.num_rows, tombstone))
    return entries.append_column(CHANGES_SCHEMA.field("tombstone"), flags)


def _digests_at(keys: ObjectArray, entries: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return, for each key, the digest of its entry or 0, and whether there is an entry."""
    positions, found = find_keys(object_array(entries.column("key")), keys)
    digests = np.zeros(len(keys), dtype=np.int64)
    digests[found] = chunk(entries, "digest").to_numpy()[positions[found]]
    return digests, found
