"""What the catalog stores of a repository (docs/formats/repositories.md).

repositories / <id>             RepositoryRecord
deleted-repositories / <uid>    DeletedRecord: to be cleaned once more when no request of old can be under way
<uid>/deleted / <token>         of a deleted repository: each of its staging tokens, which may be too many for one value
<uid> / setting/<name>          BranchProtection, HiddenBranches, and what other parts keep there
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from lakebed.base import RepositoryUid
from lakebed.versions import Record

DELETED_REPOSITORIES: Final = b"deleted-repositories"
MARKER_KEY: Final = "_lakefs/dummy"
"""Marks a namespace as in use, for ever: objects outlive their repository, and no collector takes them then."""


class RepositoryState(StrEnum):
    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


class RepositoryRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`storage_namespace` as the user wrote it, `namespace_uri` as the driver does: without a slash at its end.

    `marker` is what the namespace's marker object holds. It is the uid of whoever put it there: this repository, or an
    attempt to create it that died and was taken over.
    """

    uid: RepositoryUid
    marker: str
    state: RepositoryState
    storage_namespace: str
    namespace_uri: str
    default_branch: str
    created_ms: int
    read_only: bool = False
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class DeletedRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Its tokens are the keys of `deleted_partition`, which is emptied before this goes."""

    deleted_ms: int


def deleted_partition(uid: RepositoryUid) -> bytes:
    """Keys are the staging tokens of a deleted repository, values are empty."""
    return f"{uid}/deleted".encode()


class BranchProtection(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Glob patterns of branch names."""

    patterns: tuple[str, ...] = ()


class HiddenBranch(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Leaves a branch out of listings that do not ask for hidden ones."""

    created_ms: int
