"""Learn how many requests a second a database that throttles lets through, and spread the requests to that rate.

- Until it throttles, nothing waits. FORGET_S after it last did, nothing waits again.
- No request waits here for longer than WAIT_S_MAX, then it is sent. So the pace refuses nothing and starves nothing:
  at worst the database refuses what it would have refused anyway.
- A refusal lowers the rate to BETA of what was answered, once for all requests that were under way together.
- Then the rate grows by the curve of CUBIC (RFC 9438): fast, flat near where it fell, fast again beyond. AWS's clients
  do the same in their adaptive mode.
- What the database limits apart learns apart, by the name of its pace: one partition that is hot holds up no other.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar, cast

from lakebed.base import OutcomeUnknown

from .remote import WAIT_S, Passing

T = TypeVar("T")

BETA: Final = 0.7
GROWTH: Final = 0.4
"""In requests a second, for each second cubed."""
RATE_MIN: Final = 5.0
BURST_S: Final = 0.25
"""The requests of this time may come at once, after a pause. A batch waits for no more, and owes the rest."""
WAIT_S_MAX: Final = 2.0
WAIT_SHARE: Final = 0.2
"""Of the time within which the caller repeats what is refused. A turn takes no more of it."""
SAMPLE_S: Final = 0.5
NEW_SHARE: Final = 0.8
"""Of the latest sample, in what is measured."""
FORGET_S: Final = 60.0
PACES_MAX: Final = 1024
"""Of those that were used last. What is throttled just now counts beside."""


class Throttled(Passing):
    """The database refused it for the sake of its load. Among its facts, `pause_s` is the pause that it asks for."""


class Pace:
    """The rate of one partition. Times are those of the event loop; units are requests, or keys of a batch."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        """`wait_s`: how long the caller repeats what is refused."""
        self._wait_s_max = min(WAIT_S_MAX, WAIT_SHARE * wait_s)
        self._fell_at = -math.inf
        self._fell_from = 0.0
        self._tokens = 0.0
        """Below zero: what waits already."""
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
        """Wait for a turn, and learn from what becomes of the work. `left`: units that its answer hands back.

        Without `waits` the work begins at once and charges nothing: `overdraw` did.
        """
        sent_at = await self._turn(units) if waits else asyncio.get_running_loop().time()
        try:
            answer = await work()
        except Throttled as error:
            self.answered(sent_at, taken=0, refused=units)
            await pause_asked_for(error)
            raise
        except (Passing, OutcomeUnknown):  # no answer: it tells nothing of a limit
            raise
        except Exception:  # an answer, if not the one hoped for
            self.answered(sent_at, taken=units, refused=0)
            raise
        refused = left(answer)
        self.answered(sent_at, taken=units - refused, refused=refused)
        return answer

    async def _turn(self, units: int) -> float:
        """Wait for a turn, or for as long as one may. Returns its time.

        Chance spreads those whose turn would be a later one.
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
        """Charge units that do not wait. Returns the time, for `answered`."""
        now = asyncio.get_running_loop().time()
        self._charge(now, units)
        return now

    def rate(self, now: float) -> float:
        """Return how many units a second may be sent. Infinite where nothing waits."""
        since_s = now - self._fell_at
        if since_s > FORGET_S:
            return math.inf
        level_s = math.cbrt(self._fell_from * (1 - BETA) / GROWTH)
        return max(RATE_MIN, self._fell_from + GROWTH * (since_s - level_s) ** 3)

    def _charge(self, now: float, units: int) -> tuple[float, float]:
        """Charge units. Returns how many tokens this took, and the seconds until they may be sent."""
        rate = self.rate(now)
        if rate == math.inf:
            return 0.0, 0.0
        burst = max(1.0, rate * BURST_S)
        had = min(self._tokens + (now - self._filled_at) * rate, burst)
        self._filled_at = now
        self._tokens = min(had, max(had - units, -rate * self._wait_s_max))  # a later caller never waits for more
        return had - self._tokens, max(0.0, (min(units, burst) - had) / rate)

    def answered(self, sent_at: float, *, taken: int, refused: int) -> None:
        """Learn from an answer. `sent_at`: the time of the turn. A refusal counts only where nothing was taken.

        What hands back a part of a batch takes as much as it can just then: its size says nothing of the rate.
        """
        now = asyncio.get_running_loop().time()
        if now - self._sample_since >= SAMPLE_S:
            self._end_sample(now)
        self._sample += taken
        if refused and not taken and sent_at > self._fell_at:  # what was under way at the last fall tells nothing new
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
        self._of[name] = found  # the one used last stands last
        if len(self._of) > PACES_MAX:
            oldest = next(iter(self._of))
            pace = self._of.pop(oldest)
            if pace.rate(asyncio.get_running_loop().time()) < math.inf:
                self._of[oldest] = pace  # is looked at again later
        return found
