"""Records of what was deleted and can come back, and of what cannot be deleted. Dates are Unix seconds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .common import LIST_MAX, Pagination
from .repositories import PATTERN_MAX, RepositoryName


class DeletedRepository(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted repository. Only one whose `state` is kept comes back. It may be restoring; or collecting, collected,
    purging, then gone; or forgotten, until it leaves the list.
    """

    id: str
    uid: str
    state: str
    storage_namespace: str
    deletion_date: int
    deleted_by: str
    kept_until: int


class DeletedRepositoryList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[DeletedRepository]


class RepositoryUndeletion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Say which of several deleted repositories of one name (`uid`), and a new name for it."""

    uid: str = ""
    name: RepositoryName | None = None


class DeleteProtection(msgspec.Struct, frozen=True, kw_only=True):
    """Say whether the repository can be deleted, and give patterns of branches that cannot."""

    repository: bool
    branches: Annotated[list[Annotated[str, msgspec.Meta(max_length=PATTERN_MAX)]], msgspec.Meta(max_length=LIST_MAX)]


class DeletedRef(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted branch or tag, and the commit that it named. `hidden`: as that of a transaction."""

    id: str
    commit_id: str
    deletion_date: int
    deleted_by: str
    kept_until: int
    hidden: bool = False


class DeletedRefList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[DeletedRef]


class RefMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move of a branch or tag. `before` is empty if the ref was made, `commit_id` if it was deleted.

    `date_ms` is in milliseconds, since a branch may move several times in a second.
    """

    commit_id: str
    before: str
    operation: str
    user: str
    date_ms: int


class RefMoveList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[RefMove]
