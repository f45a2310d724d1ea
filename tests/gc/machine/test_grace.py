"""The readers' grace: how long it is, what is left of it, and that a wait ends."""

from __future__ import annotations

import pytest

from lakebed.base import SERVED_S, SIGNED_S, grace_s_of
from lakebed.gc import BadGrace
from lakebed.gc.machine.sweep import let_readers_finish, remaining_ms
from lakebed.runtime import LiveClock
from tests.clocks import TurnableClock


@pytest.mark.parametrize(
    ("uri", "asked_s", "expected_s"),
    [
        ("local://lake", None, SERVED_S),
        ("s3://bucket/lake", None, SIGNED_S),
        ("s3://bucket/lake", 0, 0),
        ("local://lake", 3600, 3600),
    ],
)
def test_who_may_hold_a_signed_url_is_given_as_long_as_it_lasts(uri: str, asked_s: int | None, expected_s: int) -> None:
    assert grace_s_of(uri, asked_s) == expected_s


def test_less_than_no_grace_is_refused() -> None:
    with pytest.raises(BadGrace, match="-1 seconds"):
        grace_s_of("local://lake", -1)


@pytest.mark.parametrize(
    ("since_ms", "now_ms", "left_ms"),
    [(1000, 1000, 60_000), (1000, 31_000, 30_000), (1000, 61_000, 0), (1000, 900_000, 0), (50_000, 1000, 60_000)],
)
def test_what_has_passed_counts_and_a_clock_set_back_does_not(since_ms: int, now_ms: int, left_ms: int) -> None:
    assert remaining_ms(since_ms, now_ms, 60) == left_ms


async def no_check() -> None:
    """No other apply began."""


async def test_a_grace_that_is_over_is_not_waited_for() -> None:
    told: list[str] = []

    await let_readers_finish(0, 60, clock=LiveClock(), check=no_check, progress=told.append)

    assert told == []


async def test_a_wait_takes_the_whole_grace_whatever_the_clock_does_meanwhile() -> None:
    class Jumping(TurnableClock):
        slept_s = 0.0

        async def sleep(self, seconds: float) -> None:
            self.slept_s += seconds
            self.ms += 3_600_000

    clock = Jumping()

    await let_readers_finish(clock.ms, 60, clock=clock, check=no_check, progress=lambda _: None)

    assert clock.slept_s == 60


async def test_a_wait_is_announced_and_ends_with_an_error_where_another_apply_began() -> None:
    class Overtaken(Exception):
        pass

    told: list[str] = []
    checks = iter([False, False, True])

    async def check() -> None:
        if next(checks):
            raise Overtaken

    with pytest.raises(Overtaken):
        await let_readers_finish(2**52, 7200, clock=TurnableClock(), check=check, progress=told.append)

    assert told == ["waiting 7200 s for readers of what goes"]
