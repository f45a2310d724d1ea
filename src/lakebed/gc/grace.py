"""The readers' grace: what a read resolved stays readable for a while, also where a run takes it ("Readable", the
seventh invariant of docs/design/protocols.md).

The server's own reads resolve a path and open its object in one request. A client that was handed a signed URL comes
later, at the latest when the URL has run out. So between the moment after which no read can resolve what goes and the
first delete lies a grace: a plan of uncommitted data was complete when it was written, and nobody names what it holds
since; commits of a committed plan are given up when the server lets it sweep. A plan that is older than the grace when
it is applied makes nobody wait. Files of metadata have a longer grace of their own, which the server keeps.

This is one of the few places where a clock counts: one that jumps ahead shortens the grace of reads, and harms nothing
that is still named. One that was set back makes the whole grace be waited for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from lakebed.gc.protocol import BadGrace

from .clocks import wall_clock_ms
from .runs import Progress

SIGNED_S: Final = 15 * 60
"""Where clients read by themselves: as long as the URLs last that the server signs."""

SERVED_S: Final = 2
"""Where all reads go through the server."""

_NAP_S: Final = 0.5


def grace_s_of(uri: str, asked_s: int | None) -> int:
    """How long readers of this namespace are given, in seconds.

    Raises:
        BadGrace: less than none was asked for.
    """
    if asked_s is None:
        return SERVED_S if uri.startswith("local://") else SIGNED_S
    if asked_s < 0:
        raise BadGrace(f"readers cannot be given {asked_s} seconds", seconds=asked_s)
    return asked_s


def remaining_ms(since_ms: int, now_ms: int, grace_s: int) -> int:
    """What is left of a grace that began at `since_ms`."""
    passed_ms = now_ms - since_ms
    return max(0, grace_s * 1000 - max(passed_ms, 0))


def let_readers_finish(since_ms: int, grace_s: int, *, check: Callable[[], None], progress: Progress) -> None:
    """Wait until the grace is over. `check` is called before and now and then, and may end it by an error."""
    check()
    left_ms = remaining_ms(since_ms, wall_clock_ms(), grace_s)
    if not left_ms:
        return
    progress(f"waiting {-(-left_ms // 1000)} s for readers of what goes")
    # By a clock that nobody sets: a wait once begun takes as long as it was said to.
    end_s = time.monotonic() + left_ms / 1000
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(_NAP_S, left_s))
        check()
