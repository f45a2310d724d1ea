"""Users, groups and policies of an old server: no user gets more rights here than there. Without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakebed.auth import Accounts, Groups, Policies, ServerKeys, Statement
from lakebed.client import Client, ErrorAnswer
from lakebed.kv import open_store
from lakebed.migration import AccountsHere, SourceAccounts, bring_accounts
from lakebed.runtime import live_ports
from lakebed.wire import Policy
from lakebed.wire import Statement as TheirStatement

ALL = 1_000

POLICIES = {
    "reads": ("allow",),
    "writes": ("allow",),
    "denies": ("deny",),
    "mixed": ("allow", "deny"),
    "FSReadAll": ("deny",),
}


def policy(name: str, *effects: Any) -> Policy:
    return Policy(
        id=name,
        statement=[TheirStatement(effect=one, action=[f"fs:{name.title()}Object"], resource="*") for one in effects],
    )


def source(
    *,
    groups: Mapping[str, Sequence[str]],
    joined: Sequence[str] = (),
    policies: Sequence[str] = (),
    hidden: Sequence[str] = (),
) -> SourceAccounts:
    """An old server with the user `ann`, her groups and policies, and the policies of each group."""
    every = {**{name: policy(name, *effects) for name, effects in POLICIES.items()}, "odd": ODD}
    attached = {("group", name): [*its] for name, its in groups.items()} | {("user", "ann"): [*policies]}
    found = {"policies": every, "groups": dict.fromkeys(groups, ""), "users": ["ann"], "hidden": [*hidden]}
    return cast("SourceAccounts", SimpleNamespace(**found, members={"ann": [*joined]}, attached=attached))


@pytest.fixture
def here() -> AccountsHere:
    store, ports = open_store("mem://"), live_ports()
    accounts = Accounts(store, ports, ServerKeys(b"a secret for tests only"))
    groups = Groups(store, ports, accounts)
    return AccountsHere(accounts=accounts, groups=groups, policies=Policies(store, ports, accounts, groups))


async def make(here: AccountsHere, group: str, *policies: str) -> None:
    """Make a group here with policies that mean what those of the old server mean, but for `other-…`."""
    await here.groups.create(group, description="")
    for name in policies:
        id_ = name.removeprefix("other-")
        action = f"fs:{name.title()}Object" if id_ == name else "fs:*"
        await here.policies.create(id_, (Statement(effect="allow", actions=(action,), resource="*"),))
        await here.policies.attach_to_group(group, id_)


async def rights(here: AccountsHere) -> tuple[list[str], list[str]]:
    joined, _ = await here.groups.list_of("ann", prefix="", after="", limit=ALL)
    held, _ = await here.policies.list_of_user("ann", is_effective=False, prefix="", after="", limit=ALL)
    return [one.id for one in joined], [one.id for one in held]


ODD = Policy(
    id="odd",
    statement=[TheirStatement(effect="allow", action=["fs:*"], resource="*", condition={"x": {"y": ["z"]}})],
)
"""Not valid here."""


@pytest.mark.parametrize(
    ("found", "made", "groups", "policies"),
    [
        ({"groups": {"team": ["reads"]}}, ["reads"], ["team"], ["writes"]),
        ({"groups": {"team": ["reads"]}}, ["reads", "writes"], [], ["writes"]),
        ({"groups": {"team": ["reads"]}}, ["other-reads"], [], ["writes"]),
        ({"groups": {"team": ["unshown"]}}, None, [], []),
        ({"groups": {"team": ["mixed"]}}, [], [], []),
        ({"groups": {"team": []}, "policies": ["writes", "odd"]}, None, ["team"], []),
        ({"groups": {}, "joined": [], "hidden": ["groups"]}, None, [], []),
    ],
    ids=["the same", "more here", "another of the name", "not shown", "denies in part", "a part", "groups hidden"],
)
async def test_who_comes_over_has_no_right_that_the_old_server_does_not_give(
    here: AccountsHere, found: dict[str, Any], made: list[str] | None, groups: list[str], policies: list[str]
) -> None:
    """A group or policy that did not come over whole may be the one that denies something."""
    if made is not None:
        await make(here, "team", *made)

    await bring_accounts(source(**{"joined": ["team"], "policies": ["writes"], **found}), here)

    assert await rights(here) == (groups, policies)


async def test_who_is_here_with_all_of_it_is_brought_again(here: AccountsHere) -> None:
    theirs = source(groups={"team": ["reads"]}, joined=["team"], policies=["writes"])
    await bring_accounts(theirs, here)

    again = await bring_accounts(theirs, here)

    assert await rights(here) == (["team"], ["writes"])
    assert not any("ann" in line for line in again.stays)


async def test_a_denial_below_a_built_in_name_keeps_the_members_of_its_built_in_group_from_any_right(
    here: AccountsHere,
) -> None:
    """Here the policy of that name allows, and the group has it."""
    await bring_accounts(source(groups={"Viewers": ["FSReadAll"]}, joined=["Viewers"], policies=["writes"]), here)

    assert await rights(here) == ([], [])


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_error_of_the_old_server_is_no_account_that_it_does_not_show(status: int) -> None:
    def fails() -> None:
        raise ErrorAnswer("later", status=status)

    shown = SimpleNamespace(list=lambda: ())
    client = SimpleNamespace(policies=shown, groups=SimpleNamespace(list=fails), users=shown)

    with pytest.raises(ErrorAnswer):
        SourceAccounts(cast("Client", client))
