"""Groups of users, and their access levels. What names a group is removed before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lakebed.base import AlreadyExists, Conflict, NotFound, Ports
from lakebed.kv import Store

from . import built_in
from .accounts import Accounts
from .built_in import ACL, ADMINS, UID
from .grants import grant, grants_of, holders_of, revoke, revoke_all
from .ids import InvalidRole, page
from .records import GROUP_POLICIES, GROUPS, USER_GROUPS, GroupRecord, UserRecord
from .register import Register


class GroupExists(AlreadyExists):
    """There is a group of this id."""


class GroupNotFound(NotFound):
    """There is no group of this id."""


class NoAcl(NotFound):
    """The group exists and has no access level of its own."""


class LastAdministrator(Conflict):
    """Nobody would be left who may do everything."""


class Groups:
    def __init__(self, store: Store, ports: Ports, accounts: Accounts) -> None:
        self._store = store
        self._ports = ports
        self._accounts = accounts
        self._register = Register(
            store,
            accounts,
            GroupRecord,
            noun="group",
            keys=GROUPS,
            built_in=_BUILT_IN,
            taken=GroupExists,
            unknown=GroupNotFound,
        )

    async def create(self, group_id: str, *, description: str = "") -> GroupRecord:
        """
        Raises:
            GroupExists, InvalidRole.
        """
        now_ms = self._ports.clock.now_ms()
        return await self._register.add(
            GroupRecord(id=group_id, uid=self._ports.ids.fresh(), created_ms=now_ms, description=description)
        )

    async def get(self, group_id: str) -> GroupRecord:
        """
        Raises:
            GroupNotFound, InvalidRole.
        """
        return await self._register.get(group_id)

    async def list(self, *, prefix: str, after: str, limit: int) -> tuple[Sequence[GroupRecord], bool]:
        """Ascending by id; and whether there are more."""
        return await self._register.list(prefix=prefix, after=after, limit=limit)

    async def delete(self, group_id: str) -> None:
        """Memberships and attachments first, then the group.

        Raises:
            BuiltIn, GroupNotFound.
        """
        await self._register.check_removable(group_id)
        await revoke_all(self._store, (USER_GROUPS,), granted=group_id)
        await revoke_all(self._store, (GROUP_POLICIES,), holder=group_id)
        await self._register.remove(group_id)

    # Members

    async def add_member(self, group_id: str, user_id: str) -> None:
        group, user = await self.get(group_id), await self._accounts.get_user(user_id)
        await grant(self._store, USER_GROUPS, (user.id, user.uid), (group.id, group.uid))

    async def remove_member(self, group_id: str, user_id: str) -> None:
        """
        Raises:
            NotGranted: the user is not in it.
            LastAdministrator: it is the last one in Admins.
        """
        group, user = await self.get(group_id), await self._accounts.get_user(user_id)
        await self.check_may_leave(user, group_id)
        await revoke(self._store, USER_GROUPS, (user.id, user.uid), group.id)

    async def check_may_leave(self, user: UserRecord, group_id: str = ADMINS) -> None:
        """Of two who leave at once, each may still be let go for the other's sake: this guards against mistakes.

        Raises:
            LastAdministrator: it is Admins, and nobody else is in it.
        """
        if group_id == ADMINS and [*await self._members(ADMINS, UID)] == [user.id]:
            raise LastAdministrator(f"{user.id} is the last one in {ADMINS}: add another user first", user=user.id)

    async def list_members(
        self, group_id: str, *, prefix: str, after: str, limit: int
    ) -> tuple[Sequence[UserRecord], bool]:
        group = await self.get(group_id)
        return page(await self._members(group.id, group.uid), prefix=prefix, after=after, limit=limit)

    async def _members(self, group_id: str, group_uid: str) -> dict[str, UserRecord]:
        """Those who are still the users that were put in."""
        members: dict[str, UserRecord] = {}
        for name, uid in (await holders_of(self._store, USER_GROUPS, (group_id, group_uid))).items():
            user = await self._accounts.find_user(name)
            if user is not None and user.uid == uid:
                members[name] = user
        return members

    async def list_of(self, user_id: str, *, prefix: str, after: str, limit: int) -> tuple[Sequence[GroupRecord], bool]:
        groups = await self.of_user(await self._accounts.get_user(user_id))
        return page({group.id: group for group in groups}, prefix=prefix, after=after, limit=limit)

    async def of_user(self, user: UserRecord) -> Sequence[GroupRecord]:
        groups = []
        for name, uid in (await grants_of(self._store, USER_GROUPS, (user.id, user.uid))).items():
            try:
                group = await self.get(name)
            except GroupNotFound:
                continue  # Deleted by somebody who died before, or is still, pruning what names it.
            if group.uid == uid:
                groups.append(group)
        return groups

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
        await self._register.change(group_id, lambda group: msgspec.structs.replace(group, acl=level))

    async def get_acl(self, group_id: str) -> str:
        """
        Raises:
            NoAcl, GroupNotFound.
        """
        group = await self.get(group_id)
        if not group.acl:
            raise NoAcl(f"group {group_id!r} has no access level", group=group_id)
        return group.acl


def _acl(policies: tuple[str, ...]) -> str:
    levels = [level for level, those in ACL.items() if those == policies]
    return levels[0] if levels else ""


_BUILT_IN: Final = {
    name: GroupRecord(id=name, uid=UID, created_ms=0, description=group.description, acl=_acl(group.policies))
    for name, group in built_in.GROUPS.items()
}
