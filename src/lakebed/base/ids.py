"""Identifiers, each a type of its own so that mypy keeps them apart. All are plain strings at run time."""

from __future__ import annotations

from typing import NewType

__all__ = [
    "EMPTY_METARANGE",
    "BranchName",
    "CommitId",
    "MetarangeId",
    "RangeId",
    "RepositoryId",
    "RepositoryUid",
    "RunId",
    "StagingToken",
    "SublistId",
    "TagName",
]

RepositoryId = NewType("RepositoryId", str)
"""The name of a repository for users: `[a-z0-9][a-z0-9-]{2,62}`."""

RepositoryUid = NewType("RepositoryUid", str)
"""The name of a repository in KV partitions. A repository that is made again under a deleted id gets a new one."""

BranchName = NewType("BranchName", str)
TagName = NewType("TagName", str)

CommitId = NewType("CommitId", str)
"""64 lower-case hex digits: SHA-256 of the canonical commit record (docs/formats/commit.md)."""

StagingToken = NewType("StagingToken", str)
"""The name of the KV partition `<uid>/<token>` with the cells of one staging area. Never used twice."""

RangeId = NewType("RangeId", str)
SublistId = NewType("SublistId", str)
MetarangeId = NewType("MetarangeId", str)
"""64 lower-case hex digits over logical content; `EMPTY_METARANGE` (the empty string) is the tree without entries."""

EMPTY_METARANGE = MetarangeId("")

RunId = NewType("RunId", str)
"""A collection run. Sorts by the time of its start."""
