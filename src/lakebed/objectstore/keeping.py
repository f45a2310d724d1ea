"""Find out whether a delete frees the bytes: a bucket with versions, as locks need, keeps deleted objects."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .clock import store_clock_ms
from .store import ObjectStore

__all__ = ["Versioned", "keeps_versions"]


@runtime_checkable
class Versioned(Protocol):
    """A driver of a store that may keep versions."""

    async def version_of(self, key: str) -> str | None:
        """Return the id of the object's version; None if the store has no versions of it."""
        ...


async def keeps_versions(store: ObjectStore, key: str) -> bool | None:
    """Return whether the store keeps versions of new objects; None if the service does not show it.

    Costs a put of a small object at `key`, and two stats of it. A folder or a memory keeps none.
    """
    if not isinstance(store, Versioned):
        return False
    # Other services number each object, whether they keep old versions or not.
    if not store.uri.startswith("s3://"):
        return None
    await store_clock_ms(store, key)
    return await store.version_of(key) not in {None, "", "null"}
