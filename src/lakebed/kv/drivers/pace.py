"""Learn how many requests a second a database that throttles lets through, and ask for no more.

- Until it throttles, nothing waits. FORGET_S after it last did, nothing waits again.
- A refusal lowers the rate to BETA of what was answered, once for all requests that were under way together.
- Then the rate grows by the curve of CUBIC (RFC 9438): fast, flat near where it fell, fast again beyond. AWS's clients
  do the same in their adaptive mode.
- Each partition learns alone: one that is hot holds up no other.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, cast

from .remote import PAUSE_S_MAX, Passing

T = TypeVar("T")

BETA: Final = 0.7
GROWTH: Final = 0.4
"""In requests a second, for each second cubed."""
RATE_MIN: Final = 5.0
BURST_S: Final = 0.25
"""So many seconds of requests may come at once, after a pause."""
SAMPLE_S: Final = 0.5
NEW_SHARE: Final = 0.8
"""Of the latest sample, in what is measured."""
FORGET_S: Final = 60.0
PACES_MAX: Final = 1024
"""Of the partitions that were used last."""


class Throttled(Passing):
    """The database refused it for the sake of its load. Among its facts, `pause_s` is the pause that it asks for."""


class Pace:
    """The rate of one partition. Times are those of the event loop; units are requests, or keys of a batch."""

    def __init__(self) -> None:
        self._fell_at = -math.inf
        self._fell_from = 0.0
        self._tokens = 0.0
        """Below zero: what waits already."""
        self._filled_at = 0.0
        self._measured: float | None = None
        self._sample = 0
        self._sample_since = -math.inf

    async def run(
        self, work: Callable[[], Awaitable[T]], units: int = 1, *, left: Callable[[T], int] = lambda _: 0
    ) -> T:
        """Wait for a turn, and learn from what becomes of the work. `left`: units that its answer hands back.

        Raises:
            Throttled: the turn would come too late, so nothing was sent; or what the work raises.
        """
        sent_at = await self._turn(units)
        refused, pause_s = 0, 0.0
        try:
            answer = await work()
            refused = left(answer)
        except Throttled as error:
            refused, pause_s = units, cast("float", error.facts.get("pause_s", 0.0))
            raise
        finally:
            self.answered(sent_at, taken=units - refused, refused=refused)
            if pause_s:
                await asyncio.sleep(pause_s)
        return answer

    async def _turn(self, units: int) -> float:
        """Wait for a turn. Returns its time."""
        loop = asyncio.get_running_loop()
        began = now = loop.time()
        while True:
            asked_at, wait_s = now, self._take(now, units)
            if wait_s == 0:
                return now
            if now + wait_s > began + PAUSE_S_MAX:
                self._tokens += units
                raise Throttled(f"it lets {self.rate(now):.0f} requests a second through, and too many wait")
            await asyncio.sleep(wait_s)
            now = loop.time()
            if self._fell_at <= asked_at:
                return now

    def turn_now(self, units: int) -> float | None:
        """Take a turn. Returns its time, for `answered`; None where it would be a later one."""
        now = asyncio.get_running_loop().time()
        if self._take(now, units) == 0:
            return now
        self._tokens += units
        return None

    def rate(self, now: float) -> float:
        """Return how many units a second may be sent. Infinite where nothing waits."""
        since_s = now - self._fell_at
        if since_s > FORGET_S:
            return math.inf
        level_s = math.cbrt(self._fell_from * (1 - BETA) / GROWTH)
        return max(RATE_MIN, self._fell_from + GROWTH * (since_s - level_s) ** 3)

    def _take(self, now: float, units: int) -> float:
        """Take so many units. Returns for how many seconds the caller has to wait before it sends them."""
        rate = self.rate(now)
        if rate == math.inf:
            return 0.0
        self._tokens = min(self._tokens + (now - self._filled_at) * rate, max(1.0, rate * BURST_S))
        self._filled_at = now
        self._tokens -= units
        return max(0.0, -self._tokens / rate)

    def answered(self, sent_at: float, *, taken: int, refused: int) -> None:
        """Learn from an answer to so many units, sent at the time of their turn."""
        now = asyncio.get_running_loop().time()
        if now - self._sample_since >= SAMPLE_S:
            self._end_sample(now)
        self._sample += taken
        if refused and sent_at > self._fell_at:  # what was under way at the last fall tells nothing new
            self._fall(now)

    def _end_sample(self, now: float) -> None:
        if self._sample_since > -math.inf:
            found = self._sample / (now - self._sample_since)
            before = found if self._measured is None else self._measured
            self._measured = NEW_SHARE * found + (1 - NEW_SHARE) * before
        self._sample, self._sample_since = 0, now

    def _fall(self, now: float) -> None:
        rate, measured = self.rate(now), self._measured
        if measured is None:
            measured = self._sample / max(now - self._sample_since, SAMPLE_S / 5)
        self._tokens = 0.0  # who waits asks again
        self._fell_from = max(RATE_MIN / BETA, min(rate, measured))
        self._fell_at = self._filled_at = now


class Paces:
    """A pace for each partition."""

    def __init__(self) -> None:
        self._of: dict[bytes | str, Pace] = {}

    def of(self, partition: bytes | str) -> Pace:
        found = self._of.pop(partition, None) or Pace()
        self._of[partition] = found  # the one used last stands last
        if len(self._of) > PACES_MAX:
            del self._of[next(iter(self._of))]
        return found
