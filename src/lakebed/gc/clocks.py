"""The two clocks of a collector: this machine's, and the object store's, which dates objects and is asked wherever a
date that it gave is compared with a time."""

from __future__ import annotations

import time

from lakebed.gc.protocol import CLOCK_KEY
from lakebed.objectstore import ObjectStore
from lakebed.objectstore import store_clock_ms as clock_ms_at


def wall_clock_ms() -> int:
    """This machine's, since the epoch."""
    return time.time_ns() // 1_000_000


async def store_clock_ms(store: ObjectStore) -> int:
    """Costs a put and a look."""
    return await clock_ms_at(store, CLOCK_KEY)
