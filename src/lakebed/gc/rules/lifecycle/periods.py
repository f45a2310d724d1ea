"""Read a rule's period for objects: `10d`, `36h`, `2w`, `6mo`, `forever`, rounded to a full day or hour in UTC.

Count days, weeks and months back from the midnight before now, and hours back from the full hour before now. So
rounding never makes an object due early.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from lakebed.base import np, npt
from lakebed.gc.rules.rules import DAY_MS, HOUR_MS, Duration, parse_duration

Instants: TypeAlias = "npt.NDArray[np.int64]"

__all__ = ["NEVER_MS", "Period", "latest_due", "parse_period"]

NEVER_MS = (1 << 62) - 1
"""Later than every date."""


@dataclass(frozen=True, slots=True)
class Period:
    duration: Duration

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the cutoff: objects written before it are due now."""
        return self.duration.before_ms(now_ms - now_ms % self.step_ms)

    def due_ms(self, written_ms: int) -> int:
        """Return the first instant at which `cutoff_ms` is later than `written_ms`, or NEVER_MS."""
        if not self.duration.unit:
            return NEVER_MS
        # Round up: until a full day or hour is complete, the earlier one applies.
        over_ms = self.duration.over_ms(written_ms, written_ms)
        assert over_ms is not None, "only `forever` has no end"
        due_ms = -(-over_ms // self.step_ms) * self.step_ms
        # At the end of a month several days have one date months before, so the next midnight may be too early.
        while self.cutoff_ms(due_ms) <= written_ms:
            due_ms += self.step_ms
        return due_ms

    @property
    def step_ms(self) -> int:
        return HOUR_MS if self.duration.unit == "h" else DAY_MS


def latest_due(periods: Sequence[Period], written_ms: Instants) -> Instants:
    """Return for each instant the latest `due_ms` of these periods. Needs at least one period."""
    by_step: dict[int, list[Period]] = {}
    for period in periods:
        by_step.setdefault(period.step_ms, []).append(period)
    first, *rest = (_latest_of_steps(step_ms, some, written_ms) for step_ms, some in by_step.items())
    for found in rest:
        first = np.maximum(first, found)
    return first


def _latest_of_steps(step_ms: int, periods: Sequence[Period], written_ms: Instants) -> Instants:
    # Cutoffs are full days or hours, so all instants of one day or hour are due together.
    steps = written_ms // step_ms
    if not len(steps):
        return steps
    first, last = int(steps.min()), int(steps.max())
    if last - first > _STEPS_MAX:
        distinct, places = np.unique(steps, return_inverse=True)
        return np.array([_due_of_step(periods, step) for step in distinct.tolist()], np.int64)[places]
    # Most ranges cover few days. A look-up by day is ten times as fast as `unique`.
    return np.array([_due_of_step(periods, step) for step in range(first, last + 1)], np.int64)[steps - first]


_STEPS_MAX: Final = 1_000


def _due_of_step(periods: Sequence[Period], step: int) -> int:
    return max([_due_of_one(period, step) for period in periods])


@functools.lru_cache(maxsize=100_000)
def _due_of_one(period: Period, step: int) -> int:
    return period.due_ms(step * period.step_ms)


@functools.lru_cache(maxsize=1024)
def parse_period(text: str) -> Period:
    """Read a period, or raise InvalidDuration."""
    return Period(parse_duration(text))
