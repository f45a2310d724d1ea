"""The disk that all actors of a simulation share: a key-value store and an object store, in plain dictionaries.

`apply` carries out one effect at once and returns its raw outcome. A fork shares everything with its original until one
of them writes: the explorer keeps thousands of them.

Predicates are the stored value itself (the weakest that the Store port allows: it lets A-B-A pass), or, with
`versioned`, value and a count of writes of that key, as a database with row versions would have it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from typing import Any, Final

from .effects import Effect, Mark, Riders


class Disk:
    __slots__ = ("_shared", "cells", "counts", "objectstore", "versioned")

    def __init__(self, *, versioned: bool = False) -> None:
        self.cells: dict[bytes, dict[bytes, bytes]] = {}
        """Partition → key → value. No partition is empty."""
        self.objectstore: dict[str, tuple[Any, int, int]] = {}
        """Key → content (bytes or any hashable value), size in bytes, moment of the put in Unix milliseconds."""
        self.counts: dict[tuple[bytes, bytes], int] = {}
        self.versioned = versioned
        self._shared = False

    def fork(self) -> Disk:
        """Return a copy that may be written to. This disk must not be written to any more."""
        twin = Disk(versioned=self.versioned)
        twin.cells = self.cells.copy()
        twin.objectstore = self.objectstore.copy()
        twin.counts = self.counts.copy()
        twin._shared = True
        return twin

    def frozen(self) -> Hashable:
        """Return a value that is equal for equal disks, whatever order they were written in."""
        cells = frozenset((partition, frozenset(keys.items())) for partition, keys in self.cells.items())
        return cells, frozenset(self.objectstore.items()), frozenset(self.counts.items())

    def apply(self, what: Effect) -> Any:
        if type(what[-1]) is Riders:
            for rider in what[-1]:
                self.apply(rider)
            what = what[:-1]
        return _OPERATIONS[what[0]](self, *what[1:])

    def value(self, partition: bytes, key: bytes) -> bytes | None:
        return self.cells.get(partition, _NOTHING).get(key)

    # Key-value store

    def get(self, partition: bytes, key: bytes) -> Any:
        value = self.cells.get(partition, _NOTHING).get(key)
        return None if value is None else (value, self._predicate(partition, key, value))

    def get_many(self, partition: bytes, keys: tuple[bytes, ...]) -> Any:
        return tuple(self.get(partition, key) for key in keys)

    def scan(self, partition: bytes, start: bytes, limit: int) -> Any:
        held = self.cells.get(partition, _NOTHING)
        keys = sorted(held)
        first = bisect_left(keys, start) if start else 0
        page = keys[first : first + limit]
        next_start = keys[first + limit] if first + limit < len(keys) else None
        return tuple(page), tuple([held[key] for key in page]), next_start

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._partition(partition)[key] = value
        if self.versioned:
            self.counts[partition, key] = self.counts.get((partition, key), 0) + 1

    def set_many(self, partition: bytes, items: tuple[tuple[bytes, bytes], ...]) -> None:
        for key, value in items:
            self.set(partition, key, value)

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Any) -> Any:
        if not self._is_still(partition, key, predicate):
            return Mark.FAILED
        self.set(partition, key, value)
        return self._predicate(partition, key, value)

    def delete(self, partition: bytes, key: bytes) -> None:
        if key in self.cells.get(partition, _NOTHING):
            held = self._partition(partition)
            del held[key]
            if not held:
                del self.cells[partition]

    def delete_many(self, partition: bytes, keys: tuple[bytes, ...]) -> None:
        for key in keys:
            self.delete(partition, key)

    def delete_if(self, partition: bytes, key: bytes, predicate: Any) -> Any:
        if predicate is None or not self._is_still(partition, key, predicate):
            return Mark.FAILED
        self.delete(partition, key)
        return None

    def until(self, partition: bytes, keys: tuple[bytes, ...]) -> Any:
        held = self.cells.get(partition, _NOTHING)
        return Mark.NOT_YET if any(key in held for key in keys) else None

    def _is_still(self, partition: bytes, key: bytes, predicate: Any) -> bool:
        value = self.cells.get(partition, _NOTHING).get(key)
        if value is None or predicate is None:
            return value is None and predicate is None
        return bool(self._predicate(partition, key, value) == predicate)

    def _predicate(self, partition: bytes, key: bytes, value: bytes) -> Any:
        return self.counts[partition, key] if self.versioned else value

    def _partition(self, partition: bytes) -> dict[bytes, bytes]:
        held = self.cells.get(partition)
        if held is None:
            held = self.cells[partition] = {}
        elif self._shared:
            held = self.cells[partition] = held.copy()
        return held

    # Object store

    def put(self, key: str, content: Any, size_bytes: int, if_absent: bool, now_ms: int) -> Any:
        if if_absent and key in self.objectstore:
            return Mark.EXISTS
        self.objectstore[key] = (content, size_bytes, now_ms)
        return None

    def fetch(self, key: str) -> Any:
        held = self.objectstore.get(key)
        return Mark.MISSING if held is None else held[0]

    def stat(self, key: str) -> Any:
        held = self.objectstore.get(key)
        return Mark.MISSING if held is None else (key, held[1], held[2])

    def list(self, prefix: str, start_after: str, limit: int) -> Any:
        keys = sorted(key for key in self.objectstore if key.startswith(prefix) and key > start_after)
        return tuple((key, *self.objectstore[key][1:]) for key in keys[:limit])

    def copy(self, source: str, target: str, now_ms: int) -> Any:
        held = self.objectstore.get(source)
        if held is None:
            return Mark.MISSING
        self.objectstore[target] = (held[0], held[1], now_ms)
        return None

    def erase(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            self.objectstore.pop(key, None)


_NOTHING: Final[dict[bytes, bytes]] = {}

_OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(Disk, name)
    for name in (
        *("get", "get_many", "scan", "set", "set_many", "set_if", "delete", "delete_many", "delete_if", "until"),
        *("put", "fetch", "stat", "list", "copy", "erase"),
    )
}
