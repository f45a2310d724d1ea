"""Candidates minus live: the heart of every mark. A plain function; Spark only brings together what speaks of a bucket.

In a slice this is OR over bitmaps, then one look-up a candidate; only what is left is looked at any further. In a
foreign bucket keys are compared as strings. Of several candidates for one object the one seen last speaks for it, then
the greatest reason, rule, branch, prefix and path, so that the verdict does not depend on the order in which tasks
finish.

Nothing here guesses: a null or arrays of unequal length mean that a reader is broken, and the run stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, SEQUENCE_MAX, slice_name
from lakebed.gc.packing import is_set
from lakebed.gc.tables import VERDICTS, check_whole
from lakebed.handoff import BadInput

_CAUSE: Final = ("reason", "rule", "branch", "prefix")
_NO_BITS: Final = np.empty(0, np.uint8)


def subtract(candidates: pa.Table, live: pa.Table) -> pa.Table:
    """VERDICTS: each object of the CANDIDATES that no LIVE row names, once; by bucket, then by sequence or address.
    `live` must hold all rows there are of every bucket that the candidates are of.

    Raises:
        BadInput: a null, arrays that do not run in parallel, a sequence that no address has.
    """
    check_whole(candidates, "candidates")
    check_whole(live, "live objects")
    if pc.any(pc.not_equal(live["part"], "")).as_py():
        raise BadInput("live objects: some keys are in files of their own, and were not read", input="live objects")
    is_foreign = pc.less(candidates["bucket"], 0)
    found = [VERDICTS.schema.empty_table()]
    if pc.any(is_foreign).as_py():
        found.append(_subtract_foreign(candidates.filter(is_foreign), live.filter(pc.less(live["bucket"], 0))))
        candidates = candidates.filter(pc.invert(is_foreign))
    if candidates.num_rows:
        found.append(_subtract_numbered(candidates, live))
    return pa.concat_tables(found)


def _subtract_foreign(candidates: pa.Table, live: pa.Table) -> pa.Table:
    counts = pc.list_value_length(candidates["addresses"])
    rows, sizes, seen_ms = _unpack(candidates, counts)
    names = _strings(candidates)
    kept = np.flatnonzero(~pc.is_in(names, value_set=_strings(live)).to_numpy(zero_copy_only=False))
    names, rows, paths = names.take(pa.array(kept)), rows[kept], _paths(candidates, counts, kept)
    ranks = pc.rank(names, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    last = _last_of_each([ranks], seen_ms[kept], _ranks(candidates)[rows], paths)
    return _verdicts(
        candidates,
        rows[last],
        address=names.take(pa.array(last)),
        slice=np.full(len(last), FOREIGN_SLICE, np.int64),
        sequence=np.zeros(len(last), np.int64),
        size_bytes=sizes[kept[last]],
        seen_ms=seen_ms[kept[last]],
        path=pa.repeat("", len(last)) if paths is None else paths.take(pa.array(last)),
    )


def _subtract_numbered(candidates: pa.Table, live: pa.Table) -> pa.Table:
    counts = pc.divide(pc.binary_length(candidates["sequences"]), 4)
    rows, sizes, seen_ms = _unpack(candidates, counts)
    sequences, slices = joined(candidates, "sequences", "<u4"), candidates["bucket"].to_numpy()
    named, start = unions(live, candidates["bucket"]), 0
    gone = np.empty(len(sequences), np.bool_)
    for slice_, count in zip(slices.tolist(), counts.to_pylist(), strict=True):
        gone[start : start + count] = ~is_set(named.get(slice_, _NO_BITS), sequences[start : start + count])
        start += count
    kept = np.flatnonzero(gone)
    sequences, rows = sequences[kept].astype(np.int64), rows[kept]
    paths = _paths(candidates, counts, kept)
    last = _last_of_each([sequences, slices[rows]], seen_ms[kept], _ranks(candidates)[rows], paths)
    rows, sequences = rows[last], sequences[last]
    return _verdicts(
        candidates,
        rows,
        address=_format(slices[rows], sequences),
        slice=slices[rows],
        sequence=sequences,
        size_bytes=sizes[kept[last]],
        seen_ms=seen_ms[kept[last]],
        path=pa.repeat("", len(last)) if paths is None else paths.take(pa.array(last)),
    )


def _verdicts(
    candidates: pa.Table, rows: npt.NDArray[np.int64], *, sequence: Any, seen_ms: Any, **columns: Any
) -> pa.Table:
    """`rows` are those of the candidates that the objects come from."""
    causes = {name: candidates[name].take(pa.array(rows)).combine_chunks() for name in _CAUSE}
    last_seen_at = pa.array(seen_ms * 1000, pa.timestamp("us", tz="UTC"))
    return VERDICTS.rows({**columns, **causes, "sequence": sequence.astype(np.int32), "last_seen_at": last_seen_at})


def joined(table: pa.Table, name: str, kind: str) -> npt.NDArray[Any]:
    """The values one behind the other, as an Arrow array has them anyhow."""
    column = table[name].combine_chunks()
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return np.empty(0, kind)
    ends = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return np.frombuffer(memoryview(data)[ends[0] : ends[1]], kind)


def _strings(table: pa.Table, name: str = "addresses") -> pa.Array:
    flat = pc.list_flatten(table[name])
    return flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat


def _unpack(
    candidates: pa.Table, counts: pa.ChunkedArray
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each of so many packed objects: the row it comes from, its size, and when it was last seen."""
    for name in ("sizes", "seen_ms"):
        if not pc.all(pc.equal(pc.binary_length(candidates[name]), pc.multiply(counts, 8)), min_count=0).as_py():
            raise BadInput(f"candidates: {name} do not run in parallel with the addresses", column=name)
    rows = np.repeat(np.arange(len(counts)), counts.to_numpy())
    return rows, joined(candidates, "sizes", "<i8"), joined(candidates, "seen_ms", "<i8")


def unions(live: pa.Table, buckets: pa.ChunkedArray) -> dict[int, npt.NDArray[np.uint8]]:
    """From LIVE, one bitmap for each of these buckets that has any."""
    found: dict[int, npt.NDArray[np.uint8]] = {}
    live = live.filter(pc.is_in(live["bucket"], value_set=buckets.combine_chunks()))
    for bucket, data in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
        bitmap, have = np.frombuffer(data, np.uint8), found.get(bucket, _NO_BITS)
        union = np.zeros(max(len(bitmap), len(have)), np.uint8)
        union[: len(have)] = have
        union[: len(bitmap)] |= bitmap
        found[bucket] = union
    return found


def _ranks(candidates: pa.Table) -> npt.NDArray[np.int64]:
    """For each row its place in the order of (reason, rule, branch, prefix); equal ones share a place."""
    causes = list(zip(*(candidates[name].to_pylist() for name in _CAUSE), strict=True))
    places = {cause: place for place, cause in enumerate(sorted(set(causes)))}
    return np.array([places[cause] for cause in causes], np.int64)


def _paths(candidates: pa.Table, counts: pa.ChunkedArray, kept: npt.NDArray[np.int64]) -> pa.Array | None:
    """For each of the kept objects its path, empty where its candidate tells none. None where no candidate does."""
    told = pc.list_value_length(candidates["paths"])
    if not pc.any(pc.greater(told, 0), min_count=0).as_py():
        return None
    whole = pc.fill_null(pc.equal(told, counts), False)
    if not pc.all(pc.or_(whole, pc.equal(told, 0))).as_py():
        raise BadInput("candidates: paths do not run in parallel with the addresses", column="paths")
    has = np.repeat(pc.greater(told, 0).to_numpy(), counts.to_numpy())
    places = pa.array(np.cumsum(has)[kept] - 1, mask=~has[kept])
    return pc.fill_null(_strings(candidates, "paths").take(places), "")


def _last_of_each(
    objects: list[npt.NDArray[np.int64]],
    seen_ms: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    paths: pa.Array | None,
) -> npt.NDArray[np.int64]:
    """Of each object (named by parallel arrays, the last the first to sort by) the position that speaks for it."""
    if _ascend(objects):
        return np.arange(len(ranks))
    keys = (ranks, seen_ms, *objects)
    order = np.lexsort(keys)
    if paths is not None and not _differs(keys, order).all():
        # One commit may have an object under several paths.
        order = np.lexsort((pc.rank(paths, tiebreaker="dense").to_numpy(), *keys))
    return order[np.r_[_differs(objects, order), True]] if len(order) else order


def _ascend(objects: list[npt.NDArray[np.int64]]) -> bool:
    """Whether they are in order, each once: as a listing gives them, and then there is nothing to sort or to choose."""
    above = np.zeros(max(0, len(objects[0]) - 1), np.bool_)
    for array in objects:
        above = (array[1:] > array[:-1]) | (array[1:] == array[:-1]) & above
    return bool(above.all())


def _differs(arrays: Sequence[npt.NDArray[np.int64]], order: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """For each position but the last whether the next one is of another object, or of one otherwise seen."""
    differs = np.zeros(max(0, len(order) - 1), np.bool_)
    for array in arrays:
        ordered = array[order]
        differs |= ordered[1:] != ordered[:-1]
    return differs


def _format(slices: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]) -> pa.Array:
    """As `lakebed.base.format_address` for each, which a test holds equal."""
    if len(sequences) and int(sequences.max()) > SEQUENCE_MAX:
        worst = int(sequences.argmax())
        name = slice_name(int(slices[worst]))
        raise BadInput(f"slice {name}: no address has the sequence {int(sequences[worst])}", slice=int(slices[worst]))
    encoded = pa.array(slices).dictionary_encode()
    folders = pa.array([f"data/{slice_name(slice_)}" for slice_ in encoded.dictionary.to_pylist()], pa.string())
    digits = pc.utf8_lpad(pa.array(sequences).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(folders.take(encoded.indices), digits, "/")
