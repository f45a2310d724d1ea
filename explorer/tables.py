"""Whole numbers to whole numbers, a million look-ups at a time: what the explorer walks by, in numpy arrays.

A look-up is two gathers where a dictionary would be a million calls. Filling is one at a time, for each new entry is
the outcome of running real code, which costs a hundred times more.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

ABSENT: Final = -1
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)


class NumberMap:
    """Keys and values are 0 or more. Open addressing, at most a third full."""

    __slots__ = ("_count", "_keys", "_shift", "_values")

    def __init__(self, bits: int = 10) -> None:
        self._count = 0
        self._shift = np.uint64(64 - bits)
        self._keys: Numbers = np.full(1 << bits, ABSENT, np.int64)
        self._values: Numbers = np.full(1 << bits, ABSENT, np.int64)

    def __len__(self) -> int:
        return self._count

    def items(self) -> tuple[Numbers, Numbers]:
        """Return all keys, in no order, and the value of each."""
        held = self._keys != ABSENT
        return self._keys[held], self._values[held]

    def find(self, keys: Numbers) -> Numbers:
        """Return the value of each key, or ABSENT."""
        places = (keys.astype(np.uint64) * _SPREAD >> self._shift).astype(np.int64)
        held = self._keys[places]
        found: Numbers = np.where(held == keys, self._values[places], ABSENT)
        mask = len(self._keys) - 1
        rows = np.flatnonzero((held != keys) & (held != ABSENT))
        places = places[rows]
        while len(rows):
            places = places + 1 & mask
            held = self._keys[places]
            hit = held == keys[rows]
            found[rows[hit]] = self._values[places[hit]]
            on = ~hit & (held != ABSENT)
            rows, places = rows[on], places[on]
        return found

    def put(self, key: int, value: int) -> None:
        """Put a key that is not there yet."""
        if self._count * 3 >= len(self._keys):
            self._grow()
        self._place(key, value)
        self._count += 1

    def _place(self, key: int, value: int) -> None:
        place = (key * int(_SPREAD) & _WORD) >> int(self._shift)
        mask = len(self._keys) - 1
        while self._keys[place] != ABSENT:
            place = place + 1 & mask
        self._keys[place] = key
        self._values[place] = value

    def _grow(self) -> None:
        keys, values = self._keys, self._values
        bits = len(keys).bit_length() + 1
        self._shift = np.uint64(64 - bits)
        self._keys = np.full(1 << bits, ABSENT, np.int64)
        self._values = np.full(1 << bits, ABSENT, np.int64)
        for place in np.flatnonzero(keys != ABSENT):
            self._place(int(keys[place]), int(values[place]))


_WORD: Final = (1 << 64) - 1


class Column:
    """One number for each of a growing list of things."""

    __slots__ = ("_count", "_held")

    def __init__(self, kind: Any = np.int64) -> None:
        self._count = 0
        self._held: npt.NDArray[Any] = np.zeros(64, kind)

    def set(self, place: int, value: int) -> None:
        while place >= len(self._held):
            self._held = np.concatenate([self._held, np.zeros_like(self._held)])
        self._held[place] = value
        self._count = max(self._count, place + 1)

    def append(self, value: int) -> None:
        self.set(self._count, value)

    def take(self, places: Numbers) -> npt.NDArray[Any]:
        """Return the numbers of these places. What was never set is 0."""
        return self._held[places]
