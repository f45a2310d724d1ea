"""Objects packed by bucket, and bitmaps: how addresses cross a shuffle. Pure; plain functions over numpy and Arrow.

A *bucket* is a slice number (0 and up), or `foreign_bucket` of a key that is no slice-and-sequence (below 0): hash
classes, so that a foreign key meets its like in one place and is there compared as a whole string. A slice's live set
is one bitmap: bit s % 8 of byte s // 8 is sequence s (numpy's `bitorder="little"`), and the last byte is not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .buckets import buckets_of
from .places import Namespace, Place
from .tables import CANDIDATES, LIVE

Integers: TypeAlias = npt.NDArray[np.int64]


def foreign_bucket(key: str) -> int:
    return -1 - int(buckets_of(pa.array([key], pa.string()))[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why candidates go, if nothing names them: what a plan says of each."""

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
    order = np.argsort(slices, kind="stable")
    slices = slices[order]
    starts = _starts(slices)
    packed = (
        _cuts(array[order], starts, kind) for array, kind in ((sequences, "<u4"), (sizes, "<i8"), (seen_ms, "<i8"))
    )
    named = _lists(paths, order, starts)
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
    starts = _starts(buckets)
    numbers = [_cuts(np.asarray(array, np.int64)[order], starts, "<i8") for array in (sizes, seen_ms)]
    sequences = [b"" for _ in starts]
    return _candidates(
        buckets[starts].tolist(),
        (sequences, *numbers),
        _lists(texts, order, starts),
        cause,
        prefix,
        _lists(paths, order, starts),
    )


def _starts(ordered: Integers) -> Integers:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)


def _cuts(array: Integers, starts: Integers, kind: str) -> list[bytes]:
    return [part.astype(kind).tobytes() for part in np.split(array, starts[1:])] if len(starts) else []


def _lists(texts: pa.Array | None, order: Integers, starts: Integers) -> Any:
    """One list a bucket, in the order in which all else is packed."""
    if texts is None or not len(texts):
        return [[] for _ in starts]
    return pa.ListArray.from_arrays(pa.array([*starts, len(order)], pa.int32()), texts.take(pa.array(order)))


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


class LiveSet:
    """Everything one task found to be named: a bitmap a slice, and foreign keys. Grows; order does not matter.

    Keys that are to be compared by the million do not come here, but into files (keys.py)."""

    def __init__(self) -> None:
        self._words: dict[int, npt.NDArray[np.uint64]] = {}
        self._keys: list[pa.Array] = []

    def room(self, slice_: int, words: int) -> npt.NDArray[np.uint64]:
        """The slice's bitmap, at least so many 64-bit words long, to set bits in. Good until the next call."""
        have = self._words.get(slice_)
        if have is None or len(have) < words:
            grown = np.zeros(max(words, 2 * len(have) if have is not None else 0), np.uint64)
            if have is not None:
                grown[: len(have)] = have
            self._words[slice_] = have = grown
        return have

    def add_numbers(self, slices: Integers, sequences: Integers) -> None:
        """Two arrays in parallel."""
        order = np.argsort(slices, kind="stable")
        slices, sequences = slices[order], sequences[order]
        starts = _starts(slices)
        for slice_, part in zip(slices[starts].tolist(), np.split(sequences, starts[1:]), strict=False):
            bits = bitmap_of(part)
            self.room(slice_, (len(bits) + 7) // 8).view(np.uint8)[: len(bits)] |= bits

    def add(self, place: Place) -> None:
        """One object; outside the namespace is nothing to us."""
        match place:
            case (slice_, sequence):
                self.add_numbers(np.array([slice_]), np.array([sequence]))
            case str(key):
                self._keys.append(pa.array([key], pa.string()))
            case None:
                pass

    def add_addresses(self, addresses: pa.Array, namespace: Namespace) -> None:
        """Foreign addresses, as entries have them."""
        keys, numbers = namespace.places_of(addresses)
        self._keys.append(keys)
        self._add_places(numbers)

    def add_numbers_among(self, addresses: pa.Array, namespace: Namespace) -> None:
        """Of foreign addresses those that are a slice and a sequence, spelt otherwise; the keys are left out."""
        self._add_places(namespace.numbers_of(addresses))

    def _add_places(self, places: Sequence[tuple[int, int]]) -> None:
        if places:
            slices, sequences = np.array(places, np.int64).T
            self.add_numbers(slices, sequences)

    def add_rows(self, live: pa.Table) -> None:
        """LIVE rows, without nulls."""
        for bucket, bitmap in zip(live["bucket"].to_pylist(), live["bitmap"].to_pylist(), strict=True):
            if bucket >= 0:
                bits = np.frombuffer(bitmap, np.uint8)
                self.room(bucket, (len(bits) + 7) // 8).view(np.uint8)[: len(bits)] |= bits
        self._keys += pc.list_flatten(live["addresses"]).chunks

    @property
    def keys_held(self) -> int:
        return sum(map(len, self._keys))

    def take_keys(self) -> pa.Table:
        """LIVE: the keys so far, one row a bucket. They are held no longer."""
        keys = pc.unique(pa.concat_arrays([pa.array([], pa.string()), *self._keys]))
        self._keys = []
        buckets = -1 - buckets_of(keys).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        starts = _starts(buckets[order])
        return _live(buckets[order][starts], addresses=_lists(keys, order, starts))

    def rows(self) -> pa.Table:
        """LIVE: one row a bucket. The keys are held no longer."""
        slices = sorted(self._words)
        bitmaps = [self._words[slice_].tobytes().rstrip(b"\0") for slice_ in slices]
        return pa.concat_tables([self.take_keys(), _live(slices, bitmap=bitmaps)])


def _live(buckets: Any, **columns: Any) -> pa.Table:
    """LIVE rows with one of their columns, the others being empty."""
    nothing: dict[str, Any] = {"bitmap": b"", "addresses": []}
    empty = {name: [value] * len(buckets) for name, value in nothing.items()}
    return LIVE.rows({"bucket": buckets, **empty, **columns})


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
