"""Groups, policies, and who has them, over the key-value store. What is built in (built_in.py) is shown among what is
stored, and cannot be changed.

Reads go to the store each time; `Authorizer` is what caches. What names an entity is removed before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from lakebed.base import AlreadyExists, Conflict, Denied, Invalid, NotFound, World
from lakebed.kv import PredicateFailed, Store, scan_prefix

from .accounts import ID, Accounts
from .built_in import ACL, ADMINS, GROUPS, POLICIES, UID
from .grants import grant, grant_key, grants_of, holders_of, revoke_all
from .policies import Permissions, Statement, check_statements
from .records import (
    GROUP_POLICIES,
    PARTITION,
    USER_GROUPS,
    USER_POLICIES,
    GroupRecord,
    PolicyRecord,
    UserRecord,
    decode,
    encode,
)
from .records import GROUPS as GROUP_KEYS
from .records import POLICIES as POLICY_KEYS

ID_BYTES_MAX: Final = 256


class GroupExists(AlreadyExists):
    """There is a group of this id."""


class GroupNotFound(NotFound):
    """There is no group of this id."""


class PolicyExists(AlreadyExists):
    """There is a policy of this id."""


class PolicyNotFound(NotFound):
    """There is no policy of this id."""


class NotGranted(NotFound):
    """The user is not in this group, or the user or group does not have this policy."""


class NoAcl(NotFound):
    """The group exists and has no access level of its own."""


class BuiltIn(Denied):
    """It comes with the release, and stays as it is."""


class InvalidRole(Invalid):
    """An id or an access level that cannot be taken."""


class LastAdministrator(Conflict):
    """Nobody would be left who may do everything."""


class Roles:
    def __init__(self, store: Store, world: World, accounts: Accounts) -> None:
        self._store = store
        self._world = world
        self._accounts = accounts

    # Groups

    async def create_group(self, group_id: str, *, description: str = "") -> GroupRecord:
        """
        Raises:
            GroupExists, InvalidRole.
        """
        key = GROUP_KEYS + _check_id(group_id).encode()
        record = GroupRecord(
            id=group_id, uid=self._world.ids.fresh(), created_ms=self._world.clock.now_ms(), description=description
        )
        if group_id in GROUPS:
            raise GroupExists(f"group {group_id!r} is built in", group=group_id)
        try:
            await self._store.set_if(PARTITION, key, encode(record), None)
        except PredicateFailed as error:
            raise GroupExists(f"group {group_id!r} exists", group=group_id) from error
        return record

    async def get_group(self, group_id: str) -> GroupRecord:
        if group_id in GROUPS:
            return _built_in_group(group_id, await self._installed_ms())
        held = await self._store.get(PARTITION, GROUP_KEYS + _check_id(group_id).encode())
        if held is None:
            raise GroupNotFound(f"there is no group {group_id!r}", group=group_id)
        return decode(GroupRecord, held.value)

    async def list_groups(self, *, prefix: str, after: str, limit: int) -> tuple[list[GroupRecord], bool]:
        """Ascending by id; and whether there are more."""
        installed_ms = await self._installed_ms()
        found = {name: _built_in_group(name, installed_ms) for name in GROUPS}
        async for _, value in scan_prefix(self._store, PARTITION, GROUP_KEYS):
            record = decode(GroupRecord, value)
            found[record.id] = record
        return page(found, prefix=prefix, after=after, limit=limit)

    async def delete_group(self, group_id: str) -> None:
        """Memberships and attachments first, then the group.

        Raises:
            BuiltIn, GroupNotFound.
        """
        _refuse_built_in(group_id, GROUPS)
        await self.get_group(group_id)
        await revoke_all(self._store, (USER_GROUPS,), granted=group_id)
        await revoke_all(self._store, (GROUP_POLICIES,), holder=group_id)
        await self._store.delete(PARTITION, GROUP_KEYS + group_id.encode())

    # Members

    async def add_member(self, group_id: str, user_id: str) -> None:
        group, user = await self.get_group(group_id), await self._accounts.get_user(user_id)
        await grant(self._store, USER_GROUPS, (user.id, user.uid), (group.id, group.uid))

    async def remove_member(self, group_id: str, user_id: str) -> None:
        """
        Raises:
            NotGranted: the user is not in it.
            LastAdministrator: it is the last one in Admins.
        """
        group, user = await self.get_group(group_id), await self._accounts.get_user(user_id)
        await self.check_may_leave(user, group_id)
        await self._revoke(USER_GROUPS, (user.id, user.uid), group.id)

    async def check_may_leave(self, user: UserRecord, group_id: str = ADMINS) -> None:
        """Of two who leave at once, each may still be let go for the other's sake: this guards against mistakes.

        Raises:
            LastAdministrator: it is Admins, and nobody else is in it.
        """
        if group_id == ADMINS and [*await self._members(ADMINS, UID)] == [user.id]:
            raise LastAdministrator(f"{user.id} is the last one in {ADMINS}: add another user first", user=user.id)

    async def list_members(
        self, group_id: str, *, prefix: str, after: str, limit: int
    ) -> tuple[list[UserRecord], bool]:
        group = await self.get_group(group_id)
        return page(await self._members(group.id, group.uid), prefix=prefix, after=after, limit=limit)

    async def _members(self, group_id: str, group_uid: str) -> dict[str, UserRecord]:
        """Those who are still the users that were put in."""
        members: dict[str, UserRecord] = {}
        for name, uid in (await holders_of(self._store, USER_GROUPS, (group_id, group_uid))).items():
            user = await self._accounts.find_user(name)
            if user is not None and user.uid == uid:
                members[name] = user
        return members

    async def list_groups_of(
        self, user_id: str, *, prefix: str, after: str, limit: int
    ) -> tuple[list[GroupRecord], bool]:
        groups = await self._groups_of(await self._accounts.get_user(user_id))
        return page({group.id: group for group in groups}, prefix=prefix, after=after, limit=limit)

    async def _groups_of(self, user: UserRecord) -> list[GroupRecord]:
        groups = []
        for name, uid in (await grants_of(self._store, USER_GROUPS, (user.id, user.uid))).items():
            try:
                group = await self.get_group(name)
            except GroupNotFound:
                continue  # Deleted by somebody who died before, or is still, pruning what names it.
            if group.uid == uid:
                groups.append(group)
        return groups

    # Policies

    async def create_policy(self, policy_id: str, statements: Sequence[Statement]) -> PolicyRecord:
        """
        Raises:
            PolicyExists, InvalidRole, InvalidPolicy, InvalidAction.
        """
        record = PolicyRecord(
            id=_check_id(policy_id),
            uid=self._world.ids.fresh(),
            created_ms=self._world.clock.now_ms(),
            statements=check_statements(statements),
        )
        if policy_id in POLICIES:
            raise PolicyExists(f"policy {policy_id!r} is built in", policy=policy_id)
        try:
            await self._store.set_if(PARTITION, POLICY_KEYS + policy_id.encode(), encode(record), None)
        except PredicateFailed as error:
            raise PolicyExists(f"policy {policy_id!r} exists", policy=policy_id) from error
        return record

    async def get_policy(self, policy_id: str) -> PolicyRecord:
        if policy_id in POLICIES:
            return _built_in_policy(policy_id, await self._installed_ms())
        held = await self._store.get(PARTITION, POLICY_KEYS + _check_id(policy_id).encode())
        if held is None:
            raise PolicyNotFound(f"there is no policy {policy_id!r}", policy=policy_id)
        return decode(PolicyRecord, held.value)

    async def update_policy(self, policy_id: str, statements: Sequence[Statement]) -> PolicyRecord:
        """Whoever has it has the new one.

        Raises:
            BuiltIn, PolicyNotFound, InvalidPolicy, InvalidAction.
            PredicateFailed: somebody else changed it at the same time.
        """
        _refuse_built_in(policy_id, POLICIES)
        key = POLICY_KEYS + _check_id(policy_id).encode()
        held = await self._store.get(PARTITION, key)
        if held is None:
            raise PolicyNotFound(f"there is no policy {policy_id!r}", policy=policy_id)
        record = msgspec.structs.replace(decode(PolicyRecord, held.value), statements=check_statements(statements))
        await self._store.set_if(PARTITION, key, encode(record), held.predicate)
        return record

    async def list_policies(self, *, prefix: str, after: str, limit: int) -> tuple[list[PolicyRecord], bool]:
        """Ascending by id; and whether there are more."""
        installed_ms = await self._installed_ms()
        found = {name: _built_in_policy(name, installed_ms) for name in POLICIES}
        async for _, value in scan_prefix(self._store, PARTITION, POLICY_KEYS):
            record = decode(PolicyRecord, value)
            found[record.id] = record
        return page(found, prefix=prefix, after=after, limit=limit)

    async def delete_policy(self, policy_id: str) -> None:
        """Attachments first, then the policy.

        Raises:
            BuiltIn, PolicyNotFound.
        """
        _refuse_built_in(policy_id, POLICIES)
        await self.get_policy(policy_id)
        await revoke_all(self._store, (USER_POLICIES, GROUP_POLICIES), granted=policy_id)
        await self._store.delete(PARTITION, POLICY_KEYS + policy_id.encode())

    # Who has which policy

    async def attach_to_user(self, user_id: str, policy_id: str) -> None:
        user, policy = await self._accounts.get_user(user_id), await self.get_policy(policy_id)
        await grant(self._store, USER_POLICIES, (user.id, user.uid), (policy.id, policy.uid))

    async def detach_from_user(self, user_id: str, policy_id: str) -> None:
        """
        Raises:
            NotGranted: the user does not have it, or has it through a group only.
        """
        user, policy = await self._accounts.get_user(user_id), await self.get_policy(policy_id)
        await self._revoke(USER_POLICIES, (user.id, user.uid), policy.id)

    async def attach_to_group(self, group_id: str, policy_id: str) -> None:
        """
        Raises:
            BuiltIn: the group is: its policies are what its name says.
        """
        _refuse_built_in(group_id, GROUPS)
        group, policy = await self.get_group(group_id), await self.get_policy(policy_id)
        await grant(self._store, GROUP_POLICIES, (group.id, group.uid), (policy.id, policy.uid))

    async def detach_from_group(self, group_id: str, policy_id: str) -> None:
        """
        Raises:
            BuiltIn: the group is.
            NotGranted: the group does not have it, or has it by its access level.
        """
        _refuse_built_in(group_id, GROUPS)
        group, policy = await self.get_group(group_id), await self.get_policy(policy_id)
        await self._revoke(GROUP_POLICIES, (group.id, group.uid), policy.id)

    async def list_policies_of_user(
        self, user_id: str, *, is_effective: bool, prefix: str, after: str, limit: int
    ) -> tuple[list[PolicyRecord], bool]:
        """Those attached to the user; effective: those of the user's groups too."""
        user = await self._accounts.get_user(user_id)
        found = await (self._effective(user) if is_effective else self._attached(USER_POLICIES, (user.id, user.uid)))
        return page(found, prefix=prefix, after=after, limit=limit)

    async def list_policies_of_group(
        self, group_id: str, *, prefix: str, after: str, limit: int
    ) -> tuple[list[PolicyRecord], bool]:
        found = await self._policies_of(await self.get_group(group_id))
        return page(found, prefix=prefix, after=after, limit=limit)

    async def permissions_of(self, user_id: str) -> Permissions:
        """All that holds for a user: one scan for each group and two more, and one get for each group and policy."""
        effective = await self._effective(await self._accounts.get_user(user_id))
        return Permissions(user_id, (one for policy in effective.values() for one in policy.statements))

    async def _effective(self, user: UserRecord) -> dict[str, PolicyRecord]:
        found = await self._attached(USER_POLICIES, (user.id, user.uid))
        for group in await self._groups_of(user):
            found |= await self._policies_of(group)
        return found

    async def _policies_of(self, group: GroupRecord) -> dict[str, PolicyRecord]:
        built_in = GROUPS.get(group.id)
        given = built_in.policies if built_in else ACL.get(group.acl, ())
        found = {name: await self.get_policy(name) for name in given}
        return found | await self._attached(GROUP_POLICIES, (group.id, group.uid))

    async def _attached(self, kind: bytes, holder: tuple[str, str]) -> dict[str, PolicyRecord]:
        found: dict[str, PolicyRecord] = {}
        for name, uid in (await grants_of(self._store, kind, holder)).items():
            try:
                policy = await self.get_policy(name)
            except PolicyNotFound:
                continue  # As in `_groups_of`.
            if policy.uid == uid:
                found[name] = policy
        return found

    # Access levels of groups

    async def set_acl(self, group_id: str, level: str) -> None:
        """
        Raises:
            InvalidRole: not Read, Write, Super or Admin.
            BuiltIn, GroupNotFound.
            PredicateFailed: somebody else changed the group at the same time.
        """
        if level not in ACL:
            raise InvalidRole(f"{level!r} is no access level: it is one of {', '.join(ACL)}", level=level)
        _refuse_built_in(group_id, GROUPS)
        key = GROUP_KEYS + _check_id(group_id).encode()
        held = await self._store.get(PARTITION, key)
        if held is None:
            raise GroupNotFound(f"there is no group {group_id!r}", group=group_id)
        record = msgspec.structs.replace(decode(GroupRecord, held.value), acl=level)
        await self._store.set_if(PARTITION, key, encode(record), held.predicate)

    async def get_acl(self, group_id: str) -> str:
        """
        Raises:
            NoAcl, GroupNotFound.
        """
        group = await self.get_group(group_id)
        if not group.acl:
            raise NoAcl(f"group {group_id!r} has no access level", group=group_id)
        return group.acl

    async def _revoke(self, kind: bytes, holder: tuple[str, str], granted: str) -> None:
        if granted not in await grants_of(self._store, kind, holder):
            raise NotGranted(f"{holder[0]!r} does not have {granted!r}", holder=holder[0], granted=granted)
        await self._store.delete(PARTITION, grant_key(kind, holder[0], granted))

    async def _installed_ms(self) -> int:
        installation = await self._accounts.installation()
        return installation.created_ms if installation else 0


R = TypeVar("R")


def page(found: Mapping[str, R], *, prefix: str, after: str, limit: int) -> tuple[list[R], bool]:
    """Ascending by id, those of the prefix after `after`; and whether there are more than `limit`."""
    names = [name for name in sorted(found) if name.startswith(prefix) and (not after or name > after)]
    return [found[name] for name in names[:limit]], len(names) > limit


def _built_in_group(name: str, installed_ms: int) -> GroupRecord:
    return GroupRecord(id=name, uid=UID, created_ms=installed_ms, description=GROUPS[name].description, acl=_acl(name))


def _acl(name: str) -> str:
    levels = [level for level, policies in ACL.items() if policies == GROUPS[name].policies]
    return levels[0] if levels else ""


def _built_in_policy(name: str, installed_ms: int) -> PolicyRecord:
    return PolicyRecord(id=name, uid=UID, created_ms=installed_ms, statements=POLICIES[name])


def _refuse_built_in(name: str, built_in: Mapping[str, object]) -> None:
    if name in built_in:
        raise BuiltIn(f"{name} is built in and cannot be changed: make one of your own", id=name)


def _check_id(name: str) -> str:
    if not ID.fullmatch(name) or len(name.encode()) > ID_BYTES_MAX:
        raise InvalidRole(
            f"an id has 1 to 128 characters and at most {ID_BYTES_MAX} bytes, no control characters and no slash",
            id=name,
        )
    return name
