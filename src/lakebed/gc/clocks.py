"""The two clocks of a collector: this machine's, and the object store's, which dates objects and is asked wherever a
date that it gave is compared with a time."""

from __future__ import annotations

import time
from typing import Final

from lakebed.gc.protocol import GC_PREFIX
from lakebed.objectstore import ObjectStore

CLOCK_KEY: Final = f"{GC_PREFIX}clock.json"
"""Written to learn what time the object store thinks it is."""


def wall_clock_ms() -> int:
    """This machine's, since the epoch."""
    return time.time_ns() // 1_000_000


async def store_clock_ms(store: ObjectStore) -> int:
    """Costs a put and a look."""
    await store.put(CLOCK_KEY, b"{}")
    return (await store.stat(CLOCK_KEY)).modified_ms
