"""Groups of users, and their access levels. Records that name a group are removed before it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from lakebed.auth.accounts import Accounts
from lakebed.auth.records import (
    ADMINS_LEAVING,
    GROUP_POLICIES,
    GROUPS,
    PARTITION,
    USER_GROUPS,
    GrantRecord,
    GroupRecord,
    LeavingRecord,
    UserRecord,
    decode,
    encode,
)
from lakebed.base import AlreadyExists, Conflict, NotFound, Ports, in_waves
from lakebed.kv import Predicate, PredicateFailed, Store

from . import built_in
from .built_in import ACL, ADMINS, UID
from .grants import grant, grant_key, grants_of, holders_of, revoke, revoke_all
from .register import InvalidRole, Register, page

__all__ = ["GroupExists", "GroupNotFound", "Groups", "LastAdministrator", "NoAcl"]


class GroupExists(AlreadyExists):
    """There is a group of this id."""


class GroupNotFound(NotFound):
    """There is no group of this id."""


class NoAcl(NotFound):
    """The group exists and has no access level of its own."""


class LastAdministrator(Conflict):
    """The change would leave no user with all permissions."""


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
        """Create a group, or raise GroupExists or InvalidRole."""
        now_ms = self._ports.clock.now_ms()
        return await self._register.add(
            GroupRecord(id=group_id, uid=self._ports.ids.fresh(), created_ms=now_ms, description=description)
        )

    async def get(self, group_id: str) -> GroupRecord:
        """Return a group, stored or built in, or raise GroupNotFound or InvalidRole."""
        return await self._register.get(group_id)

    async def list(self, *, prefix: str, after: str, limit: int) -> tuple[Sequence[GroupRecord], bool]:
        """List groups, ascending by id, and return whether more follow."""
        return await self._register.list(prefix=prefix, after=after, limit=limit)

    async def delete(self, group_id: str) -> None:
        """Delete memberships and attachments, then the group, or raise BuiltIn or GroupNotFound."""
        await self._register.check_removable(group_id)
        await revoke_all(self._store, (USER_GROUPS,), granted=group_id)
        await revoke_all(self._store, (GROUP_POLICIES,), holder=group_id)
        await self._register.remove(group_id)

    # Members

    async def add_member(self, group_id: str, user_id: str) -> None:
        group, user = await self.get(group_id), await self._accounts.get_changeable(user_id)
        nonce = self._ports.ids.fresh()
        await grant(self._store, USER_GROUPS, (user.id, user.uid), (group.id, group.uid), nonce=nonce)

    async def remove_member(self, group_id: str, user_id: str) -> None:
        """Take a user out of a group.

        Raises:
            NotGranted: the user is not in it.
            LastAdministrator: the user is the last one in Admins.
        """
        group, user = await self.get(group_id), await self._accounts.get_user(user_id)
        if group.id == ADMINS and user.id in await self._members(ADMINS, UID):
            await self.leave_admins(user)
        else:
            await revoke(self._store, USER_GROUPS, (user.id, user.uid), group.id)

    async def leave_admins(self, user: UserRecord) -> None:
        """Remove the user from Admins, unless no other user would be left there. Does nothing for users outside it.

        If all users leave at once, one remains. Each first finishes a leave that another began, and then leaves in
        three steps:

        1. read the record `admins/leaving`, which is empty, and then the members: another one must be among them
        2. replace that record by `set_if`, which fails if another user began to leave since step 1
        3. delete the membership, and then empty the record

        Raises:
            LastAdministrator: no other user is in Admins.
        """
        while True:
            held = await self._store.get(PARTITION, ADMINS_LEAVING)
            leaving = decode(LeavingRecord, held.value).memberships if held else ()
            if held is not None and leaving:
                await self._finish_leaving(leaving, held.predicate)
                continue
            if user.id not in (members := await self._members(ADMINS, UID)):
                return
            if len(members) == 1:
                raise LastAdministrator(f"{user.id} is the last one in {ADMINS}: add another user first", user=user.id)
            membership = await self._store.get(PARTITION, grant_key(USER_GROUPS, user.id, ADMINS))
            if membership is None:
                continue
            begun = LeavingRecord(
                memberships=((user.id, decode(GrantRecord, membership.value).nonce),), attempt=self._ports.ids.fresh()
            )
            with suppress(PredicateFailed):
                predicate = await self._store.set_if(
                    PARTITION, ADMINS_LEAVING, encode(begun), held.predicate if held else None
                )
                await self._finish_leaving(begun.memberships, predicate)
                return

    async def _finish_leaving(self, memberships: Sequence[tuple[str, str]], predicate: Predicate) -> None:
        """Do step 3, for the user who leaves or in the request of the next one. Doing it twice, or late, is safe."""
        for user_id, nonce in memberships:
            key = grant_key(USER_GROUPS, user_id, ADMINS)
            held = await self._store.get(PARTITION, key)
            # A membership that was added again has another nonce, and is kept.
            if held is not None and decode(GrantRecord, held.value).nonce == nonce:
                with suppress(PredicateFailed):
                    await self._store.delete_if(PARTITION, key, held.predicate)
        with suppress(PredicateFailed):
            emptied = LeavingRecord(attempt=self._ports.ids.fresh())
            await self._store.set_if(PARTITION, ADMINS_LEAVING, encode(emptied), predicate)

    async def list_members(
        self, group_id: str, *, prefix: str, after: str, limit: int
    ) -> tuple[Sequence[UserRecord], bool]:
        group = await self.get(group_id)
        return page(await self._members(group.id, group.uid), prefix=prefix, after=after, limit=limit)

    async def _members(self, group_id: str, group_uid: str) -> dict[str, UserRecord]:
        """Return the members whose uid is still that of the grant."""
        holders = await holders_of(self._store, USER_GROUPS, (group_id, group_uid))
        users = await in_waves(self._ports.tasks, list(holders), self._accounts.find_user)
        return {
            name: user
            for (name, uid), user in zip(holders.items(), users, strict=True)
            if user is not None and user.uid == uid
        }

    async def list_of(self, user_id: str, *, prefix: str, after: str, limit: int) -> tuple[Sequence[GroupRecord], bool]:
        groups = await self.of_user(await self._accounts.get_user(user_id))
        return page({group.id: group for group in groups}, prefix=prefix, after=after, limit=limit)

    async def of_user(self, user: UserRecord) -> Sequence[GroupRecord]:
        groups = []
        for name, uid in (await grants_of(self._store, USER_GROUPS, (user.id, user.uid))).items():
            try:
                group = await self.get(name)
            except GroupNotFound:
                continue  # Another process is deleting the group, or died before it removed the records that name it.
            if group.uid == uid:
                groups.append(group)
        return groups

    # Access levels of groups

    async def set_acl(self, group_id: str, level: str) -> None:
        """Set the access level of a group.

        Raises:
            InvalidRole: not Read, Write, Super or Admin.
            BuiltIn, GroupNotFound.
            PredicateFailed: another request changed the group at the same time.
        """
        if level not in ACL:
            raise InvalidRole(f"{level!r} is not an access level: it is one of {', '.join(ACL)}", level=level)
        await self._register.change(group_id, lambda group: msgspec.structs.replace(group, acl=level))

    async def get_acl(self, group_id: str) -> str:
        """Return the access level of a group, or raise NoAcl or GroupNotFound."""
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
