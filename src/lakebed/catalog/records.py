"""The records of repositories in the catalog (docs/formats/repositories.md).

repositories / <id>             RepositoryRecord
deleted-repositories / <uid>    DeletedRecord, from a repository's first deletion until it is forgotten, or
                                until its namespace is used again
namespaces / <place>/ NUL <uid> empty; the index of namespaces (places.py)
<uid>/deleted / <token>         the staging tokens of a repository being forgotten: too many for one value
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
"""Marks a namespace as permanently used. A repository in a namespace that is free again takes the marker over."""


class RepositoryState(StrEnum):
    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"
    RESTORING = "restoring"


class RepositoryRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A repository.

    `storage_namespace` has the user's spelling. `namespace_uri` has the driver's, without a slash at its end.
    `marker` is the content of the namespace's marker object: the uid of this repository, or of an earlier attempt to
    create it that died and was taken over. It may also be the uid of a repository that used the namespace before. Then
    this one is
    `salted`: no file of its trees has a name that the earlier one used. `protected` and the patterns
    `protected_branches` prevent deletion. While it is deleting or restoring, `attempt` is unique, so that no such
    record ever repeats. A record that is salted and creating has `owns_marker` once its maker saw that no other
    repository uses the namespace. Before that it is only a wish, and another repository may get the marker.
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
    """The namespace in a repository's record, decoded at a quarter of the cost of the whole record."""

    uid: RepositoryUid
    namespace_uri: str


class HoldName(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class HoldNamesRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The names of a repository's legal holds, decoded from their record (docs/formats/records.md)."""

    holds: tuple[HoldName, ...] = ()


class DeletedState(StrEnum):
    """The state of a deleted repository. From `collecting` and `purging` on it cannot be restored.

    `collected`: every object that is ours by record was deleted. `gone`: its records were removed too, and its
    namespace may be used again.
    """

    KEPT = "kept"
    RESTORING = "restoring"
    RESTORED = "restored"
    COLLECTING = "collecting"
    COLLECTED = "collected"
    PURGING = "purging"
    GONE = "gone"


class DeletedRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A deleted repository. `repository` is its record from when it was active.

    `move` is unique for each write. `restored_by` is the `attempt` of the record that may become active. While it is
    purging, the keys of `deleted_partition` are its tokens. That partition is emptied first. `purged_ms` is when a
    token was last added.

    `run` is the collection that last searched other repositories for names of its objects, and `named` is their
    number.
    `collected_ms` is when no object was left.
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
        """Return whether users see it. Restored repositories and failed attempts to create one are not shown."""
        return self.repository is not None and self.state is not DeletedState.RESTORED

    @property
    def state_shown(self) -> str:
        """Return the state for users. Of repositories that are purging, only a collected one becomes `gone` later."""
        is_forgotten = self.state is DeletedState.PURGING and not self.collected_ms
        return "forgotten" if is_forgotten else self.state.value


def deleted_partition(uid: RepositoryUid) -> bytes:
    """Return the partition whose keys are the staging tokens of a deleted repository. Its values are empty."""
    return f"{uid}/deleted".encode()


class BranchProtection(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Glob patterns of the branch names to protect."""

    patterns: tuple[str, ...] = ()


class HiddenBranch(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A branch that listings omit unless they request hidden branches.

    `work_of` names the flow that made the branch for its own work. Without it a user hid the branch.
    """

    created_ms: int
    work_of: str = ""
