"""The live ports keeps what the ports promise."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from lakebed.base import Ports
from lakebed.runtime import LiveIds, live_ports
from lakebed.runtime.live import SWITCH_S

DIGITS = "0123456789abcdefghijklmnopqrstuv"


@pytest.fixture
def ports() -> Ports:
    return live_ports()


def test_a_fresh_name_is_20_characters_of_base_32(ports: Ports) -> None:
    for _ in range(1000):
        name = ports.ids.fresh()

        assert len(name) == 20
        assert set(name) <= set(DIGITS)


def test_a_fresh_name_begins_with_the_time(ports: Ports) -> None:
    before_ms = time.time_ns() // 1_000_000
    number = int(ports.ids.fresh(), 32)
    after_ms = time.time_ns() // 1_000_000

    assert number.bit_length() <= 100
    assert before_ms <= number >> 52 <= after_ms


def test_fresh_names_ascend_and_never_repeat(ports: Ports) -> None:
    names = [ports.ids.fresh() for _ in range(20_000)]

    assert names == sorted(set(names))


def test_a_clock_that_goes_back_repeats_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = LiveIds()
    now_ns = time.time_ns()
    names = []
    for step in (0, -3600, -7200, 1, -1):
        monkeypatch.setattr(time, "time_ns", lambda step=step: now_ns + step * 1_000_000_000)
        names += [ids.fresh() for _ in range(100)]

    assert names == sorted(set(names))


def test_threads_share_no_name(ports: Ports) -> None:
    names: list[str] = []

    def make() -> None:
        names.extend([ports.ids.fresh() for _ in range(2000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(names)) == 8000


def test_processes_that_start_in_the_same_millisecond_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)

    assert len({LiveIds().fresh() for _ in range(1000)}) == 1000


def test_bits_are_as_many_as_asked_for(ports: Ports) -> None:
    drawn = [ports.ids.bits(7) for _ in range(2000)]

    assert set(drawn) <= set(range(128))
    assert len(set(drawn)) > 64


async def test_the_clock_tells_unix_milliseconds_and_sleeps(ports: Ports) -> None:
    before_ms = time.time_ns() // 1_000_000

    await ports.clock.sleep(0.005)

    assert before_ms + 4 <= ports.clock.now_ms() <= time.time_ns() // 1_000_000


async def test_results_are_in_the_order_of_what_was_gathered(ports: Ports) -> None:
    async def after(seconds: float, value: int) -> int:
        await ports.clock.sleep(seconds)
        return value

    assert await ports.tasks.gather([after(0.01, 1), after(0.0, 2), after(0.005, 3)]) == [1, 2, 3]
    assert await ports.tasks.gather([after(0.0, 1)]) == [1]
    assert await ports.tasks.gather([]) == []


async def test_the_first_error_is_raised_after_all_have_ended(ports: Ports) -> None:
    ended = []
    turns = [asyncio.Event() for _ in range(4)]
    turns[0].set()

    async def end(turn: int, error: Exception | None) -> None:
        await turns[turn].wait()
        ended.append(turn)
        turns[turn + 1].set()
        if error is not None:
            raise error

    with pytest.raises(KeyError):
        await ports.tasks.gather([end(1, KeyError()), end(0, ValueError()), end(2, None)])

    assert ended == [0, 1, 2]


async def test_cancelling_a_gathering_cancels_what_it_gathered(ports: Ports) -> None:
    waiting, cancelled = [], []

    async def wait(name: str) -> None:
        waiting.append(name)
        try:
            await ports.tasks.event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    gathering = asyncio.ensure_future(ports.tasks.gather([wait("a"), wait("b")]))
    while len(waiting) < 2:  # noqa: ASYNC110 - few turns of the loop
        await asyncio.sleep(0)
    gathering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathering

    assert sorted(cancelled) == ["a", "b"]


async def test_an_event_once_set_stays_set_for_all(ports: Ports) -> None:
    event = ports.tasks.event()
    waiting = [asyncio.ensure_future(event.wait(timeout)) for timeout in (None, 60.0)]
    await asyncio.sleep(0)
    assert not event.is_set()

    event.set()
    event.set()

    assert event.is_set()
    assert await asyncio.gather(*waiting) == [True, True]
    assert await event.wait() is True
    assert await event.wait(0.0) is True


async def test_a_wait_ends_at_its_timeout(ports: Ports) -> None:
    event = ports.tasks.event()

    assert await event.wait(0.001) is False
    assert await event.wait(0.0) is False
    assert not event.is_set()


async def test_turns_of_threads_are_short_beside_work_apart_and_as_before_after_it(ports: Ports) -> None:
    """A program that imports Lakebed may have chosen another interval since."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(0.002)
    try:
        meanwhile_s = await ports.tasks.apart(sys.getswitchinterval)
        after_s = sys.getswitchinterval()
    finally:
        sys.setswitchinterval(usual_s)

    assert meanwhile_s == pytest.approx(SWITCH_S)
    assert after_s == pytest.approx(0.002)
