"""Ask a store what only some stores know of an object: whether it keeps versions, and which content type it has.

A delete frees no bytes in a bucket with versions, as locks need them.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from .store import ObjectStore, store_clock_ms

__all__ = ["KnowsTypes", "Versioned", "content_type_of", "keeps_versions"]

_NO_TYPE: Final = "binary/octet-stream"
"""The content type that S3 gives to an object for which its writer named none."""


@runtime_checkable
class KnowsTypes(Protocol):
    """A driver of a store that keeps content types."""

    async def content_type(self, key: str) -> str:
        """Return the object's content type as the store has it, or empty.

        Raises:
            ObjectMissing: the key has no object.
        """
        ...


async def content_type_of(store: ObjectStore, key: str) -> str:
    """Return the content type that a writer gave to the object in the store; empty if none did, or it is unknown.

    Costs a request, or none for a store that keeps no types. Uploads through a server give none.
    """
    found = await store.content_type(key) if isinstance(store, KnowsTypes) else ""
    return found if found != _NO_TYPE and found.isascii() and found.isprintable() else ""


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
