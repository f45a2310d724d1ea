"""Worlds of sweeps in parts: a part holds one object here, so that who dies or is overtaken can be between two.

Each file of a run is a step, so that a process can die between a delete and its record. A sweep that is started again
leaves out what is recorded: so no record may stand for what is still there. An apply that was overtaken begins no
delete, and no further part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from explorer.actors import Actor, Ending, Violation
from lakebed.base import Conflict, RunState
from lakebed.gc.messages import APPLYING_PREFIX, LEDGER_PREFIX, LedgerState, RunKind
from lakebed.objectstore import DeleteFailure, ObjectMissing
from lakebed.versions import Versions
from sim.checkers.ledgers import (
    deletions_count_once,
    recorded,
    totals_are_those_of_the_ledger,
    unless_one_died,
    what_is_recorded_is_gone,
)
from sim.checkers.reachable import reachable
from sim.checkers.views import View
from sim.ports.ports import SimDeleter, SimObjectStore, SimPorts
from sim.ports.scene import Program, Quick, Scene
from sim.scenes import deeds as do
from sim.scenes.collecting import STEPS, Collecting
from sim.scenes.deeds import later
from sim.scenes.doing import Do, versions
from sim.scenes.scenes import client, scene

from .holds import add_hold, what_is_held_stays


class _Watched(SimObjectStore):
    """Looks, before a sweep reads a part, whether another apply has begun."""

    __slots__ = ("_claim", "_is_open", "_was_overtaken")

    def __init__(self, ports: SimPorts) -> None:
        super().__init__(ports.clock, ports.objectstore.own)
        self._claim = ""
        self._is_open = self._was_overtaken = False

    def open_deleter(self) -> _Deleter:
        self._is_open, self._was_overtaken = True, False
        return _Deleter(self)

    def close_deleter(self) -> None:
        self._is_open = False

    async def put_value(self, key: str, content: object, size_bytes: int, *, if_absent: bool = False) -> None:
        await super().put_value(key, content, size_bytes, if_absent=if_absent)
        if key.startswith(APPLYING_PREFIX):
            self._claim = key

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if self._is_open and key.endswith(".parquet") and not key.startswith(LEDGER_PREFIX):
            if self._was_overtaken:
                raise Violation(f"an apply that was overtaken went on with {key}")
            async for page in super().list(APPLYING_PREFIX, start_after=self._claim):
                self._was_overtaken = bool(page)
        return await super().get(key, start=start, end=end)

    def check_delete(self, keys: Sequence[str]) -> None:
        if self._was_overtaken:
            raise Violation(f"an apply that was overtaken deleted {list(keys)}")


class _Deleter(SimDeleter):
    __slots__ = ("_store",)

    def __init__(self, store: _Watched) -> None:
        super().__init__(store.own)
        self._store = store

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        self._store.check_delete(keys)
        return await super().delete(keys)

    async def close(self) -> None:
        self._store.close_deleter()


class _Refused(SimDeleter):
    """Answers as a store that lets this process delete nothing."""

    __slots__ = ()

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return [DeleteFailure(key=key, reason="refused") for key in keys]


class _Renamed(SimDeleter):
    """Answers as a store whose bucket has another name by now: it finds nothing, and deletes nothing."""

    __slots__ = ()

    async def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        raise ObjectMissing("no such bucket", key=keys[0])


def _in_parts(repo: Versions, *, in_vain_by: type[SimDeleter] | None = None) -> Collecting:
    store = repo.objectstore
    if in_vain_by is not None:
        return Collecting(repo, open_deleter=in_vain_by, rows_per_part=1)
    opener = store.open_deleter if isinstance(store, _Watched) else None
    return Collecting(repo, open_deleter=opener, rows_per_part=1)


_plan = later(0)(lambda repo: _in_parts(repo).plan(RunKind.UNCOMMITTED))
_collect = later(10)(lambda repo: _in_parts(repo).run(RunKind.COMMITTED))
"""Plan and apply a run of committed data."""
_apply = later(10)(lambda repo: _in_parts(repo).apply_all())
"""Apply every plan there is: also one of which another apply has recorded parts."""


@later(10)
async def _apply_one(repo: Versions, number: int) -> None:
    with suppress(Conflict):
        await _in_parts(repo).apply_one(number, window=None)


@later(10)
async def _apply_in_vain(repo: Versions, deleter: type[SimDeleter] = _Refused) -> None:
    """Apply every plan there is by a process that can delete nothing: each object is recorded as failed."""
    await _in_parts(repo, in_vain_by=deleter).apply_all()


def _process(name: str, deed: Do, again: Do | None = None) -> Actor:
    def doing(deed: Do) -> Program:
        async def program(ports: SimPorts) -> None:
            ports.objectstore = _Watched(ports)
            await ports.act(deed.operation, deed.awaited(versions(ports)))

        return program

    return Actor(name, doing(deed), None if again is None else doing(again), 1 if again is None else 2)


def an_ended_run_took_all(ending: Ending) -> None:
    """Check that what a run planned and nothing names is gone once it ended, and is recorded so."""
    if any(run.state is RunState.ENDED for run in View(ending.disk).runs().values()):
        on_record = {key for key, _ in recorded(ending.disk)}
        stored = ending.disk.objectstore.items()
        there = {key for key, (content, _, _) in stored if key.startswith("data/") and content in _GARBAGE}
        if left := there - reachable(ending.disk):
            raise Violation(f"a run ended and left {sorted(left)}")
        if len(on_record) < len(_GARBAGE):
            raise Violation(f"a run ended and recorded {sorted(on_record)}")
        # No delete fails here. An apply that was overtaken may not write over what the one after it recorded.
        if failed := sorted(key for key, state in recorded(ending.disk) if state == LedgerState.FAILED):
            raise Violation(f"a run ended, and its ledger says that these were not deleted: {failed}")


_GARBAGE: Final = (b"1", b"2")
_DELETED: Final = (do.delete("d1", "a"), do.delete("d2", "b"))
_PLANNED: Final = (do.upload("w1", "a", "1"), do.upload("w2", "b", "2"), *_DELETED, do.close("x1"), _plan("q1"))
"""A plan of two objects, and so of two parts."""
_TWICE: Final = (do.upload("w1", "a", "1"), do.commit("p1"), do.upload("w2", "a", "2"), do.commit("p2"))
_PAST: Final = (*_TWICE, do.upload("w3", "a", "3"), do.commit("p3"), do.set_rules("q0", "1d"))
"""Two commits that go, each with an object of its own."""


def part_scenes() -> Iterator[Scene]:
    w = client("w", do.upload("w9", "a", "9"))
    again = _process("r", _apply("r1"), _apply("r2"))
    yield _scene("uploader, apply in parts that comes back", w, again, before=_PLANNED)
    r, z = _process("r", _apply("r1")), _process("z", _apply("z1"))
    # Their walks take more than 20 CPU seconds, also without a fault.
    yield _scene("apply in parts, another apply of it", r, z, before=_PLANNED).also(quick=Quick.NEVER)
    # Two plans have the same objects, and the later apply begins while the other one deletes.
    first, second = _process("r", _apply_one("r1", 0)), _process("z", _apply_one("z1", 1))
    made = _scene("apply in parts, apply of another plan of it", first, second, before=(*_PLANNED, _plan("q2")))
    # What each of two runs took is no matter of the other's record.
    made = made.instead(deletions_count_once).instead(an_ended_run_took_all)
    counted = (deletions_count_once, totals_are_those_of_the_ledger)
    yield made.also(*map(unless_one_died, counted), tidied=counted, quick=Quick.NEVER)
    # Both try again what failed, and one of the two in vain: what it records last must not stand for the other's rows.
    vain = _process("r", _apply_in_vain("r1"))
    failed = (*_PLANNED, _apply_in_vain("r0"))
    yield _scene("apply that may not delete, another apply of it", vain, z, before=failed).also(quick=Quick.NEVER)
    blind = _process("r", _apply_in_vain("r1", _Renamed), _apply("r2"))
    yield _scene("apply that finds no bucket, and comes back", blind, before=_PLANNED)
    again = _process("r", _collect("r1"), _apply("r2"))
    yield _scene("committed run in parts that comes back", again, before=_PAST)
    brancher = client("h", do.create_branch("h1", "main~1"))
    made = _scene("brancher, committed run in parts that comes back", brancher, again, before=_PAST)
    # What a branch names or may come to name is in no part.
    yield made.instead(an_ended_run_took_all).also(quick=Quick.NEVER)
    holder, run = client("h", add_hold("h1")), _process("r", _collect("r1"))
    made = _scene("holder, committed run in parts", holder, run, before=_PAST)
    # What is held is no leak, and no run that tidies up may begin.
    yield replace(made, checks=(what_is_recorded_is_gone, what_is_held_stays), tidy=None, tidy_checks=())


def _scene(name: str, *actors: Actor, before: Sequence[Do]) -> Scene:
    made = scene(name, *actors, before=before, private=STEPS, others_look=True, quick=Quick.NO_LOSS)
    return made.also(what_is_recorded_is_gone, deletions_count_once, an_ended_run_took_all)
