"""Users and their key pairs, groups, policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakebed.wire import (
    ACL,
    CredentialsList,
    CredentialsWithSecret,
    Group,
    GroupCreation,
    GroupList,
    Policy,
    PolicyList,
    Statement,
    User,
    UserCreation,
    UserList,
)
from lakebed.wire import Credentials as KeyPair

from .connection import Connection, api_path, decode
from .paging import listing


class Users:
    """What can be done with users. Got from `Client.users`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, user: str) -> User:
        """Somebody who may do nothing yet, and has no key pair.

        Raises:
            Taken: there is such a user.
        """
        path = api_path("auth", "users")
        return decode(self._connection.request("POST", path, json=UserCreation(id=user), creates=True), User)

    def get(self, user: str) -> User:
        return decode(self._connection.request("GET", _user(user)), User)

    def list(self, *, prefix: str = "", limit: int | None = None) -> Iterator[User]:
        """By id, ascending."""
        return listing(self._connection, api_path("auth", "users"), UserList, {"prefix": prefix or None}, limit=limit)

    def delete(self, user: str) -> None:
        """With their key pairs, memberships and attached policies."""
        self._connection.request("DELETE", _user(user))

    def groups(self, user: str) -> Iterator[Group]:
        return listing(self._connection, _user(user, "groups"), GroupList, {})

    def policies(self, user: str, *, is_effective: bool = False) -> Iterator[Policy]:
        """Those attached to the user; effective: those of the user's groups too."""
        return listing(self._connection, _user(user, "policies"), PolicyList, {"effective": is_effective})

    def attach(self, user: str, policy: str) -> None:
        self._connection.request("PUT", _user(user, "policies", policy))

    def detach(self, user: str, policy: str) -> None:
        self._connection.request("DELETE", _user(user, "policies", policy))

    def create_key(self, user: str) -> CredentialsWithSecret:
        """A new key pair. The secret is told once, here."""
        return decode(self._connection.request("POST", _user(user, "credentials")), CredentialsWithSecret)

    def keys(self, user: str) -> Iterator[KeyPair]:
        return listing(self._connection, _user(user, "credentials"), CredentialsList, {})

    def delete_key(self, user: str, access_key_id: str) -> None:
        self._connection.request("DELETE", _user(user, "credentials", access_key_id))


class Groups:
    """What can be done with groups. Got from `Client.groups`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, group: str, *, description: str = "") -> Group:
        """
        Raises:
            Taken: there is such a group.
        """
        body = GroupCreation(id=group, description=description)
        return decode(self._connection.request("POST", api_path("auth", "groups"), json=body, creates=True), Group)

    def get(self, group: str) -> Group:
        return decode(self._connection.request("GET", _group(group)), Group)

    def list(self, *, prefix: str = "", limit: int | None = None) -> Iterator[Group]:
        """By id, ascending; those that are built in too."""
        return listing(self._connection, api_path("auth", "groups"), GroupList, {"prefix": prefix or None}, limit=limit)

    def delete(self, group: str) -> None:
        self._connection.request("DELETE", _group(group))

    def members(self, group: str) -> Iterator[User]:
        return listing(self._connection, _group(group, "members"), UserList, {})

    def add(self, group: str, user: str) -> None:
        self._connection.request("PUT", _group(group, "members", user))

    def remove(self, group: str, user: str) -> None:
        self._connection.request("DELETE", _group(group, "members", user))

    def policies(self, group: str) -> Iterator[Policy]:
        return listing(self._connection, _group(group, "policies"), PolicyList, {})

    def attach(self, group: str, policy: str) -> None:
        self._connection.request("PUT", _group(group, "policies", policy))

    def detach(self, group: str, policy: str) -> None:
        self._connection.request("DELETE", _group(group, "policies", policy))

    def set_level(self, group: str, level: str) -> None:
        """The contract's access level of a group: Read, Write, Super or Admin."""
        self._connection.request("POST", _group(group, "acl"), json=ACL(permission=level), repeatable=True)


class Policies:
    """What can be done with policies. Got from `Client.policies`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, policy: str, statements: Sequence[Statement]) -> Policy:
        """
        Raises:
            Taken: there is such a policy.
        """
        body = Policy(id=policy, statement=[*statements])
        return decode(self._connection.request("POST", api_path("auth", "policies"), json=body, creates=True), Policy)

    def get(self, policy: str) -> Policy:
        return decode(self._connection.request("GET", api_path("auth", "policies", policy)), Policy)

    def list(self, *, prefix: str = "", limit: int | None = None) -> Iterator[Policy]:
        """By id, ascending; those that are built in too."""
        return listing(
            self._connection, api_path("auth", "policies"), PolicyList, {"prefix": prefix or None}, limit=limit
        )

    def update(self, policy: str, statements: Sequence[Statement]) -> Policy:
        """Whoever has it has the new one."""
        body = Policy(id=policy, statement=[*statements])
        return decode(self._connection.request("PUT", api_path("auth", "policies", policy), json=body), Policy)

    def delete(self, policy: str) -> None:
        self._connection.request("DELETE", api_path("auth", "policies", policy))


def _user(user: str, *more: str) -> str:
    return api_path("auth", "users", user, *more)


def _group(group: str, *more: str) -> str:
    return api_path("auth", "groups", group, *more)
