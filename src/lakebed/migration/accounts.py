"""Migrate users, groups and policies, as far as the source's API shows them. It shows no secrets, so none are migrated.

Accounts that exist here are kept unchanged. A policy that is invalid here is reported, and not made. It may be a policy
that denies, so its holders get no policy here at all: users notice missing rights, and not excessive rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec

from lakebed.auth import (
    Accounts,
    BuiltIn,
    GroupExists,
    Groups,
    Policies,
    PolicyNotFound,
    Statement,
    UserExists,
    check_statements,
    conditions_of,
)
from lakebed.base import Invalid
from lakebed.client import BadAnswer, Client, ErrorAnswer
from lakebed.wire import Policy

T = TypeVar("T")

NOT_SHOWN: Final = {401, 403, 404, 405, 501}
"""The statuses of a server without such accounts, or that does not show them to this user."""


class AccountsMigrated(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the source's accounts, existing here or not. `stays` has a line for each item that is not migrated."""

    users: int
    groups: int
    policies: int
    stays: list[str]


class SourceAccounts:
    """The accounts of the source, read once. A noun that the source does not show is empty, and is in `hidden`."""

    def __init__(self, client: Client) -> None:
        self.hidden: list[str] = []
        self.policies = {one.id: one for one in self._shown("policies", client.policies.list)}
        self.groups = {one.id: one.description for one in self._shown("groups", client.groups.list)}
        self.users = [one.id for one in self._shown("users", client.users.list)]
        self.members = {
            user: [one.id for one in self._shown("groups", partial(client.users.groups, user))]
            for user in (self.users if "groups" not in self.hidden else [])
        }
        holders: list[tuple[str, str, Callable[[str], Iterable[Policy]]]] = []
        if "policies" not in self.hidden:
            holders += [("user", user, client.users.policies) for user in self.users]
            holders += [("group", group, client.groups.policies) for group in self.groups]
        self.attached = {
            (kind, holder): [one.id for one in self._shown("policies", partial(of, holder))]
            for kind, holder, of in holders
        }

    def _shown(self, noun: str, read: Callable[[], Iterable[T]]) -> list[T]:
        try:
            return [*read()]
        except BadAnswer:
            if noun != "policies":
                raise
        except ErrorAnswer as error:
            if error.status not in NOT_SHOWN:
                raise
        if noun not in self.hidden:
            self.hidden.append(noun)
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountsHere:
    accounts: Accounts
    groups: Groups
    policies: Policies


async def bring_accounts(source: SourceAccounts, here: AccountsHere, *, dry_run: bool = False) -> AccountsMigrated:
    """Make the accounts that are missing here. With `dry_run`, only report the result."""
    stays = ["passwords and access keys of users stay there: users get new keys here"]
    stays += [f"{noun} are not shown by the old server, or cannot be read here" for noun in source.hidden]
    known = set()
    for policy in source.policies.values():
        try:
            if await _make_policy(policy, here, dry_run=dry_run):
                stays.append(f"policy {policy.id} is another one here, and stays as it is")
            known.add(policy.id)
        except Invalid as error:
            stays.append(f"policy {policy.id}: {error}")
    if not dry_run:
        await _make_holders(source, here)
    for (kind, holder), policies in source.attached.items():
        if not known.issuperset(policies):
            # The missing policy may be one that denies: without it the others could grant too much.
            stays.append(f"{kind} {holder} gets no policy here, because one of them did not come over")
        elif not dry_run:
            attach = here.policies.attach_to_user if kind == "user" else here.policies.attach_to_group
            for policy_id in policies:
                with suppress(BuiltIn):
                    await attach(holder, policy_id)
    return AccountsMigrated(users=len(source.users), groups=len(source.groups), policies=len(known), stays=stays)


async def _make_policy(policy: Policy, here: AccountsHere, *, dry_run: bool) -> bool:
    """Make the policy where it is missing. Return whether a different policy has its name here.

    Raises:
        Invalid: the policy is invalid here.
    """
    statements = _statements(policy)
    try:
        return (await here.policies.get(policy.id)).statements != statements
    except PolicyNotFound:
        if not dry_run:
            await here.policies.create(policy.id, statements)
        return False


async def _make_holders(source: SourceAccounts, here: AccountsHere) -> None:
    for user in source.users:
        with suppress(UserExists):
            await here.accounts.create_user(user)
    for group, description in source.groups.items():
        with suppress(GroupExists):
            await here.groups.create(group, description=description)
    for user, groups in source.members.items():
        for group in groups:
            await here.groups.add_member(group, user)


def _statements(policy: Policy) -> tuple[Statement, ...]:
    """Return the statements of a policy in our form.

    Raises:
        InvalidPolicy, InvalidCondition: a statement has no meaning here, or its condition is unknown here.
    """
    return check_statements(
        [
            Statement(
                effect=one.effect,
                actions=tuple(one.action),
                resource=one.resource,
                conditions=conditions_of(one.condition),
            )
            for one in policy.statement
        ]
    )
