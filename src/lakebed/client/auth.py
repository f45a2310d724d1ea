"""Users and their key pairs, groups, policies, sandboxes, quotas, and the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakebed import wire
from lakebed.operations import accounts, operators, sandboxes
from lakebed.wire import Credentials as KeyPair

from .connection import Noun
from .paging import listing


class Users(Noun):
    """The operations on users. Got from `Client.users`."""

    def create(self, user: str) -> wire.User:
        """Make a user without permissions and without key pair, or raise Taken."""
        return self._connection.do(accounts.CREATE_USER, body=wire.UserCreation(id=user))

    def get(self, user: str) -> wire.User:
        return self._connection.do(accounts.GET_USER, user)

    def list(self, *, prefix: str = "", limit: int | None = None) -> Iterator[wire.User]:
        """List users by id, ascending."""
        return listing(self._connection, accounts.LIST_USERS, query={"prefix": prefix or None}, limit=limit)

    def delete(self, user: str) -> None:
        """Delete a user, its key pairs, memberships and attached policies."""
        self._connection.do(accounts.DELETE_USER, user)

    def groups(self, user: str) -> Iterator[wire.Group]:
        return listing(self._connection, accounts.LIST_USER_GROUPS, user)

    def policies(self, user: str, *, is_effective: bool = False) -> Iterator[wire.Policy]:
        """List the policies attached to the user; effective: those of its groups too."""
        return listing(self._connection, accounts.LIST_USER_POLICIES, user, query={"effective": is_effective})

    def decide(self, user: str, action: str, resource: str = "*", **circumstances: str) -> wire.Decision:
        """Return whether the user may do an action on a resource, and the statement that decides it.

        `circumstances` are branch, tag or ref, address and time. Missing ones are in doubt; the time is now.

        Raises:
            Invalid: there is no such action, or the resource or one of the circumstances is malformed.
        """
        query = {"action": action, "resource": resource, **circumstances}
        return self._connection.do(accounts.DECIDE, user, query=query)

    def attach(self, user: str, policy: str) -> None:
        self._connection.do(accounts.ATTACH_POLICY_TO_USER, user, policy)

    def detach(self, user: str, policy: str) -> None:
        self._connection.do(accounts.DETACH_POLICY_FROM_USER, user, policy)

    def create_key(self, user: str) -> wire.CredentialsWithSecret:
        """Make a key pair. Its secret is returned here, and never again."""
        return self._connection.do(accounts.CREATE_CREDENTIALS, user)

    def keys(self, user: str) -> Iterator[KeyPair]:
        return listing(self._connection, accounts.LIST_USER_CREDENTIALS, user)

    def delete_key(self, user: str, access_key_id: str) -> None:
        self._connection.do(accounts.DELETE_CREDENTIALS, user, access_key_id)

    def principals(self, user: str) -> Iterator[wire.ExternalPrincipal]:
        """List the identities of other providers that stand for the user."""
        return listing(self._connection, accounts.LIST_USER_EXTERNAL_PRINCIPALS, user)

    def principal(self, principal: str) -> wire.ExternalPrincipal:
        """Return the user that an identity of another provider stands for."""
        return self._connection.do(accounts.GET_EXTERNAL_PRINCIPAL, query={"principalId": principal})

    def attach_principal(self, user: str, principal: str) -> None:
        """Let an identity of another provider stand for the user, or raise Taken."""
        self._connection.do(
            accounts.CREATE_USER_EXTERNAL_PRINCIPAL,
            user,
            body=wire.ExternalPrincipalCreation(),
            query={"principalId": principal},
        )

    def detach_principal(self, user: str, principal: str) -> None:
        """Detach the identity from the user, and end its logins."""
        self._connection.do(accounts.DELETE_USER_EXTERNAL_PRINCIPAL, user, query={"principalId": principal})


class Groups(Noun):
    """The operations on groups. Got from `Client.groups`."""

    def create(self, group: str, *, description: str = "") -> wire.Group:
        """
        Raises:
            Taken: there is such a group.
        """
        body = wire.GroupCreation(id=group, description=description)
        return self._connection.do(accounts.CREATE_GROUP, body=body)

    def get(self, group: str) -> wire.Group:
        return self._connection.do(accounts.GET_GROUP, group)

    def list(self, *, prefix: str = "", limit: int | None = None) -> Iterator[wire.Group]:
        """List all by id, ascending, the built-in ones too."""
        return listing(self._connection, accounts.LIST_GROUPS, query={"prefix": prefix or None}, limit=limit)

    def delete(self, group: str) -> None:
        self._connection.do(accounts.DELETE_GROUP, group)

    def members(self, group: str) -> Iterator[wire.User]:
        return listing(self._connection, accounts.LIST_GROUP_MEMBERS, group)

    def add(self, group: str, user: str) -> None:
        self._connection.do(accounts.ADD_GROUP_MEMBERSHIP, group, user)

    def remove(self, group: str, user: str) -> None:
        self._connection.do(accounts.DELETE_GROUP_MEMBERSHIP, group, user)

    def policies(self, group: str) -> Iterator[wire.Policy]:
        return listing(self._connection, accounts.LIST_GROUP_POLICIES, group)

    def attach(self, group: str, policy: str) -> None:
        self._connection.do(accounts.ATTACH_POLICY_TO_GROUP, group, policy)

    def detach(self, group: str, policy: str) -> None:
        self._connection.do(accounts.DETACH_POLICY_FROM_GROUP, group, policy)

    def set_level(self, group: str, level: str) -> None:
        """Give a group the contract's access level: Read, Write, Super or Admin."""
        self._connection.do(accounts.SET_GROUP_ACL, group, body=wire.ACL(permission=level))


class Policies(Noun):
    """The operations on policies. Got from `Client.policies`."""

    def create(self, policy: str, statements: Sequence[wire.Statement]) -> wire.Policy:
        """
        Raises:
            Taken: there is such a policy.
        """
        body = wire.Policy(id=policy, statement=[*statements])
        return self._connection.do(accounts.CREATE_POLICY, body=body)

    def get(self, policy: str) -> wire.Policy:
        return self._connection.do(accounts.GET_POLICY, policy)

    def list(self, *, prefix: str = "", limit: int | None = None) -> Iterator[wire.Policy]:
        """List all by id, ascending, the built-in ones too."""
        return listing(self._connection, accounts.LIST_POLICIES, query={"prefix": prefix or None}, limit=limit)

    def update(self, policy: str, statements: Sequence[wire.Statement]) -> wire.Policy:
        """Replace a policy for every user and group that has it."""
        body = wire.Policy(id=policy, statement=[*statements])
        return self._connection.do(accounts.UPDATE_POLICY, policy, body=body)

    def delete(self, policy: str) -> None:
        self._connection.do(accounts.DELETE_POLICY, policy)


class Sandboxes(Noun):
    """Make, list, extend, end and promote sandboxes. Got from `Client.sandboxes`."""

    def create(
        self, repository: str, source: str, *, ttl: str, name: str = "", quota_bytes: int = 0
    ) -> wire.SandboxWithSecret:
        """Make a branch and a key pair that reads `source` and writes the branch. No later call returns the secret.

        `quota_bytes`: how many may be written to the branch, 0: any number.

        Raises:
            BadRequest: `ttl` is not a duration, or too long.
        """
        body = wire.SandboxCreation(source=source, ttl=ttl, name=name, quota_bytes=quota_bytes)
        return self._connection.do(sandboxes.CREATE_SANDBOX, repository, body=body)

    def get(self, repository: str, sandbox: str) -> wire.Sandbox:
        return self._connection.do(sandboxes.GET_SANDBOX, repository, sandbox)

    def extend(self, repository: str, sandbox: str, *, ttl: str) -> wire.Sandbox:
        """Let it last so long from now."""
        return self._connection.do(sandboxes.EXTEND_SANDBOX, repository, sandbox, body=wire.SandboxExtension(ttl=ttl))

    def end(self, repository: str, sandbox: str) -> wire.SandboxEnded:
        """Revoke the key, and delete the branch."""
        return self._connection.do(sandboxes.END_SANDBOX, repository, sandbox)

    def promote(self, repository: str, sandbox: str) -> wire.SandboxEnded:
        """Revoke the key, and keep the branch."""
        return self._connection.do(sandboxes.PROMOTE_SANDBOX, repository, sandbox)

    # `list` comes last: below it the name is the method, not the type.

    def list(self, repository: str, *, prefix: str = "", limit: int | None = None) -> Iterator[wire.Sandbox]:
        """List all by id, ascending."""
        return listing(
            self._connection, sandboxes.LIST_SANDBOXES, repository, query={"prefix": prefix or None}, limit=limit
        )


class Audit(Noun):
    """Ask for records of the audit log. Made by `Client.audit`."""

    def list(
        self,
        *,
        since: str = "",
        until: str = "",
        user: str = "",
        operation: str = "",
        repository: str = "",
        is_denied: bool = False,
        limit: int | None = None,
    ) -> Iterator[wire.AuditRecord]:
        """Newest first. `since` and `until` are dates or times of ISO 8601, UTC where no zone is given."""
        names = {"since": since, "until": until, "user": user, "operation": operation, "repository": repository}
        query = {name: value or None for name, value in names.items()}
        return listing(
            self._connection, operators.LIST_AUDIT_RECORDS, query={**query, "denied": is_denied or None}, limit=limit
        )


class Quotas(Noun):
    """Show, set, remove and count quotas. Got from `Client.quotas`. Without a branch, that of the repository."""

    def list(self, repository: str, branch: str = "") -> list[wire.Quota]:
        return self._connection.do(sandboxes.LIST_QUOTAS, repository, query={"branch": branch}).results

    def set(self, repository: str, branch: str = "", *, limit_bytes: int, restart: bool = False) -> wire.Quota:
        """Set the limit. `restart` sets what is used to zero, or counts what a repository stores."""
        body = wire.QuotaSetting(limit_bytes=limit_bytes, restart=restart)
        return self._connection.do(sandboxes.SET_QUOTA, repository, query={"branch": branch}, body=body)

    def remove(self, repository: str, branch: str = "") -> None:
        self._connection.do(sandboxes.REMOVE_QUOTA, repository, query={"branch": branch})

    def count(self, repository: str) -> wire.Quota:
        """Count what is stored, in place of what the quota has as used."""
        return self._connection.do(sandboxes.COUNT_QUOTA, repository)

    def get_user(self, user: str) -> wire.Quota:
        return self._connection.do(sandboxes.GET_USER_QUOTA, user)

    def set_user(self, user: str, *, limit_bytes: int, restart: bool = False) -> wire.Quota:
        body = wire.QuotaSetting(limit_bytes=limit_bytes, restart=restart)
        return self._connection.do(sandboxes.SET_USER_QUOTA, user, body=body)

    def remove_user(self, user: str) -> None:
        self._connection.do(sandboxes.REMOVE_USER_QUOTA, user)
