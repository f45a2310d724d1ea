"""Learn which actor reads and writes what, by kinds of records and folders.

A step that no other actor can notice needs no orders.

While a run reads what no other actor of the scene ever writes, or writes its own record that no other one looks at, all
orders with the steps of others lead to the same. The explorer then tries this step alone: an ample set of one actor.
What actors touch is learnt as the search goes on, at first from a few seeds. Where it turns out that a step was taken
alone that another actor could notice, the search begins anew, and knows better.

A scan counts as a read of the kind of record that it begins with: pages hold what comes after it, and no code looks at
that. Only operations whose order is not kept are shortened so, and no step that deletes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from .actors import Scene
from .effects import LOSABLE, WRITES, Effect, Riders

Place: TypeAlias = tuple[str, str]
"""A partition, and the kind of record in it (empty: any); or no partition, and a folder of the object store."""

_READS: Final = frozenset({"get", "get_many", "scan", "list", "fetch", "stat"})
_OWN: Final = "run"
"""Of records only those of runs, and what lies in partitions named after them, are written so."""


class LearntMore(BaseException):
    """A step was taken alone that another actor can notice."""


class Footprints:
    def __init__(self, scene: Scene) -> None:
        actors = len(scene.actors)
        self._runs_in = scene.runs_in
        self._reads: list[set[Place]] = [set() for _ in range(actors)]
        self._writes: list[set[Place]] = [set() for _ in range(actors)]
        self._alone: list[set[tuple[Place, bool]]] = [set() for _ in range(actors)]
        """Places that were read (False) or written (True) alone."""

    def note(self, actor: int, effect: Effect) -> None:
        """
        Raises:
            LearntMore: another actor took a step alone that this one can notice.
        """
        reads, writes = self._places(effect)
        new_reads, new_writes = reads - self._reads[actor], writes - self._writes[actor]
        if not new_reads and not new_writes:
            return
        self._reads[actor] |= reads
        self._writes[actor] |= writes
        for other, alone in enumerate(self._alone):
            if other != actor and any(
                _meet(place, new) for place, wrote in alone for new in (new_writes | new_reads if wrote else new_writes)
            ):
                self._alone = [set() for _ in self._alone]
                raise LearntMore

    def is_alone(self, actor: int, effect: Effect) -> bool:
        """Return whether no other actor can notice this step, for all that is known; remember it as taken alone."""
        reads, writes = self._places(effect)
        if (effect[0] not in _READS and effect[0] not in LOSABLE) or not all(map(self._is_own, writes)):
            return False
        if self._meets(actor, reads, writes):
            return False
        self._alone[actor] |= {(place, False) for place in reads} | {(place, True) for place in writes}
        return True

    def is_noticed(self, actor: int, effect: Effect) -> bool:
        """Return whether, for all that is known, this step is in conflict with a step of another actor."""
        return self._meets(actor, *self._places(effect))

    def _meets(self, actor: int, reads: set[Place], writes: set[Place]) -> bool:
        for other in range(len(self._reads)):
            if other != actor:
                theirs = self._writes[other]
                if any(_meet(mine, place) for mine in reads | writes for place in theirs):
                    return True
                if any(_meet(mine, place) for mine in writes for place in self._reads[other]):
                    return True
        return False

    def _is_own(self, place: Place) -> bool:
        partition, kind = place
        home = self._runs_in.decode()
        return kind == _OWN if partition == home else not partition or partition.startswith(f"{home}/run-")

    def _places(self, effect: Effect) -> tuple[set[Place], set[Place]]:
        reads: set[Place] = set()
        writes: set[Place] = set()
        if type(effect[-1]) is Riders:
            for rider in effect[-1]:
                writes |= self._places(rider)[1]
            effect = effect[:-1]
        name = effect[0]
        if name in _STORE:
            keys = effect[2] if name.endswith("_many") else (effect[2],)
            places = {self._record(effect[1], key if isinstance(key, bytes) else key[0]) for key in keys}
        elif name == "erase":
            places = {_folder(key) for key in effect[1]}
        elif name == "copy":
            reads, places = {_folder(effect[1])}, {_folder(effect[2])}
        elif name in _READS or name == "put":
            places = {_folder(effect[1])}
        else:
            return reads, writes
        if name in WRITES:
            # A conditional write learns what was there.
            return reads | (places if name.endswith("_if") else set()), writes | places
        return reads | places, writes

    def _record(self, partition: bytes, key: bytes) -> Place:
        return partition.decode(), key.partition(b"/")[0].decode() if partition == self._runs_in else ""


_STORE: Final = LOSABLE | {"get", "get_many", "scan"}


def _folder(key: str) -> Place:
    """Six levels of it, which tell apart the files of runs. What a listing begins with meets all that lies below."""
    return "", "/".join(key.split("/")[:6])


def _meet(one: Place, other: Place) -> bool:
    if one[0] != other[0]:
        return False
    return one[1].startswith(other[1]) or other[1].startswith(one[1])
