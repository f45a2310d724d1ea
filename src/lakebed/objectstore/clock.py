"""The object store's own clock: the store dates objects, so compare these dates only with times from this clock."""

from __future__ import annotations

from .store import ObjectStore

__all__ = ["store_clock_ms"]


async def store_clock_ms(store: ObjectStore, key: str) -> int:
    """Return the store's present time. Costs a put of a small object at `key`, and a stat of it."""
    await store.put(key, b"{}")
    return (await store.stat(key)).modified_ms
