"""`mem://`: a Store in this process's memory, which ends with the process. For tests, simulations and trials.

A partition is a dictionary of its values and a sorted list of its keys. No method ever suspends, so each is atomic on
an event loop. A simulator may run a method to its end by sending it one None.

Predicates are version numbers, counted over the whole store and never used twice: a value that was replaced and put
back has another version (no A-B-A). A store made with `predicates="value"` returns the values as predicates, as
databases without versions must. This promise is weaker; simulations should also run against it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final, Literal

from lakebed.kv.opening import StoreUri
from lakebed.kv.store import Held, Page, Predicate, PredicateFailed, StoreUnavailable, check_key

NO_SIZE: Final = "nothing of it lies on a disk"
NO_COMPACTION: Final = "nothing of it lies on a disk"


def open_uri(uri: StoreUri) -> MemoryStore:
    """Open `mem://` or `mem://?predicates=value`. Each call returns a new, empty store."""
    uri.refuse_path()
    predicates: Literal["version", "value"] = uri.choice("predicates", "version", "value")
    uri.check_all_taken()
    return MemoryStore(predicates=predicates)


class _Partition:
    __slots__ = ("cells", "keys")

    def __init__(self) -> None:
        self.cells: dict[bytes, Held] = {}
        self.keys: list[bytes] = []


class MemoryStore:
    """A look-up is that of a dictionary. Adding or deleting a key moves, at worst, the partition's list of keys."""

    shares_reads = False

    def __init__(self, *, predicates: Literal["version", "value"] = "version") -> None:
        self._partitions: dict[bytes, _Partition] = {}
        self._versions = itertools.count(1)
        self._by_version = predicates == "version"
        self._closed = False

    async def get(self, partition: bytes, key: bytes) -> Held | None:
        return self._find(partition, key)

    async def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[Held | None]:
        return [self._find(partition, key) for key in keys]

    async def scan(self, partition: bytes, start: bytes, limit: int) -> Page:
        assert limit >= 1
        self._check_open()
        held = self._partitions.get(partition)
        if held is None:
            return Page([], [], None)
        first = bisect_left(held.keys, start)
        keys = held.keys[first : first + limit]
        rest = first + limit
        next_start = held.keys[rest] if rest < len(held.keys) else None
        return Page(keys, [held.cells[key].value for key in keys], next_start)

    async def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._check_open()
        check_key(partition, key)
        self._put(partition, key, value)

    async def set_many(self, partition: bytes, items: Sequence[tuple[bytes, bytes]]) -> None:
        self._check_open()
        for key, _ in items:
            check_key(partition, key)
        for key, value in items:
            self._put(partition, key, value)

    async def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> Predicate:
        check_key(partition, key)
        self._check_predicate(partition, key, predicate)
        return self._put(partition, key, value)

    async def delete(self, partition: bytes, key: bytes) -> None:
        self._check_open()
        check_key(partition, key)
        self._remove(partition, key)

    async def delete_many(self, partition: bytes, keys: Sequence[bytes]) -> None:
        self._check_open()
        for key in keys:
            check_key(partition, key)
        for key in keys:
            self._remove(partition, key)

    async def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        check_key(partition, key)
        self._check_predicate(partition, key, predicate)
        self._remove(partition, key)

    async def close(self) -> None:
        """Forget all pairs. Closing twice is no error."""
        self._closed = True
        self._partitions.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("this store is closed")

    def _find(self, partition: bytes, key: bytes) -> Held | None:
        self._check_open()
        held = self._partitions.get(partition)
        return None if held is None else held.cells.get(key)

    def _check_predicate(self, partition: bytes, key: bytes, predicate: Predicate | None) -> None:
        found = self._find(partition, key)
        if (None if found is None else found.predicate) != predicate:
            raise PredicateFailed("the stored value is not the one that was read", partition=partition, key=key)

    def _put(self, partition: bytes, key: bytes, value: bytes) -> Predicate:
        held = self._partitions.setdefault(partition, _Partition())
        if key not in held.cells:
            insort(held.keys, key)
        predicate: Predicate = next(self._versions) if self._by_version else value
        held.cells[key] = Held(value, predicate)
        return predicate

    def _remove(self, partition: bytes, key: bytes) -> None:
        held = self._partitions.get(partition)
        if held is None or held.cells.pop(key, None) is None:
            return
        del held.keys[bisect_left(held.keys, key)]
        if not held.keys:
            del self._partitions[partition]
