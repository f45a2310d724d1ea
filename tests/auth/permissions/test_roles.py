"""Groups, policies, who has them, and what comes built in."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

from lakebed.auth import (
    ADMINS,
    Accounts,
    Authorizer,
    BuiltIn,
    GroupExists,
    GroupNotFound,
    Groups,
    Identity,
    InvalidPolicy,
    InvalidRole,
    LastAdministrator,
    NoAcl,
    NotAuthenticated,
    NotGranted,
    NotPermitted,
    Permissions,
    Policies,
    PolicyExists,
    PolicyNotFound,
    Statement,
    UserNotFound,
)
from lakebed.auth.permissions.actions import ACTIONS, ALSO
from lakebed.auth.permissions.built_in import GROUPS, POLICIES
from lakebed.auth.permissions.statements import check_statements
from lakebed.auth.records import PARTITION
from lakebed.base import Ports
from lakebed.kv import Store

READ = Statement(effect="allow", actions=("fs:ReadObject",), resource="*")
ALL: dict[str, Any] = {"prefix": "", "after": "", "limit": 100}
LAKE = "arn:lakefs:fs:::repository/lake"


@dataclass(frozen=True)
class Roles:
    groups: Groups
    policies: Policies


@pytest.fixture
async def roles(store: Store, ports: Ports, accounts: Accounts) -> Roles:
    await accounts.set_up("esti")
    await accounts.create_user("ann")
    groups = Groups(store, ports, accounts)
    return Roles(groups, Policies(store, ports, accounts, groups))


async def may(roles: Roles, user: str, action: str) -> bool:
    return (await roles.policies.permissions_of(user)).allows(action, LAKE)


async def test_the_first_user_may_do_everything_and_the_next_nothing(roles: Roles) -> None:
    esti, ann = await roles.policies.permissions_of("esti"), await roles.policies.permissions_of("ann")

    assert all(esti.allows_everywhere(action) for action in ACTIONS)
    assert not any(ann.allows(action, resource) for action in ACTIONS for resource in ("*", LAKE))


async def test_a_policy_counts_whether_it_is_the_users_or_a_groups(roles: Roles) -> None:
    await roles.policies.create("readers", [READ])
    await roles.policies.attach_to_user("ann", "readers")
    assert await may(roles, "ann", "fs:ReadObject")

    await roles.policies.detach_from_user("ann", "readers")
    assert not await may(roles, "ann", "fs:ReadObject")

    await roles.groups.create("analysts")
    await roles.groups.add_member("analysts", "ann")
    await roles.policies.attach_to_group("analysts", "readers")
    assert await may(roles, "ann", "fs:ReadObject")

    await roles.groups.remove_member("analysts", "ann")
    assert not await may(roles, "ann", "fs:ReadObject")


async def test_an_updated_policy_is_that_of_everybody_who_has_it(roles: Roles) -> None:
    await roles.policies.create("mine", [READ])
    await roles.policies.attach_to_user("ann", "mine")

    await roles.policies.update("mine", [Statement(effect="allow", actions=("fs:WriteObject",), resource="*")])

    assert await may(roles, "ann", "fs:WriteObject")
    assert not await may(roles, "ann", "fs:ReadObject")


async def test_what_is_deleted_and_made_again_has_nothing_of_before(roles: Roles, accounts: Accounts) -> None:
    await roles.policies.create("readers", [READ])
    await roles.groups.create("analysts")
    await roles.policies.attach_to_group("analysts", "readers")
    await roles.groups.add_member("analysts", "ann")

    await roles.policies.delete("readers")
    await roles.policies.create("readers", [READ])
    assert not await may(roles, "ann", "fs:ReadObject")

    await roles.policies.attach_to_group("analysts", "readers")
    await accounts.delete_user("ann")
    await accounts.create_user("ann")
    assert not await may(roles, "ann", "fs:ReadObject")
    assert (await roles.groups.list_members("analysts", **ALL))[0] == []

    await roles.groups.add_member("analysts", "ann")
    await roles.groups.delete("analysts")
    await roles.groups.create("analysts")
    assert (await roles.groups.list_of("ann", **ALL))[0] == []


async def test_what_a_crash_left_of_a_deleted_user_counts_for_nobody(
    roles: Roles, accounts: Accounts, store: Store
) -> None:
    """The membership is still there, as if the crash had come before it was removed."""
    await roles.groups.add_member(ADMINS, "ann")
    key = b"user_groups/ann/Admins"
    left_behind = await store.get(PARTITION, key)
    assert left_behind is not None
    await accounts.delete_user("ann")
    await store.set(PARTITION, key, left_behind.value)

    await accounts.create_user("ann")

    assert not await may(roles, "ann", "fs:ReadObject")
    assert [user.id for user in (await roles.groups.list_members(ADMINS, **ALL))[0]] == ["esti"]


async def test_a_level_gives_a_group_the_policies_of_its_name(roles: Roles) -> None:
    await roles.groups.create("analysts")
    await roles.groups.add_member("analysts", "ann")
    with pytest.raises(NoAcl):
        await roles.groups.get_acl("analysts")

    for level, action, denied in (
        ("Read", "fs:ReadObject", "fs:WriteObject"),
        ("Write", "fs:WriteObject", "fs:DeleteRepository"),
        ("Super", "fs:DeleteRepository", "auth:CreateUser"),
    ):
        await roles.groups.set_acl("analysts", level)
        assert await roles.groups.get_acl("analysts") == level
        assert await may(roles, "ann", action)
        assert not await may(roles, "ann", denied)
    await roles.groups.set_acl("analysts", "Admin")
    assert await may(roles, "ann", "auth:CreateUser")
    with pytest.raises(InvalidRole):
        await roles.groups.set_acl("analysts", "Everything")


async def test_what_is_built_in_is_shown_and_stays_as_it_is(roles: Roles) -> None:
    groups, _ = await roles.groups.list(**ALL)
    policies, _ = await roles.policies.list(**ALL)
    assert [group.id for group in groups] == sorted(GROUPS)
    assert [policy.id for policy in policies] == sorted(POLICIES)
    assert await roles.groups.get_acl("Viewers") == "Read"

    with pytest.raises(BuiltIn):
        await roles.groups.delete("Viewers")
    with pytest.raises(BuiltIn):
        await roles.groups.set_acl("Viewers", "Admin")
    with pytest.raises(BuiltIn):
        await roles.policies.attach_to_group("Viewers", "AllAccess")
    with pytest.raises(BuiltIn):
        await roles.policies.detach_from_group("Viewers", "FSReadAll")
    with pytest.raises(BuiltIn):
        await roles.policies.update("FSReadAll", [READ])
    with pytest.raises(BuiltIn):
        await roles.policies.delete("FSReadAll")
    with pytest.raises(GroupExists):
        await roles.groups.create("Viewers")
    with pytest.raises(PolicyExists):
        await roles.policies.create("FSReadAll", [READ])


def test_what_is_built_in_would_be_taken_from_a_user_too() -> None:
    for statements in POLICIES.values():
        assert check_statements(statements) == statements
    assert {name for group in GROUPS.values() for name in group.policies} <= set(POLICIES)
    assert set(ALSO) | set(ALSO.values()) <= ACTIONS


@pytest.mark.parametrize(
    ("group", "allowed", "denied"),
    [
        ("Viewers", ["fs:ReadObject", "gc:ReadRuns", "gc:Explain"], ["fs:WriteObject", "gc:Plan", "auth:ListUsers"]),
        ("Developers", ["fs:WriteObject", "fs:CreateCommit", "gc:ReadRuns"], ["fs:DeleteRepository", "gc:Plan"]),
        ("SuperUsers", ["fs:DeleteRepository", "gc:Plan"], ["gc:Apply", "gc:WriteRules", "auth:CreateUser"]),
        (
            "GCPlanners",
            ["gc:Plan", "gc:Abandon", "gc:Explain", "gc:ReadLedger", "fs:ReadRepository"],
            ["gc:Apply", "gc:Restore", "gc:WriteRules", "retention:SetGarbageCollectionRules", "fs:ReadObject"],
        ),
        (
            "GCOperators",
            ["gc:Plan", "gc:Apply", "gc:Restore", "gc:WriteRules", "retention:SetGarbageCollectionRules"],
            ["fs:ReadObject", "fs:DeleteObject", "auth:CreateUser"],
        ),
    ],
)
async def test_a_built_in_group_may_what_its_name_says(
    roles: Roles, group: str, allowed: list[str], denied: list[str]
) -> None:
    await roles.groups.add_member(group, "ann")

    found = await roles.policies.permissions_of("ann")

    assert [action for action in allowed if not found.allows(action, LAKE)] == []
    assert [action for action in denied if found.allows(action, LAKE)] == []
    assert found.allows("auth:CreateCredentials", "arn:lakefs:auth:::user/ann")
    assert not found.allows("auth:CreateCredentials", "arn:lakefs:auth:::user/esti")


async def test_effective_policies_are_those_of_groups_too(roles: Roles) -> None:
    await roles.policies.create("mine", [READ])
    await roles.policies.attach_to_user("ann", "mine")
    await roles.groups.add_member("Viewers", "ann")

    own, _ = await roles.policies.list_of_user("ann", is_effective=False, **ALL)
    effective, _ = await roles.policies.list_of_user("ann", is_effective=True, **ALL)

    assert [policy.id for policy in own] == ["mine"]
    assert [policy.id for policy in effective] == sorted([*GROUPS["Viewers"].policies, "mine"])


async def test_lists_come_in_pages(roles: Roles) -> None:
    first, has_more = await roles.policies.list(prefix="GC", after="", limit=2)
    second, has_still_more = await roles.policies.list(prefix="GC", after=first[-1].id, limit=2)

    assert [policy.id for policy in (*first, *second)] == ["GCOperator", "GCPlanner", "GCViewer"]
    assert (has_more, has_still_more) == (True, False)


async def test_the_last_administrator_stays(roles: Roles) -> None:
    with pytest.raises(LastAdministrator):
        await roles.groups.remove_member(ADMINS, "esti")

    await roles.groups.add_member(ADMINS, "ann")
    await roles.groups.remove_member(ADMINS, "esti")

    assert [user.id for user in (await roles.groups.list_members(ADMINS, **ALL))[0]] == ["ann"]


async def test_what_is_missing_is_named(roles: Roles) -> None:
    with pytest.raises(GroupNotFound):
        await roles.groups.add_member("nobodys", "ann")
    with pytest.raises(UserNotFound):
        await roles.groups.add_member("Viewers", "bob")
    with pytest.raises(PolicyNotFound):
        await roles.policies.attach_to_user("ann", "nobodys")
    with pytest.raises(PolicyNotFound):
        await roles.policies.update("nobodys", [READ])
    with pytest.raises(GroupNotFound):
        await roles.groups.set_acl("nobodys", "Read")
    with pytest.raises(NotGranted):
        await roles.groups.remove_member("Viewers", "ann")
    with pytest.raises(NotGranted):
        await roles.policies.detach_from_user("ann", "FSReadAll")


async def test_ids_are_taken_once_and_not_every_id_is(roles: Roles) -> None:
    await roles.groups.create("analysts")
    await roles.policies.create("readers", [READ])

    with pytest.raises(GroupExists):
        await roles.groups.create("analysts")
    with pytest.raises(PolicyExists):
        await roles.policies.create("readers", [READ])
    for name in ("", "a/b", "a\n", "x" * 129, "ü" * 128 + "x"):
        with pytest.raises(InvalidRole):
            await roles.groups.create(name)
        with pytest.raises(InvalidRole):
            await roles.policies.create(name, [READ])
    with pytest.raises(InvalidPolicy):
        await roles.policies.create("nothing", [])


async def test_no_statement_denies_an_administrator_the_management_of_users(roles: Roles) -> None:
    deny = Statement(effect="deny", actions=("*",), resource="*")
    await roles.policies.create("denyall", [deny])

    await roles.policies.attach_to_user("esti", "denyall")

    assert await may(roles, "esti", "auth:DetachPolicy")
    assert not await may(roles, "esti", "fs:ReadObject")


@pytest.mark.parametrize(
    "resource",
    [
        "arn:lakefs:fs:::repository/[l]ake",
        "arn:lakefs:fs:::repository/{lake1,lake2}",
        "arn:lakefs:fs:::repository/${usr}",
        "arn:lakefs:fs:::repository/lake?",
        "repository/lake",
    ],
)
async def test_a_resource_that_cannot_be_carried_out_to_the_letter_is_refused_with_its_place(
    roles: Roles, resource: str
) -> None:
    good = Statement(effect="allow", actions=("fs:ReadObject",), resource="arn:lakefs:fs:::repository/${user}/*")
    bad = Statement(effect="deny", actions=("fs:ReadObject",), resource=resource)

    with pytest.raises(InvalidPolicy, match="statement 2"):
        await roles.policies.create("odd", [good, bad])


@pytest.mark.parametrize("later_s", [5, -3600], ids=["later", "clock set back"])
async def test_changes_count_at_once_here_and_in_seconds_elsewhere(roles: Roles, ports: Ports, later_s: int) -> None:
    here, elsewhere = Authorizer(roles.policies, ports), Authorizer(roles.policies, ports)
    ann = Identity(user_id="ann")
    await roles.groups.add_member("Viewers", "ann")
    for authorizer in (here, elsewhere):
        (await authorizer.permissions(ann)).require("fs:ReadObject", LAKE)

    await roles.groups.remove_member("Viewers", "ann")
    here.forget_all()

    with pytest.raises(NotPermitted, match="insufficient permissions: ann needs fs:ReadObject on arn:lakefs:fs"):
        (await here.permissions(ann)).require("fs:ReadObject", LAKE)
    await ports.clock.sleep(later_s)
    with pytest.raises(NotPermitted):
        (await elsewhere.permissions(ann)).require("fs:ReadObject", LAKE)


async def test_a_right_that_is_taken_while_it_is_read_is_not_cached(
    roles: Roles, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorizer, ann, read = Authorizer(roles.policies, ports), Identity(user_id="ann"), roles.policies.permissions_of
    await roles.groups.add_member("Viewers", "ann")

    async def overtaken(user_id: str) -> Permissions:
        found = await read(user_id)
        await roles.groups.remove_member("Viewers", user_id)
        authorizer.forget_all()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(roles.policies, "permissions_of", overtaken)
        await authorizer.permissions(ann)

    with pytest.raises(NotPermitted):
        (await authorizer.permissions(ann)).require("fs:ReadObject", LAKE)


async def test_permissions_of_an_address_last_as_long_as_those_of_their_user(roles: Roles, ports: Ports) -> None:
    """A policy of 1,000 statements takes a megabyte, and is made again every few seconds."""
    authorizer, ann = Authorizer(roles.policies, ports), Identity(user_id="ann")
    found = await authorizer.permissions(ann)
    there = weakref.ref(authorizer.under(found, "10.1.2.3"))
    assert authorizer.under(await authorizer.permissions(ann), "10.1.2.3") is there()

    await ports.clock.sleep(5)
    found = await authorizer.permissions(ann)
    gc.collect()

    assert there() is None


async def test_a_user_who_is_gone_is_nobody(roles: Roles, ports: Ports, accounts: Accounts) -> None:
    await accounts.delete_user("ann")

    with pytest.raises(NotAuthenticated):
        await Authorizer(roles.policies, ports).permissions(Identity(user_id="ann"))
