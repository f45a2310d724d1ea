"""Candidates minus live: the heart of every mark. A pure function; an engine only brings together what shares a bucket.

In a slice this is one look-up a candidate (packing.py); only what is left is looked at any further. In a foreign
bucket keys are compared as strings. Of several candidates for one object the one seen last speaks for it, then
the greatest reason, rule, branch, prefix and path, so that the verdict does not depend on the order in which tasks
finish.

Nothing here guesses: a null or arrays of unequal length mean that a reader is broken, and the run stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, SEQUENCE_MAX, slice_name
from lakebed.gc.protocol import BadInput

from .packing import Unpacked, check_parallel, joined, named_by, unpack
from .tables import VERDICTS, check_whole

CAUSE: Final = ("reason", "rule", "branch", "prefix")


def subtract(candidates: pa.Table, live: pa.Table) -> pa.Table:
    """VERDICTS: each object of the CANDIDATES that no LIVE row names, once; by bucket, then by sequence or address.
    `live` must hold all rows there are of every bucket that the candidates are of.

    Raises:
        BadInput: a null, arrays that do not run in parallel, a sequence that no address has.
    """
    check_whole(candidates, "candidates")
    check_whole(live, "live objects")
    is_foreign = pc.less(candidates["bucket"], 0)
    found = [VERDICTS.schema.empty_table()]
    if pc.any(is_foreign).as_py():
        found.append(_subtract_foreign(candidates.filter(is_foreign), live.filter(pc.less(live["bucket"], 0))))
        candidates = candidates.filter(pc.invert(is_foreign))
    if candidates.num_rows:
        objects = unpack(candidates)
        found.append(verdicts_of(objects, ~named_by(live, objects)))
    return pa.concat_tables(found)


def _subtract_foreign(candidates: pa.Table, live: pa.Table) -> pa.Table:
    counts = pc.list_value_length(candidates["addresses"]).to_numpy().astype(np.int64)
    check_parallel(candidates, counts)
    names, rows = _strings(candidates), np.repeat(np.arange(len(counts)), counts)
    sizes, seen_ms = joined(candidates, "sizes", "<i8"), joined(candidates, "seen_ms", "<i8")
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


def verdicts_of(objects: Unpacked, gone: npt.NDArray[np.bool_]) -> pa.Table:
    """VERDICTS: each object that goes, once; by bucket, then by sequence.

    Raises:
        BadInput: a sequence that no address has.
    """
    candidates, kept = objects.candidates, np.flatnonzero(gone)
    rows = np.searchsorted(objects.ends, kept, side="right")
    return each_once(
        candidates,
        Rows(
            slices=candidates["bucket"].to_numpy()[rows],
            sequences=objects.sequences[kept].astype(np.int64),
            sizes=objects.sizes[kept],
            seen_ms=objects.seen_ms[kept],
            causes=rows,
            paths=_paths(candidates, objects.counts, kept),
        ),
    )


class Rows(NamedTuple):
    """Objects of slices, as arrays in parallel; an object may come several times. `causes` are rows of another table.

    `paths` is None where none has one.
    """

    slices: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    seen_ms: npt.NDArray[np.int64]
    causes: npt.NDArray[np.int64]
    paths: pa.Array | None


def each_once(causes: pa.Table, rows: Rows) -> pa.Table:
    """VERDICTS: each object once; by slice, then by sequence. `causes` has the columns CAUSE, and may have others.

    Raises:
        BadInput: a sequence that no address has.
    """
    last = _last_of_each([rows.sequences, rows.slices], rows.seen_ms, _ranks(causes)[rows.causes], rows.paths)
    slices, sequences = rows.slices[last], rows.sequences[last]
    return _verdicts(
        causes,
        rows.causes[last],
        address=_format(slices, sequences),
        slice=slices,
        sequence=sequences,
        size_bytes=rows.sizes[last],
        seen_ms=rows.seen_ms[last],
        path=pa.repeat("", len(last)) if rows.paths is None else rows.paths.take(pa.array(last)),
    )


def _verdicts(table: pa.Table, rows: npt.NDArray[np.int64], *, sequence: Any, seen_ms: Any, **columns: Any) -> pa.Table:
    """`rows` are those of a table with CAUSE, in parallel with the columns."""
    causes = {name: table[name].take(pa.array(rows)).combine_chunks() for name in CAUSE}
    last_seen_at = pa.array(seen_ms * 1000, pa.timestamp("us", tz="UTC"))
    return VERDICTS.rows({**columns, **causes, "sequence": sequence.astype(np.int32), "last_seen_at": last_seen_at})


def _strings(table: pa.Table, name: str = "addresses") -> pa.Array:
    flat = pc.list_flatten(table[name])
    return flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat


def _ranks(candidates: pa.Table) -> npt.NDArray[np.int64]:
    """For each row its place in the order of (reason, rule, branch, prefix); equal ones share a place."""
    causes = list(zip(*(candidates[name].to_pylist() for name in CAUSE), strict=True))
    places = {cause: place for place, cause in enumerate(sorted(set(causes)))}
    return np.array([places[cause] for cause in causes], np.int64)


def _paths(candidates: pa.Table, counts: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]) -> pa.Array | None:
    """For each of the kept objects its path, empty where its candidate has none. None where no candidate does."""
    named = pc.list_value_length(candidates["paths"])
    if not pc.any(pc.greater(named, 0), min_count=0).as_py():
        return None
    whole = pc.equal(named, pa.array(counts))
    if not pc.all(pc.or_(whole, pc.equal(named, 0))).as_py():
        raise BadInput("candidates: paths do not run in parallel with the addresses", column="paths")
    has = np.repeat(pc.greater(named, 0).to_numpy(), counts)
    places = pa.array(np.cumsum(has)[kept] - 1, mask=~has[kept])
    return pc.fill_null(_strings(candidates, "paths").take(places), "")


def _last_of_each(
    objects: list[npt.NDArray[np.int64]],
    seen_ms: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    paths: pa.Array | None,
) -> npt.NDArray[np.int64]:
    """Return the position that speaks for each object. Parallel arrays name an object; the last is the first to sort
    by.
    """
    if _ascend(objects):
        return np.arange(len(ranks))
    keys = (ranks, seen_ms, *objects)
    order = np.lexsort(keys)
    if paths is not None:
        # One commit may have an object under several paths. Mostly it is one path, and there is nothing to choose.
        tied = np.flatnonzero(~_differs(keys, order))
        same = pc.equal(paths.take(pa.array(order[tied])), paths.take(pa.array(order[tied + 1])))
        if not pc.all(same, min_count=0).as_py():
            order = np.lexsort((pc.rank(paths, tiebreaker="dense").to_numpy(), *keys))
    return order[np.r_[_differs(objects, order), True]] if len(order) else order


def _ascend(objects: list[npt.NDArray[np.int64]]) -> bool:
    """Return whether they are in order, each once: a listing gives them so, and then there is nothing to sort or to
    choose.
    """
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
    """Format each address as `lakebed.base.format_address` does. A test holds them equal."""
    if len(sequences) and int(sequences.max()) > SEQUENCE_MAX:
        worst = int(sequences.argmax())
        name = slice_name(int(slices[worst]))
        raise BadInput(f"slice {name}: no address has the sequence {int(sequences[worst])}", slice=int(slices[worst]))
    encoded = pa.array(slices).dictionary_encode()
    folders = pa.array([f"data/{slice_name(slice_)}" for slice_ in encoded.dictionary.to_pylist()], pa.string())
    digits = pc.utf8_lpad(pa.array(sequences).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(folders.take(encoded.indices), digits, "/")
