"""An erasure as it travels: what is asked for, and the staged entries that it takes away (docs/guide/erasure.md)."""

from __future__ import annotations

from typing import Final

import msgspec

from lakebed.gc.rules import Selection

UNSTAGED_AT_ONCE: Final = 500


class StagedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is staged on a branch. `is_sealed`: a commit may be taking it, so it cannot be taken away now.

    Of an object that waits in the queue of hard delete there is no branch and no checksum any more.
    """

    branch: str
    path: str
    address: str
    size_bytes: int
    checksum: str
    modified_ms: int
    is_sealed: bool = False


class ErasureOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Erase every object that an entry selected by `selection` ever named. `takes_shared`: also those that entries
    name which are not selected. `staged` are the staged entries that go with the objects.
    """

    selection: Selection
    why: str = ""
    takes_shared: bool = False
    staged: tuple[StagedEntry, ...] = ()


class FindStaged(msgspec.Struct, frozen=True, kw_only=True):
    """`in_queue`: find what waits in the queue of hard delete instead, by its path alone."""

    selection: Selection
    in_queue: bool = False
    continuation_token: str | None = None


class StagedPage(msgspec.Struct, frozen=True, kw_only=True):
    entries: tuple[StagedEntry, ...]
    continuation_token: str | None = None


class Unstage(msgspec.Struct, frozen=True, kw_only=True):
    """Delete these entries, at most 500, where they still are what is staged."""

    entries: tuple[StagedEntry, ...]


class Unstaged(msgspec.Struct, frozen=True, kw_only=True):
    count: int
