"""Candidates minus live, for one bucket: the heart of every mark. A plain function; Spark only brings buckets together.

In a slice this is OR over bitmaps, then one look-up a candidate. In a foreign bucket keys are compared as strings.
Of several candidates for one object the one seen last speaks for it, then the greatest reason, rule, branch and prefix,
so that the verdict does not depend on the order in which tasks finish.

Nothing here guesses: a null or arrays of unequal length mean that a reader is broken, and the run stops.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, SEQUENCE_MAX, slice_name
from lakebed.gc.packing import is_set
from lakebed.gc.tables import VERDICTS
from lakebed.handoff import BadInput

_CAUSE: Final = ("reason", "rule", "branch", "prefix")


def subtract(candidates: pa.Table, live: pa.Table) -> pa.Table:
    """VERDICTS: each object of the CANDIDATES that no LIVE row names, once. Both are of one and the same bucket.

    Raises:
        BadInput: a null, arrays that do not run in parallel, a sequence that no address has.
    """
    _check_whole(candidates, "candidates")
    _check_whole(live, "live objects")
    if not candidates.num_rows:
        return VERDICTS.schema.empty_table()
    bucket = candidates["bucket"][0].as_py()
    rows, sizes, seen_ms = _unpack(candidates, foreign=bucket < 0)
    if bucket < 0:
        names = _strings(candidates)
        encoded = names.dictionary_encode()
        objects = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        gone = ~pc.is_in(names, value_set=_strings(live)).to_numpy(zero_copy_only=False)
    else:
        objects = _joined(candidates, "sequences", "<u4").astype(np.int64)
        gone = ~is_set(_union(live), objects)
    last = _last_of_each(objects, seen_ms, _ranks(candidates)[rows])
    chosen = last[gone[last]]
    found = objects[chosen]
    addresses = names.take(pa.array(chosen)) if bucket < 0 else _format(bucket, found)
    return VERDICTS.rows(
        {
            "address": addresses,
            "slice": np.full(len(chosen), FOREIGN_SLICE if bucket < 0 else bucket, np.int64),
            "sequence": (np.zeros(len(chosen)) if bucket < 0 else found).astype(np.int32),
            "size_bytes": sizes[chosen],
            "last_seen_at": pa.array(seen_ms[chosen] * 1000, pa.timestamp("us", tz="UTC")),
            **{name: candidates[name].take(pa.array(rows[chosen])).combine_chunks() for name in _CAUSE},
        }
    )


def _check_whole(table: pa.Table, what: str) -> None:
    for name in table.column_names:
        column = table[name]
        inner = pc.list_flatten(column).null_count if pa.types.is_list(column.type) else 0
        if column.null_count or inner:
            raise BadInput(f"{what}: null in column {name}", input=what, column=name)


def _joined(table: pa.Table, name: str, kind: str) -> npt.NDArray[Any]:
    return np.frombuffer(b"".join(table[name].to_pylist()), kind)


def _strings(table: pa.Table) -> pa.Array:
    flat = pc.list_flatten(table["addresses"])
    return flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat


def _unpack(
    candidates: pa.Table, *, foreign: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each packed object: the row it comes from, its size, and when it was last seen."""
    if foreign:
        counts = pc.list_value_length(candidates["addresses"]).to_numpy().astype(np.int64)
    else:
        counts = pc.binary_length(candidates["sequences"]).to_numpy().astype(np.int64) // 4
    for name in ("sizes", "seen_ms"):
        if not np.array_equal(pc.binary_length(candidates[name]).to_numpy(), counts * 8):
            raise BadInput(f"candidates: {name} do not run in parallel with the addresses", column=name)
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, _joined(candidates, "sizes", "<i8"), _joined(candidates, "seen_ms", "<i8")


def _union(live: pa.Table) -> npt.NDArray[np.uint8]:
    bitmaps = [np.frombuffer(bitmap, np.uint8) for bitmap in live["bitmap"].to_pylist()]
    union = np.zeros(max(map(len, bitmaps), default=0), np.uint8)
    for bitmap in bitmaps:
        union[: len(bitmap)] |= bitmap
    return union


def _ranks(candidates: pa.Table) -> npt.NDArray[np.int64]:
    """For each row its place in the order of (reason, rule, branch, prefix); equal ones share a place."""
    causes = list(zip(*(candidates[name].to_pylist() for name in _CAUSE), strict=True))
    places = {cause: place for place, cause in enumerate(sorted(set(causes)))}
    return np.array([places[cause] for cause in causes], np.int64)


def _last_of_each(
    objects: npt.NDArray[np.int64], seen_ms: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    order = np.lexsort((ranks, seen_ms, objects))
    ordered = objects[order]
    return order[np.r_[ordered[1:] != ordered[:-1], True]] if len(order) else order


def _format(slice_: int, sequences: npt.NDArray[np.int64]) -> pa.Array:
    """As `lakebed.base.format_address` for each, which a test holds equal."""
    if len(sequences) and int(sequences.max()) > SEQUENCE_MAX:
        raise BadInput(f"slice {slice_name(slice_)}: no address has the sequence {int(sequences.max())}", slice=slice_)
    digits = pc.utf8_lpad(pa.array(sequences).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(f"data/{slice_name(slice_)}", digits, "/")
