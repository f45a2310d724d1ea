"""What a run keeps of its candidates and no commit names: all of it that a later run has to look at again.

An object that a commit names is no candidate any more: it goes, if ever, with its commits. What something uncommitted
names, and what is too young by the rules, may be garbage next time. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.gc.packing import is_set
from lakebed.gc.tables import CANDIDATES

from .subtract import joined, unions

_NO_BITS: Final = np.empty(0, np.uint8)
_ARRAYS: Final = {"sequences": "<u4", "sizes": "<i8", "seen_ms": "<i8"}


def kept_of(
    candidates: pa.Table, committed: pa.Table, uncommitted: pa.Table, *, young_since_ms: int | None
) -> pa.Table:
    """CANDIDATES: of those in slices the ones that stay although no commit names them. The other two are LIVE, with all
    rows there are of the candidates' buckets.
    """
    numbered = candidates.filter(pc.greater_equal(candidates["bucket"], 0))
    by_commits, by_others = (unions(live, numbered["bucket"]) for live in (committed, uncommitted))
    counts = pc.divide(pc.binary_length(numbered["sequences"]), 4).to_numpy()
    arrays = {name: joined(numbered, name, kind) for name, kind in _ARRAYS.items()}
    sequences, start = arrays["sequences"], 0
    stays = np.zeros(len(sequences), np.bool_) if young_since_ms is None else arrays["seen_ms"] >= young_since_ms
    for bucket, count in zip(numbered["bucket"].to_pylist(), counts.tolist(), strict=True):
        part = slice(start, start + count)
        stays[part] |= is_set(by_others.get(bucket, _NO_BITS), sequences[part])
        stays[part] &= ~is_set(by_commits.get(bucket, _NO_BITS), sequences[part])
        start += count
    return _only(numbered, counts, arrays, np.flatnonzero(stays))


def _only(
    candidates: pa.Table,
    counts: npt.NDArray[np.int64],
    arrays: dict[str, npt.NDArray[Any]],
    kept: npt.NDArray[np.int64],
) -> pa.Table:
    """Of the packed objects those at these positions, packed again."""
    left = np.bincount(np.repeat(np.arange(len(counts)), counts)[kept], minlength=len(counts))
    rows = candidates.filter(pa.array(left > 0))
    ends = np.concatenate(([0], np.cumsum(left[left > 0])))
    for name, array in arrays.items():
        offsets = (ends * array.itemsize).astype(np.int32)
        packed = pa.Array.from_buffers(
            pa.binary(), rows.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(array[kept])]
        )
        rows = rows.set_column(rows.schema.get_field_index(name), CANDIDATES.schema.field(name), packed)
    return rows
