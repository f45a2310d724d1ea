"""The records that the catalog stores of a repository (docs/formats/repositories.md).

repositories / <id>             RepositoryRecord
deleted-repositories / <uid>    DeletedRecord, from a repository's first deletion until it is forgotten, or until its
                                namespace is used again
namespaces / <place>/ NUL <uid> empty; which namespaces are where (places.py)
<uid>/deleted / <token>         each staging token of one that is being forgotten; one value could not hold them all
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
"""Mark a namespace as in use, for ever. A repository over a namespace that is free again takes the mark over."""


class RepositoryState(StrEnum):
    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"
    RESTORING = "restoring"


class RepositoryRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Record a repository.

    `storage_namespace` is spelled as by the user, `namespace_uri` as by the driver, without a slash at its end.
    `marker` is the content of the namespace's marker object: the uid of this repository, or of an earlier attempt to
    create it that died and was taken over. It may also be the uid of one that used the namespace before. Then this one
    is `salted`: no file of its trees has the name that a file of the earlier one had. `protected` and
    `protected_branches`, which are patterns, cannot be deleted. While it is deleting or restoring, `attempt` is one of
    a kind, so that no such record is ever the same again. One that is salted and creating `owns_marker` once its maker
    saw that no other repository uses the namespace; before that it is only a wish, and the marker may come to be
    another's.
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
    protected: bool = False
    protected_branches: tuple[str, ...] = ()
    attempt: str = ""
    deleted_ms: int = 0
    deleted_by: str = ""
    salted: bool = False
    owns_marker: bool = False


class NamespaceRecord(Record, frozen=True, kw_only=True):
    """Read where a repository has its objects from its record, at a quarter of the cost of the whole."""

    uid: RepositoryUid
    namespace_uri: str


class HoldName(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class HoldNamesRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Read the names of a repository's legal holds from its record of them (docs/formats/records.md)."""

    holds: tuple[HoldName, ...] = ()


class DeletedState(StrEnum):
    """Say how a deleted repository stands: from `collecting` and `purging` on nothing comes back.

    `collected`: every object that is ours by record went. `gone`: its records went, too, and its namespace may be used
    again.
    """

    KEPT = "kept"
    RESTORING = "restoring"
    RESTORED = "restored"
    COLLECTING = "collecting"
    COLLECTED = "collected"
    PURGING = "purging"
    GONE = "gone"


class DeletedRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Record a deleted repository, as `repository` was when it was active.

    `move` is one of a kind for each write. `restored_by` is the `attempt` of the record that may become active. Of one
    that is purging, the tokens are the keys of `deleted_partition`, which is emptied first; `purged_ms` is when a token
    was last added.

    `run` is the collection that last looked for names of its objects in other repositories, and `named` counts those
    that it found. `collected_ms` is when nothing was left.
    """

    state: DeletedState = DeletedState.PURGING
    move: str = ""
    name: str = ""
    repository: RepositoryRecord | None = None
    deleted_ms: int = 0
    deleted_by: str = ""
    kept_until_ms: int = 0
    restoring_as: str = ""
    restored_by: str = ""
    purged_ms: int = 0
    run: str = ""
    named: int = 0
    collected_ms: int = 0

    @property
    def is_shown(self) -> bool:
        """Return whether users see it: not one that is in use again, nor an attempt to create one that failed."""
        return self.repository is not None and self.state is not DeletedState.RESTORED

    @property
    def state_shown(self) -> str:
        """Return the word for users: of two that are purging only the one that was collected is gone some day."""
        is_forgotten = self.state is DeletedState.PURGING and not self.collected_ms
        return "forgotten" if is_forgotten else self.state.value


def deleted_partition(uid: RepositoryUid) -> bytes:
    """Return the partition whose keys are the staging tokens of a deleted repository. Its values are empty."""
    return f"{uid}/deleted".encode()


class BranchProtection(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Hold glob patterns of the branch names to protect."""

    patterns: tuple[str, ...] = ()


class HiddenBranch(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Leave a branch out of listings that do not ask for hidden ones.

    `work_of` names the flow that made the branch for its own work. Without it a user hid the branch.
    """

    created_ms: int
    work_of: str = ""
