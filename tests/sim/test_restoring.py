"""Restores beside writers, committers, purges and collections: every schedule of small worlds.

A restore is an upload, so every promise about uploads is asked of it. What is new is the object in quarantine, which a
purge takes away whenever it likes.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from lakebed.base import Entry, to_row
from lakebed.blocks import BlockNotFound
from lakebed.handoff import Quarantine, Restore
from lakebed.testing.sim import explore
from lakebed.testing.sim.actors import Actor, Ending, Scene, Violation
from lakebed.testing.sim.deeds import run
from lakebed.testing.sim.exploring import NO_BUDGET, Budget
from lakebed.testing.sim.operations import Operation
from lakebed.testing.sim.ports import Ports
from lakebed.testing.sim.reachable import reachable
from lakebed.testing.sim.scenes import MAIN, Do, client, commit, reset, scene, upload, write
from lakebed.upkeep import Restoring
from lakebed.versions import PathExists, Versions

ASIDE = Quarantine(run_id="r1", ledger_date="2026-11-21", since_ms=1, until_ms=2, window="7d")
BYTES = b"taken"
TAKEN = hashlib.md5(BYTES, usedforsecurity=False).hexdigest()
"""What a write of these bytes shows as its value."""

ROW = {"run_id": "r1", "address": "data/gone", "size_bytes": len(BYTES), "path": "a"}
A_CRASH, A_LOSS = Budget(crashes=1), Budget(losses=1)


def restore(name: str, *, overwrite: bool = False, restoring: type[Restoring] = Restoring) -> Do:
    """Back to path `a`. It is a write of the bytes, unless something was there or they were purged."""

    async def act(repo: Versions) -> None:
        outcome = await restoring(repo).restore_one(Restore(overwrite=overwrite), MAIN, ASIDE, ROW, "a")
        if outcome == "another object is there":
            raise PathExists(outcome)
        if isinstance(outcome, str):
            raise BlockNotFound(outcome)

    return Do(Operation(name, "write", MAIN, b"a", TAKEN), act)


def purge(name: str) -> Do:
    async def act(repo: Versions) -> None:
        await repo.blocks.delete([ASIDE.key("data/gone")])

    return Do(Operation(name, "purge"), act)


def with_quarantine(made: Scene) -> Scene:
    """The scene, in which a run moved an object aside before it began."""
    prepare = made.prepare
    assert prepare is not None

    async def prepared(ports: Ports) -> None:
        await prepare(ports)
        await ports.blocks.put(ASIDE.key("data/gone"), BYTES)

    return replace(made, prepare=prepared, checks=(*made.checks, nothing_names_the_quarantine))


def nothing_names_the_quarantine(ending: Ending) -> None:
    """What lies there may be purged at any time, so no entry names it, and none names an address that was taken."""
    if named := {address for address in reachable(ending.disk) if address in ("data/gone", ASIDE.key("data/gone"))}:
        raise Violation(f"a restored entry names {sorted(named)}")


RESTORER = client("x", restore("x1"))
AGAIN = client("x", restore("x1"), again=[restore("x2")])
COMMITTER, PURGER = client("c", commit("c1")), client("p", purge("p1"))


def worlds() -> list[tuple[str, tuple[Actor, ...], Budget]]:
    return [
        ("restorer that comes back, purger", (AGAIN, PURGER), A_CRASH),
        ("restorer, committer", (RESTORER, COMMITTER), A_LOSS),
        ("restorer, writer, committer", (RESTORER, client("w", write("w1", "a", "1")), COMMITTER), NO_BUDGET),
        ("restorer, uploader", (RESTORER, client("w", upload("w1", "a", "1"))), A_CRASH),
        ("restorer that overwrites, committer", (client("x", restore("x1", overwrite=True)), COMMITTER), A_CRASH),
        ("restorer, resetter", (RESTORER, client("s", reset("s1"))), A_CRASH),
        ("restorer, run", (RESTORER, client("g", run("g1"))), NO_BUDGET),
        ("restorer, purger, run", (RESTORER, PURGER, client("g", run("g1"))), NO_BUDGET),
        ("two restorers", (RESTORER, client("y", restore("y1"))), A_CRASH),
    ]


@pytest.mark.parametrize(("name", "actors", "budget"), worlds(), ids=[world[0] for world in worlds()])
def test_no_schedule_of_restores_breaks_a_promise(name: str, actors: tuple[Actor, ...], budget: Budget) -> None:
    explored = explore(with_quarantine(scene(name, *actors, staged=[upload("u0", "b", "0")])), budget)

    assert explored.violation is None, explored.violation
    assert explored.endings > 0


class NamesTheOldAddress(Restoring):
    """Instead of a fresh one."""

    async def restore_one(
        self, body: Restore, branch: str, quarantine: Quarantine, row: dict[str, Any], target: str
    ) -> bool | str:
        await self._blocks.copy(quarantine.key(row["address"]), row["address"])
        entry = Entry(address=row["address"], size_bytes=len(BYTES), checksum=TAKEN, modified_ms=0)
        await self._versions._write(branch, target.encode(), 0, to_row(target.encode(), entry))
        return True


class StagesFirst(Restoring):
    """And copies then."""

    async def restore_one(
        self, body: Restore, branch: str, quarantine: Quarantine, row: dict[str, Any], target: str
    ) -> bool | str:
        async def store_body(address: str) -> Entry:
            return Entry(address=address, size_bytes=len(BYTES), checksum=TAKEN, modified_ms=0)

        entry = await self._versions.upload(branch, target.encode(), store_body)
        await self._blocks.copy(quarantine.key(row["address"]), entry.address)
        return True


@pytest.mark.parametrize("mutant", [NamesTheOldAddress, StagesFirst])
def test_a_restore_without_one_of_its_guards_is_found(mutant: type[Restoring]) -> None:
    found = [
        explore(with_quarantine(scene("mutant", client("x", restore("x1", restoring=mutant)), *others)), A_CRASH)
        for others in ((PURGER,), (COMMITTER,))
    ]

    assert any(explored.violation is not None for explored in found)
