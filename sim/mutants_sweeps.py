"""Planted bugs in who may sweep what: abandoned and resumed runs, what a committed run must spare, slices, giving up.

Each names the scenes of `worlds.py` and `hazards.py` that it is hunted in: they are the smallest in which its guard has
work to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import parse_slice_name
from lakebed.gc.service.records import records
from lakebed.gc.service.runs import RunBook
from lakebed.kv import Held
from lakebed.versions import RunRecord, RunState, SliceRecord, SliceState, Versions, encode_record, keys
from lakebed.versions.giving_up import _SETTLE
from lakebed.versions.slices import OpenSlice

from .collecting import SimCollector
from .planting import mutant, patches

Repo: TypeAlias = Any
"""A `Versions`, seen from inside."""

_BEGUN: Final = (RunState.PLANNING, RunState.MARKING, RunState.CONDEMNING)

# Runs


def _abandoning(*states: RunState, is_blind: bool) -> Any:
    async def abandon(self: Any) -> list[Any]:
        for run_id, record in await self._versions.runs():
            if record.state not in states:
                continue
            after = replace(record, state=RunState.ABANDONED)
            if is_blind:
                await _write_blindly(self, run_id, after)
            elif (again := await self.read(run_id))[0].state in states:
                await self.write(run_id, replace(again[0], state=RunState.ABANDONED), again[1])
        return []

    return abandon


async def _write_blindly(self: Any, run_id: Any, record: RunRecord) -> Held:
    value = encode_record(record)
    await self._versions.store.set(self._versions.partition, keys.RUN + run_id.encode(), value)
    return Held(value, value)


async def _write_sweeping_blindly(self: Any, run_id: Any, record: RunRecord, before: Held | None) -> Any:
    if record.state is RunState.SWEEPING:
        return await _write_blindly(self, run_id, record)
    return await _real_write(self, run_id, record, before)


_real_write: Any = RunBook.write


async def _read_as_it_is(self: Any, run_id: Any, *_: Any) -> Any:
    return await self.read(run_id)


async def _unswept(self: Any, run_id: Any, *_: Any) -> None:
    await self.runs.note_swept(run_id)


async def _end_unswept(self: Any, run_id: Any, state: Any, *, plan: str = "") -> RunRecord:
    record, held = await self.read(run_id)
    if record.state is RunState.SWEEPING:
        after = replace(record, state=RunState(state.value))
        await self.write(run_id, after, held)
        return after  # type: ignore[no-any-return]  # surgery
    return await _real_move(self, run_id, state, plan=plan)  # type: ignore[no-any-return]  # surgery


_real_move: Any = RunBook.move


# What a committed run must spare


async def _nothing(*_: Any) -> set[str]:
    return set()


async def _open_ones_too(self: SimCollector) -> frozenset[str]:
    return frozenset([name async for name, _ in records(self.repo, SliceRecord, keys.SLICE)])


async def _not_yet_settled(self: Any) -> set[str]:
    self.late = set()
    return self.late  # type: ignore[no-any-return]  # surgery


async def _staging_then_settled(self: Any) -> set[str]:
    found = await _real_read_staging(self)
    self.late |= await _real_settled(self)
    return found  # type: ignore[no-any-return]  # surgery


_real_read_staging: Any = SimCollector.read_staging
_real_settled: Any = SimCollector._settled  # noqa: SLF001  # the real one, to call from the changed one


# Slices and giving up


async def _open_again(self: Repo) -> Any:
    """An instance that starts goes on with the slice that it had before, and counts from the start."""
    async for key, record in self._records(SliceRecord, keys.SLICE):
        number = parse_slice_name(key[len(keys.SLICE) :].decode())
        if record.owner == self.options.owner and record.state is SliceState.OPEN and number is not None:
            self._open_slice = OpenSlice(number, record.opened_ms)
            return self._open_slice
    return await _real_open(self)


_real_open: Any = Versions._open  # noqa: SLF001  # the real one, to call from the changed one


async def _asked_once(self: Repo, place: Any) -> bool:
    asked = self.__dict__.setdefault("_asked", set())
    if place.address in asked:
        return True
    asked.add(place.address)
    return bool(await _real_is_open(self, place))


_real_is_open: Any = Versions._is_open  # noqa: SLF001  # the real one, to call from the changed one


async def _freeze_the_first(self: Repo, slice_keys: Sequence[bytes]) -> list[bytes]:
    fenced = [key for key in slice_keys if await self._fence(SliceRecord, key) is not None]
    for name, _ in (await self.branch_records())[:1] if fenced else ():
        await self.freeze(name)
    for key in fenced:
        await self._move(SliceRecord, key, _SETTLE[SliceRecord])
    return fenced


async def _settle_then_freeze(self: Repo, kind: Any, key: bytes) -> bool:
    fenced = await self._fence(kind, key)
    if fenced is None:
        return False
    await self._move(kind, key, _SETTLE[kind])
    await self.freeze(fenced.branch)
    return True


_ABANDONED: Final = ("brancher, committed run, who abandons it",)
_BEHIND: Final = ("uploader, committed run of its commit",)


SWEEP_MUTANTS: Final = (
    mutant(
        "abandon-sweeping",
        "a run that sweeps is resumed, not abandoned",
        _ABANDONED,
        patches(RunBook, abandon_dead=_abandoning(*_BEGUN, RunState.SWEEPING, is_blind=False)),
    ),
    mutant(
        "abandon-blind",
        "abandoned by set_if",
        _ABANDONED,
        patches(RunBook, abandon_dead=_abandoning(*_BEGUN, is_blind=True)),
    ),
    mutant(
        "abandoned-swept",
        "an abandoned run throws its work away",
        _ABANDONED,
        patches(RunBook, read_as=_read_as_it_is),
    ),
    mutant(
        "sweep-blind", "condemning → sweeping by set_if", _ABANDONED, patches(RunBook, write=_write_sweeping_blindly)
    ),
    mutant(
        "swept-none",
        "swept commits have records for ever",
        ("brancher, committed run",),
        patches(SimCollector, write_swept=_unswept),
    ),
    mutant(
        "end-unswept",
        "a run ends only when what it takes is written down",
        ("committed run, who ends it and branches",),
        patches(RunBook, move=_end_unswept),
    ),
    mutant(
        "staging-unread",
        "a committed run keeps what is staged",
        ("copier from a commit, committed run",),
        patches(SimCollector, read_staging=_nothing),
    ),
    mutant(
        "needed-unread",
        "a committed run keeps what other commits name",
        ("reverter, committed run",),
        patches(SimCollector, needed=_nothing),
    ),
    mutant(
        "committed-open",
        "a committed run takes only settled slices",
        _BEHIND,
        patches(SimCollector, _settled=_open_ones_too),
    ),
    mutant(
        "committed-settled-late",
        "they had settled before staging was read",
        _BEHIND,
        patches(SimCollector, _settled=_not_yet_settled, read_staging=_staging_then_settled),
    ),
    mutant(
        "slice-reused",
        "a number is never handed out twice",
        ("uploader that comes back, resetter, run",),
        patches(Versions, _open=_open_again),
    ),
    mutant(
        "slice-once",
        "the slice is read again for a repeat",
        ("uploader, run that gives up",),
        patches(Versions, _is_open=_asked_once),
    ),
    mutant(
        "freeze-first",
        "a slice is frozen on every branch",
        ("uploader beside, run that gives up",),
        patches(Versions, give_up_slices=_freeze_the_first),
    ),
    mutant(
        "settle-early",
        "freeze, then void → done",
        ("linker, who gives up, run after cleaning",),
        patches(Versions, give_up=_settle_then_freeze),
    ),
)
