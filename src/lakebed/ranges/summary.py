"""The slice summary of a range: the numbers of each slice that its entries name, as one bitmap a slice.

Collectors mark with it: they OR bitmaps instead of reading rows (docs/design/0006-addresses-and-ranges.md). It stands
in the footer of a range file (docs/formats/range.md), so the end of the file is enough to read it. It only counts
entries with a foreign address: where `foreign` is not zero, the collector must read the address column too.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.base import FOREIGN_SLICE, SEQUENCE_MAX

from .schema import chunk

__all__ = ["SliceSummary"]

VERSION: Final = 1
_HEAD: Final = struct.Struct("<IIQ")
_SLICE: Final = struct.Struct("<qIIII")
_SPARSE: Final = 0
_DENSE: Final = 1

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.uint32]


class SliceBitmap(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Hold the numbers of one slice that a range names.

    Either `words` has them, from `first_word` on, or the ascending `numbers`. The other one is None.
    """

    slice: int
    first_word: int
    words: Words | None
    numbers: Numbers | None

    def sequences(self) -> Numbers:
        """Return the numbers, ascending, each once."""
        if self.numbers is not None:
            return self.numbers
        assert self.words is not None
        bits = np.unpackbits(self.words.view(np.uint8), bitorder="little")
        return (np.flatnonzero(bits) + 64 * self.first_word).astype(np.uint32)

    @property
    def words_needed(self) -> int:
        """Return the number of words that a bitmap from word 0 needs to take this one in."""
        if self.words is not None:
            return self.first_word + len(self.words)
        assert self.numbers is not None
        return int(self.numbers[-1]) // 64 + 1

    def or_into(self, bitmap: Words) -> None:
        """Set our bits in a bitmap that starts at word 0 and has at least `words_needed` words."""
        if self.words is not None:
            bitmap[self.first_word : self.first_word + len(self.words)] |= self.words
            return
        assert self.numbers is not None
        bits = np.left_shift(np.uint64(1), (self.numbers & 63).astype(np.uint64))
        np.bitwise_or.at(bitmap, self.numbers >> 6, bits)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceSummary:
    """Hold bitmaps in ascending order of slice, and the number of entries with a foreign address."""

    bitmaps: tuple[SliceBitmap, ...]
    foreign: int


def summarise(entries: pa.Table) -> SliceSummary:
    """Summarise a table with the columns `slice` and `sequence`."""
    encoded = chunk(entries, "slice").dictionary_encode()
    slices, codes = encoded.dictionary.to_numpy(), encoded.indices.to_numpy()
    sequences = chunk(entries, "sequence").to_numpy()
    assert not len(sequences) or 0 <= sequences.min() <= sequences.max() <= SEQUENCE_MAX
    # One number for each address, in order of slice and then sequence: half the time of sorting by two columns.
    ascending = np.argsort(slices)
    ranks = np.empty(len(slices), dtype=np.int64)
    ranks[ascending] = np.arange(len(slices))
    places = ranks[codes] << 32 | sequences
    if (places[1:] < places[:-1]).any():
        # Objects written in the order of their paths, as bulk loads write them, need no sort.
        places = np.sort(places)
    ends = np.searchsorted(places, np.arange(1, len(slices) + 1) << 32).tolist()
    bitmaps, foreign = [], 0
    for slice_, start, end in zip(slices[ascending].tolist(), [0, *ends], ends, strict=False):
        if slice_ == FOREIGN_SLICE:
            foreign = end - start
        else:
            bitmaps.append(_bitmap(slice_, _unique(places[start:end].astype(np.uint32))))
    return SliceSummary(bitmaps=tuple(bitmaps), foreign=foreign)


def encode_summary(summary: SliceSummary) -> str:
    parts = [_HEAD.pack(VERSION, len(summary.bitmaps), summary.foreign)]
    items = [bitmap.numbers if bitmap.words is None else bitmap.words for bitmap in summary.bitmaps]
    for bitmap, values in zip(summary.bitmaps, items, strict=True):
        assert values is not None
        form = _SPARSE if bitmap.words is None else _DENSE
        parts.append(_SLICE.pack(bitmap.slice, form, bitmap.first_word, len(values), 0))
    parts += [values.tobytes() for values in items if values is not None]
    return base64.b64encode(b"".join(parts)).decode()


def decode_summary(text: bytes) -> SliceSummary:
    """Decode a summary. The caller names the file in its error.

    Raises:
        ValueError: the text is no summary, or one of a later version.
    """
    payload = base64.b64decode(text)
    if len(payload) < _HEAD.size:
        raise ValueError("no slice summary")
    version, count, foreign = _HEAD.unpack_from(payload)
    if version != VERSION:
        raise ValueError(f"slice summary of version {version}, and this release reads {VERSION}")
    bitmaps, start = [], _HEAD.size + count * _SLICE.size
    # Slices of one array of all items take half the time of an array for each bitmap.
    halves, at = np.frombuffer(payload, dtype="<u4", offset=start), 0
    for slice_, form, first_word, items, _ in _SLICE.iter_unpack(payload[_HEAD.size : start]):
        end = at + (2 * items if form == _DENSE else items)
        if end > len(halves):
            raise ValueError("the slice summary is cut short")
        values, words, numbers, at = halves[at:end], None, None, end
        if form == _DENSE:
            words = values.view(np.uint64)
        else:
            numbers = values
        bitmaps.append(SliceBitmap(slice=slice_, first_word=first_word, words=words, numbers=numbers))
    return SliceSummary(bitmaps=tuple(bitmaps), foreign=foreign)


def _bitmap(slice_: int, numbers: Numbers) -> SliceBitmap:
    first_word, last_word = int(numbers[0]) >> 6, int(numbers[-1]) >> 6
    if 8 * (last_word - first_word + 1) >= 4 * len(numbers):
        return SliceBitmap(slice=slice_, first_word=0, words=None, numbers=numbers)
    bits = np.zeros(64 * (last_word - first_word + 1), dtype=np.uint8)
    bits[numbers - np.uint32(64 * first_word)] = 1
    words = np.packbits(bits, bitorder="little").view("<u8")
    return SliceBitmap(slice=slice_, first_word=first_word, words=words, numbers=None)


def _unique(numbers: Numbers) -> Numbers:
    """Drop repeated numbers: two entries may share an object (a shallow copy)."""
    return numbers[np.concatenate(([True], numbers[1:] != numbers[:-1]))]
