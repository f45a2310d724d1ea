"""What a run keeps of its candidates and no commit names: all of it that a later run has to look at again.

An object that a commit names is no candidate any more: it goes, if ever, with its commits. What something uncommitted
names, and what is too young by the rules, may be garbage next time. Pure.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.gc.packing import is_set
from lakebed.gc.tables import CANDIDATES

from .subtract import unions

_NO_BITS: Final = np.empty(0, np.uint8)
Flags = npt.NDArray[np.bool_]


def kept_of(
    candidates: pa.Table, committed: pa.Table, uncommitted: pa.Table, *, young_since_ms: int | None
) -> pa.Table:
    """CANDIDATES: of those in slices the ones that stay although no commit names them. The other two are LIVE, with all
    rows there are of the candidates' buckets.
    """
    numbered = candidates.filter(pc.greater_equal(candidates["bucket"], 0))
    by_commits, by_others = (unions(live, numbered["bucket"]) for live in (committed, uncommitted))
    stays: list[Flags] = []
    for row in numbered.select(["bucket", "sequences", "seen_ms"]).to_pylist():
        sequences = np.frombuffer(row["sequences"], "<u4")
        named = is_set(by_others.get(row["bucket"], _NO_BITS), sequences)
        if young_since_ms is not None:
            named |= np.frombuffer(row["seen_ms"], "<i8") >= young_since_ms
        stays.append(named & ~is_set(by_commits.get(row["bucket"], _NO_BITS), sequences))
    return _only(numbered, stays)


def _only(candidates: pa.Table, stays: list[Flags]) -> pa.Table:
    some = np.array([flags.any() for flags in stays], np.bool_)
    left = candidates.filter(pa.array(some))
    flags = [each for each in stays if each.any()]
    for name, kind in (("sequences", "<u4"), ("sizes", "<i8"), ("seen_ms", "<i8")):
        packed = [
            np.frombuffer(data, kind)[each].tobytes() for data, each in zip(left[name].to_pylist(), flags, strict=True)
        ]
        place = CANDIDATES.schema.get_field_index(name)
        left = left.set_column(place, CANDIDATES.schema.field(name), pa.array(packed, pa.binary()))
    return left
