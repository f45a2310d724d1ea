"""An ObjectStore in memory, for tests, simulations and trials. It ends with the process.

No method suspends: each is one step, so a simulator may interleave them freely by suspending around them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from lakebed.objectstore.arguments import check_object_key, gather, stored
from lakebed.objectstore.store import (
    CHUNK_BYTES,
    Body,
    DeleteFailure,
    Level,
    ObjectCorrupt,
    ObjectExists,
    ObjectMissing,
    ObjectStat,
    Stored,
)

__all__ = ["MemoryDeleter", "MemoryObjectStore"]


PAGE_KEYS: Final = 1000


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryObjectStore:
    """An ObjectStore whose objects are dated by `now_ms`; a simulation passes its own clock."""

    def __init__(self, uri: str = "mem://memory", *, now_ms: Callable[[], int] = _wall_clock_ms) -> None:
        self._uri = uri
        self._now_ms = now_ms
        self.objects: dict[str, tuple[bytes, int]] = {}

    @property
    def uri(self) -> str:
        return self._uri

    async def put(self, key: str, body: Body, *, size_bytes: int | None = None, if_absent: bool = False) -> Stored:
        check_object_key(key)
        head, rest = await gather(body, size_bytes, small_bytes=CHUNK_BYTES)
        data = head if rest is None else b"".join([head, *[chunk async for chunk in rest]])
        if if_absent and key in self.objects:
            raise ObjectExists(f"there is an object {key!r} already", key=key)
        self.objects[key] = (data, self._now_ms())
        return stored(data)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        data, _ = self._object(key)
        return data[start:end] if start or end is not None else data

    async def stream(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        data = await self.get(key, start=start, end=end)
        for offset in range(0, len(data), CHUNK_BYTES):
            yield data[offset : offset + CHUNK_BYTES]

    async def stat(self, key: str) -> ObjectStat:
        data, modified_ms = self._object(key)
        return ObjectStat(key=key, size_bytes=len(data), modified_ms=modified_ms)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ObjectStat]]:
        # Code points sort as their UTF-8 bytes do. Each page is looked up anew: keys may change between pages.
        after = start_after
        while page := sorted(key for key in self.objects if key > after and key.startswith(prefix))[:PAGE_KEYS]:
            yield [
                ObjectStat(key=key, size_bytes=len(data), modified_ms=modified_ms)
                for key, (data, modified_ms) in ((key, self.objects[key]) for key in page)
            ]
            after = page[-1]

    async def level(self, folder: str = "") -> Level:
        below = [key[len(folder) :] for key in sorted(self.objects) if key.startswith(folder)]
        folders = dict.fromkeys(f"{folder}{key[: key.index('/') + 1]}" for key in below if "/" in key)
        return Level(keys=[folder + key for key in below if "/" not in key], folders=[*folders])

    async def copy(self, source: str, target: str) -> None:
        data, _ = self._object(source)
        self.objects[check_object_key(target)] = (data, self._now_ms())

    async def copy_range(self, source: str, target: str, *, start: int, end: int) -> Stored:
        """See `lakebed.objectstore.CopiesRanges`."""
        data = self._object(source)[0][start:end]
        if len(data) != end - start:
            raise ObjectCorrupt(f"{source!r} ends before byte {end}", key=source)
        return await self.put(target, data)

    async def presign_get(
        self,
        key: str,
        *,
        expires_s: int,  # noqa: ARG002 - the port's parameters
        file_name: str = "",  # noqa: ARG002 - the port's parameters
    ) -> str | None:
        check_object_key(key)
        return None

    async def presign_put(self, key: str, *, expires_s: int) -> str | None:  # noqa: ARG002 - the port's parameters
        check_object_key(key)
        return None

    async def close(self) -> None:
        """Release nothing: the objects exist as long as this value."""

    def _object(self, key: str) -> tuple[bytes, int]:
        found = self.objects.get(check_object_key(key))
        if found is None:
            raise ObjectMissing(f"there is no object {key!r}", key=key)
        return found


class MemoryDeleter:
    """Deletes from one MemoryObjectStore."""

    def __init__(self, store: MemoryObjectStore) -> None:
        self._store = store

    @property
    def uri(self) -> str:
        return self._store.uri

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        for key in keys:
            check_object_key(key)
        for key in keys:
            self._store.objects.pop(key, None)
        return []

    async def close(self) -> None:
        """Release nothing: the store stays open."""
