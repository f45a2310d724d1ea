"""Retention rules, and the contract's requests to prepare a garbage collection.

The messages of Lakebed's own collectors are in `lakebed.gc.messages`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from .common import LIST_MAX, Error

__all__ = [
    "GarbageCollectionConfig",
    "GarbageCollectionPrepareResponse",
    "GarbageCollectionRule",
    "GarbageCollectionRules",
    "PrepareGCUncommittedRequest",
    "PrepareGCUncommittedResponse",
    "PrepareGarbageCollectionCommitsStatus",
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
