"""Declare a repository's storage by keeper, as recorded by runs and by lists of ranges."""

from __future__ import annotations

import enum

import msgspec

from lakebed.base import RunKind

from .run.plans import Total
from .why import WhyProgress

__all__ = ["Keeper", "Storage", "StoragePart"]


class Keeper(enum.StrEnum):
    """Name the reason that a part of the storage is kept.

    `head`: the head of the default branch names it. `waiting`: a plan takes it, and is not applied yet. `deferred`: a
    run took it, and it can be restored until the run's window is over. `branches`, `tags`, `history`: the heads of
    other branches, tags, or other commits name it, and no keeper before in this list does.
    """

    HEAD = "head"
    WAITING = "waiting"
    DEFERRED = "deferred"
    BRANCHES = "branches"
    TAGS = "tags"
    HISTORY = "history"


class StoragePart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`as_of_ms`: the time of the count. `run_id`, `kind`: the run that counted. `until_ms`: the end of its window."""

    keeper: Keeper
    total: Total
    as_of_ms: int
    run_id: str = ""
    kind: RunKind | None = None
    until_ms: int | None = None


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the storage, each counted at its own time. The server lists no objects for this answer."""

    # All objects in closed slices, by the newest clean run of uncommitted data.
    listed: Total | None
    listed_by: str
    listed_ms: int
    parts: tuple[StoragePart, ...]
    # `listed` less the parts: history, other branches, tags, holds, uncommitted objects, and objects that no record
    # explains. Both are None before such a run. `branches`, `tags` and `history` are upper bounds, counted on request;
    # `history` excludes `waiting` objects.
    rest: Total | None
    # The keepers with too many trees to count. A head's count includes an object once for each of its paths, and
    # objects outside the namespace.
    uncounted: tuple[Keeper, ...] = ()
    # Ask again with it: nothing else is here yet. `progress`: how far the search is.
    continuation_token: str | None = None
    progress: WhyProgress | None = None
