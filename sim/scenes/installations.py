"""Two copies of one key-value store that go with one namespace, and two processes of one installation.

A copy is a partition of its own with the same records, here none: what the two write after is theirs alone, and the
namespace is the same. Never do both take a step and go on; in the end neither does, and where a person adopted one of
them the other one does not. Two of one installation never take each other for another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from explorer.actors import Actor, Check, Ending, Violation
from explorer.operations import Operation
from lakebed.base import RepositoryUid
from lakebed.gc.live.errors import OtherInstallation
from lakebed.gc.live.installation.installation import INSTALLATION_KEY, Installation, InstallationRecord
from lakebed.versions import Versions, decode_record
from sim.ports.ports import SimPorts
from sim.ports.scene import Program, Quick, Scene
from sim.ports.trees import SimTrees

COPIES: Final = "two copies of one store"
CHOSEN: Final = "two copies of one store, one is adopted"
PAGED: Final = "two copies of one store, marks in pages"
ONE: Final = "two processes of one store"


def _installation(ports: SimPorts, partition: str, *, list_page: int = 1000) -> Installation:
    ports.objectstore.list_page = list_page
    trees = SimTrees(ports.objectstore)
    here = Versions(
        uid=RepositoryUid(partition), store=ports.store, objectstore=ports.objectstore, trees=trees, ports=ports.ports
    )
    return Installation(here)


def _stepping(name: str, partition: str, *, list_page: int = 1000) -> Program:
    async def program(ports: SimPorts) -> None:
        here = _installation(ports, partition, list_page=list_page)
        await ports.operations.run(Operation(name, "step", partition), here.step())

    return program


def _process(name: str, partition: str, *, list_page: int = 1000) -> Actor:
    program, again = (_stepping(one, partition, list_page=list_page) for one in (name, f"{name}, again"))
    return Actor(name, program, again)


def _adopting(name: str, partition: str) -> Program:
    async def program(ports: SimPorts) -> None:
        await ports.operations.run(Operation(name, "adopt", partition), _installation(ports, partition).adopt(by="ann"))

    return program


def _tidy(*partitions: str) -> Program:
    """Let every installation take a step, and then look once more."""

    async def program(ports: SimPorts) -> None:
        for place in partitions:
            with suppress(OtherInstallation):
                await _installation(ports, place).step()
        for place in partitions:
            with suppress(OtherInstallation):
                await _installation(ports, place).check()

    return program


def _is_stopped(ending: Ending, partition: str) -> bool:
    value = ending.disk.value(partition.encode(), INSTALLATION_KEY)
    return value is not None and decode_record(InstallationRecord, value).is_stopped


def only_one_goes_on(ending: Ending) -> None:
    if len({record.operation.branch for record in ending.acknowledged("step")}) > 1:
        raise Violation("both copies went on")


def both_stop(ending: Ending) -> None:
    for place in ("one", "copy"):
        if not _is_stopped(ending, place):
            raise Violation(f"{place} goes on, with another beside it")


def who_was_not_chosen_stops(ending: Ending) -> None:
    if list(ending.acknowledged("adopt")) and not _is_stopped(ending, "copy"):
        raise Violation("the copy goes on beside the one that was adopted")


def nobody_is_another(ending: Ending) -> None:
    for name, record in ending.records.items():
        if record.error is OtherInstallation:
            raise Violation(f"{name} took its own installation for another")
    if _is_stopped(ending, "one"):
        raise Violation("an installation that was the only one has stopped")


def installation_scenes() -> Iterator[Scene]:
    def of_copies(name: str, *actors: Actor, checks: Sequence[Check], tidied: Sequence[Check]) -> Scene:
        tidy = _tidy("one", "copy")
        return Scene(name=name, actors=actors, tidy=tidy, checks=checks, tidy_checks=tidied, quick=Quick.ALL)

    for name, list_page in ((COPIES, 1000), (PAGED, 1)):
        actors = [_process(one, place, list_page=list_page) for one, place in (("a", "one"), ("b", "copy"))]
        yield of_copies(name, *actors, checks=[only_one_goes_on], tidied=[both_stop])
    adopter, other = Actor("a", _adopting("a", "one")), _process("b", "copy")
    yield of_copies(CHOSEN, adopter, other, checks=(), tidied=[who_was_not_chosen_stops])
    actors, checks = [_process("a", "one"), _process("b", "one")], [nobody_is_another]
    tidy = _tidy("one")
    yield Scene(name=ONE, actors=actors, tidy=tidy, checks=checks, tidy_checks=checks, quick=Quick.ALL)
