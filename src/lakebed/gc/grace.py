"""The readers' grace: what a read resolved stays readable for a while, also where a run takes it ("Readable", the
seventh invariant of docs/design/protocols.md).

The server's own reads resolve a path and open its object in one request. A client that was handed a signed URL comes
later, at the latest when the URL has run out. So between the moment after which no read can resolve what goes and the
first delete lies a grace: a plan of uncommitted data was complete when it was written, and nothing names what it holds
since; commits of a committed plan are given up when the server lets it sweep. A plan that is older than the grace when
it is applied makes no apply wait. Files of metadata have a longer grace of their own, which the server keeps.

This is one of the few places where a clock counts: one that jumps ahead shortens the grace of reads, and harms nothing
that is still named. One that was set back makes the whole grace be waited for again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

from lakebed.base import Clock

_NAP_S: Final = 0.5


def remaining_ms(since_ms: int, now_ms: int, grace_s: int) -> int:
    """Return what is left of a grace that began at `since_ms`."""
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
    """Wait until the grace is over. `check` is called before and now and then, and may end it by an error."""
    await check()
    left_s = remaining_ms(since_ms, clock.now_ms(), grace_s) / 1000
    if left_s:
        progress(f"waiting {math.ceil(left_s)} s for readers of what goes")
    # Counted in naps: a clock that is set meanwhile neither shortens the wait nor makes it longer.
    while left_s > 0:
        nap_s = min(_NAP_S, left_s)
        await clock.sleep(nap_s)
        left_s -= nap_s
        await check()
