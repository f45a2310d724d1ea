"""Quarantine: what a run moves aside instead of deleting it, restores from there, purges, and their planted bugs.

A restore is the real one (`service.Restoring`): an upload whose body is copied from the quarantine. A sweep that moves
aside does per object what `gc/sweep.py` does: copy, then delete; what is gone from its address was moved by somebody.
A purge takes whatever lies aside, at any moment, as if its window were over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from lakebed.base import Entry, RunId, to_row
from lakebed.gc.protocol import Quarantine, Restore, RunState
from lakebed.gc.service import RestoreOutcome, Restoring
from lakebed.objectstore import ObjectMissing
from lakebed.versions import PathExists, Versions

from .actors import Ending, Scene, Violation
from .collecting import SimCollector
from .operations import Operation
from .ports import SimDeleter, SimPorts
from .reachable import reachable
from .scenes import MAIN, Do, versions
from .surgery import mutant, patches

ASIDE: Final = Quarantine(run_id="r1", ledger_date="2026-11-21", since_ms=1, until_ms=2, window="7d")
BYTES: Final = b"taken"
_FOLDER: Final = ASIDE.key("")


def shown(content: bytes) -> str:
    """What a restore of these bytes shows as its value."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class QuarantiningCollector(SimCollector):
    """Moves aside what it takes."""

    async def sweep(self, run_id: RunId, plan: str, *, has_grace: bool = False) -> None:
        commits, doomed = (part.split() for part in plan.split("|"))
        await self.write_swept(run_id, commits)
        if has_grace:
            await self.grace()
        for key in doomed:
            await self.move_aside(key)
        await self.runs.move(run_id, RunState.ENDED)
        await self.condemning.drop_condemned(run_id)

    async def move_aside(self, key: str) -> None:
        try:
            await self.repo.objectstore.copy(key, ASIDE.key(key))
        except ObjectMissing:
            return
        await SimDeleter().delete([key])


# Deeds


def restore(name: str, *, key: str = "a", content: bytes = BYTES, overwrite: bool = False, only: str = "") -> Do:
    """What lies aside first (or `only` this address), back to this path. It is a write of the bytes, unless something
    was there or they were purged."""

    async def act(repo: Versions) -> None:
        page = [stat async for page in repo.objectstore.list(ASIDE.key(only)) for stat in page]
        if not page:
            raise ObjectMissing("nothing lies aside", key=_FOLDER)
        address = page[0].key.removeprefix(_FOLDER)
        row = {"run_id": ASIDE.run_id, "address": address, "size_bytes": len(content), "path": key}
        body = Restore(overwrite=overwrite)
        deed = await Restoring(repo, key=b"sim").restore_one(body, MAIN, ASIDE, row, key, restore=name)
        outcome = deed.outcome
        if outcome in ("another object is there", RestoreOutcome.OLDER):
            raise PathExists(str(outcome))
        if isinstance(outcome, str):
            raise ObjectMissing(outcome)

    return Do(Operation(name, "write", MAIN, key.encode(), shown(content)), act)


def purge(name: str) -> Do:
    async def act(repo: Versions) -> None:
        await SimDeleter().delete([stat.key async for page in repo.objectstore.list(_FOLDER) for stat in page])

    return Do(Operation(name, "run"), act)


def put_aside(name: str) -> Do:
    """A run moved an object aside, long ago."""

    async def act(repo: Versions) -> None:
        await repo.objectstore.put(ASIDE.key("data/gone"), BYTES)

    return Do(Operation(name, "run"), act)


def run_aside(name: str) -> Do:
    """A collection of committed data that moves aside what it takes."""

    async def act(repo: Versions) -> None:
        await QuarantiningCollector(repo).collect_committed()

    return Do(Operation(name, "run"), act)


def apply_aside(name: str) -> Do:
    """Another apply of it."""

    async def act(repo: Versions) -> None:
        await QuarantiningCollector(repo).carry_on()

    return Do(Operation(name, "run"), act)


# Checks


def nothing_names_the_quarantine(ending: Ending) -> None:
    """What lies there may be purged at any time, so no entry names it; and none names an address that was taken."""
    taken = {key.removeprefix(_FOLDER) for key in ending.disk.objectstore if key.startswith(_FOLDER)}
    if named := {one for one in reachable(ending.disk) if one.startswith(_FOLDER) or one in taken | {"data/gone"}}:
        raise Violation(f"an entry names what was moved aside: {sorted(named)}")


def taken_lies_aside(*uploaded: str) -> Callable[[Ending], None]:
    """Where nobody purges, bytes that were uploaded are at their address or aside, whoever died when."""

    def check(ending: Ending) -> None:
        there = {content for content, _, _ in ending.disk.objectstore.values() if isinstance(content, bytes)}
        if lost := [value for value in uploaded if value.encode() not in there]:
            raise Violation(f"neither at its address nor aside: {lost}")

    return check


def quarantined(made: Scene, *checks: Callable[[Ending], None]) -> Scene:
    """The scene, tidied by an apply that goes on moving aside."""
    tidy = made.tidy
    assert tidy is not None

    async def tidied(ports: SimPorts) -> None:
        await QuarantiningCollector(versions(ports)).carry_on()
        await tidy(ports)

    return replace(made, tidy=tidied, checks=(*made.checks, nothing_names_the_quarantine, *checks))


# Planted bugs


async def _restore_to_the_old_address(
    self: Any, branch: str, row: dict[str, Any], source: str, target: str, restore: str, there: Entry | None
) -> Entry:
    del restore, there
    await self._objectstore.copy(source, row["address"])
    content = await self._objectstore.get(row["address"])
    entry = Entry(address=row["address"], size_bytes=len(content), checksum=shown(content), modified_ms=0)
    await self._versions.staging.write(branch, target.encode(), 0, to_row(target.encode(), entry))
    return entry


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

    entry: Entry = await self._versions.upload(branch, target.encode(), store_body)
    await self._objectstore.copy(source, entry.address)
    return entry


async def _delete_then_copy(self: QuarantiningCollector, key: str) -> None:
    try:
        content = await self.repo.objectstore.get(key)
    except ObjectMissing:
        return
    await SimDeleter().delete([key])
    await self.repo.objectstore.put(ASIDE.key(key), content)


async def _nothing_held(_: SimCollector) -> set[str]:
    return set()


_RESTORES: Final = ("restorer, purger", "restorer, committer")

RESTORE_MUTANTS: Final = (
    mutant(
        "restore-same-address",
        "a restore never brings back an address",
        ("restorer, committer",),
        patches(Restoring, _upload=_restore_to_the_old_address),
    ),
    mutant(
        "restore-in-place",
        "no entry names the quarantine",
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
        "aside-late",
        "copied aside, then deleted",
        ("run that moves aside, another apply of it",),
        patches(QuarantiningCollector, move_aside=_delete_then_copy),
    ),
    mutant(
        "held-unread",
        "what an unfinished run holds is named",
        ("run that moves aside, run of uncommitted data",),
        patches(SimCollector, held=_nothing_held),
    ),
)
