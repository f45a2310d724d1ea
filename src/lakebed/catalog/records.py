"""The records that the catalog stores of a repository (docs/formats/repositories.md).

repositories / <id>             RepositoryRecord
deleted-repositories / <uid>    DeletedRecord: the upkeep cleans once more when no older request can be under way
<uid>/deleted / <token>         each staging token of a deleted repository; one value could not hold them all
<uid> / setting/<name>          BranchProtection, HiddenBranch, and settings of other parts
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from lakebed.base import RepositoryUid
from lakebed.versions import Record

DELETED_REPOSITORIES: Final = b"deleted-repositories"
MARKER_KEY: Final = "_lakefs/dummy"
"""Mark a namespace as in use, for ever: objects outlive their repository, and then no collector deletes them."""


class RepositoryState(StrEnum):
    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


class RepositoryRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Record a repository.

    `storage_namespace` is spelled as by the user, `namespace_uri` as by the driver, without a slash at its end.
    `marker` is the content of the namespace's marker object: the uid of this repository, or of an earlier attempt to
    create it that died and was taken over.
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
    """Record a deleted repository. Its tokens are the keys of `deleted_partition`, which is emptied first."""

    deleted_ms: int


def deleted_partition(uid: RepositoryUid) -> bytes:
    """Return the partition whose keys are the staging tokens of a deleted repository. Its values are empty."""
    return f"{uid}/deleted".encode()


class BranchProtection(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Hold glob patterns of the branch names to protect."""

    patterns: tuple[str, ...] = ()


class HiddenBranch(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Leave a branch out of listings that do not ask for hidden ones."""

    created_ms: int
