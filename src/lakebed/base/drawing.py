"""Geometry of charts: numbers in, places out. The report of a plan and the page draw with it, each in its own words.

Lengths are parts of the width or height of the chart, from 0 to 100. Nothing here knows markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

WHOLE: Final = 100.0


class Bar(NamedTuple):
    """A stretch of a line: where it begins, and its length."""

    start: float
    length: float


def bars(values: Sequence[float]) -> list[Bar]:
    """Return a bar for each value, from 0. The largest value takes the whole length; none is larger than it."""
    largest = max((value for value in values if value > 0), default=1.0)
    return [Bar(0.0, round(WHOLE * max(0.0, value) / largest, 2)) for value in values]


def shares(values: Sequence[float]) -> list[Bar]:
    """Return a stretch for each part of a whole, one behind the other."""
    whole = sum(max(0.0, value) for value in values) or 1.0
    stretches: list[Bar] = []
    at = 0.0
    for value in values:
        length = WHOLE * max(0.0, value) / whole
        stretches.append(Bar(round(at, 2), round(length, 2)))
        at += length
    return stretches
