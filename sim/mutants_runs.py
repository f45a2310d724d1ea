"""Planted bugs in runs of uncommitted data.

Each names the scenes of `worlds.py` that it is hunted in: they are the smallest in which its guard has work to do.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from lakebed.base import RunId
from lakebed.gc.protocol import RunState
from lakebed.gc.rules import Namespace, clean_run
from lakebed.gc.service.reading import Cursor, Phase, Reading
from lakebed.gc.service.records import records
from lakebed.gc.service.runs import RunBook
from lakebed.versions import (
    Commit,
    RunRecord,
    SliceRecord,
    SliceState,
    Versions,
    encode_record,
    keys,
)
from lakebed.versions import RunState as StoredState
from lakebed.versions.committing import Built

from .collecting import READERS, Addresses, SimCollector
from .effects import effect
from .planting import mutant, patches
from .ports import SimDeleter

Repo: TypeAlias = Any
"""A `Versions`, seen from inside."""

# A run of uncommitted data


async def _no_touch(_: Repo, __: str, *, only_sealed: bool = False) -> None:
    del only_sealed


def _is_from_whatever_touched(self: Any, record: Any, left: Any) -> bool:
    return bool(self.head == record.commit_id and self.left == tuple(left))


async def _read_copies_first(self: SimCollector) -> set[str]:
    rows = Addresses()
    cursor = Cursor(name="sim", phase=Phase.COPIES)
    while cursor.phase is not Phase.DONE:
        cursor = await self.reading._step(cursor, rows)  # type: ignore[arg-type]  # noqa: SLF001  # surgery
    cursor = Cursor(name="sim")
    while cursor.phase is not Phase.COPIES:
        cursor = await self.reading._step(cursor, rows)  # type: ignore[arg-type]  # noqa: SLF001  # surgery
    return rows.found


async def _read_no_records(self: SimCollector) -> set[str]:
    rows = Addresses()
    cursor = Cursor(name="sim")
    while cursor.phase not in (Phase.UPLOADS, Phase.COPIES):
        cursor = await self.reading._step(cursor, rows)  # type: ignore[arg-type]  # noqa: SLF001  # surgery
    return rows.found


async def _touch_phase_without_frozen(self: Any, cursor: Cursor, rows: Any) -> Cursor:
    del rows
    found = await self._next_branch(cursor.branch)
    if found is None:
        return Cursor(name=cursor.name, page=cursor.page, phase=Phase.UPLOADS)
    await self._versions.touch(found[0], only_sealed=True)
    return replace(cursor, branch=found[0])


async def _cells_of_the_current_token(self: Any, cursor: Cursor, rows: Any) -> Cursor:
    after = await _real_step_cells(self, cursor, rows)
    return replace(after, tokens=after.tokens[:1]) if after.tokens and not cursor.tokens else after  # type: ignore[no-any-return]  # surgery


_real_step_cells: Any = Reading._step_cells  # noqa: SLF001  # the real one, to call from the changed one


async def _mark_blindly(self: Any, run_id: RunId, state: RunState, *, plan: str = "") -> RunRecord:
    record, _ = await self.read(run_id)
    after = replace(record, state=StoredState(state.value), plan=plan)
    await self._versions.store.set(self._versions.partition, keys.RUN + run_id.encode(), encode_record(after))
    return after  # type: ignore[no-any-return]  # surgery


def _collecting(order: str) -> Any:
    """A clean run with its reads in another order, or with one left out."""

    async def collect(
        self: SimCollector, *, gives_up: bool = False, is_last: bool = False, has_grace: bool = False
    ) -> None:
        del has_grace
        if is_last:
            await _real_collect(self, is_last=True)
            return
        repo = self.repo
        found: dict[str, Any] = {"gives_up": gives_up, "commits": []}
        for letter in order:
            match letter:
                case "r":
                    found["run"], _ = await self.runs.start_marking()
                case "s":
                    if gives_up:
                        await self.give_up_all()
                    found["settled"] = await self._settled()
                case "S":
                    found["settled"] = {one async for one, _ in records(repo, SliceRecord, keys.SLICE)}
                case "l":
                    found["listing"] = [stat.key async for page in repo.objectstore.list("data/") for stat in page]
                case "u":
                    found["uncommitted"] = await self.read_staging()
                case "c" | "p":
                    commits = [one async for _, one in records(repo, Commit, keys.COMMIT)]
                    found["commits"] = [one for one in commits if letter == "c" or one.published]
        live = found["uncommitted"] | await self._addresses(found["commits"])
        namespace = Namespace(uri=repo.objectstore.uri, settled=found["settled"])
        doomed = clean_run(found["listing"], committed=live, uncommitted=(), namespace=namespace).doomed
        await self.runs.move(found["run"], RunState.MARKED)
        await SimDeleter().delete(sorted(doomed))

    return collect


_real_collect: Any = SimCollector.collect_uncommitted


async def _no_grace(_: SimCollector) -> None:
    return


async def _grace_before_reading(self: SimCollector) -> set[str]:
    page = await self.repo.store.scan(READERS, b"", 100)
    await effect(("until", READERS, tuple(page.keys)))
    return await _real_read_staging(self)  # type: ignore[no-any-return]  # surgery


_real_read_staging: Any = SimCollector.read_staging


async def _skip_first_of_next_page(self: Any, cursor: Cursor, rows: Any) -> Cursor:
    after = await _real_scan_token(self, cursor, rows)
    return replace(after, key=after.key + b"\0") if after.key else after  # type: ignore[no-any-return]  # surgery


_real_scan_token: Any = Reading._scan_token  # noqa: SLF001  # the real one, to call from the changed one


async def _settle_what_was_mine(self: Repo, **of: Any) -> None:
    async for key, one in self._records(SliceRecord, keys.SLICE):
        if one.owner == self.options.owner:
            await self._move(SliceRecord, key, {SliceState.OPEN: SliceState.SETTLED})
    await _real_close_slices(self, **of)


_real_close_slices: Any = Versions.close_slices


_LINK_CLEAN = ("linker, record cleaner, run",)
_COPY = ("renamer, run in pages", "copier that deletes, cleaner, run", "copier, deleter, run")
_COMMIT = ("committer, run", "writer, committer, run")
_GRACE = ("reader of bytes, uploader, run with grace",)


RUN_MUTANTS: Final = (
    mutant("touch-none", "a run touches where tokens are sealed", _COMMIT, patches(Versions, touch=_no_touch)),
    mutant(
        "touch-unheeded",
        "touched is part of what a commit is from",
        _COMMIT,
        patches(Built, is_from=_is_from_whatever_touched),
    ),
    mutant(
        "copies-first", "copies are read after cells", _COPY, patches(SimCollector, read_staging=_read_copies_first)
    ),
    mutant(
        "records-unread",
        "upload and copy records are read",
        _COPY,
        patches(SimCollector, read_staging=_read_no_records),
    ),
    mutant(
        "frozen-unread",
        "frozen tokens of now are read too",
        ("freezer that cleans, run",),
        patches(Reading, _step_touch=_touch_phase_without_frozen),
    ),
    mutant(
        "sealed-unread",
        "cells of sealed tokens are read",
        _COMMIT,
        patches(Reading, _step_cells=_cells_of_the_current_token),
    ),
    mutant(
        "mark-blind",
        "marked by set_if",
        ("linker, run, cleaner that abandons it",),
        patches(RunBook, move=_mark_blindly),
    ),
    mutant(
        "run-late",
        "the run's record before all reads",
        _LINK_CLEAN,
        patches(SimCollector, collect_uncommitted=_collecting("slucr")),
    ),
    mutant(
        "slices-open",
        "only settled slices",
        ("uploader that closes, run",),
        patches(SimCollector, collect_uncommitted=_collecting("rSluc")),
    ),
    mutant(
        "slices-late",
        "slices are read before cells",
        ("uploader that closes, run",),
        patches(SimCollector, collect_uncommitted=_collecting("rucsl")),
    ),
    mutant(
        "commits-first",
        "commits are read after cells",
        _COMMIT,
        patches(SimCollector, collect_uncommitted=_collecting("rslcu")),
    ),
    mutant(
        "commits-noted",
        "commits, reachable or not",
        _COMMIT,
        patches(SimCollector, collect_uncommitted=_collecting("rslup")),
    ),
    mutant("grace-none", "readers have a grace", _GRACE, patches(SimCollector, grace=_no_grace)),
    mutant(
        "grace-early",
        "the grace begins after the last look",
        _GRACE,
        patches(SimCollector, read_staging=_grace_before_reading, grace=_no_grace),
    ),
    mutant(
        "page-skips",
        "a page goes on where the last one ended",
        ("renamer, run in pages",),
        patches(Reading, _scan_token=_skip_first_of_next_page),
    ),
    mutant(
        "settle-restarted",
        "a slice whose owner died is fenced and frozen first",
        ("uploader that comes back, run",),
        patches(Versions, close_slices=_settle_what_was_mine),
    ),
)
