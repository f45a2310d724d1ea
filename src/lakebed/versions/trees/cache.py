"""Keep decoded files of trees, up to an amount of bytes. Evict the least recently used first.

One cache serves all repositories of a process: its entries are named by storage namespace and id. Names stand for
content, so nothing in it is ever out of date. A failed load is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from lakebed.base import Event, Tasks


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)

Name = tuple[str, str]
"""Namespace, and the key of the file in it."""


class _Flight:
    """A load under way, and those who wait for it."""

    __slots__ = ("landed", "value")

    def __init__(self, landed: Event) -> None:
        self.landed = landed
        self.value: Sized | None = None


class TreeCache:
    """Values of at most `limit_bytes` together, by their `nbytes`. A value larger than a quarter of that is handed
    out and not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._values: OrderedDict[Name, Sized] = OrderedDict()
        self._flights: dict[Name, _Flight] = {}
        self.size_bytes = 0

    def find(self, name: Name, kind: type[T]) -> T | None:
        """The value, if it is here."""
        value = self._values.get(name)
        if value is None:
            return None
        self._values.move_to_end(name)
        assert isinstance(value, kind)
        return value

    async def load(self, name: Name, kind: type[T], load: Callable[[], Awaitable[T]], tasks: Tasks) -> T:
        """The value, loaded if it is not here. Those who miss it at the same time wait for one load; if that fails,
        the next of them tries, and each gets the error of its own attempt."""
        while True:
            value = self.find(name, kind)
            if value is not None:
                return value
            flight = self._flights.get(name)
            if flight is None:
                return await self._fly(name, load, tasks)
            await flight.landed.wait()
            if flight.value is not None:
                assert isinstance(flight.value, kind)
                return flight.value

    async def _fly(self, name: Name, load: Callable[[], Awaitable[T]], tasks: Tasks) -> T:
        flight = self._flights[name] = _Flight(tasks.event())
        try:
            value = await load()
            flight.value = value
            self.keep(name, value)
        finally:
            del self._flights[name]
            flight.landed.set()
        return value

    def keep(self, name: Name, value: Sized) -> None:
        """Keep a value. It replaces one of the same name."""
        if value.nbytes > self._limit_bytes // 4:
            return
        replaced = self._values.pop(name, None)
        self.size_bytes -= replaced.nbytes if replaced is not None else 0
        self._values[name] = value
        self.size_bytes += value.nbytes
        while self.size_bytes > self._limit_bytes:
            _, dropped = self._values.popitem(last=False)
            self.size_bytes -= dropped.nbytes
