"""Identifiers, each a type of its own so that mypy keeps them apart. All are plain strings at run time."""

from __future__ import annotations

from typing import NewType

RepositoryId = NewType("RepositoryId", str)
"""Name a repository as users do: `[a-z0-9][a-z0-9-]{2,62}`."""

RepositoryUid = NewType("RepositoryUid", str)
"""Name the KV partitions of a repository. A repository deleted and made again under its old id gets a new one."""

BranchName = NewType("BranchName", str)
TagName = NewType("TagName", str)

CommitId = NewType("CommitId", str)
"""64 lower-case hex digits: SHA-256 of the canonical commit record (docs/formats/commit.md)."""

StagingToken = NewType("StagingToken", str)
"""Names the KV partition `<uid>/<token>` that holds one staging area's cells. Never used twice."""

RangeId = NewType("RangeId", str)
SublistId = NewType("SublistId", str)
MetarangeId = NewType("MetarangeId", str)
"""64 lower-case hex digits over logical content; `EMPTY_METARANGE` (the empty string) is the tree without entries."""

EMPTY_METARANGE = MetarangeId("")

RunId = NewType("RunId", str)
"""A collection run. Sorts by the time it began."""
