"""The object store's own clock: it dates objects, so a date it gave is compared with a time it gave."""

from __future__ import annotations

from .store import ObjectStore


async def store_clock_ms(store: ObjectStore, key: str) -> int:
    """Return the time the store has now. Costs a put of a small object at `key`, and a look at it."""
    await store.put(key, b"{}")
    return (await store.stat(key)).modified_ms
