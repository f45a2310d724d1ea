"""Packed candidates of slices as arrays, and which of them something names. Pure; plain functions over numpy and Arrow.

In a slice, what is named is one bitmap: an OR over the rows that tell of it, then one look-up a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import format_address
from lakebed.gc.packing import is_set
from lakebed.gc.protocol import BadInput

_NO_BITS: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """CANDIDATES, all of slices: `counts` has for each row how many objects it holds, the other arrays run in parallel
    and hold one value an object, in the order of the rows."""

    candidates: pa.Table
    counts: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.int64]
    seen_ms: npt.NDArray[np.int64]

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """For each row where its objects end."""
        return np.cumsum(self.counts)

    def addresses(self, places: npt.NDArray[np.int64]) -> list[str]:
        """Of the objects at these positions."""
        rows = np.searchsorted(self.ends, places, side="right")
        slices = self.candidates["bucket"].to_numpy()[rows].tolist()
        return [format_address(*place) for place in zip(slices, self.sequences[places].tolist(), strict=True)]

    def slices(self) -> Iterator[tuple[int, slice]]:
        """For each row its slice's number, and which objects are its own."""
        start = 0
        for bucket, end in zip(self.candidates["bucket"].to_pylist(), self.ends.tolist(), strict=True):
            yield bucket, slice(start, end)
            start = end


def unpack(candidates: pa.Table) -> Unpacked:
    """
    Raises:
        BadInput: arrays that do not run in parallel.
    """
    counts = pc.divide(pc.binary_length(candidates["sequences"]), 4).to_numpy().astype(np.int64)
    check_parallel(candidates, counts)
    return Unpacked(
        candidates,
        counts,
        joined(candidates, "sequences", "<u4"),
        joined(candidates, "sizes", "<i8"),
        joined(candidates, "seen_ms", "<i8"),
    )


def check_parallel(candidates: pa.Table, counts: npt.NDArray[np.int64]) -> None:
    """
    Raises:
        BadInput: a row holds sizes or instants of another number of objects than this.
    """
    for name in ("sizes", "seen_ms"):
        if not np.array_equal(pc.binary_length(candidates[name]).to_numpy(), 8 * counts):
            raise BadInput(f"candidates: {name} do not run in parallel with the addresses", column=name)


def named_by(live: pa.Table, objects: Unpacked) -> npt.NDArray[np.bool_]:
    """For each object whether LIVE rows name it; `live` must hold all there are of its bucket."""
    bitmaps = _unions(live, objects.candidates["bucket"])
    named = np.empty(len(objects.sequences), np.bool_)
    for bucket, part in objects.slices():
        named[part] = is_set(bitmaps.get(bucket, _NO_BITS), objects.sequences[part])
    return named


def joined(table: pa.Table, name: str, kind: str) -> npt.NDArray[Any]:
    """The values one behind the other, as an Arrow array has them anyhow."""
    column = table[name]
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    _, offsets, data = whole.buffers()
    if not len(whole) or data is None:
        return np.empty(0, kind)
    ends = np.frombuffer(offsets, np.int32)[[whole.offset, whole.offset + len(whole)]]
    return np.frombuffer(memoryview(data)[ends[0] : ends[1]], kind)


def _unions(live: pa.Table, buckets: pa.ChunkedArray) -> dict[int, npt.NDArray[np.uint8]]:
    """From LIVE, one bitmap for each of these buckets that has any."""
    found: dict[int, npt.NDArray[np.uint8]] = {}
    live = live.filter(pc.is_in(live["bucket"], value_set=buckets.combine_chunks()))
    for bucket, data in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
        bitmap, have = np.frombuffer(data, np.uint8), found.get(bucket)
        if have is None:
            found[bucket] = bitmap
            continue
        union = np.zeros(max(len(bitmap), len(have)), np.uint8)
        union[: len(have)] = have
        union[: len(bitmap)] |= bitmap
        found[bucket] = union
    return found
