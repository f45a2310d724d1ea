"""Durations: what is understood, what is refused, and what a calendar month is."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.gc.rules import DAY_MS, DAYS_MAX, InvalidDuration, parse_duration, parse_lifetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOWS = st.datetimes(datetime(2001, 1, 1), datetime(2400, 1, 1)).map(lambda found: found.replace(microsecond=0))  # noqa: DTZ001 - the zone is added below


def ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def before(text: str, moment: datetime) -> datetime:
    return EPOCH + timedelta(milliseconds=parse_duration(text).before_ms(ms(moment)))


@pytest.mark.parametrize(("text", "hours"), [("1h", 1), ("36h", 36), ("20d", 480), ("2w", 336)])
def test_hours_days_and_weeks_are_fixed(text: str, hours: int) -> None:
    now = datetime(2026, 3, 31, 10, tzinfo=UTC)

    assert before(text, now) == now - timedelta(hours=hours)


@pytest.mark.parametrize(
    ("text", "now", "then"),
    [
        ("1mo", (2026, 3, 31, 10), (2026, 2, 28, 10)),
        ("1mo", (2028, 3, 31, 10), (2028, 2, 29, 10)),
        ("2mo", (2026, 4, 30, 0), (2026, 2, 28, 0)),
        ("6mo", (2026, 8, 15, 23), (2026, 2, 15, 23)),
        ("12mo", (2028, 2, 29, 1), (2027, 2, 28, 1)),
        ("13mo", (2026, 1, 1, 0), (2024, 12, 1, 0)),
    ],
)
def test_a_month_is_the_same_day_of_an_earlier_month_or_its_last(
    text: str, now: tuple[int, int, int, int], then: tuple[int, int, int, int]
) -> None:
    assert before(text, datetime(*now, tzinfo=UTC)) == datetime(*then, tzinfo=UTC)


@given(now=NOWS, months=st.integers(1, 600))
def test_months_agree_with_the_calendar(now: datetime, months: int) -> None:
    now = now.replace(tzinfo=UTC)
    year, month = divmod(now.year * 12 + now.month - 1 - months, 12)
    day = min(now.day, calendar.monthrange(year, month + 1)[1])

    assert before(f"{months}mo", now) == now.replace(year=year, month=month + 1, day=day)


@given(now=NOWS, text=st.sampled_from(["1h", "25h", "3d", "2w", "1mo", "2mo", "6mo", "12mo", "100mo"]))
def test_the_days_that_are_shown_for_a_duration_are_never_fewer_than_it_is(now: datetime, text: str) -> None:
    now_ms = ms(now.replace(tzinfo=UTC))
    duration = parse_duration(text)

    assert now_ms - duration.days_at_most() * DAY_MS <= duration.before_ms(now_ms)


@pytest.mark.parametrize(
    ("text", "days"), [("1h", 1), ("36h", 2), ("48h", 2), ("2w", 14), ("1mo", 31), ("2mo", 62), ("12mo", 366)]
)
def test_the_days_that_are_shown_are_the_closest(text: str, days: int) -> None:
    assert parse_duration(text).days_at_most() == days


def test_for_ever_goes_back_before_every_date_and_shows_as_the_most_days() -> None:
    assert parse_duration("forever").before_ms(0) < -(10**15)
    assert parse_duration("forever").days_at_most() == DAYS_MAX


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("20", "no unit"),
        ("3m", "minutes or months"),
        ("5y", "unknown unit 'y'"),
        ("5D", "not a duration"),
        ("0d", "too short"),
        ("-4d", "too short"),
        ("04d", "is spelled 4d"),
        ("+4d", "is spelled 4d"),
        ("1.5d", "not a duration"),
        ("4 d", "not a duration"),
        ("1mo2d", "not a duration"),
        ("٤d", "not a duration"),
        ("", "not a duration"),
        ("366001d", "thousand years"),
        ("12001mo", "thousand years"),
        ("99999999999999999999h", "thousand years"),
    ],
)
def test_what_is_no_duration_is_refused_saying_why(text: str, words: str) -> None:
    with pytest.raises(InvalidDuration, match=words):
        parse_duration(text)


@pytest.mark.parametrize("text", ["5m", "5min"])
def test_what_is_made_may_last_minutes_and_no_rule_of_retention_may(text: str) -> None:
    assert parse_lifetime(text).over_ms(0, 0) == 5 * 60_000 + 1
    assert parse_lifetime("2d") == parse_duration("2d")
    with pytest.raises(InvalidDuration):
        parse_duration(text)
