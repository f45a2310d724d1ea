"""Retention rules, the contract's requests to prepare a garbage collection, and hard delete of replaced objects.

The messages of Lakebed's own collectors are in `lakebed.gc.messages`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from .common import LIST_MAX, Error

__all__ = [
    "GarbageCollectionConfig",
    "GarbageCollectionPrepareResponse",
    "GarbageCollectionRule",
    "GarbageCollectionRules",
    "HardDeleteStatus",
    "HardDeleted",
    "HardDeletedList",
    "PrepareGCUncommittedRequest",
    "PrepareGCUncommittedResponse",
    "PrepareGarbageCollectionCommitsStatus",
    "SetHardDelete",
]


class GarbageCollectionRule(msgspec.Struct, frozen=True, kw_only=True):
    branch_id: str
    retention_days: int


class GarbageCollectionRules(msgspec.Struct, frozen=True, kw_only=True):
    default_retention_days: int
    branches: Annotated[list[GarbageCollectionRule], msgspec.Meta(max_length=LIST_MAX)]


class GarbageCollectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`grace_period` is in seconds."""

    grace_period: int


class GarbageCollectionPrepareResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    run_id: str
    gc_commits_location: str
    gc_addresses_location: str
    gc_commits_presigned_url: str = ""


class PrepareGarbageCollectionCommitsStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    task_id: str
    completed: bool
    update_time: str
    result: GarbageCollectionPrepareResponse | None = None
    error: Error | None = None


class PrepareGCUncommittedRequest(msgspec.Struct, frozen=True, kw_only=True):
    continuation_token: str | None = None


class PrepareGCUncommittedResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    run_id: str
    gc_uncommitted_location: str
    continuation_token: str = ""


GRACE_S_MAX: Final = 10 * 366 * 24 * 3600


class SetHardDelete(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the settings of hard delete. A setting that is absent is kept."""

    is_on: bool | None = None
    is_paused: bool | None = None
    # The grace for readers; -1 restores that of the object store.
    grace_s: Annotated[int, msgspec.Meta(ge=-1, le=GRACE_S_MAX)] | None = None


class HardDeleteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The setting and the queue of hard delete: waiting objects by the operation that released them, and failures by
    error.

    `is_complete` is false if more objects wait than were counted. `oldest_ms` is 0 if no object waits.
    """

    is_on: bool
    is_paused: bool
    grace_s: int
    changed_ms: int = 0
    changed_by: str = ""
    queued: int = 0
    queued_bytes: int = 0
    oldest_ms: int = 0
    by: dict[str, int] = {}
    failed: dict[str, int] = {}
    is_complete: bool = True


class HardDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """One object that waits until `due_ms`, or was deleted. `error` is that of the last attempt."""

    address: str
    path: str
    reason: str
    size_bytes: int
    since_ms: int
    due_ms: int = 0
    deleted_ms: int = 0
    error: str = ""


class HardDeletedList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of objects. With `is_paused`, no object is deleted until the worker is resumed."""

    results: list[HardDeleted]
    is_paused: bool = False
