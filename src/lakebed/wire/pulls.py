"""Pull requests."""

from __future__ import annotations

import msgspec

from .common import Pagination


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


class PullRequestsList(msgspec.Struct, frozen=True, kw_only=True):
    pagination: Pagination
    results: list[PullRequest]


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
