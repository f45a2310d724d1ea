"""Geometry of charts: numbers in, positions out. The report of a plan and the web page both draw with it.

Lengths are percentages of the chart's width or height, from 0 to 100. This module writes no markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

__all__ = ["WHOLE", "Bar", "Dot", "bars", "curve", "graph", "posts", "shares", "size_ticks", "spans"]

WHOLE: Final = 100.0
TICKS_MAX: Final = 4


class Bar(NamedTuple):
    """A section of a line: its start and its length."""

    start: float
    length: float


class Post(NamedTuple):
    """A point on a time axis, and its height."""

    at: float
    height: float


def posts(times: Sequence[float], values: Sequence[float]) -> list[Post]:
    """Return a post for each time: the first at 0, the last at the whole width. The largest value is the highest."""
    first, last = min(times, default=0.0), max(times, default=0.0)
    heights = [bar.length for bar in bars(values)]
    span = (last - first) or 1.0
    return [Post(round(WHOLE * (time - first) / span, 2), height) for time, height in zip(times, heights, strict=True)]


class Dot(NamedTuple):
    """A point of a curve. `y` is counted from the top, as SVG does."""

    x: float
    y: float


def curve(times: Sequence[float], values: Sequence[float], *, highest: float) -> list[Dot]:
    """Return the points of a curve over its times, from the left edge to the right. `highest` reaches the top."""
    first, span = min(times, default=0.0), (max(times, default=0.0) - min(times, default=0.0)) or 1.0
    scale = WHOLE / (highest or 1.0)
    return [
        Dot(round(WHOLE * (time - first) / span, 2), round(WHOLE - scale * value, 2))
        for time, value in zip(times, values, strict=True)
    ]


def size_ticks(highest: int) -> list[int]:
    """Return even steps of bytes from 0 to at least the highest value: at most four, each round in its unit."""
    unit = 1
    while highest >= unit * 1024:
        unit *= 1024
    steps = (unit * mantissa * 10**power for power in range(4) for mantissa in (1, 2, 5))
    step = next(each for each in [unit // 4 or 1, unit // 2 or 1, *steps] if each * TICKS_MAX >= highest)
    return [step * count for count in range(max(1, -(-highest // step)) + 1)]


def spans(sections: Sequence[tuple[float | None, float | None]], *, start: float, end: float) -> list[Bar]:
    """Return a section of a time axis for each pair of times. A missing time reaches to that edge of the axis."""
    scale = WHOLE / ((end - start) or 1.0)

    def place(time: float | None, edge: float) -> float:
        return scale * (min(max(edge if time is None else time, start), end) - start)

    drawn = [(place(first, start), place(last, end)) for first, last in sections]
    return [Bar(round(first, 2), round(max(0.0, last - first), 2)) for first, last in drawn]


class Knot(NamedTuple):
    """A commit in a drawn history: its lane, the lanes that wait above it, and the lines from its row to the next."""

    lane: int
    above: tuple[int, ...]
    lines: tuple[tuple[int, int], ...]


def graph(history: Iterable[tuple[str, Sequence[str]]]) -> list[Knot]:
    """Return a knot for each commit, given its id and its parents, children first.

    A lane is a commit that follows later. A merge opens lanes at its right; lanes that wait for one commit join.
    """
    lanes: list[str] = []
    knots: list[Knot] = []
    for commit, parents in history:
        above = tuple(range(len(lanes)))
        if commit not in lanes:
            lanes.append(commit)
        lane = lanes.index(commit)
        following = list(dict.fromkeys([*lanes[:lane], *parents, *lanes[lane + 1 :]]))
        lines = [(at, following.index(each)) for at, each in enumerate(lanes) if at != lane]
        lines += [(lane, following.index(parent)) for parent in parents]
        knots.append(Knot(lane, above, tuple(lines)))
        lanes = following
    return knots


def bars(values: Sequence[float]) -> list[Bar]:
    """Return a bar from 0 for each value. The largest value has the whole length."""
    largest = max((value for value in values if value > 0), default=1.0)
    return [Bar(0.0, round(WHOLE * max(0.0, value) / largest, 2)) for value in values]


def shares(values: Sequence[float]) -> list[Bar]:
    """Return a section for each part of a whole, one after the other."""
    whole = sum(max(0.0, value) for value in values) or 1.0
    stretches: list[Bar] = []
    at = 0.0
    for value in values:
        length = WHOLE * max(0.0, value) / whole
        stretches.append(Bar(round(at, 2), round(length, 2)))
        at += length
    return stretches
