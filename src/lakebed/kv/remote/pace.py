"""Learn the request rate that a throttling database accepts, and spread the requests to that rate.

- Until the database throttles, no request waits. FORGET_S after the last refusal, no request waits again.
- No request waits here for longer than WAIT_S_MAX; then it is sent. So a pace refuses and starves no request: at worst
  the database refuses a request that it would have refused anyway.
- A refusal lowers the rate to BETA of the measured rate, once for all requests that were under way together.
- Then the rate grows by the curve of CUBIC (RFC 9438): fast, flat near the rate of the refusal, fast again beyond.
  AWS's clients do the same in their adaptive mode.
- Each limit of the database has its own pace, by name: one throttled partition delays no other.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar, cast

from lakebed.base import OutcomeUnknown

from .store import WAIT_S, Passing

T = TypeVar("T")

BETA: Final = 0.7
GROWTH: Final = 0.4
"""In requests a second, for each second cubed."""
RATE_MIN: Final = 5.0
BURST_S: Final = 0.25
"""After a pause, the requests of this time may be sent at once. A batch waits for no more than this, and owes the
rest.
"""
WAIT_S_MAX: Final = 2.0
WAIT_SHARE: Final = 0.2
"""The longest turn, as a share of the time within which the caller repeats a refused request."""
SAMPLE_S: Final = 0.5
NEW_SHARE: Final = 0.8
"""The weight of the latest sample in the measured rate."""
FORGET_S: Final = 60.0
PACES_MAX: Final = 1024
"""The number of paces to keep: those used last, and all that throttle now."""


class Throttled(Passing):
    """The database refused a request because of its load. The fact `pause_s` is the pause that the database asks
    for.
    """


class Pace:
    """The rate of one partition. Times are those of the event loop; units are requests, or keys of a batch."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        """`wait_s`: how long the caller repeats a refused request."""
        self._wait_s_max = min(WAIT_S_MAX, WAIT_SHARE * wait_s)
        self._fell_at = -math.inf
        self._fell_from = 0.0
        self._tokens = 0.0
        """Below zero while requests wait."""
        self._filled_at = 0.0
        self._measured: float | None = None
        self._sample = 0
        self._sample_since = -math.inf

    async def run(
        self,
        work: Callable[[], Awaitable[T]],
        units: int = 1,
        *,
        left: Callable[[T], int] = lambda _: 0,
        waits: bool = True,
    ) -> T:
        """Wait for a turn, carry out the work, and learn from its outcome. `left`: units that its answer hands back.

        Without `waits` the work begins at once and is not charged: `overdraw` charged it.
        """
        sent_at = await self._turn(units) if waits else asyncio.get_running_loop().time()
        try:
            answer = await work()
        except Throttled as error:
            self.answered(sent_at, taken=0, refused=units)
            await pause_asked_for(error)
            raise
        except (Passing, OutcomeUnknown):  # no answer, so no sign of a limit
            raise
        except Exception:  # an answer, though a refusal for another reason
            self.answered(sent_at, taken=units, refused=0)
            raise
        refused = left(answer)
        self.answered(sent_at, taken=units - refused, refused=refused)
        return answer

    async def _turn(self, units: int) -> float:
        """Wait for a turn, at most for the longest turn. Return the time of the turn.

        Chance spreads the requests that reach the longest turn.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        latest = now + self._wait_s_max * random.uniform(0.5, 1)  # noqa: S311 - keeps no secret
        while True:
            asked_at = now
            charged, wait_s = self._charge(now, units)
            if wait_s == 0 or now >= latest:
                return now
            try:
                await asyncio.sleep(min(wait_s, latest - now))
            except BaseException:
                if self._fell_at <= asked_at:
                    self._tokens += charged
                raise
            now = loop.time()
            if self._fell_at <= asked_at:
                return now

    def overdraw(self, units: int) -> float:
        """Charge units that do not wait. Return the time, for `answered`."""
        now = asyncio.get_running_loop().time()
        self._charge(now, units)
        return now

    def rate(self, now: float) -> float:
        """Return how many units a second may be sent. Infinite where no request waits."""
        since_s = now - self._fell_at
        if since_s > FORGET_S:
            return math.inf
        level_s = math.cbrt(self._fell_from * (1 - BETA) / GROWTH)
        return max(RATE_MIN, self._fell_from + GROWTH * (since_s - level_s) ** 3)

    def _charge(self, now: float, units: int) -> tuple[float, float]:
        """Charge units. Return the tokens charged, and the seconds until the units may be sent."""
        rate = self.rate(now)
        if rate == math.inf:
            return 0.0, 0.0
        burst = max(1.0, rate * BURST_S)
        had = min(self._tokens + (now - self._filled_at) * rate, burst)
        self._filled_at = now
        self._tokens = min(had, max(had - units, -rate * self._wait_s_max))  # a later caller never waits for more
        return had - self._tokens, max(0.0, (min(units, burst) - had) / rate)

    def answered(self, sent_at: float, *, taken: int, refused: int) -> None:
        """Learn from an answer to work that was sent at `sent_at`. Only an answer that took no unit lowers the rate.

        A database that hands back a part of a batch takes as much as it can at that moment: its size does not show the
        rate.
        """
        now = asyncio.get_running_loop().time()
        if now - self._sample_since >= SAMPLE_S:
            self._end_sample(now)
        self._sample += taken
        if refused and not taken and sent_at > self._fell_at:  # a request sent before the last fall shows nothing new
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
        self._tokens = 0.0  # waiting requests are charged again
        self._fell_from = max(RATE_MIN / BETA, min(rate, measured))
        self._fell_at = self._filled_at = now


async def pause_asked_for(error: Throttled) -> None:
    """Pause as long as the refusal asks for."""
    await asyncio.sleep(cast("float", error.facts.get("pause_s", 0.0)))


class Paces:
    """A pace for each name, such as a partition's."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._of: dict[Hashable, Pace] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, name: Hashable) -> Pace:
        found = self._of.pop(name, None) or Pace(self._wait_s)
        self._of[name] = found  # the pace used last is last
        if len(self._of) > PACES_MAX:
            oldest = next(iter(self._of))
            pace = self._of.pop(oldest)
            if pace.rate(asyncio.get_running_loop().time()) < math.inf:
                self._of[oldest] = pace  # it throttles now: check it again later
        return found
