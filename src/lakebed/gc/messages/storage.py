"""Storage of a repository by what keeps it, as far as runs and lists of ranges have recorded it."""

from __future__ import annotations

import enum

import msgspec

from lakebed.base import RunKind

from .run.plans import Total


class Keeper(enum.StrEnum):
    """Say what keeps a part of the storage.

    `head`: the head of the default branch names it. `waiting`: a plan takes it, and waits to be applied. `deferred`: a
    run took it, and it can be restored until its window is over. `branches`, `tags`, `history`: the heads of other
    branches name it, tags, or other commits, and none of those before.
    """

    HEAD = "head"
    WAITING = "waiting"
    DEFERRED = "deferred"
    BRANCHES = "branches"
    TAGS = "tags"
    HISTORY = "history"


class StoragePart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`as_of_ms`: when it was counted. `run_id` and `kind`: the run that counted it; `until_ms` ends its window."""

    keeper: Keeper
    total: Total
    as_of_ms: int
    run_id: str = ""
    kind: RunKind | None = None
    until_ms: int | None = None


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the storage, each counted at its own time. No object was listed for this answer.

    `listed` is all that the newest clean run of uncommitted data listed in closed slices. `rest` is `listed` less the
    parts: history, other branches, tags, holds, uncommitted objects, and objects that no record explains. Both are
    None where no run listed. `branches`, `tags` and `history` are upper bounds, counted where they were asked for;
    `history` is without what waits. `uncounted` are those of them whose trees are too many. A head counts a path
    twice whose object has two paths, and objects that lie elsewhere.
    """

    listed: Total | None
    listed_by: str
    listed_ms: int
    parts: tuple[StoragePart, ...]
    rest: Total | None
    uncounted: tuple[Keeper, ...] = ()
