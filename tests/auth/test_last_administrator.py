"""However administrators leave at the same time, one stays: every schedule, with crashes, lost answers, late writes."""

from __future__ import annotations

import pytest

from explorer.disk import Disk
from explorer.exploring import NO_BUDGET
from explorer.operations import Operation
from lakebed.auth import ADMINS, Accounts, Groups, LastAdministrator, ServerKeys, UserRecord
from sim import Actor, Budget, Ending, Program, Scene, SimPorts, Violation, explore
from sim.ports.scene import run_alone


def groups_of(ports: SimPorts) -> Groups:
    accounts = Accounts(ports.store, ports.ports, ServerKeys(b"a secret for tests only"))
    return Groups(ports.store, ports.ports, accounts)


def leaving(user: str) -> Program:
    async def program(ports: SimPorts) -> None:
        operation = Operation(user, "leave", ADMINS)
        await ports.operations.run(operation, groups_of(ports).remove_member(ADMINS, user))

    return program


def joining(user: str) -> Program:
    async def program(ports: SimPorts) -> None:
        await ports.operations.run(
            Operation(f"{user} joins", "join", ADMINS), groups_of(ports).add_member(ADMINS, user)
        )

    return program


async def prepare(ports: SimPorts) -> None:
    groups = groups_of(ports)
    await groups._accounts.set_up("ann")
    await groups._accounts.create_user("bob")
    await groups.add_member(ADMINS, "bob")


def one_is_left(ending: Ending) -> None:
    members: list[str] = []

    async def look(ports: SimPorts) -> None:
        found, _ = await groups_of(ports).list_members(ADMINS, prefix="", after="", limit=10)
        members.extend(user.id for user in found)

    run_alone(look, ending.disk)
    if not members:
        raise Violation("no administrator is left")
    left = {record.operation.name for record in ending.acknowledged("leave")}
    joined = {record.operation.name.removesuffix(" joins") for record in ending.of("join")}
    if stayed := (left - joined) & {*members}:
        raise Violation(f"{sorted(stayed)} left, and is still a member")


def scene(name: str, *actors: Actor) -> Scene:
    return Scene(name=name, actors=actors, prepare=prepare, checks=(one_is_left,))


TWO = scene("two administrators leave", Actor("a", leaving("ann")), Actor("b", leaving("bob")))
AGAIN = scene(
    "two leave, one comes back",
    Actor("a", leaving("ann"), leaving("ann")),
    Actor("b", leaving("bob")),
    Actor("c", joining("ann")),
)


@pytest.mark.parametrize("budget", [NO_BUDGET, Budget(crashes=1), Budget(losses=1), Budget(late=1)], ids=str)
def test_one_of_two_administrators_stays(budget: Budget) -> None:
    explored = explore(TWO, budget)

    assert explored.violation is None, explored.violation
    assert explored.states > 20


def test_one_stays_beside_another_who_comes_back() -> None:
    explored = explore(AGAIN, NO_BUDGET)

    assert explored.violation is None, explored.violation


async def leave_after_a_look(self: Groups, user: UserRecord) -> None:
    """The flow without its record: count the members, then go."""
    members = await self._members(ADMINS, "built-in")
    if len(members) == 1:
        raise LastAdministrator("last")
    await self._store.delete(b"auth", f"user_groups/{user.id}/{ADMINS}".encode())


def test_the_flow_without_its_record_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "leave_admins", leave_after_a_look)

    explored = explore(TWO, NO_BUDGET)

    assert "no administrator is left" in (explored.violation or "")


def test_the_disk_that_scenes_begin_with_has_two_administrators() -> None:
    disk = Disk()
    run_alone(prepare, disk)

    one_is_left(Ending(disk, {}, frozenset()))
