"""Name the key of each record of a repository in the key-value store (docs/formats/records.md).

A repository has a partition, named by its uid. So has each staging token, because a token may hold as many cells as the
repository has objects. So has each collection run, for the commits that it expires: these may be as many. One more is
for ids that collections of metadata retired, and one for objects that wait to be deleted at once.
"""

from __future__ import annotations

from typing import Final

from lakebed.base import RepositoryUid, RunId, StagingToken

REPOSITORIES: Final = b"repositories"

BRANCH: Final = b"branch/"
TAG: Final = b"tag/"
COMMIT: Final = b"commit/"
SETTING: Final = b"setting/"
LIFECYCLE: Final = SETTING + b"lifecycle"
"""The lifecycle policy. A policy that is removed leaves its record, so without one no lifecycle run ever deleted."""
LEGAL_HOLDS: Final = SETTING + b"legal_holds"
HARD_DELETE: Final = SETTING + b"hard_delete"
DELETING: Final = b"deleting/"
"""Pages of the queue of hard delete that a worker is about to delete."""
QUEUE_PAGE: Final = b"queue_page"
"""The number of the page that the workers of that queue delete and record next."""
ERASED: Final = SETTING + b"erased"
"""The latest erasure. Without it none ever deleted."""
CLAIM: Final = b"claim/"
SLICE: Final = b"slice/"
UPLOAD: Final = b"upload/"
COPY: Final = b"copy/"
MULTIPART: Final = b"multipart/"
PART: Final = b"part/"
INTENT: Final = b"intent/"
PULL: Final = b"pull/"
RUN: Final = b"run/"
PLANNED: Final = b"planned/"
"""The user who made the plan of a run, and the digest of that plan."""
SWEPT: Final = b"swept/"
REFLOG: Final = b"reflog/"
TAG_REFLOG: Final = b"reflog-tag/"
DELETED: Final = b"deleted/"


def repository_partition(uid: RepositoryUid) -> bytes:
    return uid.encode()


def token_partition(uid: RepositoryUid, token: StagingToken) -> bytes:
    return f"{uid}/{token}".encode()


def expiring_partition(uid: RepositoryUid, run: RunId) -> bytes:
    """Keys are the ids of the commits that this run expires, values are empty."""
    return f"{uid}/run-{run}".encode()


def retired_partition(uid: RepositoryUid) -> bytes:
    """Keys are the ids of range and metarange files, and `run-<id>` of collection runs; the value is the run that gave
    it up. Nothing is ever taken out: the same bytes may be written again only under another id."""
    return f"{uid}/retired".encode()


def taken_partition(uid: RepositoryUid) -> bytes:
    """Name the partition of objects that lifecycle runs took although commits name them (taken.py). No record is ever
    deleted.
    """
    return f"{uid}/taken".encode()


def taking_run(run: str) -> bytes:
    return f"run-{run}".encode()


def garbage_partition(uid: RepositoryUid) -> bytes:
    """Keys are the time and address of objects that may be deleted at once (hard_delete.py)."""
    return f"{uid}/garbage".encode()


def events_partition(uid: RepositoryUid) -> bytes:
    """Name the partition of events and of those who subscribed to them (commits/outbox.py)."""
    return f"{uid}/events".encode()


def retired_run(run: RunId) -> bytes:
    return f"run-{run}".encode()


def deleted_ref(kind: str, name: str, deleted_ms: int, operation: str) -> bytes:
    """Return the key of a deletion. Those of one name follow one another, the newest first."""
    return deleted_refs(kind, name) + f"{10**15 - 1 - deleted_ms:015d}-{operation}".encode()


def deleted_refs(kind: str, name: str = "") -> bytes:
    """Return the prefix of all deletions of branches or tags, or of one name: of others too, where it has slashes."""
    return DELETED + kind.encode() + b"/" + (name.encode() + b"/" if name else b"")
