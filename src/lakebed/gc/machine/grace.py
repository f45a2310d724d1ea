"""Wait for readers: a read that resolved an object before it went may still be under way."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

from lakebed.base import Clock

_NAP_S: Final = 0.5


def remaining_ms(since_ms: int, now_ms: int, grace_s: int) -> int:
    """Return the rest of a grace that began at `since_ms`."""
    passed_ms = now_ms - since_ms
    return max(0, grace_s * 1000 - max(passed_ms, 0))


async def let_readers_finish(
    since_ms: int,
    grace_s: int,
    *,
    clock: Clock,
    check: Callable[[], Awaitable[None]],
    progress: Callable[[str], None],
) -> None:
    """Wait until the grace is over ("Readable", an invariant of docs/design/protocols.md).

    Call `check` before the wait and after each nap; an error from `check` ends the wait.
    """
    # The server resolves a path and opens its object in one request. A client with a signed URL may read until the URL
    # expires. So the grace lies between the time when the last read can resolve the objects and the first delete.
    # Files of metadata have a longer grace, which the server keeps. Safety does not depend on the clock: one that jumps
    # ahead shortens the grace, and harms no object that an entry names. One that was set back restarts the grace.
    await check()
    left_s = remaining_ms(since_ms, clock.now_ms(), grace_s) / 1000
    if left_s:
        progress(f"waiting {math.ceil(left_s)} s for readers of what goes")
    # Count naps, not clock time: setting the clock during the wait does not change its length.
    while left_s > 0:
        nap_s = min(_NAP_S, left_s)
        await clock.sleep(nap_s)
        left_s -= nap_s
        await check()
