"""Waiting for a server that is away for a moment: restarted, or behind a proxy that is.

An apply may take hours, and the server is asked at its beginning and at its end. A call that found nobody is sent
again, for two minutes. One that was sent, and whose answer was lost, too: to the steps of a run a second call is what a
second apply would do, and they are made for that. A run that is started twice is not: its answer is lost with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from lakebed.base import OutcomeUnknown, Unavailable

from .context import Progress
from .live_side import Caller

RETRY_FOR_S: Final = 120.0
_NAP_MIN_S: Final = 0.5
_NAP_MAX_S: Final = 5.0
_STARTS: Final = "/gc/runs"


class RetryingCaller:
    """A caller that does not give up at once. `sleep` and `clock` (both in seconds) are for tests."""

    def __init__(
        self,
        caller: Caller,
        progress: Progress,
        *,
        retry_for_s: float = RETRY_FOR_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._caller = caller
        self._progress = progress
        self._patience_s = retry_for_s
        self._sleep = sleep
        self._clock = clock

    def call(self, method: str, path: str, *, json: object = None) -> object:
        """
        Raises:
            Unavailable, OutcomeUnknown: for as long as it waits, nobody answered.
        """
        began_s, nap_s = self._clock(), 0.0
        while True:
            try:
                return self._caller.call(method, path, json=json)
            except (Unavailable, OutcomeUnknown) as error:
                left_s = began_s + self._patience_s - self._clock()
                if left_s <= 0 or not _may_repeat(error, method, path):
                    raise
                if not nap_s:
                    self._progress(f"the server does not answer ({error}): waiting for it, up to {left_s:.0f} s")
            nap_s = min(max(_NAP_MIN_S, 2 * nap_s), _NAP_MAX_S, left_s)
            self._sleep(nap_s)


def _may_repeat(error: Unavailable | OutcomeUnknown, method: str, path: str) -> bool:
    if isinstance(error, Unavailable):
        return True
    # A server that answers with an error of its own is there.
    return "status" not in error.facts and (method == "GET" or not path.endswith(_STARTS))
