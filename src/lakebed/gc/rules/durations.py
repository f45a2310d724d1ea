"""Read durations: `36h`, `20d`, `2w`, `6mo`, `forever`. A number without a unit is refused.

Hours, days and weeks are fixed: a day is always 24 hours. A month is a calendar month in UTC, counted back from the
run's now: the same day of the month and time of day, or the last day of a shorter month. So `1mo` before 31 March
10:00 is 28 February 10:00 (29 in a leap year).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakebed.base import Invalid, Later

if TYPE_CHECKING:
    import numpy as np
else:  # imported on first use: a plain install has no numpy, and most functions here need none
    np = Later("numpy")

__all__ = ["DAYS_MAX", "DAY_MS", "FOREVER", "HOUR_MS", "InvalidDuration", "parse_duration"]

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
DAYS_MAX: Final = 366_000
"""A thousand years: a longer period is a typing error."""
MONTHS_MAX: Final = 12_000
FOREVER: Final = "forever"
SINCE_EVER_MS: Final = -(1 << 62)
"""Earlier than every date."""

_FORM: Final = re.compile(r"([+-]?[0-9]+)([a-z]*)")
_UNITS_MS: Final = {"h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_MAXIMA: Final = {"h": DAYS_MAX * 24, "d": DAYS_MAX, "w": DAYS_MAX // 7, "mo": MONTHS_MAX}
_KNOWN: Final = "say 36h (hours), 20d (days), 2w (weeks), 6mo (calendar months) or forever"
_CYCLE_MONTHS: Final = 4_800
"""The Gregorian calendar repeats after 400 years."""


class InvalidDuration(Invalid):
    """The text is not a duration, or is out of bounds."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Hold an amount and its unit: h, d, w or mo, or an empty unit for `forever`."""

    amount: int
    unit: str

    def before_ms(self, now_ms: int) -> int:
        """Return the instant that is this duration before now. An event at that instant is within the duration."""
        if not self.unit:
            return SINCE_EVER_MS
        if self.unit == "mo":
            return _months_before(now_ms, self.amount)
        return now_ms - self.amount * _UNITS_MS[self.unit]

    def over_ms(self, event_ms: int, from_ms: int) -> int | None:
        """Return the first instant from `from_ms` on at which an event is no longer within the duration, or None."""
        if not self.unit:
            return None
        if self.unit == "mo":
            return _months_over(event_ms, self.amount, from_ms)
        return max(from_ms, event_ms + self.amount * _UNITS_MS[self.unit] + 1)

    def days_at_most(self) -> int:
        """Return the fewest whole days that are never shorter, whatever the date. DAYS_MAX stands for `forever`."""
        if not self.unit:
            return DAYS_MAX
        if self.unit == "mo":
            return _days_of_months(self.amount)
        return -(-self.amount * _UNITS_MS[self.unit] // DAY_MS)


@functools.lru_cache(maxsize=1024)
def parse_duration(text: str) -> Duration:
    """Read a duration.

    Raises:
        InvalidDuration: no unit, an unknown unit, an amount of zero or less, or over a thousand years.
    """
    if text == FOREVER:
        return Duration(0, "")
    found = _FORM.fullmatch(text)
    if found is None or not text.isascii():
        raise InvalidDuration(f"{text!r} is not a duration: {_KNOWN}", duration=text)
    number, unit = found.groups()
    if not unit:
        raise InvalidDuration(f"{text!r} has no unit: {_KNOWN}", duration=text)
    if unit == "m":
        raise InvalidDuration(f"{text!r} could mean minutes or months: {_KNOWN}", duration=text)
    if unit not in _MAXIMA:
        raise InvalidDuration(f"{text!r} has the unknown unit {unit!r}: {_KNOWN}", duration=text)
    if number.startswith("-") or not number.strip("+0"):
        raise InvalidDuration(f"{text!r} is too short: the least is 1h", duration=text)
    if number[0] in "+0":
        raise InvalidDuration(f"{text!r} is spelled {number.lstrip('+0')}{unit}", duration=text)
    if len(number) > 9 or int(number) > _MAXIMA[unit]:
        raise InvalidDuration(f"{text!r} is over a thousand years; say forever if that is meant", duration=text)
    return Duration(int(number), unit)


def _months_over(event_ms: int, months: int, from_ms: int) -> int:
    """Return the first instant from `from_ms` on that is more than `months` after the event.

    In the month that is `months` after the event's, the day and time of the event decide. Every later month is beyond.
    """
    month = np.datetime64(event_ms // DAY_MS, "D").astype("M8[M]") + months
    instant = max(from_ms, int(month.astype("M8[D]").astype(np.int64)) * DAY_MS)
    beyond = int((month + 1).astype("M8[D]").astype(np.int64)) * DAY_MS
    # If the event's day is the last of its month, every later day of the other month maps back to it. So each of these
    # days may begin within the duration and end beyond it.
    while instant < beyond:
        before_ms = _months_before(instant, months)
        if before_ms > event_ms:
            return instant
        tomorrow = (instant // DAY_MS + 1) * DAY_MS
        instant = min(instant + event_ms - before_ms + 1, tomorrow)
    return max(instant, beyond)


def _months_before(now_ms: int, months: int) -> int:
    # Count all months in one step: `2mo` before 30 April is 28 February, and not `1mo` before 30 March. A shorter month
    # gives its last day and does not roll over: the earlier date keeps more.
    day, time_ms = divmod(now_ms, DAY_MS)
    month = np.datetime64(day, "D").astype("M8[M]")
    first = month.astype("M8[D]").astype(np.int64)
    target = month - months
    start = int(target.astype("M8[D]").astype(np.int64))
    length = int((target + 1).astype("M8[D]").astype(np.int64)) - start
    return (start + min(day - int(first), length - 1)) * DAY_MS + time_ms


@functools.lru_cache(maxsize=256)
def _days_of_months(months: int) -> int:
    """Return the most days that this many months can have: from the last day of each month of the calendar's cycle."""
    ends = np.arange(months, months + _CYCLE_MONTHS)
    firsts = np.arange(0, months + _CYCLE_MONTHS + 1).astype("M8[M]").astype("M8[D]").astype(np.int64)
    lengths = np.diff(firsts)
    last_days = firsts[ends] + lengths[ends]
    starts = firsts[ends - months] + np.minimum(lengths[ends], lengths[ends - months])
    return int((last_days - starts).max())
