"""Objects packed by bucket, bitmaps, and candidates minus live: the heart of every mark. Pure functions over Arrow.

A *bucket* is a slice number (0 and up), or `foreign_bucket` of a key that is no slice-and-sequence (below 0): hash
classes, so that a foreign key meets its like in one place and is there compared as a whole string. A slice's live set
is one bitmap: bit s % 8 of byte s // 8 is sequence s (numpy's `bitorder="little"`), and the last byte is not zero.

An engine only brings together rows of one bucket. In a slice `subtract` is one look-up a candidate. Of several
candidates for one object the one seen last speaks for it, then the greatest reason, rule, branch, prefix and path, so
that the verdict does not depend on the order in which tasks finish. Nothing here guesses: a null or arrays of unequal
length mean that a reader is broken, and the run stops.
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
from lakebed.gc.engines.tables import CANDIDATES, OTHERS, VERDICTS, check_whole, no_others
from lakebed.gc.messages import BadInput
from lakebed.gc.rules import one_piece

from .bucketed import buckets_of

Integers: TypeAlias = npt.NDArray[np.int64]


def foreign_bucket(key: str) -> int:
    return -1 - int(buckets_of(pa.array([key], pa.string()))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Say why candidates go if nothing names them, as a plan shows it."""

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
) -> pa.Table:
    """CANDIDATES of slices: one row a slice. The arrays run in parallel, in any order."""
    order = None
    if (slices[1:] < slices[:-1]).any():
        order = np.argsort(slices, kind="stable")
        slices, sequences, sizes, seen_ms = slices[order], sequences[order], sizes[order], seen_ms[order]
    starts = starts_of(slices)
    packed = (_cuts(array, starts, kind) for array, kind in ((sequences, "<u4"), (sizes, "<i8"), (seen_ms, "<i8")))
    named = lists_of(paths, order, starts)
    return _candidates(slices[starts].tolist(), packed, [[] for _ in starts], cause, prefix, named)


def pack_foreign(
    keys: Sequence[str],
    sizes: Sequence[int],
    seen_ms: Sequence[int],
    cause: Cause,
    prefix: str = "",
    paths: pa.Array | None = None,
) -> pa.Table:
    """CANDIDATES of foreign buckets: one row a bucket. The arrays run in parallel, in any order."""
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
        lists_of(paths, order, starts),
    )


def starts_of(ordered: Integers) -> Integers:
    """Return where each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)


def _cuts(array: Integers, starts: Integers, kind: str) -> list[bytes]:
    return [part.astype(kind).tobytes() for part in np.split(array, starts[1:])] if len(starts) else []


def lists_of(texts: pa.Array | None, order: Integers | None, starts: Integers) -> Any:
    """One list a bucket, in the order in which all else is packed."""
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
    paths: Any,
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
            "paths": paths,
            "reason": [cause.reason] * count,
            "rule": [cause.rule] * count,
            "branch": [cause.branch] * count,
            "prefix": [prefix] * count,
        }
    )


def in_slices(slices: Integers) -> Iterator[tuple[int, Any]]:
    """Yield each slice with the selector of its rows in parallel arrays. Most come in long runs."""
    if not len(slices):
        return
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
    """The bitmap with these bits set; `sequences` are at least 0, in any order, and may repeat."""
    if not len(sequences):
        return np.empty(0, np.uint8)
    bits = np.zeros(int(sequences.max()) + 1, np.bool_)
    bits[sequences] = True
    return np.packbits(bits, bitorder="little")


def is_set(bitmap: npt.NDArray[np.uint8], sequences: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """For each sequence whether its bit is set; beyond the end none is."""
    if 8 * len(sequences) < len(bitmap):
        inside = sequences < 8 * len(bitmap)
        result = np.zeros(len(sequences), np.bool_)
        few = sequences[inside]
        result[inside] = (bitmap[few >> 3] >> (few & 7).astype(np.uint8)) & 1 == 1
        return result
    # One look-up each, in a bitmap that was unpacked: half the time where many are asked for.
    bits = np.zeros(8 * len(bitmap) + 1, np.bool_)
    bits[:-1] = np.unpackbits(bitmap, bitorder="little")
    found: npt.NDArray[np.bool_] = bits[np.minimum(sequences, len(bits) - 1)]
    return found


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
        """Return the addresses of the objects at these positions."""
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
    whole = one_piece(table[name])
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


CAUSE: Final = ("reason", "rule", "branch", "prefix")
_TEXTS: Final = VERDICTS.schema.field(OTHERS[0]).type


def subtract(candidates: pa.Table, live: pa.Table, *, all_names: bool = False) -> pa.Table:
    """VERDICTS: each object of the CANDIDATES that no LIVE row names, once; by bucket, then by sequence or address.
    `live` must hold all rows there are of every bucket that the candidates are of. With `all_names` a verdict also has
    the paths and rules of the other candidates for its object.

    Raises:
        BadInput: a null, arrays that do not run in parallel, a sequence that no address has.
    """
    check_whole(candidates, "candidates")
    check_whole(live, "live objects")
    is_foreign = pc.less(candidates["bucket"], 0)
    found = [VERDICTS.schema.empty_table()]
    if pc.any(is_foreign).as_py():
        named = live.filter(pc.less(live["bucket"], 0))
        found.append(_subtract_foreign(candidates.filter(is_foreign), named, all_names=all_names))
        candidates = candidates.filter(pc.invert(is_foreign))
    if candidates.num_rows:
        objects = unpack(candidates)
        found.append(verdicts_of(objects, ~named_by(live, objects), all_names=all_names))
    return pa.concat_tables(found)


def _subtract_foreign(candidates: pa.Table, live: pa.Table, *, all_names: bool) -> pa.Table:
    counts = pc.list_value_length(candidates["addresses"]).to_numpy().astype(np.int64)
    check_parallel(candidates, counts)
    names, rows = _strings(candidates), np.repeat(np.arange(len(counts)), counts)
    sizes, seen_ms = joined(candidates, "sizes", "<i8"), joined(candidates, "seen_ms", "<i8")
    kept = np.flatnonzero(~pc.is_in(names, value_set=_strings(live)).to_numpy(zero_copy_only=False))
    names, rows, paths = names.take(pa.array(kept)), rows[kept], _paths(candidates, counts, kept)
    ranks = pc.rank(names, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    chosen = _last_of_each([ranks], seen_ms[kept], _ranks(candidates)[rows], paths)
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
    )


def verdicts_of(objects: Unpacked, gone: npt.NDArray[np.bool_], *, all_names: bool = False) -> pa.Table:
    """VERDICTS: each object that goes, once; by bucket, then by sequence. See `subtract` for `all_names`.

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
        all_names=all_names,
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


def each_once(causes: pa.Table, rows: Rows, *, all_names: bool = False) -> pa.Table:
    """VERDICTS: each object once; by slice, then by sequence. `causes` has the columns CAUSE, and may have others. See
    `subtract` for `all_names`.

    Raises:
        BadInput: a sequence that no address has.
    """
    chosen = _last_of_each([rows.sequences, rows.slices], rows.seen_ms, _ranks(causes)[rows.causes], rows.paths)
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
    )


def _verdicts(
    table: pa.Table,
    rows: npt.NDArray[np.int64],
    others: Mapping[str, pa.Array],
    *,
    sequence: Any,
    seen_ms: Any,
    **columns: Any,
) -> pa.Table:
    """`rows` are those of a table with CAUSE, in parallel with the columns."""
    causes = {name: table[name].take(pa.array(rows)).combine_chunks() for name in CAUSE}
    last_seen_at = pa.array(seen_ms * 1000, pa.timestamp("us", tz="UTC"))
    numbers = {"sequence": sequence.astype(np.int32), "last_seen_at": last_seen_at}
    return VERDICTS.rows({**columns, **causes, **numbers, **no_others(len(rows)), **others})


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


class _Chosen(NamedTuple):
    """`last` are the positions that speak for each object. `order` sorts all rows by object, the speaker last.

    `is_last` runs in parallel with `order`. Both are None where all rows of each object say the same.
    """

    last: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64] | None = None
    is_last: npt.NDArray[np.bool_] | None = None


def _last_of_each(
    objects: list[npt.NDArray[np.int64]],
    seen_ms: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    paths: pa.Array | None,
) -> _Chosen:
    """Choose which row speaks for each object. Parallel arrays name an object; the last is the first to sort by."""
    if _ascend(objects):
        return _Chosen(np.arange(len(ranks)))
    keys = (ranks, seen_ms, *objects)
    order = np.lexsort(keys)
    is_last = np.r_[_differs(objects, order), True]
    if paths is not None:
        # One commit may have an object under several paths. Mostly it is one path, and there is nothing to choose.
        tied = np.flatnonzero(~_differs(keys, order))
        same = pc.equal(paths.take(pa.array(order[tied])), paths.take(pa.array(order[tied + 1])))
        if not pc.all(same, min_count=0).as_py():
            order = np.lexsort((pc.rank(paths, tiebreaker="dense").to_numpy(), *keys))
        elif len(tied) == len(order) - np.count_nonzero(is_last):
            # Mostly all rows of an object are equal, and then there is no difference to look for.
            return _Chosen(order[is_last])
    return _Chosen(order[is_last], order, is_last)


def _others(chosen: _Chosen, paths: pa.Array | None, rules: pa.DictionaryArray) -> dict[str, pa.Array]:
    """Return OTHERS: of each object the paths and rules of its rows that do not speak for it; null where none differs.

    `paths` and `rules` run in parallel with the rows.
    """
    order, is_last = chosen.order, chosen.is_last
    if order is None or is_last is None:
        return {}
    ends = np.flatnonzero(is_last)
    others = np.flatnonzero(~is_last)
    # By position among the speakers.
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
    """Return for each of `count` objects its texts, each once and in order, null where it has none."""
    if not len(objects):
        return pa.nulls(count, _TEXTS)
    pairs = pa.table({"object": objects, "text": texts}).group_by(["object", "text"]).aggregate([])
    pairs = pairs.sort_by([("object", "ascending"), ("text", "ascending")])
    counts = np.bincount(pairs["object"].to_numpy(), minlength=count)
    offsets = pa.array(np.r_[0, np.cumsum(counts)].astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pairs["text"].combine_chunks(), type=_TEXTS, mask=pa.array(counts == 0))


def _rules(causes: pa.Table, rows: npt.NDArray[np.int64]) -> pa.DictionaryArray:
    """Return the rule of each row, whose causes are rows of that table."""
    encoded = causes["rule"].combine_chunks().dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(pa.array(rows)), encoded.dictionary)


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
