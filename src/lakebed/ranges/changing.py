"""Changes over entries, on sorted tables: overlay several layers of changes, apply them, find the rows that differ.

Rows are compared by key and digest only: equal digests of one key mean the same entry. The other columns are moved and
never read. One pass over the keys finds all positions, and one `take` moves the rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .sealed import ObjectArray, chunk, object_array
from .view import CHANGES_SCHEMA, ENTRIES_SCHEMA

__all__ = ["Change", "apply_changes", "differing", "overlay"]

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_EACH_WITH_EACH: Final = 4096


def overlay(layers: Sequence[pa.Table]) -> pa.Table:
    """Join tables of changes, newest first, into one that has the newest change of each key. Tombstones stay."""
    layers = [layer for layer in layers if layer.num_rows]
    if not layers:
        return CHANGES_SCHEMA.empty_table()
    if len(layers) == 1:
        return layers[0]
    together = pa.concat_tables(layers).combine_chunks()
    keys = object_array(together.column("key"))
    # The sort is stable, so the newest of equal keys stays in front.
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.concatenate(([True], keys[1:] != keys[:-1]))
    return together.take(pa.array(order[first]))


def find_keys(keys: ObjectArray, wanted: ObjectArray) -> tuple[Positions, Flags]:
    """Return, for each wanted key, its position among the keys (or where it would stand), and whether it is there.

    Both inputs ascend. Costs about 0.2 µs a wanted key; many wanted keys cost one merge of the two.
    """
    if len(wanted) * 16 < len(keys):
        positions, low = np.empty(len(wanted), dtype=np.int64), 0
        for index, key in enumerate(wanted):
            positions[index] = low = bisect_left(keys, key, low)
    else:
        order = np.argsort(np.concatenate((wanted, keys)), kind="stable")
        # A wanted key stands before its equal. So the keys before it are all rows before it, less the wanted ones.
        positions = np.flatnonzero(order < len(wanted)) - np.arange(len(wanted))
    inside = positions < len(keys)
    found = np.zeros(len(wanted), dtype=np.bool_)
    found[inside] = keys[positions[inside]] == wanted[inside]
    return positions, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Hold the entries after changes.

    `entries` is the same table object as the input where nothing changed. `fresh` are its positions of new keys.
    """

    entries: pa.Table
    fresh: Positions
    added: int
    changed: int
    removed: int

    @property
    def is_none(self) -> bool:
        return not (self.added or self.changed or self.removed)


def apply_changes(entries: pa.Table, changes: pa.Table) -> Change:
    """Apply changes to entries. Putting an entry that is there, or removing one that is not, is no change."""
    if not entries.num_rows:
        return _from_nothing(entries, changes)
    positions, found = find_keys(object_array(entries.column("key")), object_array(changes.column("key")))
    tombstone = chunk(changes, "tombstone").to_numpy(zero_copy_only=False)
    same = found.copy()
    digests = chunk(entries, "digest").to_numpy()
    same[found] = digests[positions[found]] == chunk(changes, "digest").to_numpy()[found]
    changed, added, removed = found & ~tombstone & ~same, ~found & ~tombstone, found & tombstone
    counts = [int(np.count_nonzero(flags)) for flags in (added, changed, removed)]
    if not any(counts):
        return Change(entries=entries, fresh=np.empty(0, dtype=np.int64), added=0, changed=0, removed=0)
    # Positions in entries followed by changes; a removed row is -1 until the new rows are in.
    source = np.arange(len(digests))
    theirs = len(digests) + np.arange(len(found))
    source[positions[changed]] = theirs[changed]
    source[positions[removed]] = -1
    source = np.insert(source, positions[added], theirs[added])
    source = source[source >= 0]
    is_added = np.concatenate((np.zeros(len(digests), dtype=np.bool_), added))
    both = pa.concat_tables([entries, changes.select(ENTRIES_SCHEMA.names)]).combine_chunks()
    return Change(
        entries=both.take(pa.array(source)),
        fresh=np.flatnonzero(is_added[source]),
        added=counts[0],
        changed=counts[1],
        removed=counts[2],
    )


def _from_nothing(entries: pa.Table, changes: pa.Table) -> Change:
    """Apply changes to no entries: a first commit, or a bulk load between two keys. Moves and copies nothing."""
    puts = changes.select(ENTRIES_SCHEMA.names)
    if pc.any(changes["tombstone"]).as_py():
        puts = puts.filter(pc.invert(changes["tombstone"]))
    if puts.num_rows:
        entries = puts
    return Change(entries=entries, fresh=np.arange(entries.num_rows), added=entries.num_rows, changed=0, removed=0)


def differing(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> tuple[Positions, Positions]:
    """Return, for each side, the positions of the digests that the other side does not have.

    A digest covers key and value, so neither must be read to compare two stretches of entries. Rows that both sides
    share at their two ends are skipped before the sort.
    """
    size = min(len(left), len(right))
    unlike = np.flatnonzero(left[:size] != right[:size])
    if not len(unlike) and len(left) == len(right):
        return unlike, unlike
    if len(left) == len(right) and not _is_among(left[unlike], right[unlike]).any():
        # The changes only replaced rows in place.
        return unlike, unlike
    head = int(unlike[0]) if len(unlike) else size
    unlike_behind = np.flatnonzero(left[::-1][: size - head] != right[::-1][: size - head])
    tail = int(unlike_behind[0]) if len(unlike_behind) else size - head
    left_middle, right_middle = left[head : len(left) - tail], right[head : len(right) - tail]
    return (
        np.flatnonzero(~_is_among(left_middle, right_middle)) + head,
        np.flatnonzero(~_is_among(right_middle, left_middle)) + head,
    )


def _is_among(values: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> Flags:
    """Return, for each value, whether the others hold it.

    Arrow's hash table is several times faster here than numpy's sort. But a call of Arrow takes a tenth of a
    millisecond, and a diff of scattered changes calls this for each range. So a few values are compared one by one.
    """
    if len(values) * len(others) <= _EACH_WITH_EACH:
        equal: Flags = (values[:, None] == others).any(axis=1)
        return equal
    found: Flags = pc.is_in(pa.array(values), value_set=pa.array(others)).to_numpy(zero_copy_only=False)
    return found
