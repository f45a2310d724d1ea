"""The three-way merge of sorted tables of entries.

Of each key: where both sides agree, that; where one side left what the base has, what the other did; else the two are
in conflict, also when one changed what the other removed. The same change on both sides is none.

So a merge is what the source did since the base, done to the destination, as far as the destination still has there
what the base had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .changing import apply_changes, differing, find_keys, overlay
from .schema import CHANGES_SCHEMA, ObjectArray, chunk, object_array

Strategy: TypeAlias = Literal["none", "source-wins", "dest-wins"]
"""Who wins a conflict; with "none" it stays one, and the destination is left as it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTable:
    """`conflicts` are keys, ascending; with a strategy that settles them there are none."""

    entries: pa.Table
    conflicts: list[bytes]


def merge_tables(*, base: pa.Table, source: pa.Table, destination: pa.Table, strategy: Strategy) -> MergedTable:
    """What the merge holds. Of base and source, rows that they share may be left out. Costs what `apply_changes` does,
    for as many changes as the source made."""
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
    apply = ~conflict if strategy != "source-wins" else np.ones(len(keys), dtype=np.bool_)
    entries = apply_changes(destination, changes.filter(pa.array(apply))).entries
    conflicts: list[bytes] = keys[conflict].tolist() if strategy == "none" else []
    return MergedTable(entries=entries, conflicts=conflicts)


def _as_changes(entries: pa.Table, *, tombstone: bool) -> pa.Table:
    flags = pa.array(np.full(entries.num_rows, tombstone))
    return entries.append_column(CHANGES_SCHEMA.field("tombstone"), flags)


def _digests_at(keys: ObjectArray, entries: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """For each key the digest of its entry, or 0; and whether there is one."""
    positions, found = find_keys(object_array(entries.column("key")), keys)
    digests = np.zeros(len(keys), dtype=np.int64)
    digests[found] = chunk(entries, "digest").to_numpy()[positions[found]]
    return digests, found
