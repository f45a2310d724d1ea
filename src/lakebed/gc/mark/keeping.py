"""What a run keeps of its candidates and no commit names: all of it that a later run has to look at again.

An object that a commit names is no candidate any more: it goes, if ever, with its commits. What something uncommitted
names, and what is too young by the rules, may be garbage next time. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.gc.tables import CANDIDATES

from .unpacking import Unpacked


def kept_of(
    objects: Unpacked,
    by_commits: npt.NDArray[np.bool_],
    by_others: npt.NDArray[np.bool_],
    *,
    young_since_ms: int | None,
) -> pa.Table:
    """CANDIDATES: those that stay although no commit names them. The two arrays say of each object whether something
    committed names it, and whether something uncommitted does.
    """
    stays = by_others if young_since_ms is None else by_others | (objects.seen_ms >= young_since_ms)
    return _only(objects, np.flatnonzero(stays & ~by_commits))


def _only(objects: Unpacked, kept: npt.NDArray[np.int64]) -> pa.Table:
    """The objects at these positions, packed again."""
    left = np.bincount(np.searchsorted(objects.ends, kept, side="right"), minlength=len(objects.counts))
    arrays: dict[str, npt.NDArray[Any]] = {
        "sequences": objects.sequences[kept],
        "sizes": objects.sizes[kept],
        "seen_ms": objects.seen_ms[kept],
    }
    ends = np.concatenate(([0], np.cumsum(left[left > 0])))
    others = objects.candidates.drop_columns([*arrays]).filter(pa.array(left > 0))
    columns: dict[str, object] = {name: others[name] for name in others.column_names}
    for name, array in arrays.items():
        offsets = (ends * array.itemsize).astype(np.int32)
        columns[name] = pa.Array.from_buffers(
            pa.binary(), others.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(array)]
        )
    return CANDIDATES.rows(columns)
