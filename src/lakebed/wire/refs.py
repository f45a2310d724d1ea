"""Branches, tags, commits, differences, merges, pull requests. Dates are Unix seconds."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from .common import LIST_MAX, Error, Expired, Given, Metadata, Paged

__all__ = [
    "AheadCount",
    "BranchCreation",
    "CherryPickCreation",
    "Commit",
    "CommitCreation",
    "CommitList",
    "CommitOverrides",
    "CommitRecordCreation",
    "Diff",
    "DiffList",
    "DiffObjectStat",
    "ExpiredCount",
    "FindMergeBaseResult",
    "ImportCreation",
    "ImportCreationResponse",
    "ImportLocation",
    "ImportStatus",
    "Merge",
    "MergeResult",
    "PullRequest",
    "PullRequestBasic",
    "PullRequestCreation",
    "PullRequestCreationResponse",
    "PullRequestsList",
    "Ref",
    "RefList",
    "ResetCreation",
    "RevertCreation",
    "TagCreation",
]

GENERATION_MAX: Final = 2**31 - 1
PARENTS_MAX: Final = 64


class Ref(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A branch or a tag, and the commit it names.


    On request, a branch has its commit's date (Unix seconds), committer and message, and whether it has uncommitted
    changes. The latter is absent if it cannot be read.
    """

    commit_id: str
    id: str
    # The end of the branch's lifetime, as its maker set it.
    expiration_date: int | None = None
    commit_date: int | None = None
    commit_committer: str | None = None
    commit_message: str | None = None
    has_uncommitted: bool | None = None


class RefList(Paged[Ref], frozen=True, kw_only=True): ...


class BranchCreation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for a branch. `ttl` is a duration (`7d`): after it, a sweep of branches may delete the branch."""

    name: str
    source: Given
    force: bool | None = False
    hidden: bool | None = False
    ttl: str | None = None


class TagCreation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    ref: Given
    force: bool | None = False


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    committer: str
    creation_date: int
    generation: int
    id: str
    message: str
    meta_range_id: str
    metadata: dict[str, str]
    parents: list[str]
    version: int = 1


class CommitList(Paged[Commit], frozen=True, kw_only=True): ...


class CommitCreation(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    metadata: Metadata | None = None
    date: int | None = None
    allow_empty: bool | None = False
    force: bool | None = False


class CommitOverrides(msgspec.Struct, frozen=True, kw_only=True):
    message: str | None = None
    metadata: Metadata | None = None


class ResetCreation(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["object", "common_prefix", "reset"]
    path: str | None = None
    force: bool | None = False


class RevertCreation(msgspec.Struct, frozen=True, kw_only=True):
    ref: Given
    parent_number: int
    commit_overrides: CommitOverrides | None = None
    force: bool | None = False
    allow_empty: bool | None = False
    refuse_expired: bool | None = False


class CherryPickCreation(msgspec.Struct, frozen=True, kw_only=True):
    ref: Given
    parent_number: int | None = None
    commit_overrides: CommitOverrides | None = None
    force: bool | None = False
    refuse_expired: bool | None = False


class Merge(msgspec.Struct, frozen=True, kw_only=True):
    """A request to merge. `choices`: the side that wins at a path that both changed, whatever `strategy` is. It counts
    only there. `tables`: with "append", a table to which both sides only appended gets the rows of both.
    """

    message: str | None = None
    metadata: Metadata | None = None
    tables: str | None = None
    strategy: str | None = None
    choices: Annotated[dict[str, Literal["source-wins", "dest-wins"]], msgspec.Meta(max_length=LIST_MAX)] | None = None
    force: bool | None = False
    allow_empty: bool | None = False
    squash_merge: bool | None = False
    refuse_expired: bool | None = False


class CommitRecordCreation(msgspec.Struct, frozen=True, kw_only=True):
    """A request to record a commit. `creation_date` is in seconds.

    `commit_id` is that of the other fields, by docs/formats/commit.md.

    `parents` are distinct, and at most 64.
    """

    commit_id: Given
    version: Annotated[int, msgspec.Meta(ge=0, le=1)]
    committer: str
    message: str
    metarange_id: str
    creation_date: int
    parents: Annotated[list[str], msgspec.Meta(max_length=PARENTS_MAX)]
    metadata: Metadata | None = None
    generation: Annotated[int, msgspec.Meta(ge=1, le=GENERATION_MAX)]
    force: bool | None = False


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    reference: str


class ExpiredCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of objects on the right side, and not on the left, that lifecycle runs deleted."""

    objects: int


class AheadCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of commits that only the left reaches (`ahead`), and that only the right reaches (`behind`).

    `is_complete` is false if the histories are too far apart to count all commits: then both are lower bounds.
    """

    ahead: int
    behind: int
    is_complete: bool


class FindMergeBaseResult(msgspec.Struct, frozen=True, kw_only=True):
    base_commit_id: str
    destination_commit_id: str
    source_commit_id: str


class DiffObjectStat(msgspec.Struct, frozen=True, kw_only=True):
    checksum: str
    content_type: str
    metadata: dict[str, str]
    mtime: int


class Diff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    path_type: str
    size_bytes: int | None = None
    type: str
    right: DiffObjectStat | None = None
    expired: Expired | None = None


class DiffList(Paged[Diff], frozen=True, kw_only=True): ...


class ImportLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A source of an import. `type` is common_prefix, a folder with everything below it, or object."""

    type: str
    path: str
    destination: str


class ImportCreation(msgspec.Struct, frozen=True, kw_only=True):
    paths: list[ImportLocation]
    commit: CommitCreation
    force: bool | None = False


class ImportCreationResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class ImportStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of an import. `error` is set if it completed without a commit. `update_time` is in RFC 3339.

    `left_out` names the first objects that cannot be imported, since their names are no valid keys.
    """

    completed: bool
    update_time: str
    # Sent even as 0: with a factory, msgspec omits only empty lists and the like.
    ingested_objects: int = msgspec.field(default_factory=int)
    left_out_objects: int = 0
    left_out: tuple[str, ...] = ()
    metarange_id: str | None = None
    commit: Commit | None = None
    error: Error | None = None


class PullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to merge. `status` is open, closed or merged; times are in RFC 3339."""

    id: str
    status: str
    title: str
    description: str
    creation_date: str
    author: str
    source_branch: str
    destination_branch: str
    merged_commit_id: str | msgspec.UnsetType = msgspec.UNSET
    closed_date: str | msgspec.UnsetType = msgspec.UNSET


class PullRequestsList(Paged[PullRequest], frozen=True, kw_only=True): ...


class PullRequestCreation(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    source_branch: str
    destination_branch: str
    description: str | None = None


class PullRequestCreationResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str


class PullRequestBasic(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a pull request. An absent field is kept."""

    status: str | None = None
    title: str | None = None
    description: str | None = None
