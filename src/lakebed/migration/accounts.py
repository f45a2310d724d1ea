"""Migrate users, groups and policies, as far as the source's API shows them. It shows no secrets, so none are migrated.

Accounts that exist here are kept unchanged: they may be others of the same name, or rights may have been taken away
since an earlier call. A policy that is invalid here is reported, and not made. It may be a policy that denies, so its
holders get no policy here at all: users notice missing rights, and not excessive rights. For the same reason a user
whom a policy denies something there, and none here, gets nothing, whether by a policy of the user or of a group. Where
the groups of users are not shown, one of them may deny something.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec

from lakebed.auth import (
    Accounts,
    GroupNotFound,
    Groups,
    Policies,
    PolicyNotFound,
    Statement,
    check_statements,
    conditions_of,
)
from lakebed.base import Invalid
from lakebed.client import BadAnswer, Client, ErrorAnswer
from lakebed.wire import Policy

T = TypeVar("T")

ALL: Final = 1_000_000
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
    return await _Bringing(source, here, dry_run=dry_run).bring()


class _Bringing:
    """One call. `known`: policies that mean here what they meant there. `joined`: groups that new users may join.
    `lenient`: groups that deny less here than there.
    """

    def __init__(self, source: SourceAccounts, here: AccountsHere, *, dry_run: bool) -> None:
        self._source = source
        self._here = here
        self._is_dry = dry_run
        self._known: set[str] = set()
        self._joined: set[str] = set()
        self._lenient: set[str] = set()
        self._stays = ["passwords and access keys of users stay there: users get new keys here"]
        self._stays += [f"{noun} are not shown by the old server, or cannot be read here" for noun in source.hidden]

    async def bring(self) -> AccountsMigrated:
        for policy in self._source.policies.values():
            await self._or_say(f"policy {policy.id}", self._bring_policy(policy))
        for group, description in self._source.groups.items():
            await self._or_say(f"group {group}", self._bring_group(group, description))
        for user in self._source.users:
            await self._or_say(f"user {user}", self._bring_user(user))
        return AccountsMigrated(
            users=len(self._source.users),
            groups=len(self._source.groups),
            policies=len(self._known),
            stays=self._stays,
        )

    async def _or_say(self, what: str, bringing: Awaitable[None]) -> None:
        """Say that one is not valid here: the others come over."""
        try:
            await bringing
        except Invalid as error:
            self._stays.append(f"{what}: {error}")

    async def _bring_policy(self, policy: Policy) -> None:
        """Make the policy where it is missing. A built-in one stands for the source's of that name.

        Raises:
            Invalid: the policy is invalid here.
        """
        statements = _statements(policy)
        try:
            found = await self._here.policies.get(policy.id)
        except PolicyNotFound:
            if not self._is_dry:
                await self._here.policies.create(policy.id, statements)
        else:
            if found.statements != statements:
                self._stays.append(f"policy {policy.id} is another one here, and stays as it is")
                if not found.is_built_in or self._deny([policy.id]):
                    return  # It may allow more: no user gets it in place of the source's.
        self._known.add(policy.id)

    async def _bring_group(self, group: str, description: str) -> None:
        """Make the group where it is missing. One with other policies is another, and new users do not join it."""
        wanted = self._source.attached.get(("group", group), [])
        try:
            found = await self._here.groups.get(group)
        except GroupNotFound:
            self._joined.add(group)
            if not self._is_dry:
                await self._here.groups.create(group, description=description)
            if self._may_attach(f"group {group}", wanted):
                for policy in wanted:
                    await self._here.policies.attach_to_group(group, policy)
            if self._deny({*wanted} - self._known):
                self._lenient.add(group)
            return
        policies, _ = await self._here.policies.list_of_group(group, prefix="", after="", limit=ALL)
        has = {one.id for one in policies}
        if found.is_built_in or (has == {*wanted} and self._known.issuperset(wanted)):
            self._joined.add(group)
            lacks = {*wanted} - (has & self._known)
        else:
            lacks = {*wanted}
            self._stays.append(f"group {group} is another one here: it stays as it is, and nobody joins it")
        if self._deny(lacks):
            self._lenient.add(group)

    async def _bring_user(self, user: str) -> None:
        """Make the user where it is missing. One who is here may be another person, or have lost rights on purpose."""
        groups, policies = self._source.members.get(user, []), self._source.attached.get(("user", user), [])
        if await self._here.accounts.find_user(user) is not None:
            joined, _ = await self._here.groups.list_of(user, prefix="", after="", limit=ALL)
            held, _ = await self._here.policies.list_of_user(user, is_effective=False, prefix="", after="", limit=ALL)
            lacks = sorted({*groups} - {one.id for one in joined}) + sorted({*policies} - {one.id for one in held})
            if lacks:
                self._stays.append(f"user {user} is here already, and gets nothing: there it has {', '.join(lacks)}")
            return
        if not self._is_dry:
            await self._here.accounts.create_user(user)
        if policies and "groups" in self._source.hidden:
            self._stays.append(f"user {user} gets nothing here: its groups are not shown, and one of them may deny")
            return
        if lenient := sorted(self._lenient.intersection(groups)):
            self._stays.append(
                f"user {user} gets nothing here: group {lenient[0]} denies something there, and not here"
            )
            return
        if self._deny({*policies} - self._known):
            self._stays.append(f"user {user} gets nothing here: one of its policies denies, and did not come over")
            return
        if not self._is_dry:
            for group in groups:
                if group in self._joined:
                    await self._here.groups.add_member(group, user)
        if self._may_attach(f"user {user}", policies):
            for policy in policies:
                await self._here.policies.attach_to_user(user, policy)

    def _deny(self, policies: Iterable[str]) -> bool:
        """Return whether one of these policies denies something there. One that the source does not show may."""
        found = [self._source.policies.get(one) for one in policies]
        return any(one is None or any(each.effect != "allow" for each in one.statement) for one in found)

    def _may_attach(self, holder: str, policies: Sequence[str]) -> bool:
        if not self._known.issuperset(policies):
            # The missing policy may be one that denies: without it the others could grant too much.
            self._stays.append(f"{holder} gets no policy here, because one of them did not come over")
            return False
        return not self._is_dry


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
