"""An erasure as it travels: what is asked for, and the staged entries that it takes away (docs/guide/erasure.md)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lakebed.gc.rules import Selection

from .run.tables import Manifest

UNSTAGED_AT_ONCE: Final = 500
STANDING_MAX: Final = 1_000
"""Name at most this many objects that a plan leaves, or copies of a certificate. The others are counted."""
COPIES_ROWS_MAX: Final = 5_000_000
"""A plan looks for copies by itself in at most this many rows: every checksum is read for that."""


class StagedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is staged on a branch. `is_sealed`: a commit may be taking it, so it cannot be taken away now.

    Or, with `multipart_id`, a part of an upload that was begun: it has no checksum. Of an object that waits in the
    queue of hard delete there is neither a branch nor a checksum any more. `source` is the address from which a restore
    copied the object.
    """

    branch: str
    path: str
    address: str
    size_bytes: int
    checksum: str
    modified_ms: int
    is_sealed: bool = False
    multipart_id: str = ""
    source: str = ""

    @property
    def where(self) -> str:
        """Return where it is, for people."""
        return f"is {'being uploaded in parts to' if self.multipart_id else 'staged on'} branch {self.branch}"


class ErasureOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Erase every object that an entry selected by `selection` ever named. `takes_shared`: also those that entries
    name which are not selected. `staged` are the staged entries that go with the objects. `finds_copies`: the plan
    looks for copies of the content at other paths, however many rows have to be read. `checksums`, by address, are of
    those objects that no entry on record has: the plan reads their bytes.
    """

    selection: Selection
    why: str = ""
    takes_shared: bool = False
    finds_copies: bool = False
    staged: tuple[StagedEntry, ...] = ()
    checksums: dict[str, str] = {}


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something of the erased content can still be read, or may be: `what` is object, copy, staged, queued,
    deferred, garbage, unlisted (bytes that no collection lists) or bucket."""

    what: str
    where: str
    why: str


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """List what an erasure would leave, as things were when it was planned. A certificate says what it left.

    `stands_count` counts what stands, of which at most `STANDING_MAX` are named. `unmatched` are the paths, globs and
    digests of the order at which nothing was found. `remains` is what was not looked at.
    """

    stands: tuple[Standing, ...] = ()
    stands_count: int = 0
    unmatched: tuple[str, ...] = ()
    remains: tuple[str, ...] = ()


class FindStaged(msgspec.Struct, frozen=True, kw_only=True):
    """`in_queue`: find what waits in the queue of hard delete instead, by its path alone.

    Two options widen the selection. `or_restored`: find each entry, too, whose metadata says that a restore copied it.
    `addresses`, at most STANDING_MAX: find each entry, too, that names one of these objects.

    `with_others`: write the objects that all other entries name into the run's folder, as a table `uncommitted`.
    """

    selection: Selection
    in_queue: bool = False
    or_restored: bool = False
    addresses: Annotated[tuple[str, ...], msgspec.Meta(max_length=STANDING_MAX)] = ()
    with_others: bool = False
    continuation_token: str | None = None


class StagedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of branches and their cells. The last page has no token, and the manifest of `with_others`."""

    entries: tuple[StagedEntry, ...]
    continuation_token: str | None = None
    others: Manifest | None = None


class Unstage(msgspec.Struct, frozen=True, kw_only=True):
    """Delete these entries, at most 500, where they still are what is staged. Uploads in parts are given up.

    `uid` is that of the repository in which they were found; another one refuses.
    """

    entries: Annotated[tuple[StagedEntry, ...], msgspec.Meta(max_length=UNSTAGED_AT_ONCE)]
    uid: str = ""


class Unstaged(msgspec.Struct, frozen=True, kw_only=True):
    count: int
