"""Policies, their holders, and the permissions they add up to. Records that name a policy are removed before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from lakebed.auth.accounts import Accounts, UserNotFound
from lakebed.auth.authenticator import CACHE_ENTRIES_MAX, CACHE_MS, Identity, NotAuthenticated, is_fresh
from lakebed.auth.records import (
    GROUP_POLICIES,
    PARTITION,
    POLICIES,
    SANDBOXES,
    USER_POLICIES,
    GroupRecord,
    PolicyRecord,
    SandboxRecord,
    SandboxState,
    UserRecord,
    decode,
)
from lakebed.base import AlreadyExists, NotFound, Ports
from lakebed.kv import Store

from . import built_in
from .actions import check_action
from .built_in import ACL, ADMINS, GROUPS, UID
from .conditions import ADDRESSES_CACHED_MAX, NOWHERE, UNKNOWN_REF, Circumstances, Look, Ref, in_doubt
from .grants import grant, grants_of, revoke, revoke_all
from .groups import Groups
from .register import Register, page, refuse_built_in
from .statements import Permissions, Statement, check_resource, check_statements, no_action_files

__all__ = ["Authorizer", "Decision", "Policies", "PolicyExists", "PolicyNotFound"]

SANDBOX_POLICY: Final = "sandbox"
"""The name under which answers show the statements of a sandbox."""


class PolicyExists(AlreadyExists):
    """There is a policy of this id."""


class PolicyNotFound(NotFound):
    """There is no policy of this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict on an action, and the statement that decides: the `number`th of `policy`, from 1."""

    is_allowed: bool
    policy: str = ""
    # The group through which the user has the policy; empty if it is attached to the user. If no statement names the
    # action and the resource, `policy` is empty and the action is not allowed.
    group: str = ""
    number: int = 0
    statement: Statement | None = None
    # Keys of conditions on which the answer depends, but for which the question gives no value.
    unsaid: tuple[str, ...] = ()


class Policies:
    """`is_current` says whether the repository of a sandbox still is the one that the sandbox was made in.

    The rights name it by its id, which another repository may have by now.
    """

    def __init__(
        self,
        store: Store,
        ports: Ports,
        accounts: Accounts,
        groups: Groups,
        is_current: Callable[[SandboxRecord], Awaitable[bool]] | None = None,
    ) -> None:
        self._is_current = is_current
        self._store = store
        self._ports = ports
        self._accounts = accounts
        self._groups = groups
        self._register = Register(
            store,
            accounts,
            PolicyRecord,
            noun="policy",
            keys=POLICIES,
            built_in=_BUILT_IN,
            taken=PolicyExists,
            unknown=PolicyNotFound,
        )

    async def create(self, policy_id: str, statements: Sequence[Statement]) -> PolicyRecord:
        """Create a policy, or raise PolicyExists, InvalidRole, InvalidPolicy or InvalidAction."""
        now_ms, checked = self._ports.clock.now_ms(), check_statements(statements)
        return await self._register.add(
            PolicyRecord(id=policy_id, uid=self._ports.ids.fresh(), created_ms=now_ms, statements=checked)
        )

    async def get(self, policy_id: str) -> PolicyRecord:
        """Return a policy, stored or built in, or raise PolicyNotFound or InvalidRole."""
        return await self._register.get(policy_id)

    async def update(self, policy_id: str, statements: Sequence[Statement]) -> PolicyRecord:
        """Replace the statements of a policy, for all its holders.

        Raises:
            BuiltIn, PolicyNotFound, InvalidPolicy, InvalidAction.
            PredicateFailed: another request changed it at the same time.
        """
        return await self._register.change(
            policy_id, lambda policy: msgspec.structs.replace(policy, statements=check_statements(statements))
        )

    async def list(self, *, prefix: str, after: str, limit: int) -> tuple[Sequence[PolicyRecord], bool]:
        """List policies, ascending by id, and return whether more follow."""
        return await self._register.list(prefix=prefix, after=after, limit=limit)

    async def delete(self, policy_id: str) -> None:
        """Delete attachments, then the policy, or raise BuiltIn or PolicyNotFound."""
        await self._register.check_removable(policy_id)
        await revoke_all(self._store, (USER_POLICIES, GROUP_POLICIES), granted=policy_id)
        await self._register.remove(policy_id)

    # Who has which policy

    async def attach_to_user(self, user_id: str, policy_id: str) -> None:
        user, policy = await self._accounts.get_changeable(user_id), await self.get(policy_id)
        await grant(self._store, USER_POLICIES, (user.id, user.uid), (policy.id, policy.uid))

    async def detach_from_user(self, user_id: str, policy_id: str) -> None:
        """Take a policy from a user.

        Raises:
            NotGranted: the user does not have it, or has it through a group only.
        """
        user, policy = await self._accounts.get_user(user_id), await self.get(policy_id)
        await revoke(self._store, USER_POLICIES, (user.id, user.uid), policy.id)

    async def attach_to_group(self, group_id: str, policy_id: str) -> None:
        """Give a policy to a group.

        Raises:
            BuiltIn: the group is built in, so its policies cannot be changed.
        """
        refuse_built_in(group_id, GROUPS)
        group, policy = await self._groups.get(group_id), await self.get(policy_id)
        await grant(self._store, GROUP_POLICIES, (group.id, group.uid), (policy.id, policy.uid))

    async def detach_from_group(self, group_id: str, policy_id: str) -> None:
        """Take a policy from a group.

        Raises:
            BuiltIn: the group is built in.
            NotGranted: the group does not have it, or has it by its access level.
        """
        refuse_built_in(group_id, GROUPS)
        group, policy = await self._groups.get(group_id), await self.get(policy_id)
        await revoke(self._store, GROUP_POLICIES, (group.id, group.uid), policy.id)

    async def list_of_user(
        self, user_id: str, *, is_effective: bool, prefix: str, after: str, limit: int
    ) -> tuple[Sequence[PolicyRecord], bool]:
        """List the policies attached to the user. With `effective`, list those of the user's groups too."""
        user = await self._accounts.get_user(user_id)
        if is_effective:
            found = await self._effective(user, await self._groups.of_user(user))
        else:
            found = (await self._by_holder(user, ()))[""]
        return page(found, prefix=prefix, after=after, limit=limit)

    async def list_of_group(
        self, group_id: str, *, prefix: str, after: str, limit: int
    ) -> tuple[Sequence[PolicyRecord], bool]:
        found = await self._policies_of(await self._groups.get(group_id))
        return page(found, prefix=prefix, after=after, limit=limit)

    async def permissions_of(self, user_id: str) -> Permissions:
        """Return all that a user may do. Costs a scan a group and two more, and a get for each group and policy."""
        user = await self._accounts.get_user(user_id)
        groups = await self._groups.of_user(user)
        effective = await self._effective(user, groups)
        return Permissions(
            user_id,
            (one for policy in effective.values() for one in policy.statements),
            is_administrator=any(group.id == ADMINS for group in groups),
        )

    async def decide(
        self,
        user_id: str,
        action: str,
        resource: str,
        ref: Ref = UNKNOWN_REF,
        circumstances: Circumstances = NOWHERE,
    ) -> Decision:
        """Return whether the user may do this, and which statement decides. Costs as much as `permissions_of`.

        Reads the store, so a change applies at once. The gate may still use permissions cached seconds ago.

        Raises:
            UserNotFound: no user has this id.
            InvalidAction: the action does not exist.
            InvalidPolicy: the resource is malformed.
        """
        check_action(action)
        check_resource(resource)
        user = await self._accounts.get_user(user_id)
        groups = await self._groups.of_user(user)
        by_holder = await self._by_holder(user, groups)
        sources = [
            Decision(
                is_allowed=statement.effect == "allow",
                policy=policy.id,
                group=holder,
                number=number,
                statement=statement,
            )
            for holder, policies in by_holder.items()
            for policy in policies.values()
            for number, statement in enumerate(policy.statements, 1)
        ]
        permissions = Permissions(
            user_id,
            (source.statement for source in sources if source.statement is not None),
            is_administrator=any(group.id == ADMINS for group in groups),
        ).under(circumstances)
        deciding = permissions.deciding(action, resource, ref)
        decision = next(
            (source for source in sources if deciding is not None and source.statement is deciding),
            Decision(is_allowed=False),
        )
        said = circumstances.said(ref)
        return replace(decision, unsaid=tuple(sorted(permissions.keys_about(action, resource) - said)))

    async def _effective(self, user: UserRecord, groups: Sequence[GroupRecord]) -> dict[str, PolicyRecord]:
        by_holder = await self._by_holder(user, groups)
        return {name: policy for policies in by_holder.values() for name, policy in policies.items()}

    async def _by_holder(self, user: UserRecord, groups: Sequence[GroupRecord]) -> dict[str, dict[str, PolicyRecord]]:
        """Return the policies that the user has through each group, and under no name those of the user."""
        if user.is_sandbox:
            return {"": await self._of_sandbox(user)}
        by_holder = {"": await self._attached(USER_POLICIES, (user.id, user.uid))}
        for group in groups:
            by_holder[group.id] = await self._policies_of(group)
        return by_holder

    async def _of_sandbox(self, user: UserRecord) -> dict[str, PolicyRecord]:
        """Return the statements of the user's sandbox as a policy while it lasts. No policy record stores them."""
        held = await self._store.get(PARTITION, SANDBOXES + user.id.encode())
        sandbox = decode(SandboxRecord, held.value) if held is not None else None
        if (
            sandbox is None
            or sandbox.state is not SandboxState.ACTIVE
            or sandbox.user_uid != user.uid
            or self._ports.clock.now_ms() >= sandbox.expires_ms
        ):
            return {}
        if self._is_current is not None and not await self._is_current(sandbox):
            return {}
        statements, denied = sandbox.statements, no_action_files(sandbox.repository)
        # Sandboxes that an earlier release made were not denied action files.
        if denied not in statements:
            statements = (*statements, denied)
        policy = PolicyRecord(id=SANDBOX_POLICY, uid=user.uid, created_ms=sandbox.created_ms, statements=statements)
        return {SANDBOX_POLICY: policy}

    async def _policies_of(self, group: GroupRecord) -> dict[str, PolicyRecord]:
        ours = GROUPS.get(group.id)
        given = ours.policies if ours else ACL.get(group.acl, ())
        found = {name: await self.get(name) for name in given}
        return found | await self._attached(GROUP_POLICIES, (group.id, group.uid))

    async def _attached(self, kind: bytes, holder: tuple[str, str]) -> dict[str, PolicyRecord]:
        found: dict[str, PolicyRecord] = {}
        for name, uid in (await grants_of(self._store, kind, holder)).items():
            try:
                policy = await self.get(name)
            except PolicyNotFound:
                continue  # The policy was deleted, as a group in `Groups.of_user`.
            if policy.uid == uid:
                found[name] = policy
        return found


_BUILT_IN: Final = {
    name: PolicyRecord(id=name, uid=UID, created_ms=0, statements=statements)
    for name, statements in built_in.POLICIES.items()
}


class Authorizer:
    """Permissions of users, cached for CACHE_MS so that a request need not read the store.

    A change through another process applies here that much later. One through this process applies at once.
    """

    def __init__(self, policies: Policies, ports: Ports, look: Look = in_doubt) -> None:
        self._policies = policies
        self._ports = ports
        self._look = look
        self._known: dict[str, tuple[Permissions, int]] = {}
        self._forgotten = 0

    async def permissions(self, identity: Identity) -> Permissions:
        """Return the permissions of the caller's user, or the delegated part. A lent key pair has less.

        Costs a look-up for a user seen in the last 5 seconds, otherwise the cost of `Policies.permissions_of`.

        Raises:
            NotAuthenticated: the user was deleted meanwhile.
        """
        found = await self._of_user(identity.user_id)
        return found if identity.delegation is None else found.within(identity.delegation)

    async def _of_user(self, user_id: str) -> Permissions:
        known = self._known.get(user_id)
        now_ms = self._ports.clock.now_ms()
        if known is not None and is_fresh(known[1], now_ms):
            return known[0]
        # Do not cache what was read while a right was taken away.
        forgotten = self._forgotten
        try:
            found = await self._policies.permissions_of(user_id)
        except UserNotFound as error:
            raise NotAuthenticated("the user is gone") from error
        if self._forgotten == forgotten:
            if len(self._known) >= CACHE_ENTRIES_MAX:
                self._known.clear()
            self._known[user_id] = (found, now_ms + CACHE_MS)
        return found

    def under(self, permissions: Permissions, address: str) -> Permissions:
        """Return the permissions for requests from this address. They are kept as long as `permissions`."""
        under = permissions.by_address.get(address)
        if under is None:
            under = permissions.under(Circumstances(address=address, now_ms=self._ports.clock.now_ms, look=self._look))
            if len(permissions.by_address) < ADDRESSES_CACHED_MAX:
                permissions.by_address[address] = under
        return under

    def forget_all(self) -> None:
        """Clear all cached permissions, because a user, a group, a policy or a grant changed."""
        self._forgotten += 1
        self._known.clear()
