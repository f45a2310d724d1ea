"""Record what clients of a simulation asked for and were answered: all that checkers may know besides the disk.

An operation *begins* at the first effect carried out for its actor after it was called, and *ends* when the call
returns. `before` holds the operations that had ended when it began: the order that users can rely on. One that never
ended (its actor crashed) may have happened or not.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lakebed.base import LakebedError

T = TypeVar("T")

UNORDERED: Final = frozenset({"run", "clean", "fence", "expire", "close", "issue", "rules"})
"""Kinds that no client waits for: when they began and ended is not kept, which saves the explorer states."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`name` is unique in a scene; `kind` is what checkers go by; `what`, if given, what statistics call it."""

    name: str
    kind: str
    branch: str = ""
    key: bytes = b""
    value: Hashable = None
    what: str = ""

    @property
    def label(self) -> str:
        return self.what or self.kind


@dataclass(frozen=True, slots=True)
class Ended:
    """An operation's end: with a value (hashable), or with an error of this class."""

    value: Hashable = None
    error: type[LakebedError] | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class Record:
    operation: Operation
    ended: Ended | None
    before: frozenset[str] | None
    """None: it never began, or its kind is not ordered."""

    @property
    def is_acknowledged(self) -> bool:
        return self.ended is not None and self.ended.error is None

    @property
    def error(self) -> type[LakebedError] | None:
        return None if self.ended is None else self.ended.error

    @property
    def answer(self) -> str:
        """What it returned, as text. Empty without an answer."""
        return str(self.ended.value) if self.ended is not None and self.is_acknowledged else ""


class Operations:
    """One life's own book. The scheduler takes news from it after each step."""

    __slots__ = ("asked", "ended", "opening", "unread")

    def __init__(self) -> None:
        self.asked: dict[str, Operation] = {}
        self.ended: dict[str, Ended] = {}
        self.opening: list[str] = []
        self.unread: list[str] = []

    async def run(self, operation: Operation, doing: Coroutine[Any, Any, T]) -> T | None:
        assert operation.name not in self.asked, operation.name
        self.asked[operation.name] = operation
        is_ordered = operation.kind not in UNORDERED
        if is_ordered:
            self.opening.append(operation.name)
        value = None
        try:
            value = await doing
        except LakebedError as error:
            self.ended[operation.name] = Ended(error=type(error))
        else:
            assert isinstance(value, Hashable), operation.name
            self.ended[operation.name] = Ended(value)
        if is_ordered:
            self.unread.append(operation.name)
        return value

    def take_opened(self) -> tuple[str, ...]:
        """Return operations that begin with the effect to be carried out now."""
        if not self.opening:
            return ()
        names = tuple(self.opening)
        self.opening.clear()
        return names

    def take_ended(self) -> tuple[str, ...]:
        if not self.unread:
            return ()
        names = tuple(self.unread)
        self.unread.clear()
        return names
