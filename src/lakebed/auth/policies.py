"""Policies, who has them, and what they add up to, over the key-value store. Those that are built in (built_in.py) are
shown among those that are stored.

Reads go to the store each time; `Authorizer` is what caches. What names a policy is removed before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakebed.base import AlreadyExists, NotFound, World
from lakebed.kv import PredicateFailed, Store, scan_prefix

from .accounts import Accounts
from .built_in import ACL, GROUPS, POLICIES, UID
from .grants import grant, grants_of, revoke, revoke_all
from .groups import Groups
from .ids import check_id, page, refuse_built_in
from .records import GROUP_POLICIES, PARTITION, USER_POLICIES, GroupRecord, PolicyRecord, UserRecord, decode, encode
from .records import POLICIES as _KEYS
from .statements import Permissions, Statement, check_statements


class PolicyExists(AlreadyExists):
    """There is a policy of this id."""


class PolicyNotFound(NotFound):
    """There is no policy of this id."""


class Policies:
    def __init__(self, store: Store, world: World, accounts: Accounts, groups: Groups) -> None:
        self._store = store
        self._world = world
        self._accounts = accounts
        self._groups = groups

    async def create(self, policy_id: str, statements: Sequence[Statement]) -> PolicyRecord:
        """
        Raises:
            PolicyExists, InvalidRole, InvalidPolicy, InvalidAction.
        """
        record = PolicyRecord(
            id=check_id(policy_id),
            uid=self._world.ids.fresh(),
            created_ms=self._world.clock.now_ms(),
            statements=check_statements(statements),
        )
        if policy_id in POLICIES:
            raise PolicyExists(f"policy {policy_id!r} is built in", policy=policy_id)
        try:
            await self._store.set_if(PARTITION, _KEYS + policy_id.encode(), encode(record), None)
        except PredicateFailed as error:
            raise PolicyExists(f"policy {policy_id!r} exists", policy=policy_id) from error
        return record

    async def get(self, policy_id: str) -> PolicyRecord:
        if policy_id in POLICIES:
            return _built_in(policy_id, await self._accounts.installed_ms())
        held = await self._store.get(PARTITION, _KEYS + check_id(policy_id).encode())
        if held is None:
            raise PolicyNotFound(f"there is no policy {policy_id!r}", policy=policy_id)
        return decode(PolicyRecord, held.value)

    async def update(self, policy_id: str, statements: Sequence[Statement]) -> PolicyRecord:
        """Whoever has it has the new one.

        Raises:
            BuiltIn, PolicyNotFound, InvalidPolicy, InvalidAction.
            PredicateFailed: somebody else changed it at the same time.
        """
        refuse_built_in(policy_id, POLICIES)
        key = _KEYS + check_id(policy_id).encode()
        held = await self._store.get(PARTITION, key)
        if held is None:
            raise PolicyNotFound(f"there is no policy {policy_id!r}", policy=policy_id)
        record = msgspec.structs.replace(decode(PolicyRecord, held.value), statements=check_statements(statements))
        await self._store.set_if(PARTITION, key, encode(record), held.predicate)
        return record

    async def list(self, *, prefix: str, after: str, limit: int) -> tuple[Sequence[PolicyRecord], bool]:
        """Ascending by id; and whether there are more."""
        installed_ms = await self._accounts.installed_ms()
        found = {name: _built_in(name, installed_ms) for name in POLICIES}
        async for _, value in scan_prefix(self._store, PARTITION, _KEYS):
            record = decode(PolicyRecord, value)
            found[record.id] = record
        return page(found, prefix=prefix, after=after, limit=limit)

    async def delete(self, policy_id: str) -> None:
        """Attachments first, then the policy.

        Raises:
            BuiltIn, PolicyNotFound.
        """
        refuse_built_in(policy_id, POLICIES)
        await self.get(policy_id)
        await revoke_all(self._store, (USER_POLICIES, GROUP_POLICIES), granted=policy_id)
        await self._store.delete(PARTITION, _KEYS + policy_id.encode())

    # Who has which policy

    async def attach_to_user(self, user_id: str, policy_id: str) -> None:
        user, policy = await self._accounts.get_user(user_id), await self.get(policy_id)
        await grant(self._store, USER_POLICIES, (user.id, user.uid), (policy.id, policy.uid))

    async def detach_from_user(self, user_id: str, policy_id: str) -> None:
        """
        Raises:
            NotGranted: the user does not have it, or has it through a group only.
        """
        user, policy = await self._accounts.get_user(user_id), await self.get(policy_id)
        await revoke(self._store, USER_POLICIES, (user.id, user.uid), policy.id)

    async def attach_to_group(self, group_id: str, policy_id: str) -> None:
        """
        Raises:
            BuiltIn: the group is: its policies are what its name says.
        """
        refuse_built_in(group_id, GROUPS)
        group, policy = await self._groups.get(group_id), await self.get(policy_id)
        await grant(self._store, GROUP_POLICIES, (group.id, group.uid), (policy.id, policy.uid))

    async def detach_from_group(self, group_id: str, policy_id: str) -> None:
        """
        Raises:
            BuiltIn: the group is.
            NotGranted: the group does not have it, or has it by its access level.
        """
        refuse_built_in(group_id, GROUPS)
        group, policy = await self._groups.get(group_id), await self.get(policy_id)
        await revoke(self._store, GROUP_POLICIES, (group.id, group.uid), policy.id)

    async def list_of_user(
        self, user_id: str, *, is_effective: bool, prefix: str, after: str, limit: int
    ) -> tuple[Sequence[PolicyRecord], bool]:
        """Those attached to the user; effective: those of the user's groups too."""
        user = await self._accounts.get_user(user_id)
        found = await (self._effective(user) if is_effective else self._attached(USER_POLICIES, (user.id, user.uid)))
        return page(found, prefix=prefix, after=after, limit=limit)

    async def list_of_group(
        self, group_id: str, *, prefix: str, after: str, limit: int
    ) -> tuple[Sequence[PolicyRecord], bool]:
        found = await self._policies_of(await self._groups.get(group_id))
        return page(found, prefix=prefix, after=after, limit=limit)

    async def permissions_of(self, user_id: str) -> Permissions:
        """All that holds for a user: one scan for each group and two more, and one get for each group and policy."""
        effective = await self._effective(await self._accounts.get_user(user_id))
        return Permissions(user_id, (one for policy in effective.values() for one in policy.statements))

    async def _effective(self, user: UserRecord) -> dict[str, PolicyRecord]:
        found = await self._attached(USER_POLICIES, (user.id, user.uid))
        for group in await self._groups.of_user(user):
            found |= await self._policies_of(group)
        return found

    async def _policies_of(self, group: GroupRecord) -> dict[str, PolicyRecord]:
        built_in = GROUPS.get(group.id)
        given = built_in.policies if built_in else ACL.get(group.acl, ())
        found = {name: await self.get(name) for name in given}
        return found | await self._attached(GROUP_POLICIES, (group.id, group.uid))

    async def _attached(self, kind: bytes, holder: tuple[str, str]) -> dict[str, PolicyRecord]:
        found: dict[str, PolicyRecord] = {}
        for name, uid in (await grants_of(self._store, kind, holder)).items():
            try:
                policy = await self.get(name)
            except PolicyNotFound:
                continue  # As in `_groups_of`.
            if policy.uid == uid:
                found[name] = policy
        return found


def _built_in(name: str, installed_ms: int) -> PolicyRecord:
    return PolicyRecord(id=name, uid=UID, created_ms=installed_ms, statements=POLICIES[name])
