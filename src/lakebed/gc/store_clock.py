"""The object store's clock: the one that dates objects. Asked wherever a date that it gave is compared with a time."""

from __future__ import annotations

from typing import Final

from lakebed.blocks import BlockStore
from lakebed.handoff import GC_PREFIX

CLOCK_KEY: Final = f"{GC_PREFIX}clock.json"
"""Written to learn what time the object store thinks it is."""


async def store_clock_ms(store: BlockStore) -> int:
    """Costs a put and a look."""
    await store.put(CLOCK_KEY, b"{}")
    return (await store.stat(CLOCK_KEY)).modified_ms
