"""Repositories and their settings."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from .common import LIST_MAX, Given, Metadata, Paged

__all__ = [
    "BranchProtectionRule",
    "RefsDump",
    "RefsRestore",
    "Repository",
    "RepositoryCreation",
    "RepositoryDumpStatus",
    "RepositoryList",
    "RepositoryMetadataKeys",
    "RepositoryMetadataSet",
    "RepositoryRestoreStatus",
    "TaskInfo",
]

RepositoryName = Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{2,62}$")]
PATTERN_MAX: Final = 256
"""In characters, as in retention rules. Every write matches its branch against every pattern."""
Patterns: TypeAlias = Annotated[
    list[Annotated[str, msgspec.Meta(max_length=PATTERN_MAX)]], msgspec.Meta(max_length=LIST_MAX)
]
NamespaceUri = Annotated[str, msgspec.Meta(pattern="^(s3|gs|https?|mem|local|transient)://.*$")]


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    creation_date: int
    default_branch: str
    id: str
    read_only: bool
    storage_id: str = ""
    storage_namespace: str


class RepositoryList(Paged[Repository], frozen=True, kw_only=True): ...


class RepositoryCreation(msgspec.Struct, frozen=True, kw_only=True):
    name: RepositoryName
    storage_namespace: NamespaceUri
    storage_id: str | None = None
    default_branch: str | None = None
    sample_data: bool | None = False
    read_only: bool | None = False


class RefsDump(msgspec.Struct, frozen=True, kw_only=True):
    """The three files of a dump. The contract calls them metaranges; here they are files in Lakebed's own format."""

    commits_meta_range_id: str
    tags_meta_range_id: str
    branches_meta_range_id: str


class RefsRestore(msgspec.Struct, frozen=True, kw_only=True):
    commits_meta_range_id: Given
    tags_meta_range_id: Given
    branches_meta_range_id: Given
    force: bool | None = False
    check_objects: bool = False


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class RepositoryDumpStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    done: bool
    update_time: str
    error: str = ""
    refs: RefsDump | None = None


class RepositoryRestoreStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    done: bool
    update_time: str
    error: str = ""


class RepositoryMetadataSet(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Metadata


class RepositoryMetadataKeys(msgspec.Struct, frozen=True, kw_only=True):
    keys: Annotated[list[str], msgspec.Meta(max_length=LIST_MAX)]


class BranchProtectionRule(msgspec.Struct, frozen=True, kw_only=True):
    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=PATTERN_MAX)]
