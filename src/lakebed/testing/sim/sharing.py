"""Which keys are shared between actors: what lets the explorer take private steps first.

A step is private if no other actor ever touches what it touches, or if it reads what no other ever writes. Such a step
commutes with everything the others do. So where all that an actor can do next is private, every schedule has an equal
one in which that actor goes first, and the others can wait: a persistent set, in Godefroid's words.

Which keys are private is not declared but found. The search starts from the guess that every key is, notes who touches
what (a scan touches all keys from its start on), and walks again if it acted on a guess that then proved wrong, until
none did. The last walk is sound: had it missed a schedule where another actor touches such a key, then the steps of
that schedule before the touch commute behind the private step, so the walk would have met the touch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

from .effects import WRITES, Effect

Key: TypeAlias = Any
"""bytes in the key-value store, str in the object store: one kind a partition."""


class _Partition:
    """Who touches what in one partition; `points` and `scans` are the effects once said to be private."""

    __slots__ = ("highest_write", "lowest_scan", "points", "readers", "scans", "writers")

    def __init__(self) -> None:
        self.readers: dict[Key, set[int]] = {}
        self.writers: dict[Key, set[int]] = {}
        self.highest_write: dict[int, Key] = {}
        self.lowest_scan: dict[int, Key] = {}
        self.points: dict[Key, list[tuple[int, Effect]]] = {}
        self.scans: list[tuple[int, Effect]] = []


class Sharing:
    """Knowledge only grows: what was found shared once stays shared."""

    __slots__ = ("_is_outdated", "_is_private", "_partitions")

    def __init__(self) -> None:
        self._partitions: dict[Hashable, _Partition] = {}
        self._is_private: dict[tuple[int, Effect], bool] = {}
        self._is_outdated = False

    def is_outdated(self) -> bool:
        """Whether something said to be private since the last call has proved shared."""
        was, self._is_outdated = self._is_outdated, False
        return was

    def touch(self, actor: int, what: Effect) -> bool:
        """Note that this actor has this effect open; return whether it is private as far as is known."""
        known = self._is_private.get((actor, what))
        if known is None:
            self._note(actor, what)
            known = self._is_private[actor, what] = self._judge(actor, what)
            if known:
                self._remember(actor, what)
        return known

    def _note(self, actor: int, what: Effect) -> None:
        name, partition, keys = _places(what)
        held = self._partitions.setdefault(partition, _Partition())
        if name in _SCANS:
            (start,) = keys
            if actor not in held.lowest_scan or start < held.lowest_scan[actor]:
                held.lowest_scan[actor] = start
                self._judge_again(effect for effects in held.points.values() for effect in effects)
            return
        who = held.writers if name in WRITES else held.readers
        for key in keys:
            if actor not in who.setdefault(key, set()):
                who[key].add(actor)
                self._judge_again(held.points.get(key, ()))
                if name in WRITES:
                    highest = held.highest_write.get(actor)
                    if highest is None or highest < key:
                        held.highest_write[actor] = key
                        self._judge_again(held.scans)

    def _judge(self, actor: int, what: Effect) -> bool:
        name, partition, keys = _places(what)
        held = self._partitions[partition]
        if name in _SCANS:
            (start,) = keys
            return not any(key >= start for other, key in held.highest_write.items() if other != actor)
        for key in keys:
            if held.writers.get(key, set()) - {actor}:
                return False
            if name in WRITES and (
                held.readers.get(key, set()) - {actor}
                or any(start <= key for other, start in held.lowest_scan.items() if other != actor)
            ):
                return False
        return True

    def _remember(self, actor: int, what: Effect) -> None:
        name, partition, keys = _places(what)
        held = self._partitions[partition]
        if name in _SCANS:
            held.scans.append((actor, what))
        else:
            for key in keys:
                held.points.setdefault(key, []).append((actor, what))

    def _judge_again(self, effects: Iterable[tuple[int, Effect]]) -> None:
        for actor, what in effects:
            if self._is_private[actor, what] and not self._judge(actor, what):
                self._is_private[actor, what] = False
                self._is_outdated = True


_SCANS = frozenset({"scan", "list"})
_OF_BLOCKS = frozenset({"put", "fetch", "stat", "list", "copy", "erase"})


def _places(what: Effect) -> tuple[str, Hashable, tuple[Key, ...]]:
    """Operation, partition (None for the object store) and keys; for a scan the key it starts at."""
    name = what[0]
    match name:
        case "copy":
            return name, None, what[1:3]
        case "erase":
            return name, None, what[1]
        case "get_many" | "delete_many":
            return name, what[1], what[2]
        case "set_many":
            return name, what[1], tuple(key for key, _ in what[2])
        case _ if name in _OF_BLOCKS:
            return name, None, (what[1],)
    return name, what[1], (what[2],)
