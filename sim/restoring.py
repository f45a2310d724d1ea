"""Deferred deletes: objects that wait for the end of a window, restores of these, purges, and their planted bugs.

A restore is the real one (`service.Restoring`): an upload whose body is copied from where the object still lies. A run
that defers writes what `gc/service/deferring.py` writes. A purge may begin at any moment, as if its window were over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from msgspec import structs

from lakebed.base import Entry, RunId, to_row
from lakebed.gc.protocol import Restore, RunKind, RunState
from lakebed.gc.service import RestoreOutcome, Restoring
from lakebed.objectstore import ObjectMissing
from lakebed.versions import PathExists, RunRecord, Versions

from .actors import Ending, Scene, Violation
from .collecting import SimCollector
from .operations import Operation
from .ports import SimDeleter, SimPorts
from .reachable import deferred, reachable
from .scenes import MAIN, Do, versions
from .surgery import mutant, patches

BYTES: Final = b"taken"
GONE: Final = "data/gone"
LONG_MS: Final = 1 << 42


def shown(content: bytes) -> str:
    """What a restore of these bytes shows as its value."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class DeferringCollector(SimCollector):
    """Defers what it would delete."""

    async def sweep(self, run_id: RunId, plan: str, *, has_grace: bool = False) -> None:
        del has_grace
        await self.write_swept(run_id, plan.split("|")[0].split())
        await self.defer(run_id)

    async def defer(self, run_id: RunId) -> None:
        record, held = await self.runs.read(run_id)
        if not record.until_ms and record.state is RunState.SWEEPING:
            await self.runs.write(run_id, structs.replace(record, until_ms=LONG_MS, window="7d"), held)
        await self.expiring.drop_expiring(run_id)

    async def purge(self) -> None:
        """Let each deferred run delete, and end it."""
        for run_id, run in await self.repo.retired.runs():
            if not run.until_ms or run.state is not RunState.SWEEPING:
                continue
            record, held = await self.runs.read(run_id)
            await self.runs.write(run_id, structs.replace(record, purging=True), held)
            await SimDeleter().delete(run.plan.split("|")[1].split())
            await self.runs.move(run_id, RunState.ENDED)
            await self.expiring.drop_expiring(run_id)


# Deeds


def restore(name: str, *, key: str = "a", content: bytes = BYTES, overwrite: bool = False, only: str = "") -> Do:
    """Back to this path, of what deferred runs hold the first (or `only` this address). It is a write of the bytes,
    unless something was there or they were deleted."""

    async def act(repo: Versions) -> None:
        runs = [run for _, run in await repo.retired.runs() if run.until_ms]
        waiting = sorted(address for run in runs for address in run.plan.split("|")[1].split())
        if not waiting or (only and only not in waiting):
            raise ObjectMissing("no run holds it", key=only)
        row = {"run_id": "r1", "address": only or waiting[0], "size_bytes": len(content), "path": key}
        body = Restore(overwrite=overwrite)
        deed = await Restoring(repo, key=b"sim").restore_one(body, MAIN, row, key, restore=name)
        outcome = deed.outcome
        if outcome in ("another object is there", RestoreOutcome.OLDER):
            raise PathExists(str(outcome))
        if isinstance(outcome, str):
            raise ObjectMissing(outcome)

    return Do(Operation(name, "write", MAIN, key.encode(), shown(content)), act)


def purge(name: str) -> Do:
    async def act(repo: Versions) -> None:
        await DeferringCollector(repo).purge()

    return Do(Operation(name, "run"), act)


def put_deferred(name: str) -> Do:
    """A run deferred an object, long ago."""

    async def act(repo: Versions) -> None:
        await repo.objectstore.put(GONE, BYTES)
        record = RunRecord(
            kind=RunKind.COMMITTED,
            state=RunState.SWEEPING,
            started_ms=0,
            plan=f"|{GONE}",
            swept=True,
            until_ms=LONG_MS,
            window="7d",
        )
        await DeferringCollector(repo).runs.write(RunId("q0"), record, None)

    return Do(Operation(name, "run"), act)


def run_deferring(name: str) -> Do:
    """A collection of committed data that defers what it takes."""

    async def act(repo: Versions) -> None:
        await DeferringCollector(repo).collect_committed()

    return Do(Operation(name, "run"), act)


def apply_deferring(name: str) -> Do:
    """Another apply of it."""

    async def act(repo: Versions) -> None:
        await DeferringCollector(repo).carry_on()

    return Do(Operation(name, "run"), act)


# Checks


def nothing_names_what_waits(ending: Ending) -> None:
    """What a deferred run holds may be deleted once its window is over, so no entry names it."""
    if named := reachable(ending.disk) & (deferred(ending.disk, ended=True) | {GONE}):
        raise Violation(f"an entry names what a run deletes: {sorted(named)}")


def bytes_are_there(*uploaded: str) -> Callable[[Ending], None]:
    """Where no purge runs, bytes that were uploaded are there, whoever died when."""

    def check(ending: Ending) -> None:
        there = {content for content, _, _ in ending.disk.objectstore.values() if isinstance(content, bytes)}
        if lost := [value for value in uploaded if value.encode() not in there]:
            raise Violation(f"deleted within the window: {lost}")

    return check


def deferring(made: Scene, *checks: Callable[[Ending], None]) -> Scene:
    """The scene, tidied by an apply that goes on deferring."""
    tidy = made.tidy
    assert tidy is not None

    async def tidied(ports: SimPorts) -> None:
        await DeferringCollector(versions(ports)).carry_on()
        await tidy(ports)

    return replace(made, tidy=tidied, checks=(*made.checks, nothing_names_what_waits, *checks))


# Planted bugs


async def _restore_in_place(
    self: Any, branch: str, row: dict[str, Any], source: str, target: str, restore: str, there: Entry | None
) -> Entry:
    del row, restore, there
    content = await self._objectstore.get(source)
    entry = Entry(address=source, size_bytes=len(content), checksum=shown(content), modified_ms=0)
    await self._versions.staging.write(branch, target.encode(), 0, to_row(target.encode(), entry))
    return entry


async def _restore_that_stages_first(
    self: Any, branch: str, row: dict[str, Any], source: str, target: str, restore: str, there: Entry | None
) -> Entry:
    del row, restore, there
    content = await self._objectstore.get(source)

    async def store_body(address: str) -> Entry:
        return Entry(address=address, size_bytes=len(content), checksum=shown(content), modified_ms=0)

    entry: Entry = await self._versions.staging.upload(branch, target.encode(), store_body)
    await self._objectstore.copy(source, entry.address)
    return entry


async def _delete_at_once(self: DeferringCollector, run_id: RunId, plan: str, *, has_grace: bool = False) -> None:
    await SimCollector.sweep(self, run_id, plan, has_grace=has_grace)


async def _nothing_held(_: SimCollector) -> set[str]:
    return set()


_RESTORES: Final = ("restorer, purger", "restorer, committer")

RESTORE_MUTANTS: Final = (
    mutant(
        "restore-in-place",
        "a restore never brings back an address",
        _RESTORES,
        patches(Restoring, _upload=_restore_in_place),
    ),
    mutant(
        "restore-stages-first",
        "a restore's bytes are there before its cell",
        _RESTORES,
        patches(Restoring, _upload=_restore_that_stages_first),
    ),
    mutant(
        "defer-late",
        "nothing is deleted within the window",
        ("run that defers, another apply of it",),
        patches(DeferringCollector, sweep=_delete_at_once),
    ),
    mutant(
        "held-unread",
        "what an unfinished run holds is named",
        ("run that defers, run of uncommitted data",),
        patches(SimCollector, held=_nothing_held),
    ),
)
