"""Declare an erasure request and the staged entries that it deletes (docs/guide/erasure.md)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lakebed.gc.rules import Selection

from .run.tables import Manifest

__all__ = [
    "COPIES_ROWS_MAX",
    "STANDING_MAX",
    "ErasureOrder",
    "FindStaged",
    "InBranch",
    "Outlook",
    "StagedEntry",
    "StagedPage",
    "Standing",
    "Unstage",
    "Unstaged",
]

UNSTAGED_AT_ONCE: Final = 500
STANDING_MAX: Final = 1_000
"""Name at most this many remaining objects of a plan, or copies of a certificate. Count all."""
COPIES_ROWS_MAX: Final = 5_000_000
"""The rows up to which a plan looks for copies unasked. The search reads every checksum."""


class StagedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry staged on a branch, a part of an upload (`multipart_id`), or an object in the queue of hard delete."""

    branch: str
    path: str
    address: str
    size_bytes: int
    checksum: str
    modified_ms: int
    # A commit may be taking the entry, so it cannot be deleted now. A part has no checksum. An object in the queue has
    # neither branch nor checksum.
    is_sealed: bool = False
    multipart_id: str = ""
    # The address from which a restore copied the object.
    source: str = ""

    @property
    def where(self) -> str:
        """Describe the entry's location, for people."""
        return f"is {'being uploaded in parts to' if self.multipart_id else 'staged on'} branch {self.branch}"


class ErasureOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Erase every object that an entry selected by `selection` ever named."""

    selection: Selection
    why: str = ""
    # Erase the objects that entries outside the selection name, too.
    takes_shared: bool = False
    # Look for copies of the content at other paths, whatever the number of rows to read. `checksums`, by address:
    # checksums of objects without a recorded entry; the plan reads their bytes.
    finds_copies: bool = False
    # The staged entries to delete with the objects.
    staged: tuple[StagedEntry, ...] = ()
    checksums: dict[str, str] = {}


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Erased content that can still be read, or may be. `what`: object, copy, staged, queued, deferred, garbage,
    unlisted (bytes that no collection lists) or bucket.
    """

    what: str
    where: str
    why: str


class InBranch(msgspec.Struct, frozen=True, kw_only=True):
    """Count the objects of an erasure that a branch names: its head, or what is staged on it. Empty: of no branch."""

    branch: str
    objects: int
    size_bytes: int


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The content that an erasure would leave, at the time of the plan. The certificate has the final list.

    `stands_count` counts all of `stands`, which has at most `STANDING_MAX` items.
    """

    stands: tuple[Standing, ...] = ()
    stands_count: int = 0
    # Paths, globs and digests of the order that match no object.
    unmatched: tuple[str, ...] = ()
    # The places that were not searched.
    remains: tuple[str, ...] = ()
    # The largest branches, then the objects that only commits or tags name; an object may be in several branches.
    # None: not counted, because the heads have too many trees.
    by_branch: tuple[InBranch, ...] | None = None


class FindStaged(msgspec.Struct, frozen=True, kw_only=True):
    """Find staged entries, or with `in_queue` the objects in hard delete's queue, by path only."""

    selection: Selection
    in_queue: bool = False
    # Find also entries whose metadata says that a restore copied the object.
    or_restored: bool = False
    # Find also entries that name one of these objects, at most STANDING_MAX.
    addresses: Annotated[tuple[str, ...], msgspec.Meta(max_length=STANDING_MAX)] = ()
    # Write the objects of all other entries into the run's folder, as a table `uncommitted`.
    with_others: bool = False
    continuation_token: str | None = None


class StagedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of branches and their cells. The last page has no token, and has the manifest of `with_others`."""

    entries: tuple[StagedEntry, ...]
    continuation_token: str | None = None
    others: Manifest | None = None


class Unstage(msgspec.Struct, frozen=True, kw_only=True):
    """Delete these entries, at most 500, if their cells are unchanged. Abort uploads in parts."""

    entries: Annotated[tuple[StagedEntry, ...], msgspec.Meta(max_length=UNSTAGED_AT_ONCE)]
    # The repository in which the entries were found. A repository with another uid refuses the request.
    uid: str = ""


class Unstaged(msgspec.Struct, frozen=True, kw_only=True):
    count: int
