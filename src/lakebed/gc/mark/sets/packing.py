"""Pack objects by bucket, as bitmaps, and subtract live objects from candidates: the core of every mark. Pure.

A *bucket* is a slice number (0 and up), or the `foreign_bucket` of a key outside of slices (below 0). Foreign buckets
are hash classes: equal keys share a bucket, and are compared there as whole strings. The live set of a slice is one
bitmap: bit s % 8 of byte s // 8 is sequence s (numpy's `bitorder="little"`), and the last byte is not zero.

A null, or arrays of unequal length, means that a reader is broken: the run stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.base import FOREIGN_SLICE, SEQUENCE_MAX, format_address, slice_name
from lakebed.gc.engines.engine import CANDIDATES, OTHERS, VERDICTS, check_whole, no_others
from lakebed.gc.messages import BadInput
from lakebed.gc.rules import one_piece

from .bucketed import buckets_of

Integers: TypeAlias = npt.NDArray[np.int64]


def foreign_bucket(key: str) -> int:
    return -1 - int(buckets_of(pa.array([key], pa.string()))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Give the reason for which a plan deletes unnamed candidates."""

    reason: str
    rule: str = ""
    branch: str = ""


def pack_numbered(
    slices: Integers,
    sequences: Integers,
    sizes: Integers,
    seen_ms: Integers,
    cause: Cause,
    prefix: str = "",
    paths: pa.Array | None = None,
    seen_in: Integers | None = None,
) -> pa.Table:
    """Return CANDIDATES of slices, one row a slice. The arrays are parallel, in any order."""
    order = None
    # Skip the sort for rows in order of slices, as a listing gives them.
    if (slices[1:] < slices[:-1]).any():
        order = np.argsort(slices, kind="stable")
        slices, sequences, sizes, seen_ms = slices[order], sequences[order], sizes[order], seen_ms[order]
    starts = starts_of(slices)
    packed = (_cuts(array, starts, kind) for array, kind in ((sequences, "<u4"), (sizes, "<i8"), (seen_ms, "<i8")))
    facts = {"paths": lists_of(paths, order, starts), "seen_in": _numbers_of(seen_in, order, starts)}
    return _candidates(slices[starts].tolist(), packed, [[] for _ in starts], cause, prefix, facts)


def pack_foreign(
    keys: Sequence[str],
    sizes: Sequence[int],
    seen_ms: Sequence[int],
    cause: Cause,
    prefix: str = "",
    paths: pa.Array | None = None,
    seen_in: Integers | None = None,
) -> pa.Table:
    """Return CANDIDATES of foreign buckets, one row a bucket. The arrays are parallel, in any order."""
    texts = pa.array(keys, pa.string())
    buckets = -1 - buckets_of(texts).astype(np.int64)
    order = np.argsort(buckets, kind="stable")
    buckets = buckets[order]
    starts = starts_of(buckets)
    numbers = [_cuts(np.asarray(array, np.int64)[order], starts, "<i8") for array in (sizes, seen_ms)]
    sequences = [b"" for _ in starts]
    return _candidates(
        buckets[starts].tolist(),
        (sequences, *numbers),
        lists_of(texts, order, starts),
        cause,
        prefix,
        {"paths": lists_of(paths, order, starts), "seen_in": _numbers_of(seen_in, order, starts)},
    )


def starts_of(ordered: Integers) -> Integers:
    """Return where each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)


def _cuts(array: Integers, starts: Integers, kind: str) -> list[bytes]:
    return [part.astype(kind).tobytes() for part in np.split(array, starts[1:])] if len(starts) else []


def _numbers_of(numbers: Integers | None, order: Integers | None, starts: Integers) -> list[bytes]:
    """Return the numbers of each bucket, in the order of the other packed columns."""
    if numbers is None:
        return [b"" for _ in starts]
    return _cuts(numbers if order is None else numbers[order], starts, "<i8")


def lists_of(texts: pa.Array | None, order: Integers | None, starts: Integers) -> Any:
    """Return one list a bucket, in the order of the other packed columns."""
    if texts is None or not len(texts):
        return [[] for _ in starts]
    ordered = texts if order is None else texts.take(pa.array(order))
    return pa.ListArray.from_arrays(pa.array([*starts, len(texts)], pa.int32()), ordered)


def _candidates(
    buckets: list[int],
    packed: Iterable[list[bytes]],
    addresses: Any,
    cause: Cause,
    prefix: str,
    facts: dict[str, Any],
) -> pa.Table:
    sequences, sizes, seen_ms = packed
    count = len(buckets)
    return CANDIDATES.rows(
        {
            "bucket": buckets,
            "sequences": sequences,
            "addresses": addresses,
            "sizes": sizes,
            "seen_ms": seen_ms,
            **facts,
            "reason": [cause.reason] * count,
            "rule": [cause.rule] * count,
            "branch": [cause.branch] * count,
            "prefix": [prefix] * count,
        }
    )


def in_slices(slices: Integers) -> Iterator[tuple[int, Any]]:
    """Yield each slice with the selector of its rows in parallel arrays."""
    if not len(slices):
        return
    # Most slices are one long run of rows, which a `slice` object selects without a sort.
    starts = np.flatnonzero(np.r_[True, slices[1:] != slices[:-1]])
    names = slices[starts]
    if len(np.unique(names)) == len(names):
        for slice_, start, end in zip(
            names.tolist(), starts.tolist(), [*starts[1:].tolist(), len(slices)], strict=True
        ):
            yield slice_, slice(start, end)
        return
    order = np.argsort(slices, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(slices[order]) != 0])
    for part in np.split(order, starts[1:]):
        yield int(slices[part[0]]), part


def bitmap_of(sequences: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bitmap with these bits set. `sequences` are at least 0, in any order, and may repeat."""
    if not len(sequences):
        return np.empty(0, np.uint8)
    bits = np.zeros(int(sequences.max()) + 1, np.bool_)
    bits[sequences] = True
    return np.packbits(bits, bitorder="little")


def is_set(bitmap: npt.NDArray[np.uint8], sequences: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return for each sequence whether its bit is set. Bits beyond the end are not."""
    # For few sequences read single bytes, without unpacking the bitmap.
    if 8 * len(sequences) < len(bitmap):
        inside = sequences < 8 * len(bitmap)
        result = np.zeros(len(sequences), np.bool_)
        few = sequences[inside]
        result[inside] = (bitmap[few >> 3] >> (few & 7).astype(np.uint8)) & 1 == 1
        return result
    # Unpack the bitmap, then look up once each: half the time for many sequences.
    bits = np.zeros(8 * len(bitmap) + 1, np.bool_)
    bits[:-1] = np.unpackbits(bitmap, bitorder="little")
    flags: npt.NDArray[np.bool_] = bits[np.minimum(sequences, len(bits) - 1)]
    return flags


_NO_BITS: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Hold CANDIDATES of slices, unpacked. `counts` is the number of objects of each row. The other arrays are
    parallel, with one value an object, in the order of the rows."""

    candidates: pa.Table
    counts: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.int64]
    seen_ms: npt.NDArray[np.int64]

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """Return the end of each row's objects."""
        return np.cumsum(self.counts)

    def addresses(self, places: npt.NDArray[np.int64]) -> list[str]:
        """Return the addresses of the objects at these positions."""
        rows = np.searchsorted(self.ends, places, side="right")
        slices = self.candidates["bucket"].to_numpy()[rows].tolist()
        return [format_address(*place) for place in zip(slices, self.sequences[places].tolist(), strict=True)]

    def slices(self) -> Iterator[tuple[int, slice]]:
        """Yield each row's slice number, and the positions of its objects."""
        start = 0
        for bucket, end in zip(self.candidates["bucket"].to_pylist(), self.ends.tolist(), strict=True):
            yield bucket, slice(start, end)
            start = end


def unpack(candidates: pa.Table) -> Unpacked:
    """Unpack CANDIDATES of slices, or raise BadInput."""
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
    """Check the lengths of the arrays of CANDIDATES, or raise BadInput."""
    for name in ("sizes", "seen_ms"):
        if not np.array_equal(pc.binary_length(candidates[name]).to_numpy(), 8 * counts):
            raise BadInput(f"candidates: {name} do not run in parallel with the addresses", column=name)


def named_by(live: pa.Table, objects: Unpacked) -> npt.NDArray[np.bool_]:
    """Return for each object whether LIVE names it. `live` must hold all rows of the objects' buckets."""
    bitmaps = _unions(live, objects.candidates["bucket"])
    named = np.empty(len(objects.sequences), np.bool_)
    for bucket, part in objects.slices():
        named[part] = is_set(bitmaps.get(bucket, _NO_BITS), objects.sequences[part])
    return named


def joined(table: pa.Table, name: str, kind: str) -> npt.NDArray[Any]:
    """Return the values joined without a copy: an Arrow array stores them so."""
    whole = one_piece(table[name])
    _, offsets, data = whole.buffers()
    if not len(whole) or data is None:
        return np.empty(0, kind)
    ends = np.frombuffer(offsets, np.int32)[[whole.offset, whole.offset + len(whole)]]
    return np.frombuffer(memoryview(data)[ends[0] : ends[1]], kind)


def _unions(live: pa.Table, buckets: pa.ChunkedArray) -> dict[int, npt.NDArray[np.uint8]]:
    """Return one bitmap of LIVE for each of these buckets that has any."""
    unions: dict[int, npt.NDArray[np.uint8]] = {}
    live = live.filter(pc.is_in(live["bucket"], value_set=buckets.combine_chunks()))
    for bucket, data in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
        bitmap, have = np.frombuffer(data, np.uint8), unions.get(bucket)
        if have is None:
            unions[bucket] = bitmap
            continue
        # Several tasks may name objects of one bucket, in bitmaps of different lengths.
        union = np.zeros(max(len(bitmap), len(have)), np.uint8)
        union[: len(have)] = have
        union[: len(bitmap)] |= bitmap
        unions[bucket] = union
    return unions


CAUSE: Final = ("reason", "rule", "branch", "prefix")
_TEXTS: Final = VERDICTS.schema.field(OTHERS[0]).type


def subtract(candidates: pa.Table, live: pa.Table, *, all_names: bool = False) -> pa.Table:
    """Return VERDICTS: each object of CANDIDATES that LIVE does not name, once; by bucket, then sequence or address.
    `live` must hold all rows of every bucket of the candidates. With `all_names` a verdict also has the paths and rules
    of the other candidates for its object.

    Raises:
        BadInput: a null, arrays that are not parallel, or a sequence beyond the largest address.
    """
    check_whole(candidates, "candidates")
    check_whole(live, "live objects")
    is_foreign = pc.less(candidates["bucket"], 0)
    verdicts = [VERDICTS.schema.empty_table()]
    if pc.any(is_foreign).as_py():
        named = live.filter(pc.less(live["bucket"], 0))
        verdicts.append(_subtract_foreign(candidates.filter(is_foreign), named, all_names=all_names))
        candidates = candidates.filter(pc.invert(is_foreign))
    if candidates.num_rows:
        objects = unpack(candidates)
        verdicts.append(verdicts_of(objects, ~named_by(live, objects), all_names=all_names))
    return pa.concat_tables(verdicts)


def _subtract_foreign(candidates: pa.Table, live: pa.Table, *, all_names: bool) -> pa.Table:
    counts = pc.list_value_length(candidates["addresses"]).to_numpy().astype(np.int64)
    check_parallel(candidates, counts)
    names, rows = _strings(candidates), np.repeat(np.arange(len(counts)), counts)
    sizes, seen_ms = joined(candidates, "sizes", "<i8"), joined(candidates, "seen_ms", "<i8")
    kept = np.flatnonzero(~pc.is_in(names, value_set=_strings(live)).to_numpy(zero_copy_only=False))
    names, rows, paths = names.take(pa.array(kept)), rows[kept], _paths(candidates, counts, kept)
    seen_in = _seen_in(candidates, counts, kept)
    # `lexsort` takes numbers, so sort the ranks of the names.
    ranks = pc.rank(names, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    chosen = _last_of_each([ranks], seen_ms[kept], _ranks(candidates)[rows], paths, seen_in)
    last = chosen.last
    others = _others(chosen, paths, _rules(candidates, rows)) if all_names else {}
    return _verdicts(
        candidates,
        rows[last],
        others,
        address=names.take(pa.array(last)),
        slice=np.full(len(last), FOREIGN_SLICE, np.int64),
        sequence=np.zeros(len(last), np.int64),
        size_bytes=sizes[kept[last]],
        seen_ms=seen_ms[kept[last]],
        path=pa.repeat("", len(last)) if paths is None else paths.take(pa.array(last)),
        seen_in=None if seen_in is None else seen_in[last],
    )


def verdicts_of(objects: Unpacked, gone: npt.NDArray[np.bool_], *, all_names: bool = False) -> pa.Table:
    """Return VERDICTS: each object in `gone`, once; by bucket, then sequence. See `subtract` for `all_names`.

    Raises:
        BadInput: a sequence beyond the largest address.
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
            seen_in=_seen_in(candidates, objects.counts, kept),
        ),
        all_names=all_names,
    )


class Rows(NamedTuple):
    """Hold objects of slices as parallel arrays; objects may repeat. `causes` are rows of another table.

    `paths` is None if no object has one, and `seen_in` if no object has a range.
    """

    slices: npt.NDArray[np.int64]
    sequences: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    seen_ms: npt.NDArray[np.int64]
    causes: npt.NDArray[np.int64]
    paths: pa.Array | None
    seen_in: npt.NDArray[np.int64] | None = None


def each_once(causes: pa.Table, rows: Rows, *, all_names: bool = False) -> pa.Table:
    """Return VERDICTS, or raise BadInput: each object once; by slice, then sequence. `causes` has the columns CAUSE,
    and may have others. See `subtract` for `all_names`.
    """
    objects = [rows.sequences, rows.slices]
    chosen = _last_of_each(objects, rows.seen_ms, _ranks(causes)[rows.causes], rows.paths, rows.seen_in)
    last = chosen.last
    slices, sequences = rows.slices[last], rows.sequences[last]
    return _verdicts(
        causes,
        rows.causes[last],
        _others(chosen, rows.paths, _rules(causes, rows.causes)) if all_names else {},
        address=_format(slices, sequences),
        slice=slices,
        sequence=sequences,
        size_bytes=rows.sizes[last],
        seen_ms=rows.seen_ms[last],
        path=pa.repeat("", len(last)) if rows.paths is None else rows.paths.take(pa.array(last)),
        seen_in=None if rows.seen_in is None else rows.seen_in[last],
    )


def _verdicts(
    table: pa.Table,
    rows: npt.NDArray[np.int64],
    others: Mapping[str, pa.Array],
    *,
    sequence: Any,
    seen_ms: Any,
    seen_in: npt.NDArray[np.int64] | None,
    **columns: Any,
) -> pa.Table:
    """Build VERDICTS. `rows` are rows of a table with CAUSE, parallel with the columns."""
    causes = {name: table[name].take(pa.array(rows)).combine_chunks() for name in CAUSE}
    last_seen_at = pa.array(seen_ms * 1000, pa.timestamp("us", tz="UTC"))
    numbers = {"sequence": sequence.astype(np.int32), "last_seen_at": last_seen_at}
    ranges = {} if seen_in is None else {"seen_in": pa.array(seen_in, mask=seen_in == 0)}
    return VERDICTS.rows({**columns, **causes, **numbers, **no_others(len(rows)), **others, **ranges})


def _strings(table: pa.Table, name: str = "addresses") -> pa.Array:
    flat = pc.list_flatten(table[name])
    return flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat


def _ranks(candidates: pa.Table) -> npt.NDArray[np.int64]:
    """Return each row's rank by (reason, rule, branch, prefix). Equal causes share a rank."""
    causes = list(zip(*(candidates[name].to_pylist() for name in CAUSE), strict=True))
    places = {cause: place for place, cause in enumerate(sorted(set(causes)))}
    return np.array([places[cause] for cause in causes], np.int64)


def _paths(candidates: pa.Table, counts: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]) -> pa.Array | None:
    """Return the path of each kept object, empty without one; None if no candidate has paths."""
    named = pc.list_value_length(candidates["paths"])
    if not pc.any(pc.greater(named, 0), min_count=0).as_py():
        return None
    # A row has a path for each object, or no paths.
    whole = pc.equal(named, pa.array(counts))
    if not pc.all(pc.or_(whole, pc.equal(named, 0))).as_py():
        raise BadInput("candidates: paths do not run in parallel with the addresses", column="paths")
    has = np.repeat(pc.greater(named, 0).to_numpy(), counts)
    places = pa.array(np.cumsum(has)[kept] - 1, mask=~has[kept])
    return pc.fill_null(_strings(candidates, "paths").take(places), "")


def _seen_in(
    candidates: pa.Table, counts: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | None:
    """Return the number of each kept object's range, 0 without one; None if no candidate has ranges."""
    lengths = pc.binary_length(candidates["seen_in"]).to_numpy().astype(np.int64)
    if not lengths.any():
        return None
    has_ranges = lengths > 0
    if not np.array_equal(lengths[has_ranges], 8 * counts[has_ranges]):
        raise BadInput("candidates: seen_in does not run in parallel with the addresses", column="seen_in")
    numbers = np.zeros(int(counts.sum()), np.int64)
    numbers[np.repeat(has_ranges, counts)] = joined(candidates, "seen_in", "<i8")
    return numbers[kept]


class _Chosen(NamedTuple):
    """`last` has the position of the row chosen for each object. `order` sorts all rows by object, the chosen row last.

    `is_last` is parallel with `order`. Both are None if all rows of each object are equal.
    """

    last: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64] | None = None
    is_last: npt.NDArray[np.bool_] | None = None


def _last_of_each(
    objects: list[npt.NDArray[np.int64]],
    seen_ms: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    paths: pa.Array | None,
    seen_in: npt.NDArray[np.int64] | None,
) -> _Chosen:
    """Choose one row for each object. Parallel arrays name an object; the last array is the first sort key."""
    if _ascend(objects):
        return _Chosen(np.arange(len(ranks)))
    # The candidate seen last wins, then the greatest reason, rule, branch, prefix, path and range. So the verdict does
    # not depend on the order in which tasks finish.
    keys = (ranks, seen_ms, *objects)
    least = () if seen_in is None else (seen_in,)
    order = np.lexsort((*least, *keys))
    is_last = np.r_[_differs(objects, order), True]
    if paths is not None:
        # One commit may have an object at several paths. Mostly it has one path, and there is no choice.
        tied = np.flatnonzero(~_differs(keys, order))
        same = pc.equal(paths.take(pa.array(order[tied])), paths.take(pa.array(order[tied + 1])))
        if not pc.all(same, min_count=0).as_py():
            order = np.lexsort((*least, pc.rank(paths, tiebreaker="dense").to_numpy(), *keys))
        elif len(tied) == len(order) - np.count_nonzero(is_last):
            # Mostly all rows of an object are equal, so there is no difference to report.
            return _Chosen(order[is_last])
    return _Chosen(order[is_last], order, is_last)


def _others(chosen: _Chosen, paths: pa.Array | None, rules: pa.DictionaryArray) -> dict[str, pa.Array]:
    """Return OTHERS: the paths and rules of each object's rows that were not chosen; null if no row differs.

    `paths` and `rules` are parallel with the rows.
    """
    order, is_last = chosen.order, chosen.is_last
    if order is None or is_last is None:
        return {}
    ends = np.flatnonzero(is_last)
    others = np.flatnonzero(~is_last)
    # Positions among the chosen rows.
    objects = np.searchsorted(ends, others)
    rows, speakers = order[others], chosen.last[objects]
    codes = rules.indices.to_numpy()
    found = {}
    if paths is not None:
        differs = pc.not_equal(paths.take(pa.array(rows)), paths.take(pa.array(speakers))).to_numpy(
            zero_copy_only=False
        )
        found[OTHERS[0]] = _texts_of_each(objects[differs], paths.take(pa.array(rows[differs])), len(ends))
    differs = codes[rows] != codes[speakers]
    texts = rules.dictionary.take(pa.array(codes[rows[differs]]))
    found[OTHERS[1]] = _texts_of_each(objects[differs], texts, len(ends))
    return found


def _texts_of_each(objects: npt.NDArray[np.int64], texts: pa.Array, count: int) -> pa.Array:
    """Return the texts of each of `count` objects, each once and in order; null without any."""
    if not len(objects):
        return pa.nulls(count, _TEXTS)
    pairs = pa.table({"object": objects, "text": texts}).group_by(["object", "text"]).aggregate([])
    # Arrow groups in any order.
    pairs = pairs.sort_by([("object", "ascending"), ("text", "ascending")])
    counts = np.bincount(pairs["object"].to_numpy(), minlength=count)
    offsets = pa.array(np.r_[0, np.cumsum(counts)].astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pairs["text"].combine_chunks(), type=_TEXTS, mask=pa.array(counts == 0))


def _rules(causes: pa.Table, rows: npt.NDArray[np.int64]) -> pa.DictionaryArray:
    """Return each row's rule. `rows` are the rows of its cause in that table."""
    encoded = causes["rule"].combine_chunks().dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(pa.array(rows)), encoded.dictionary)


def _ascend(objects: list[npt.NDArray[np.int64]]) -> bool:
    """Return whether the objects are in order, each once."""
    # A listing gives them so, which saves the sort.
    above = np.zeros(max(0, len(objects[0]) - 1), np.bool_)
    for array in objects:
        above = (array[1:] > array[:-1]) | (array[1:] == array[:-1]) & above
    return bool(above.all())


def _differs(arrays: Sequence[npt.NDArray[np.int64]], order: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each position but the last whether the next one differs in any array."""
    differs = np.zeros(max(0, len(order) - 1), np.bool_)
    for array in arrays:
        ordered = array[order]
        differs |= ordered[1:] != ordered[:-1]
    return differs


def _format(slices: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]) -> pa.Array:
    """Format each address like `lakebed.base.format_address`. A test holds them equal."""
    if len(sequences) and int(sequences.max()) > SEQUENCE_MAX:
        worst = int(sequences.argmax())
        name = slice_name(int(slices[worst]))
        raise BadInput(f"slice {name}: no address has the sequence {int(sequences[worst])}", slice=int(slices[worst]))
    encoded = pa.array(slices).dictionary_encode()
    folders = pa.array([f"data/{slice_name(slice_)}" for slice_ in encoded.dictionary.to_pylist()], pa.string())
    digits = pc.utf8_lpad(pa.array(sequences).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(folders.take(encoded.indices), digits, "/")
