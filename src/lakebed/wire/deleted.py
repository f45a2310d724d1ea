"""Records of deleted refs and repositories, delete protection and ref moves. Dates are Unix seconds."""

from __future__ import annotations

import msgspec

from .common import Paged
from .repositories import Patterns, RepositoryName

__all__ = [
    "DeleteProtection",
    "DeletedRef",
    "DeletedRefList",
    "DeletedRepository",
    "DeletedRepositoryList",
    "RefMove",
    "RefMoveList",
    "RepositoryUndeletion",
]


class DeletedRepository(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted repository. Only one in `state` kept can be undeleted.

    The other states are restoring; collecting, collected, purging and gone, in this order; and forgotten, until it
    leaves the list.
    """

    id: str
    uid: str
    state: str
    storage_namespace: str
    deletion_date: int
    deleted_by: str
    kept_until: int


class DeletedRepositoryList(Paged[DeletedRepository], frozen=True, kw_only=True): ...


class RepositoryUndeletion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to undelete: `uid` selects one of several deleted repositories of a name, and `name` is a new name."""

    uid: str = ""
    name: RepositoryName | None = None


class DeleteProtection(msgspec.Struct, frozen=True, kw_only=True):
    """The protection of the repository from deletion, and patterns of protected branches."""

    repository: bool
    branches: Patterns


class DeletedRef(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted branch or tag, and the commit that it named. `hidden`: a hidden branch, such as that of a
    transaction.
    """

    id: str
    commit_id: str
    deletion_date: int
    deleted_by: str
    kept_until: int
    hidden: bool = False


class DeletedRefList(Paged[DeletedRef], frozen=True, kw_only=True): ...


class RefMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a branch or tag. `before` is empty if the ref was made, `commit_id` if it was deleted.

    `date_ms` is in milliseconds, since a branch may move several times in a second.
    """

    commit_id: str
    before: str
    operation: str
    user: str
    date_ms: int


class RefMoveList(Paged[RefMove], frozen=True, kw_only=True): ...
